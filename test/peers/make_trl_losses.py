"""Makes test/fixtures/trl-losses.json: losses and their derivatives by the log-probabilities, as the loss function of TRL's GRPOTrainer gives them.

usage: python test/peers/make_trl_losses.py     with torch and trl (written with trl 1.16.0)

TRL's own function is called, on a stand-in for the trainer with only the attributes that it reads, and with made-up log-probabilities in float64 in place of a
model. test/trainer/trl.test.ts checks against the results what docs/algorithms.md says of TRL's options.
"""
import json
import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import __version__
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import nanstd

OUT = Path(__file__).resolve().parent.parent / 'fixtures/trl-losses.json'
MAX_LENGTH = 16
DEFAULTS = {
    'loss_type': 'dapo', 'epsilon': 0.2, 'epsilon_high': 0.2, 'importance_sampling_level': 'token', 'beta': 0.0, 'use_bias_correction_kl': False,
    'delta': None, 'top_entropy_quantile': 1.0, 'off_policy_mask_threshold': None,
}  # fmt: skip
CASES = {
    'dapo': {'epsilon_high': 0.28},
    'bnpo': {'loss_type': 'bnpo'},
    'grpo': {'loss_type': 'grpo'},
    'dr_grpo': {'loss_type': 'dr_grpo'},
    'cispo': {'loss_type': 'cispo', 'epsilon_high': 1.3},
    'gspo': {'importance_sampling_level': 'sequence', 'epsilon': 0.05, 'epsilon_high': 0.08},
    'gspo by sequence': {'loss_type': 'grpo', 'importance_sampling_level': 'sequence', 'epsilon': 0.05, 'epsilon_high': 0.08},
    'kl': {'beta': 0.4},
    'kl with bias correction': {'beta': 0.4, 'use_bias_correction_kl': True},
    'delta': {'epsilon_high': 0.08, 'delta': 1.2},
    'sapo': {'loss_type': 'sapo'},
    'vespo': {'loss_type': 'vespo'},
    'luspo': {'loss_type': 'luspo', 'importance_sampling_level': 'sequence', 'epsilon': 0.05, 'epsilon_high': 0.08},
    'off-policy mask': {'off_policy_mask_threshold': 0.02},
    'top entropy': {'top_entropy_quantile': 0.3},
}
# In these cases each sequence is a micro-batch of its own, since TRL takes the quantile within a micro-batch.
ALONE = {'top entropy'}
# As in GRPOConfig.
SOFT = {'sapo_temperature_pos': 1.0, 'sapo_temperature_neg': 1.05, 'vespo_k_pos': 2.0, 'vespo_lambda_pos': 3.0, 'vespo_k_neg': 3.0, 'vespo_lambda_neg': 2.0}


def rounded(values):
    """As float32 holds them: both sides get the same numbers."""
    return torch.tensor(values, dtype=torch.float32).tolist()


def make_batch(rng):
    batch = []
    for length, advantage in [(3, 1.2), (16, -0.7), (9, 0.4), (1, -2.0), (12, 0.0), (7, -0.3)]:
        logprobs = [-4 * rng.random() for _ in range(length)]
        batch.append({
            'logprobs': rounded(logprobs),
            'inference_logprobs': rounded([value + rng.gauss(0, 0.3) for value in logprobs]),
            'ref_logprobs': rounded([value + rng.gauss(0, 0.5) for value in logprobs]),
            # one completion contains a tool's answer; one was cut off, and is masked as a whole
            'loss_mask': [int(not (length == 16 and 4 <= t < 8) and length != 7) for t in range(length)],
            'advantage': rounded([advantage])[0],
        })
    for one in batch:
        one['entropy'] = rounded([2 * rng.random() for _ in one['logprobs']])
    return batch


def loss_of(batch, options, tokens):
    width = max(len(one['logprobs']) for one in batch)

    def padded(name):
        return torch.tensor([one[name] + [0] * (width - len(one[name])) for one in batch], dtype=torch.float64)

    logprobs = padded('logprobs').requires_grad_()
    mask = padded('loss_mask')
    entropies = padded('entropy')
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, entropies, None), aux_loss_enabled=False, top_entropy_quantile=options['top_entropy_quantile'],
        off_policy_mask_threshold=options['off_policy_mask_threshold'], use_vllm=False, max_completion_length=MAX_LENGTH, current_gradient_accumulation_steps=1,
        importance_sampling_level=options['importance_sampling_level'], loss_type=options['loss_type'], beta=options['beta'],
        epsilon_low=options['epsilon'], epsilon_high=options['epsilon_high'], model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=options['delta'], use_bias_correction_kl=options['use_bias_correction_kl'], steps_per_generation=1, **SOFT),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x, pad_across_processes=lambda x, **_: x),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask, get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_high_entropy_mask=lambda *given: GRPOTrainer.get_high_entropy_mask(trainer, *given),
        _entropy_bonus_enabled=False, _metrics={'train': defaultdict(list)},
    )  # fmt: skip
    ids = torch.zeros_like(mask, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(trainer, None, {
        'prompt_ids': ids[:, :1], 'prompt_mask': ids[:, :1] + 1, 'completion_ids': ids, 'completion_mask': mask,
        'advantages': torch.tensor([one['advantage'] for one in batch], dtype=torch.float64), 'old_per_token_logps': padded('inference_logprobs'),
        'ref_per_token_logps': padded('ref_logprobs'), 'num_items_in_batch': torch.tensor(float(tokens)),
    })  # fmt: skip
    loss.backward()
    gradients = [row[: len(one['logprobs'])].tolist() for row, one in zip(logprobs.grad, batch)]
    metrics = {name: values[0] for name, values in trainer._metrics['train'].items() if name in ('kl', 'cispo_clip_ratio')}
    return {'loss': loss.item(), 'gradients': [[float(f'{value:.9g}') for value in row] for row in gradients], **metrics}


def case_of(batch, name, options):
    tokens = sum(sum(one['loss_mask']) for one in batch)
    options = {**DEFAULTS, **options}
    if name not in ALONE:
        return loss_of(batch, options, tokens)
    parts = [loss_of([one], options, tokens) for one in batch]
    return {'loss': sum(part['loss'] for part in parts), 'gradients': [part['gradients'][0] for part in parts]}


def main():
    batch = make_batch(random.Random(7))
    rewards = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.7], dtype=torch.float64)
    centred = rewards - rewards.mean()
    # Rewards of another group. With 9 rewards together nanstd's n / (n - 1), computed in float32, is exact.
    others = torch.tensor([0.0, 0.0, 3.0, 0.5], dtype=torch.float64)
    out = {
        'trl': __version__,
        'max_length': MAX_LENGTH,
        'batch': batch,
        'cases': {name: case_of(batch, name, options) for name, options in CASES.items()},
        # scale_rewards and RLOOTrainer's baseline, as their trainers compute them
        'rewards': rewards.tolist(),
        'others': others.tolist(),
        'advantages': {
            'group': (centred / (nanstd(rewards) + 1e-4)).tolist(),
            'batch': (centred / (nanstd(torch.cat([rewards, others])) + 1e-4)).tolist(),
            'none': centred.tolist(),
            'rloo': (rewards - (rewards.sum() - rewards) / (len(rewards) - 1)).tolist(),
        },
    }
    OUT.write_text(json.dumps(out, separators=(',', ':')).replace('{"logprobs"', '\n{"logprobs"').replace('},"', '},\n"') + '\n')


if __name__ == '__main__':
    main()
