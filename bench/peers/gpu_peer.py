"""What PyTorch does on the GPU of this machine with the shape that bench/gpu.ts measures: a LoRA step through PEFT and transformers' generate, Qwen3-0.6B's
sizes with random weights. Called by bench/gpu.ts (part `peers`) with the sizes as JSON; the last line that it prints is JSON.

It needs torch with CUDA, transformers and peft; nothing is downloaded. As in bench/gpu.ts: rank 8 on all linear layers, AdamW, gradients checkpointed, the loss over
every token, micro-batches; the best of the steps counts, and memory is what torch had allocated at most. TF32 is off, so float32 is float32.
"""
import json
import sys
import time

import peft
import torch
import transformers

size = json.loads(sys.argv[1])
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
device = "cuda"


def model_of(dtype):
    config = transformers.Qwen3Config(
        vocab_size=size["vocabSize"],
        hidden_size=size["hiddenSize"],
        intermediate_size=size["intermediateSize"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kvHeads"],
        head_dim=size["headDim"],
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    )
    with torch.device(device):
        return transformers.Qwen3ForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")


def lora_step(dtype):
    """Tokens a second and bytes of a step of `sequences` x `length` tokens in micro-batches."""
    model = model_of(dtype)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.config.use_cache = False
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    sequences, length, micro = size["sequences"], size["length"], size["microBatch"]
    ids = torch.randint(size["vocabSize"], (sequences, length), device=device)
    torch.cuda.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(size["steps"]):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(0, sequences, micro):
            part = ids[i : i + micro]
            (model(input_ids=part, labels=part).loss * len(part) / sequences).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    out = {"tokensPerSecond": sequences * length / best, "peakBytes": torch.cuda.max_memory_allocated()}
    del model, optimizer
    torch.cuda.empty_cache()
    return out


def generate(dtype):
    """New tokens a second of all sequences, prompts included."""
    model = model_of(dtype).eval()
    ids = torch.randint(size["vocabSize"], (size["decodeSequences"], size["promptTokens"]), device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=size["tokens"],
                min_new_tokens=size["tokens"],
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
    del model
    torch.cuda.empty_cache()
    return {"tokensPerSecond": size["decodeSequences"] * size["tokens"] / best}


out = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "peft": peft.__version__,
    "device": torch.cuda.get_device_name(),
}
for name, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
    out[name] = {"lora": lora_step(dtype), "generate": generate(dtype)}
print(json.dumps(out))
