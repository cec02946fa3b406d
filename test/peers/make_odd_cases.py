"""Makes cases like those of test/fixtures/golden, on models with sizes that those do not have, with PyTorch, transformers and PEFT.

usage: python test/peers/make_odd_cases.py OUT [NAME ...]     all cases, or the named ones, into OUT/NAME
       python test/peers/make_odd_cases.py --fixtures         the committed ones, into test/fixtures/odd
       python test/peers/make_odd_cases.py --golden           test/fixtures/golden-exact: LoRA expectations of the golden models again, with
                                                               float32 rotary frequencies (the golden ones were rounded to bf16)

A case is a folder: model/ (random weights), adapter/ (PEFT, unless the case has none), batch.json, case.json, expected.safetensors with
{full,lora}.{logprobs,entropy} and {full,lora}.{masked,clipped}.grad.NAME; see test/fixtures/golden/README.md. Everything is float32 on a
CPU, from fixed seeds. To be small, the committed ones have full.clipped alone of the gradients of all weights, and golden-exact lora.clipped.
"""
import json
import math
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GraniteConfig, GraniteMoeHybridConfig, Lfm2Config, LlamaConfig, MistralConfig, Olmo2Config, Olmo3Config,
                          Phi3Config, Qwen2Config, Qwen3Config, Qwen3_5TextConfig, SmolLM3Config)

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / 'fixtures'
ALL = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
CONFIGS = {'llama': LlamaConfig, 'mistral': MistralConfig, 'smollm3': SmolLM3Config, 'qwen2': Qwen2Config, 'qwen3': Qwen3Config,
           'gemma3_text': Gemma3TextConfig, 'qwen3_5_text': Qwen3_5TextConfig, 'olmo2': Olmo2Config, 'olmo3': Olmo3Config, 'lfm2': Lfm2Config,
           'granite': GraniteConfig, 'granitemoehybrid': GraniteMoeHybridConfig, 'phi3': Phi3Config}
# Families whose norms multiply with 1 + their weight.
FROM_ONE = ('gemma3_text', 'qwen3_5_text')
MIXED = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention']
DELTA = dict(layer_types=['linear_attention', 'full_attention', 'linear_attention'], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
             linear_value_head_dim=8, head_dim=16)
DELTA_TARGETS = ['q_proj', 'o_proj', 'in_proj_qkv', 'in_proj_z', 'in_proj_a', 'out_proj', 'down_proj']
# Convolutions around one layer of attention; the MLP has 72 channels.
SHORT = dict(full_attn_idxs=[1], block_multiple_of=24, norm_eps=3e-5)
SHORT_TARGETS = ['q_proj', 'v_proj', 'in_proj', 'out_proj', 'w1', 'w2']
LFM2_KEYS = ('norm_eps', 'full_attn_idxs', 'conv_L_cache', 'block_multiple_of', 'block_auto_adjust_ff_dim', 'block_ffn_dim_multiplier')
# None of them is a number of bf16, or a power of two.
GRANITE = dict(embedding_multiplier=7.3, attention_multiplier=0.31, residual_multiplier=0.27, logits_scaling=1.7)
# Attention in every layer, and no experts.
GRANITE4 = dict(**GRANITE, num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=4)
GRANITE4_TARGETS = ['q_proj', 'o_proj', 'input_linear', 'output_linear']
PHI3_TARGETS = ['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj']


def longrope(pairs, **more):
    # Odd factors, different ones for long texts; no text of a case is so long.
    short, long = [1 + 0.07 * i for i in range(pairs)], [1.5 + i for i in range(pairs)]
    return {'rope_type': 'longrope', 'short_factor': short, 'long_factor': long, **more}


LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 32}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'beta_fast': 4.0, 'original_max_position_embeddings': 128}


def case(family, hidden, inter, layers, heads, kv, vocab, *, tied=False, dtype='bf16', rank=8, targets=ALL, lengths=(1, 2, 9, 17, 5), **more):
    return dict(family=family, hidden=hidden, inter=inter, layers=layers, heads=heads, kv=kv, vocab=vocab, tied=tied, dtype=dtype, rank=rank,
                targets=targets, lengths=list(lengths), **more)


CASES = {
    # committed
    'llama-bias': case('llama', 36, 100, 1, 6, 1, 251, rank=4, attention_bias=True, dtype='f32', temperature=0.7),
    'qwen3-tied': case('qwen3', 36, 171, 1, 5, 5, 499, head_dim=12, tied=True, rank=12, shards='40KB'),
    'qwen2-slices': case('qwen2', 12, 20, 2, 2, 1, 4501, tied=True, dtype='f16', rank=4, temperature=1.3),
    'llama3-rope': case('llama', 40, 72, 1, 2, 1, 131, rope=LLAMA3, rank=8, targets=['q_proj', 'v_proj', 'down_proj'], rslora=True, lengths=(90, 33, 2)),
    'llama-odd': case('llama', 33, 51, 2, 3, 3, 97, head_dim=6, tied=True, rank=3, targets=['o_proj', 'gate_proj'], lengths=(2, 1, 31)),
    'smollm3': case('smollm3', 32, 48, 3, 2, 1, 131, tied=True, rank=4, targets=['q_proj', 'v_proj', 'down_proj'], no_rope_layer_interval=2, lengths=(2, 1, 40)),
    'mistral': case('mistral', 24, 40, 2, 3, 1, 97, head_dim=12, rank=4, targets=['k_proj', 'up_proj'], sliding_window=16, lengths=(50, 3, 9)),
    'qwen2-window': case('qwen2', 24, 40, 3, 2, 1, 97, rank=4, targets=['v_proj', 'gate_proj'], use_sliding_window=True, sliding_window=16, max_window_layers=1, lengths=(50, 3, 17)),
    'smollm3-window': case('smollm3', 24, 36, 2, 2, 1, 97, tied=True, rank=4, targets=['q_proj', 'o_proj'], no_rope_layer_interval=2, use_sliding_window=True, sliding_window=8,
                           lengths=(40, 1, 9)),
    'gemma3': case('gemma3_text', 48, 72, 4, 3, 1, 128, head_dim=16, tied=True, rank=4, targets=['q_proj', 'o_proj', 'up_proj', 'down_proj'], sliding_window=16,
                   layer_types=MIXED, query_pre_attn_scalar=24, lengths=(60, 2, 17, 5)),
    'qwen35': case('qwen3_5_text', 48, 72, 3, 3, 1, 128, tied=True, rank=4, targets=DELTA_TARGETS, **DELTA, lengths=(60, 2, 17, 5)),
    'llama-yarn': case('llama', 24, 40, 1, 2, 1, 97, head_dim=16, rank=4, targets=['q_proj', 'k_proj'], rope={**YARN, 'attention_factor': 1.5}, lengths=(90, 33, 2)),
    'qwen3-yarn': case('qwen3', 24, 40, 2, 2, 1, 97, head_dim=16, tied=True, rank=4, targets=['q_proj', 'v_proj', 'down_proj'], rope=YARN, lengths=(2, 1, 150, 20)),
    'olmo2': case('olmo2', 40, 72, 2, 4, 2, 131, head_dim=12, rank=4, targets=['q_proj', 'v_proj', 'o_proj', 'up_proj', 'down_proj'], lengths=(60, 2, 17, 5)),
    'olmo3': case('olmo3', 32, 48, 4, 3, 1, 131, head_dim=16, rank=4, targets=['k_proj', 'o_proj', 'gate_proj', 'down_proj'], sliding_window=16, rope=YARN, lengths=(60, 2, 17, 5)),
    'lfm2': case('lfm2', 48, 100, 3, 3, 1, 128, tied=True, rank=4, targets=SHORT_TARGETS, **SHORT, lengths=(60, 2, 17, 5)),
    'granite': case('granite', 48, 72, 3, 3, 1, 128, tied=True, rank=4, targets=['q_proj', 'o_proj', 'up_proj', 'down_proj'], **GRANITE, lengths=(60, 2, 17, 5)),
    'granite-bias': case('granite', 24, 40, 1, 2, 1, 97, tied=True, rank=4, targets=['o_proj', 'up_proj'], attention_bias=True, **GRANITE, lengths=(290, 2, 9)),
    'granite4': case('granitemoehybrid', 48, 72, 3, 3, 1, 128, tied=True, rank=4, targets=GRANITE4_TARGETS, **GRANITE4, shared_intermediate_size=72,
                     layer_types=['attention'] * 3, position_embedding_type='rope', lengths=(60, 2, 17, 5)),
    'phi3': case('phi3', 48, 72, 2, 3, 3, 128, rank=4, targets=PHI3_TARGETS, sliding_window=16, lengths=(60, 2, 17, 5)),
    'phi4': case('phi3', 64, 72, 2, 2, 1, 128, tied=True, rank=4, targets=PHI3_TARGETS, original_max_position_embeddings=64, rope=longrope(12, partial_rotary_factor=0.75),
                 lengths=(60, 2, 17, 5)),
    # too large to commit, or variations
    'phi4-wide': case('phi3', 256, 304, 2, 2, 1, 499, dtype='f32', rank=12, targets=['qkv_proj'], original_max_position_embeddings=512,
                      rope=longrope(48, partial_rotary_factor=0.75, factor=8.0), lengths=(70, 2, 512, 5)),
    'phi3-head-96': case('phi3', 192, 304, 1, 2, 2, 499, dtype='f32', targets=PHI3_TARGETS, sliding_window=262144, lengths=(70, 2, 200, 5)),
    'phi4-odd': case('phi3', 48, 72, 3, 3, 1, 131, rank=4, targets=['gate_up_proj'], original_max_position_embeddings=90, sliding_window=40,
                     rope=longrope(5, partial_rotary_factor=0.65, attention_factor=1.3), lengths=(90, 1, 33)),
    'lfm2-wide': case('lfm2', 72, 60, 5, 2, 2, 499, dtype='f32', head_dim=64, targets=[*SHORT_TARGETS, 'k_proj', 'w3'], conv_L_cache=5, block_auto_adjust_ff_dim=False,
                      layer_types=['full_attention', 'conv', 'conv', 'full_attention', 'conv'], lengths=(70, 2, 300, 5)),
    'lfm2-four': case('lfm2', 40, 60, 2, 2, 1, 131, tied=True, targets=['in_proj'], conv_L_cache=4, block_ffn_dim_multiplier=1.3, full_attn_idxs=[0], lengths=(3, 1, 40)),
    'granite4-nope': case('granitemoehybrid', 40, 24, 2, 2, 2, 499, dtype='f32', rank=12, targets=['input_linear'], **GRANITE4, shared_intermediate_size=136,
                          layer_types=['full_attention'] * 2, position_embedding_type=None, temperature=0.6),
    'granite-untied': case('granite', 36, 100, 2, 4, 2, 4501, head_dim=20, dtype='f32', **GRANITE, temperature=0.6),
    'granite-plain': case('granite', 36, 100, 2, 3, 3, 499, dtype='f16'),
    'qwen35-wide': case('qwen3_5_text', 40, 72, 4, 2, 2, 128, dtype='f32', targets=DELTA_TARGETS,
                        **{**DELTA, 'head_dim': 128, 'linear_key_head_dim': 128, 'linear_value_head_dim': 128, 'layer_types': None}, lengths=(70, 2, 200, 5)),
    'gemma3-wide': case('gemma3_text', 40, 72, 4, 2, 2, 128, head_dim=256, tied=True, dtype='f32', sliding_window=40, layer_types=MIXED, lengths=(60, 2, 17, 5),
                        rope={'rope_type': 'linear', 'factor': 8.0}),
    'gemma3-long': case('gemma3_text', 40, 72, 3, 4, 1, 499, head_dim=20, tied=True, sliding_window=300, layer_types=MIXED[:3], lengths=(700, 40, 301, 2)),
    'olmo2-wide': case('olmo2', 264, 300, 2, 4, 4, 499, head_dim=128, attention_bias=True, tied=True, dtype='f32', lengths=(70, 2, 200, 5)),
    'olmo2-one-head': case('olmo2', 24, 40, 2, 1, 1, 97, head_dim=16, attention_bias=True, lengths=(20, 2, 9)),
    'olmo3-long': case('olmo3', 64, 72, 5, 4, 2, 499, sliding_window=300, attention_bias=True, rope={**YARN, 'original_max_position_embeddings': 512}, lengths=(700, 40, 301, 2)),
    'smollm3-yarn': case('smollm3', 32, 48, 3, 2, 1, 131, tied=True, rank=4, no_rope_layer_interval=2, rope=YARN, lengths=(2, 1, 40)),
    'gemma3-yarn': case('gemma3_text', 48, 72, 4, 3, 1, 128, head_dim=16, tied=True, rank=4, sliding_window=16, layer_types=MIXED, rope=YARN, lengths=(60, 2, 17, 5)),
    'qwen35-yarn': case('qwen3_5_text', 48, 72, 3, 3, 1, 128, tied=True, rank=4, targets=DELTA_TARGETS, **{**DELTA, 'head_dim': 32}, rope=YARN, lengths=(60, 2, 17, 5)),
    'qwen3-untied': case('qwen3', 36, 100, 2, 4, 1, 8205, head_dim=20, dtype='f32'),
    'qwen3-window': case('qwen3', 48, 72, 4, 4, 2, 499, head_dim=20, use_sliding_window=True, sliding_window=300, layer_types=MIXED, lengths=(700, 40, 301, 2)),
    'qwen3-bias': case('qwen3', 64, 171, 2, 4, 2, 499, head_dim=32, tied=True, attention_bias=True),
    'llama-wide-head': case('llama', 64, 100, 1, 2, 1, 1000, head_dim=128, rank=16, tied=True),
    'llama-head-256': case('llama', 72, 40, 1, 2, 2, 300, head_dim=256, rank=1, dtype='f16'),
    'llama-head-80': case('llama', 160, 260, 2, 2, 1, 600, head_dim=80, tied=False),
    'llama-head-2': case('llama', 8, 8, 2, 4, 2, 17, head_dim=2, tied=True),
    'llama-tiny': case('llama', 2, 3, 1, 1, 1, 2, head_dim=2, tied=False, rank=2, lengths=(1, 2, 7)),
    'group-7': case('qwen2', 84, 171, 2, 14, 2, 499, tied=False, dtype='f32', rank=12),
    'group-12': case('llama', 72, 96, 1, 12, 1, 499, tied=True, lengths=(3, 70, 1)),
    'long': case('qwen3', 60, 100, 2, 3, 1, 499, head_dim=20, tied=True, lengths=(700, 300, 1, 2)),
    'long-aligned': case('llama', 64, 128, 2, 4, 2, 512, tied=True, lengths=(900, 130), rope=LLAMA3),
    'ranks': case('llama', 48, 100, 2, 4, 2, 499, rank=8, rank_pattern={'q_proj': 4, 'layers.1.mlp.up_proj': 20}, alpha_pattern={'q_proj': 3}, dtype='f32'),
    'linear-rope': case('llama', 48, 100, 1, 4, 2, 499, rope={'rope_type': 'linear', 'factor': 2.5}, rank=4),
    'vocab-40k': case('llama', 24, 40, 1, 2, 1, 40961, tied=True, rank=4, lengths=(20, 3)),
    'cold': case('qwen2', 36, 100, 1, 3, 3, 499, temperature=0.1, rank=8, hot=2.0),
    'nothing': case('llama', 36, 100, 1, 3, 1, 499, rank=8, lengths=(1, 1, 6), masked_off=True),
}
COMMITTED = ['llama-bias', 'qwen3-tied', 'qwen2-slices', 'llama3-rope', 'llama-odd', 'smollm3', 'mistral', 'qwen2-window', 'smollm3-window', 'gemma3', 'qwen35', 'llama-yarn',
             'qwen3-yarn', 'olmo2', 'olmo3', 'lfm2', 'granite', 'granite-bias', 'granite4', 'phi3', 'phi4']


def make_model(c):
    more = {k: c[k] for k in ('head_dim', 'attention_bias', 'no_rope_layer_interval', 'use_sliding_window', 'sliding_window', 'max_window_layers', 'layer_types', 'query_pre_attn_scalar', *GRANITE4, 'shared_intermediate_size', 'position_embedding_type',
                               'linear_num_key_heads', 'linear_num_value_heads', 'linear_key_head_dim', 'linear_value_head_dim', *LFM2_KEYS,
                               'original_max_position_embeddings') if k in c}
    rope = {'rope_theta': 10000.0, **c.get('rope', {'rope_type': 'default'})}
    if c['family'] in ('gemma3_text', 'olmo3'):  # each kind of layer has its own parameters
        rope = {'full_attention': {**rope, 'rope_theta': 1e6}, 'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0}}
    config = CONFIGS[c['family']](
        hidden_size=c['hidden'], intermediate_size=c['inter'], num_hidden_layers=c['layers'], num_attention_heads=c['heads'],
        num_key_value_heads=c['kv'], vocab_size=c['vocab'], tie_word_embeddings=c['tied'], max_position_embeddings=1024,
        rope_parameters=rope, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=1, pad_token_id=None, **more)
    model = AutoModelForCausalLM.from_config(config, attn_implementation='eager').float().eval()
    dtype = {'bf16': torch.bfloat16, 'f16': torch.float16, 'f32': torch.float32}[c['dtype']]
    with torch.no_grad():
        for name, p in model.named_parameters():
            # Random norms and biases too: a gain of 1 or a bias of 0 would hide mistakes.
            if name.endswith('norm.weight'):
                # In some families the gain is 1 + weight, but never for the norm behind the delta rule.
                from_one = c['family'] in FROM_ONE and not name.endswith('linear_attn.norm.weight')
                p.copy_((0 if from_one else 1) + 0.2 * torch.randn_like(p))
            elif p.dim() == 1:
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(c.get('hot', 1.0) * torch.randn_like(p) * 1.2 / math.sqrt(p[0].numel()))
            p.copy_(p.to(dtype).float())
    return model, dtype


def save_model(model, dtype, folder, shards):
    # A tied head is one tensor.
    model.to(dtype).save_pretrained(folder, **({'max_shard_size': shards} if shards else {}))
    model.float()


def save_adapter(model, c, folder):
    more = {k: c[k] for k in ('rank_pattern', 'alpha_pattern') if k in c}
    lora = get_peft_model(model, LoraConfig(r=c['rank'], lora_alpha=2 * c['rank'], lora_dropout=0.05, target_modules=c['targets'],
                                            use_rslora=c.get('rslora', False), task_type='CAUSAL_LM', **more))
    with torch.no_grad():
        for name, p in lora.named_parameters():
            if 'lora_' in name:
                p.copy_(torch.randn_like(p) * 0.7 / math.sqrt(p.shape[1]))
    lora.save_pretrained(folder)
    (Path(folder) / 'README.md').unlink(missing_ok=True)
    lora.unload()


def open_model(folder, c):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation='eager')
    if c['family'] == 'gemma3_text' and c['dtype'] == 'bf16':
        # The weights were widened to float32 for the computation; in bf16 transformers rounds the embedding's scale, too.
        scale = model.model.embed_tokens.embed_scale
        scale.copy_(scale.bfloat16().float())
    return model


def scores(model, batch, temperature):
    """Log-probabilities and entropies of each sequence, entry 0 being 0."""
    out = []
    for s in batch:
        ids = torch.tensor([s['input_ids']])
        logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
        entropy = -(logp.exp() * logp).sum(-1)
        taken = logp[:-1].gather(1, ids[0, 1:, None])[:, 0]
        zero = torch.zeros(1)
        out.append((torch.cat([zero, taken]), torch.cat([zero, entropy[:-1]])))
    return out


def losses(scored, batch, tokens, low, high):
    """RLTrainer's masked form and CISPO, over all sequences."""
    masked = clipped = torch.zeros(())
    for (logp, _), s in zip(scored, batch):
        mask = torch.tensor(s['loss_mask'], dtype=torch.bool)
        advantages, old = torch.tensor(s['advantages']), torch.tensor(s['inference_logprobs'])
        ratio = torch.exp(logp - old)
        inside = mask & (ratio >= low) & (ratio <= high)
        masked = masked - torch.where(inside, ratio * advantages, 0.0).sum() / tokens
        clipped = clipped - torch.where(mask, ratio.detach().clamp(low, high) * advantages * logp, 0.0).sum() / tokens
    return {'masked': masked, 'clipped': clipped}


def make_batch(model, c, temperature):
    batch = []
    for i, length in enumerate(c['lengths']):
        s = {'input_ids': torch.randint(0, c['vocab'], (length,)).tolist()}
        if length > 6:  # a token that comes often: its embedding row gathers many gradients
            s['input_ids'][3] = s['input_ids'][5] = s['input_ids'][0]
        # The last sequence but one counts no token.
        off = c.get('masked_off') or i == len(c['lengths']) - 2
        s['loss_mask'] = [0 if off or t == 0 else int(torch.rand(()) < 0.8) for t in range(length)]
        s['advantages'] = torch.randn(length).tolist()
        batch.append(s)
    with torch.no_grad():
        for (logp, _), s in zip(scores(model, batch, temperature), batch):
            # Some ratios pass the bounds, the others are around 1.
            s['inference_logprobs'] = (logp + torch.randn_like(logp) * torch.where(torch.rand_like(logp) < 0.2, 3.0, 0.3)).tolist()
    return batch


def expectations(mode, model, batch, temperature, tokens, low, high, expected, facts, clean, forms=('masked', 'clipped')):
    model.eval()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for form in forms:
        model.zero_grad(set_to_none=True)
        scored = scores(model, batch, temperature)
        loss = losses(scored, batch, max(tokens, 1), low, high)[form]
        if loss.requires_grad:
            loss.backward()
        gradients = {clean(n): torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trained}
        facts[f'{mode}.{form}.loss'] = loss.item()
        facts[f'{mode}.{form}.grad_norm'] = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
        expected.update({f'{mode}.{form}.grad.{n}': g.contiguous() for n, g in gradients.items()})
    expected[f'{mode}.logprobs'] = torch.cat([l for l, _ in scored]).detach()
    expected[f'{mode}.entropy'] = torch.cat([e for _, e in scored]).detach()


def lora_name(name):
    return name.removeprefix('base_model.model.').replace('.default', '')


def make(name, c, out, full_forms=('masked', 'clipped')):
    torch.manual_seed(sum(map(ord, name)))
    folder = Path(out) / name
    shutil.rmtree(folder, ignore_errors=True)
    temperature, low, high = c.get('temperature', 0.9), 0.125, 8.0
    model, dtype = make_model(c)
    save_model(model, dtype, folder / 'model', c.get('shards'))
    save_adapter(model, c, folder / 'adapter')
    model = open_model(folder / 'model', c)
    batch = make_batch(model, c, temperature)
    (folder / 'batch.json').write_text(json.dumps(batch))
    tokens = sum(sum(s['loss_mask']) for s in batch)
    facts = {'temperature': temperature, 'mask_ratio_low': low, 'mask_ratio_high': high, 'tokens': tokens, 'lora_rank': c['rank']}
    expected = {}
    expectations('full', model, batch, temperature, tokens, low, high, expected, facts, lambda n: n, full_forms)
    lora = PeftModel.from_pretrained(model, folder / 'adapter', is_trainable=True)
    expectations('lora', lora, batch, temperature, tokens, low, high, expected, facts, lora_name)
    save_file(expected, folder / 'expected.safetensors')
    (folder / 'case.json').write_text(json.dumps(facts, indent=1))
    return folder


def make_golden(out):
    """The LoRA part of the golden cases again, with exact rotary frequencies."""
    for name in ('llama', 'qwen2', 'qwen3'):
        source, folder = FIXTURES / 'golden' / name, Path(out) / name
        folder.mkdir(parents=True, exist_ok=True)
        facts = json.loads((source / 'case.json').read_text())
        batch = json.loads((source / 'batch.json').read_text())
        model = AutoModelForCausalLM.from_pretrained(source / 'model', dtype=torch.float32, attn_implementation='eager')
        lora = PeftModel.from_pretrained(model, source / 'adapter', is_trainable=True)
        expected, found = {}, {}
        args = (batch, facts['temperature'], facts['tokens'], facts['mask_ratio_low'], facts['mask_ratio_high'])
        expectations('lora', lora, *args, expected, found, lora_name, ('clipped',))
        save_file(expected, folder / 'expected.safetensors')
        (folder / 'case.json').write_text(json.dumps({**{k: facts[k] for k in ('temperature', 'mask_ratio_low', 'mask_ratio_high', 'tokens')}, **found}, indent=1))


def main(words):
    if words[:1] == ['--golden']:
        return make_golden(FIXTURES / 'golden-exact')
    fixtures = words[:1] == ['--fixtures']
    out, names = (FIXTURES / 'odd', COMMITTED) if fixtures else (words[0], words[1:] or list(CASES))
    for name in names:
        folder = make(name, CASES[name], out, ('clipped',) if fixtures else ('masked', 'clipped'))
        print(f'{name}: {sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())} bytes')


if __name__ == '__main__':
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1:])
