"""The folder that `cli.js merge` writes of a GGUF is whole for transformers, offline: AutoTokenizer renders and splits a chat as dawn-rl
does, and AutoModelForCausalLM answers.

usage: bash scripts/peers.sh test/peers/test_merge.py
"""
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import ROOT, check, end, node

TEXTS = ['What is the capital of France?', "It's 1234,56 €,\n\tisn't it?  <|im_end|>", '日本語 🙂 foo_bar(1)']
gguf = ROOT / 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
if not gguf.exists():
    print(f'{gguf} is not there (scripts/get-smollm2.sh fetches it): skipped')
    sys.exit(0)
with tempfile.TemporaryDirectory(prefix='dawn-rl-peers-') as folder:
    out = Path(folder) / 'model'
    node('cli.js', 'merge', '--model', gguf, '--out', out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    chats = [
        tokenizer.apply_chat_template([{'role': 'user', 'content': text}], add_generation_prompt=True, tokenize=True, return_dict=False)
        for text in TEXTS
    ]
    ours = json.loads(node('test/peers/encode_chat.ts', gguf, *TEXTS))
    check('chats that transformers turns into other ids', sum(a != b for a, b in zip(chats, ours)), 0)
    ids = torch.tensor([ours[0]])
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    answer = tokenizer.decode(model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)[0, ids.shape[1]:])
    print(f'  asked {TEXTS[0]!r}: {answer!r}')
    check('answers without Paris, or that do not end', 0 if 'Paris' in answer and answer.endswith('<|im_end|>') else 1, 0)
end()
