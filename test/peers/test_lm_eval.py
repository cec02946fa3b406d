"""lm-eval asks SmolLM2 through our server (its `local-completions`) and through its own `hf` backend: the same answers, the same choices, and
log-likelihoods that are near. Both read the folder that `cli.js merge` writes; the tasks and their items lie in test/peers/lm_eval.

usage: bash scripts/peers.sh test/peers/test_lm_eval.py
"""
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Set before the imports: the libraries read these when they are imported.
scratch = tempfile.TemporaryDirectory(prefix='dawn-rl-peers-')
os.environ |= {'HF_DATASETS_CACHE': f'{scratch.name}/datasets', 'HF_DATASETS_OFFLINE': '1', 'LMEVAL_LOG_LEVEL': 'ERROR'}

from common import ROOT, check, end, node  # noqa: E402

gguf = ROOT / 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
if not gguf.exists():
    print(f'{gguf} is not there (scripts/get-smollm2.sh fetches it): skipped')
    sys.exit(0)
TASKS = ['local_answers', 'local_choices']


def evaluate(backend, **arguments):
    """lm-eval's results of both tasks, with every request's answer; and the seconds it took."""
    begin = time.monotonic()
    tasks = TaskManager(include_path=str(ROOT / 'test/peers/lm_eval'), include_defaults=False)
    # Its progress bars would bury the figures.
    with open(os.devnull, 'w') as nowhere, contextlib.redirect_stderr(nowhere):
        results = simple_evaluate(backend, model_args=arguments, tasks=TASKS, task_manager=tasks, bootstrap_iters=0, log_samples=True)
    return results, time.monotonic() - begin


def served(folder):
    """Starts our server over a folder; the process and the URL of its API."""
    words = ['node', 'cli.js', 'serve', '--model', str(folder), '--served-model-name', 'smollm2', '--port', '0', '--max-model-len', '512']
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in server.stdout:
        url = next((word for word in line.split() if word.startswith('http://')), None)
        if url:
            return server, url
    sys.exit(f'the server ended with {server.wait()} before it was ready')


def answers(results, task):
    """What a model answered to the requests of a task, in order of the items."""
    items = sorted(results['samples'][task], key=lambda item: item['doc_id'])
    return [response for item in items for response in item['filtered_resps']]


with scratch:
    # The tasks name their items from here.
    os.chdir(ROOT)
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    model = Path(scratch.name) / 'model'
    node('cli.js', 'merge', '--model', gguf, '--out', model)
    theirs, seconds = evaluate('hf', pretrained=str(model), dtype='float32', device='cpu', batch_size=1)
    print(f'  lm-eval with hf: {seconds:.1f} s')
    server, url = served(model)
    try:
        ours, seconds = evaluate(
            'local-completions', model='smollm2', base_url=f'{url}/completions', tokenizer=str(model), tokenizer_backend='huggingface',
            num_concurrent=4, max_length=512,
        )
    finally:
        server.terminate()
        server.wait()
    print(f'  lm-eval with our server: {seconds:.1f} s')

texts = list(zip(answers(ours, 'local_answers'), answers(theirs, 'local_answers')))
words = ', '.join(repr(a) for a, _ in texts[:4])
print(f'  {len(texts)} answers ({words}, ...), exact_match {ours["results"]["local_answers"]["exact_match,none"]:.3f}')
check('answers that differ', sum(a != b for a, b in texts), 0)
pairs = list(zip(answers(ours, 'local_choices'), answers(theirs, 'local_choices')))
print(f'  {len(pairs)} log-likelihoods from {min(b[0] for _, b in pairs):.2f} to {max(b[0] for _, b in pairs):.2f}')
check('the largest difference of log-likelihoods', max(abs(a[0] - b[0]) for a, b in pairs), 1e-3)
check('choices whose greediness differs', sum(a[1] != b[1] for a, b in pairs), 0)
accuracies = [results['results']['local_choices']['acc,none'] for results in (ours, theirs)]
print(f'  accuracy {accuracies[0]:.3f} through our server, {accuracies[1]:.3f} with hf')
check('difference of accuracies', abs(accuracies[0] - accuracies[1]), 0)
end()
