"""TRL's GRPOTrainer, float32: steps of reinforcement learning, generation and the rest apart.

No end of sequence (min_new_tokens), so that both sides make the same tokens; beta 0 and one iteration, so that neither has a reference model.
usage: python trl_peer.py JOB.json     (started by run.ts)
"""
import statistics
import tempfile
import time

import torch
import transformers
import trl
from common import device, job, say, wait
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

transformers.utils.logging.disable_progress_bar()
where = device()
model = transformers.AutoModelForCausalLM.from_pretrained(job['model'], dtype=torch.float32)
tokenizer = transformers.AutoTokenizer.from_pretrained(job['model'])
steps, rollouts, group, tokens = (job[name] for name in ('steps', 'rollouts', 'group', 'tokens'))
questions = [[{'role': 'user', 'content': text}] for text in job['prompts']]
modules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
lora = LoraConfig(r=8, lora_alpha=32, target_modules=modules, task_type='CAUSAL_LM') if job['lora'] else None
generating, ends, lengths = [], [], []


def share_of_e(completions, **_):
    """The share of e among the letters; ours has the same."""
    texts = [completion[0]['content'] for completion in completions]
    return [text.count('e') / max(1, len(text)) for text in texts]


class Clock(TrainerCallback):
    def on_step_end(self, *_, **__):
        wait()
        ends.append(time.perf_counter())


class Timed(trl.GRPOTrainer):
    def _generate(self, *words, **named):
        begin = time.perf_counter()
        out = super()._generate(*words, **named)
        wait()
        generating.append(time.perf_counter() - begin)
        lengths.append([[len(ids) for ids in part] for part in out[:2]])
        return out


with tempfile.TemporaryDirectory(prefix='dawn-rl-trl-') as folder:
    config = trl.GRPOConfig(
        output_dir=folder,
        max_steps=steps + 1,
        per_device_train_batch_size=rollouts,
        num_generations=group,
        max_completion_length=tokens,
        generation_kwargs={'min_new_tokens': tokens},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-4,
        lr_scheduler_type='constant',
        gradient_checkpointing=job['checkpointing'],
        bf16=False,
        fp16=False,
        use_cpu=where == 'cpu',
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        logging_strategy='no',
        save_strategy='no',
        report_to='none',
        disable_tqdm=True,
        seed=1,
    )
    trainer = Timed(
        model=model,
        args=config,
        reward_funcs=share_of_e,
        train_dataset=Dataset.from_dict({'prompt': questions}),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[Clock()],
    )
    trainer.train()

prompts, completions = lengths[-1]
assert all(length == tokens for length in completions), f'completions of {set(completions)} tokens instead of {tokens}'
step = statistics.median(b - a for a, b in zip(ends, ends[1:], strict=False))
versions = {'torch': torch.__version__, 'transformers': transformers.__version__, 'trl': trl.__version__}
about = {'versions': versions, 'threads': torch.get_num_threads(), 'on': where}
say(job['work'], value=step, generation=statistics.median(generating[1:]), promptTokens=sum(prompts), **about)
