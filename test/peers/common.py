"""What the comparisons share: starting cli.js, scoring a batch with transformers, and the bounds."""
import json
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

# Progress bars and notices of the libraries would bury the figures.
warnings.filterwarnings('ignore', category=FutureWarning)
transformers.utils.logging.disable_progress_bar()
ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / 'test/fixtures/golden'
ODD = ROOT / 'test/fixtures/odd'
LOGPROBS, GRADIENTS = 1e-5, 1e-4
failures = []


def node(*words):
    """Runs a node command in the checkout; what it wrote to stdout."""
    done = subprocess.run(['node', *map(str, words)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'node {" ".join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout.strip()


def cli_tensors(out, *words):
    """The tensors that a verb of cli.js writes."""
    node('cli.js', *words, '--out', out)
    return load_file(out)


def error(got, expected):
    """||got - expected|| / ||expected||; 0 where both are 0."""
    difference = (got.double() - expected.double()).norm().item()
    return difference and difference / expected.double().norm().item()


def check(what, value, bound):
    """Says a figure, and remembers it where it is over its bound."""
    fine = value <= bound
    print(f'{"  " if fine else "! "}{what}: {value:.1e} (at most {bound:.0e})', flush=True)
    if not fine:
        failures.append(what)


def logprobs(model, batch_file, temperature):
    """Log-probabilities of a batch in float32, the sequences one after another, 0 at each first token."""
    out = []
    model.eval()
    with torch.no_grad():
        for s in json.loads(Path(batch_file).read_text()):
            ids = torch.tensor([s['input_ids']])
            rows = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
            out += [torch.zeros(1), rows[:-1].gather(1, ids[0, 1:, None])[:, 0]]
    return torch.cat(out)


def end():
    """Exit code 1 where a figure was over its bound."""
    print(f'{len(failures)} over their bounds' if failures else 'all within their bounds')
    sys.exit(1 if failures else 0)
