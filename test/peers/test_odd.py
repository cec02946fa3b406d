"""`cli.js score` and `cli.js grad` against PyTorch, transformers and PEFT on freshly made models with sizes that no fixture has.

usage: bash scripts/peers.sh test/peers/test_odd.py [--all | NAME ...]     names of make_odd_cases.py; by default a few of them
"""
import json
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

import make_odd_cases
from common import GRADIENTS, LOGPROBS, check, cli_tensors, end, error

DEFAULT = ['qwen3-untied', 'llama-head-80', 'group-7', 'long', 'ranks']


def compare_gradients(what, got, expected, facts, prefix):
    names = [name.removeprefix(f'{prefix}.grad.') for name in expected if name.startswith(f'{prefix}.grad.')]
    assert names and set(names) <= set(got), f'{what}: {set(names) - set(got)} are missing'
    for name in names:
        assert got[name].shape == expected[f'{prefix}.grad.{name}'].shape, f'{what}: {name} has shape {got[name].shape}'
    check(f'{what}, worst of {len(names)}', max(error(got[n], expected[f'{prefix}.grad.{n}']) for n in names), GRADIENTS)
    norm = facts[f'{prefix}.grad_norm']
    check(f'{what}, norm', abs(got['grad_norm'].item() - norm) / (norm or 1), GRADIENTS)


def compare(name, folder):
    facts = json.loads((folder / 'case.json').read_text())
    expected = load_file(folder / 'expected.safetensors')
    words = ['--model', folder / 'model', '--batch', folder / 'batch.json', '--temperature', facts['temperature']]
    adapter = ['--adapter', folder / 'adapter']
    out = folder / 'ours.safetensors'
    for mode, more in (('full', []), ('lora', adapter)):
        got = cli_tensors(out, 'score', *words, *more)
        for tensor in ('logprobs', 'entropy'):
            check(f'{name}, {mode}, {tensor}', error(got[tensor], expected[f'{mode}.{tensor}']), LOGPROBS)
    got = cli_tensors(out, 'grad', *words, '--loss', 'cispo')
    compare_gradients(f'{name}, full, cispo', got, expected, facts, 'full.clipped')
    got = cli_tensors(out, 'grad', *words, *adapter, '--loss', 'cispo_mask', '--micro-batch-tokens', 64)
    compare_gradients(f'{name}, lora, cispo_mask', got, expected, facts, 'lora.masked')


names = sys.argv[1:] or DEFAULT
if names == ['--all']:
    names = list(make_odd_cases.CASES)
with tempfile.TemporaryDirectory(prefix='dawn-rl-odd-') as work:
    for name in names:
        compare(name, make_odd_cases.make(name, make_odd_cases.CASES[name], work))
end()
