"""Shared by the peers in Python: the job they are given, reporting a figure, and measuring time and memory.

A peer is started as `python PEER.py JOB.json` by run.ts; JOB.json is a Job of job.ts. It prints one line for each figure: RESULT and a JSON object.
"""
import json
import os
import resource
import statistics
import sys
import time

os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')

with open(sys.argv[1], encoding='utf-8') as file:
    job = json.load(file)


def peak_bytes():
    """The most memory that this process has held at once: resident on the host, plus what a CUDA device gave it."""
    try:
        with open('/proc/self/status', encoding='ascii') as status:
            host = next(int(line.split()[1]) for line in status if line.startswith('VmHWM')) * 1024
    except FileNotFoundError:
        scale = 1 if sys.platform == 'darwin' else 1024
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    torch = sys.modules.get('torch')
    on_gpu = torch.cuda.max_memory_reserved() if torch and torch.cuda.is_available() and job['device'] == 'gpu' else 0
    return host + on_gpu


def device():
    """'cuda' where our side runs on a GPU and PyTorch has one, else 'cpu'."""
    import torch

    return 'cuda' if job['device'] == 'gpu' and torch.cuda.is_available() else 'cpu'


def wait():
    """Waits until a CUDA device has done its work."""
    import torch

    if device() == 'cuda':
        torch.cuda.synchronize()


def say(name, **figures):
    """Prints a figure, with the peak of memory so far."""
    print('RESULT ' + json.dumps({'name': name, 'peakBytes': peak_bytes(), **figures}), flush=True)


def seconds_of(run, repeats, warm_up=1):
    """The median time of `run` in seconds."""
    for _ in range(warm_up):
        run()
    wait()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
