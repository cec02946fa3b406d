"""Writes test/fixtures/yarn.json: what transformers makes of rope parameters of type yarn.

usage: python test/peers/make_yarn.py

Each case: the keys of a config.json that matter, and the inverse frequencies (float32) and the factor of cos and sin that come of them.
"""
import json
from pathlib import Path

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3_5TextConfig, Qwen3Config

CONFIGS = {'llama': LlamaConfig, 'qwen3': Qwen3Config, 'qwen3_5_text': Qwen3_5TextConfig}
SIZES = dict(hidden_size=64, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=11)
CASES = [
    # As Qwen3's model card says it, and DeepSeek's V2 and V3, with YaRN's own bounds, in the old spelling.
    ('qwen3', dict(head_dim=128, max_position_embeddings=40960, rope_theta=1000000.0,
                   rope_scaling=dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=32768))),
    ('llama', dict(head_dim=64, max_position_embeddings=163840, rope_theta=10000.0,
                   rope_scaling=dict(type='yarn', factor=40, mscale=0.707, mscale_all_dim=1.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=4096))),
    ('llama', dict(head_dim=64, max_position_embeddings=131072, rope_parameters=dict(
        rope_type='yarn', rope_theta=150000.0, factor=32.0, truncate=False, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096))),
    ('llama', dict(head_dim=12, max_position_embeddings=1024, rope_parameters=dict(
        rope_type='yarn', rope_theta=500000.0, factor=8.0, attention_factor=1.5, beta_fast=4, beta_slow=0, mscale=1.0, mscale_all_dim=0, original_max_position_embeddings=32))),
    # No number of tokens before: that of after. No factor: their ratio. A context so short that no pair turns often: both bounds are pair 0.
    ('llama', dict(head_dim=32, max_position_embeddings=4096, rope_parameters=dict(rope_type='yarn', rope_theta=10000.0, factor=2.0))),
    ('llama', dict(head_dim=32, max_position_embeddings=4096, rope_parameters=dict(
        rope_type='yarn', rope_theta=10000.0, factor=None, original_max_position_embeddings=1024))),
    ('llama', dict(head_dim=32, max_position_embeddings=16, rope_parameters=dict(
        rope_type='yarn', rope_theta=10000.0, factor=3.0, original_max_position_embeddings=6))),
    # A share of a head's channels.
    ('qwen3_5_text', dict(head_dim=256, max_position_embeddings=1048576, layer_types=['full_attention'], linear_num_key_heads=1, linear_num_value_heads=1, rope_parameters=dict(
        rope_type='yarn', rope_theta=10000000.0, partial_rotary_factor=0.25, factor=4.0, original_max_position_embeddings=262144))),
]


def main():
    out = []
    for family, more in CASES:
        text = json.dumps({'model_type': family, **SIZES, **more})  # the config class changes what it is given
        config = {**json.loads(text)}
        model = AutoModelForCausalLM.from_config(CONFIGS[family](**{k: v for k, v in config.items() if k != 'model_type'}))
        rotary = model.model.rotary_emb
        out.append({'config': json.loads(text), 'inverse': rotary.inv_freq.tolist(), 'factor': rotary.attention_scaling})
    path = Path(__file__).resolve().parent.parent / 'fixtures/yarn.json'
    path.write_text('[\n' + ',\n'.join(json.dumps(case) for case in out) + '\n]\n')


if __name__ == '__main__':
    main()
