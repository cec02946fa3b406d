"""An adapter that dawn-rl trained and saved loads in PEFT, and there gives the log-probabilities that `cli.js score` gives; and so do its
merged weights in transformers. On the golden models, on some odd ones, and on SmolLM2 where models/ has it.

usage: bash scripts/peers.sh test/peers/test_adapter.py
"""
import json
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from common import GOLDEN, LOGPROBS, ROOT, check, cli_tensors, end, error, logprobs, node

TEMPERATURE = 0.8


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def compare(name, ref, batch, work, rank, base=None, modules=7):
    """`ref` is what dawn-rl opens; `base` the same model as a folder for PEFT, made where it is not there."""
    options = ['--model', ref, '--batch', batch, '--out', work / 'run', '--rank', rank]
    adapter = node('test/peers/train_adapter.ts', *options, *(['--base', work / 'base'] if base is None else []))
    base = base or work / 'base'
    plain = load(base)
    before = logprobs(plain, batch, TEMPERATURE)
    words = ['--batch', batch, '--temperature', TEMPERATURE]
    ours = cli_tensors(work / 'plain.safetensors', 'score', '--model', ref, *words)
    check(f'{name}, without the adapter', error(ours['logprobs'], before), LOGPROBS)

    config = json.loads((Path(adapter) / 'adapter_config.json').read_text())
    assert config['r'] == rank and len(config['target_modules']) == modules, config
    tuned = PeftModel.from_pretrained(plain, adapter)
    theirs = logprobs(tuned, batch, TEMPERATURE)
    moved = error(theirs, before)
    assert moved > 1e-2, f'{name}: training moved the log-probabilities by {moved} only, so the comparison shows nothing'
    ours = cli_tensors(work / 'tuned.safetensors', 'score', '--model', ref, '--adapter', adapter, *words)
    check(f'{name}, rank {rank}, in PEFT (training moved it by {moved:.1e})', error(ours['logprobs'], theirs), LOGPROBS)

    node('cli.js', 'merge', '--model', ref, '--adapter', adapter, '--out', work / 'merged')
    ours = cli_tensors(work / 'merged.safetensors', 'score', '--model', work / 'merged', *words)
    check(f'{name}, merged, in transformers', error(ours['logprobs'], logprobs(load(work / 'merged'), batch, TEMPERATURE)), LOGPROBS)


with tempfile.TemporaryDirectory(prefix='dawn-rl-peers-') as folder:
    # Kernels of models so small take longer to optimise than to run (scripts/common.sh, `quick_shaders`). SmolLM2 and test_odd.py run as for users.
    with patch.dict(os.environ, {'GALLIVM_PERF': os.environ.get('GALLIVM_PERF', 'nopt')}):
        for name, rank in (('llama', 8), ('qwen2', 4), ('qwen3', 12)):
            model = GOLDEN / name / 'model'
            compare(name, model, GOLDEN / name / 'batch.json', Path(folder) / name, rank, base=model)
        for name, rank, modules in (('olmo2', 4, 7), ('olmo3', 8, 7), ('lfm2', 4, 8), ('granite', 4, 7), ('granite4', 4, 6), ('phi3', 4, 4), ('phi4', 12, 4)):
            odd = GOLDEN.parent / 'odd' / name
            compare(name, odd / 'model', odd / 'batch.json', Path(folder) / name, rank, base=odd / 'model', modules=modules)
    gguf = ROOT / 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
    if gguf.exists():
        compare('SmolLM2', gguf, GOLDEN / 'smollm2/batch.json', Path(folder) / 'smollm2', 8)
    else:
        print(f'{gguf} is not there (scripts/get-smollm2.sh fetches it): SmolLM2 is skipped')
end()
