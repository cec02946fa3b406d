"""vLLM's offline engine, float32, without an adapter: greedy decoding at several batch sizes, with the answers, which run.ts compares with ours.

usage: python vllm_peer.py JOB.json     (started by run.ts with the Python of .venv-vllm)
"""
import os

# In this process, so that its memory is this process's; both cores to the kernels.
os.environ.setdefault('VLLM_ENABLE_V1_MULTIPROCESSING', '0')
os.environ.setdefault('VLLM_NO_USAGE_STATS', '1')
os.environ.setdefault('VLLM_LOGGING_LEVEL', 'WARNING')

from common import job, say, seconds_of  # noqa: E402

if job['device'] == 'cpu':
    os.environ['VLLM_TARGET_DEVICE'] = 'cpu'
    os.environ.setdefault('VLLM_CPU_KVCACHE_SPACE', '1')
    os.environ.setdefault('VLLM_CPU_NUM_OF_RESERVED_CPU', '0')

if __name__ == '__main__':
    import torch
    import vllm

    words = {'gpu_memory_utilization': 0.3} if job['device'] == 'gpu' else {}
    llm = vllm.LLM(
        model=job['model'],
        dtype='float32',
        max_model_len=256,
        max_num_seqs=max(job['batches']),
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
        **words,
    )
    about = {'versions': {'vllm': vllm.__version__, 'torch': torch.__version__}, 'threads': torch.get_num_threads(), 'on': job['device']}

    def greedy(prompts, tokens):
        params = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        out = llm.generate([{'prompt_token_ids': ids} for ids in prompts], params, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in out]

    for batch in job['batches']:
        ids = job['windows'][:batch]
        out = []
        greedy(ids, 4)
        seconds = seconds_of(lambda: out.append(greedy(ids, job['tokens'])), job['repeats'], warm_up=0)
        say(f'generate {batch}', value=batch * job['tokens'] / seconds, answers=out[-1], **about)
