"""PyTorch, transformers and PEFT, float32: the check of numbers, generation, scoring, and a LoRA step.

usage: python transformers_peer.py JOB.json     (started by run.ts)
"""
import torch
import transformers
from common import device, job, say, seconds_of
from peft import LoraConfig, get_peft_model

transformers.utils.logging.disable_progress_bar()
where = device()
model = transformers.AutoModelForCausalLM.from_pretrained(job['model'], dtype=torch.float32).to(where)
model.eval()
# Nothing ends a sequence, so that both sides make the same number of tokens.
model.generation_config.eos_token_id = None
about = {'versions': {'torch': torch.__version__, 'transformers': transformers.__version__}, 'threads': torch.get_num_threads(), 'on': where}


def greedy(ids, tokens):
    """`tokens` new ids for each prompt of the same length, whatever they are (no end of sequence)."""
    batch = torch.tensor(ids, device=where)
    words = {'do_sample': False, 'max_new_tokens': tokens, 'pad_token_id': 0, 'use_cache': True}
    out = model.generate(input_ids=batch, attention_mask=torch.ones_like(batch), **words)
    return out[:, batch.shape[1] :].tolist()


def token_logprobs(ids):
    """Log-probability of every token but the first of each sequence."""
    batch = torch.tensor(ids, device=where)
    with torch.no_grad():
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        return torch.log_softmax(logits, -1).gather(2, batch[:, 1:, None])[:, :, 0]


def check():
    tokenizer = transformers.AutoTokenizer.from_pretrained(job['model'])
    prompts = []
    for text in job['prompts']:
        chat = [{'role': 'user', 'content': text}]
        prompts.append(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    answers = [greedy([ids], job['tokens'])[0] for ids in prompts]
    say('check', promptIds=prompts, answers=answers, logprobs=token_logprobs(job['sequences']).flatten().tolist(), **about)


def generate():
    for batch in job['batches']:
        ids = job['windows'][:batch]
        out = []
        greedy(ids, 4)
        seconds = seconds_of(lambda: out.append(greedy(ids, job['tokens'])), job['repeats'], warm_up=0)
        say(f'generate {batch}', value=batch * job['tokens'] / seconds, answers=out[-1], **about)


def score():
    ids = job['sequences']
    seconds = seconds_of(lambda: token_logprobs(ids), job['repeats'])
    say('score', value=sum(map(len, ids)) / seconds, **about)


def lora_step():
    modules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
    tuned = get_peft_model(model, LoraConfig(r=8, lora_alpha=32, target_modules=modules, task_type='CAUSAL_LM'))
    tuned.train()
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=1e-4, weight_decay=0)
    batch = torch.tensor(job['sequences'], device=where)
    losses = []

    def step():
        loss = tuned(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    seconds = seconds_of(step, job['repeats'])
    say('lora step', value=batch.numel() / seconds, losses=losses, **about)


{'check': check, 'generate': generate, 'score': score, 'lora step': lora_step}[job['work']]()
