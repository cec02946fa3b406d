/**
 * Every metric of a run: what it is, in which unit, and what a healthy run shows. docs/metrics.md is made from this table.
 * A name in angle brackets stands for any text. Names are verifiers' RLTrainer's and prime-rl's where they have one.
 */
import { LIMITS } from './health.ts'
import { SAMPLER_METRICS } from './metrics-sampler.ts'

export interface MetricInfo {
  /** Its heading in the glossary. */
  group:
    | 'Reward'
    | 'Rollouts'
    | 'Loss'
    | 'Optimizer'
    | 'Staleness'
    | 'Evaluation'
    | 'Progress'
    | 'Speed and memory'
    | 'Sampler (backend = "vllm")'
  formula: string
  unit: string
  healthy: string
  /** Its name in TRL's trainers. */
  trl?: string
}

const fraction = '0 to 1'

export const METRICS: Readonly<Record<string, MetricInfo>> = {
  reward: {
    group: 'Reward',
    formula: 'mean reward: sum of r_i / n over the n rollouts of the step that did not fail, also of groups with equal rewards',
    unit: 'reward',
    healthy: 'rises; noisy from step to step, so look at ten steps together',
    trl: 'reward',
  },
  'reward/std': {
    group: 'Reward',
    formula: 'sqrt(sum of (r_i - reward)^2 / n) over the same n rollouts, not within groups; divided by n, not by n - 1',
    unit: 'reward',
    healthy: 'above 0; near 0, all answers earn the same and nothing can be learned',
    trl: 'reward_std (with n - 1; in some versions the deviation within groups)',
  },
  'reward/<func>': {
    group: 'Reward',
    formula: 'mean unweighted value of the reward function or metric <func>, over the rollouts that did not fail and have it',
    unit: 'that of the function',
    healthy: 'the functions rise together; if one rises while the others fall, it is being gamed',
    trl: 'rewards/<func>/mean',
  },
  'reward/<env>/mean': {
    group: 'Reward',
    formula: 'as `reward`, over the rollouts of one environment; only in runs with several environments',
    unit: 'reward',
    healthy: 'rises in each environment',
  },
  'reward/<env>/<func>': {
    group: 'Reward',
    formula: 'as `reward/<func>`, over the rollouts of one environment; only in runs with several environments',
    unit: 'that of the function',
    healthy: 'as in a run of that environment alone',
  },
  'advantage/absmean': {
    group: 'Reward',
    formula:
      'sum of |A_i| / m over the m rollouts trained on. A_i = r_i - mean reward of its group, or what an advantage from a file returned (per token: the mean of the absolute values)',
    unit: 'reward',
    healthy: 'above 0; falls as the answers become alike',
  },
  solved_none: {
    group: 'Reward',
    formula: 'share of groups whose rewards are equal (within 1e-6) and below 0.5',
    unit: fraction,
    healthy: 'small; near 1, the task is too hard for the model',
  },
  solved_all: {
    group: 'Reward',
    formula: 'share of groups whose rewards are equal (within 1e-6) and at least 0.5',
    unit: fraction,
    healthy: 'grows late in a run; near 1, the task is learned',
  },
  solved_some: {
    group: 'Reward',
    formula: 'share of groups whose rewards differ by more than 1e-6; solved_none, solved_all and solved_some add up to 1',
    unit: fraction,
    healthy: `above ${LIMITS.solved_some.low}; shown as \`mixed\` in the step line`,
    trl: '1 - frac_reward_zero_std',
  },
  'is_truncated/mean': {
    group: 'Rollouts',
    formula: 'rollouts cut off by max_tokens (with several turns also max_seq_len or a time limit) / rollouts that did not fail',
    unit: fraction,
    healthy: `under ${LIMITS['is_truncated/mean'].high}; otherwise raise trainer.args.max_tokens`,
    trl: 'completions/clipped_ratio',
  },
  'tokens/completion': {
    group: 'Rollouts',
    formula: 'sampled tokens per rollout that did not fail; truncated rollouts and the end-of-sequence token count',
    unit: 'tokens',
    healthy: 'well under max_tokens; after a jump in either direction, look at the samples',
    trl: 'completions/mean_length',
  },
  'num_turns/mean': {
    group: 'Rollouts',
    formula: 'answers of the policy per rollout that did not fail',
    unit: 'turns',
    healthy: '1 in single-turn tasks',
  },
  'num_branches/mean': {
    group: 'Rollouts',
    formula: 'sequences (samples) per rollout that did not fail; a turn that does not continue the earlier tokens begins one',
    unit: 'sequences',
    healthy: '1 with trajectory_strategy = "interleaved"; up to num_turns/mean with "branching"',
  },
  'history_rewritten/mean': {
    group: 'Rollouts',
    formula:
      'turns for which the chat template would have written the earlier turns differently (thoughts left out, tool calls in another form) / rollouts that did not fail; only with "interleaved"',
    unit: 'turns',
    healthy: '0; above 0, prompts at inference will differ from those in training: see trajectory_strategy',
  },
  'is_truncated/<env>/mean': {
    group: 'Rollouts',
    formula: 'as `is_truncated/mean`, over the rollouts of one environment; only in runs with several environments',
    unit: fraction,
    healthy: `under ${LIMITS['is_truncated/mean'].high}`,
  },
  'num_turns/<env>/mean': {
    group: 'Rollouts',
    formula: 'as `num_turns/mean`, over the rollouts of one environment; only in runs with several environments',
    unit: 'turns',
    healthy: 'as the task needs',
  },
  'has_error/<env>/mean': {
    group: 'Rollouts',
    formula: 'as `has_error/mean`, over the rollouts of one environment; only in runs with several environments',
    unit: fraction,
    healthy: '0',
  },
  'has_error/mean': {
    group: 'Rollouts',
    formula: 'share of rollouts that failed; their reward is null, and they are not trained on',
    unit: fraction,
    healthy: '0',
  },
  'stop_condition/<name>': {
    group: 'Rollouts',
    formula: 'share of all rollouts that ended for the reason <name> (eos, stop, max_tokens, abort, ...)',
    unit: fraction,
    healthy: 'mostly eos or stop',
  },
  'loss/mean': {
    group: 'Loss',
    formula:
      'sum of the loss over the N loss tokens of the whole batch / N. cispo: -stopgrad(clamp(ratio, low, high)) A logp; `sft`: -logp. The terms of `beta` and `entropy_coef` are included',
    unit: 'nats x reward; `sft`: nats',
    healthy: 'near 0 with either sign, as the advantages of a group add up to 0: watch `reward` instead. In `sft` it should fall',
    trl: 'loss',
  },
  'loss/<name>': {
    group: 'Loss',
    formula: 'metric that a custom loss returned under <name>',
    unit: 'that of the loss',
    healthy: 'depends on the loss',
  },
  'entropy/all/mean': {
    group: 'Loss',
    formula: 'mean entropy over loss tokens: -sum over v of p(v) log p(v), over the full vocabulary at the sampling temperature',
    unit: 'nats',
    healthy: `falls slowly; under ${LIMITS['entropy/all/mean'].low}, the model hardly tries other answers: lower the learning rate`,
    trl: 'entropy',
  },
  'mismatch_kl/all/mean': {
    group: 'Loss',
    formula: 'mean over loss tokens of ratio - log(ratio) - 1, at the first update of the step',
    unit: 'nats',
    healthy: `exactly 0 on fresh samples of the embedded engine; one step off-policy, under ${LIMITS['mismatch_kl/all/mean'].high} and flat`,
  },
  'mismatch_kl/all/max': {
    group: 'Loss',
    formula: 'largest ratio - log(ratio) - 1 of any loss token, at the first update',
    unit: 'nats',
    healthy: `no jumps; a token above ${LIMITS['mismatch_kl/all/max'].high} deserves a look`,
  },
  'ref_kl/all/mean': {
    group: 'Loss',
    formula: 'with a reference model: mean over loss tokens of exp(d) - d - 1, d = logp of that model - logp of the trainer',
    unit: 'nats',
    healthy: '0 at first, then grows and levels off; if answers get worse, raise `beta`. With a teacher (`ref_model`), it falls',
    trl: 'kl of GRPOTrainer (with use_bias_correction_kl = false)',
  },
  importance_ratio: {
    group: 'Loss',
    formula: 'mean ratio over loss tokens',
    unit: 'ratio',
    healthy: 'near 1',
    trl: 'ratio of AsyncGRPOTrainer (its kl is mismatch_kl/all/mean)',
  },
  'is_masked/mean': {
    group: 'Loss',
    formula:
      'share of loss tokens with a ratio outside [mask_ratio_low, mask_ratio_high]; cispo clamps the ratio, cispo_mask drops the token; built-in losses only',
    unit: fraction,
    healthy: `under ${LIMITS['is_masked/mean'].high}`,
  },
  'is_masked_low/mean': {
    group: 'Loss',
    formula: 'share of loss tokens with ratio < mask_ratio_low; built-in losses only',
    unit: fraction,
    healthy: `under ${LIMITS['is_masked/mean'].high}`,
  },
  'is_masked_high/mean': {
    group: 'Loss',
    formula: 'share of loss tokens with ratio > mask_ratio_high; built-in losses only',
    unit: fraction,
    healthy: `under ${LIMITS['is_masked/mean'].high}`,
    trl: 'cispo_clip_ratio (counts only tokens with A > 0)',
  },
  'optim/grad_norm': {
    group: 'Optimizer',
    formula: 'sqrt(sum of g^2) over all trained parameters, before clipping to max_grad_norm',
    unit: 'gradient',
    healthy: `no spikes (${LIMITS['optim/grad_norm'].spike} times the median of the previous steps); null if the step, or a later update of it, was skipped because its loss or gradient was not finite`,
    trl: 'grad_norm',
  },
  'optim/lr': {
    group: 'Optimizer',
    formula: 'learning rate of this step, from the schedule',
    unit: 'per step',
    healthy: 'follows the schedule',
    trl: 'learning_rate',
  },
  'discarded/mean': {
    group: 'Rollouts',
    formula: 'share of rollouts that were played but not trained on (failed, too old, masked, dropped by a filter)',
    unit: fraction,
    healthy: 'small: each one is wasted sampling; `oversampling_factor` above 1 plays other tasks in their place',
  },
  'off_policy/mean': {
    group: 'Staleness',
    formula: 'mean age of the sampled tokens trained on: version of the weights being trained - version that sampled the token',
    unit: 'steps',
    healthy: 'at most max_async_level',
  },
  'off_policy/max': {
    group: 'Staleness',
    formula: 'largest age of a token, as in off_policy/mean',
    unit: 'steps',
    healthy: 'at most max_off_policy_steps',
  },
  'off_policy/dropped': {
    group: 'Staleness',
    formula: 'rollouts dropped since the last step because they were too old (max_off_policy_steps)',
    unit: 'rollouts',
    healthy: '0 or few: each one is wasted sampling',
  },
  'eval/<env>/avg@<k>': {
    group: 'Evaluation',
    formula: 'mean over held-out tasks of the mean reward of the k answers to each task, without failed ones',
    unit: 'reward',
    healthy: 'rises with `reward`; if it falls while `reward` rises, the model overfits',
  },
  'eval/<env>/pass@<k>': {
    group: 'Evaluation',
    formula: 'mean over tasks with n >= k answers of 1 - C(n - c, k) / C(n, k), where c answers are solved (reward >= 0.5)',
    unit: fraction,
    healthy: 'rises; if pass@1 rises while pass@8 falls, the answers lose variety',
  },
  'eval/<env>/reward/<func>': {
    group: 'Evaluation',
    formula: 'as `reward/<func>`, over the evaluation',
    unit: 'that of the function',
    healthy: 'as in training',
  },
  'eval/<env>/is_truncated/mean': {
    group: 'Evaluation',
    formula: 'as `is_truncated/mean`, over the evaluation',
    unit: fraction,
    healthy: `under ${LIMITS['is_truncated/mean'].high}`,
  },
  'eval/<env>/tokens/completion': {
    group: 'Evaluation',
    formula: 'as `tokens/completion`, over the evaluation',
    unit: 'tokens',
    healthy: 'as in training',
  },
  'eval/<env>/has_error/mean': {
    group: 'Evaluation',
    formula: 'as `has_error/mean`, over the evaluation',
    unit: fraction,
    healthy: '0',
  },
  'eval/<env>/policy_version': {
    group: 'Evaluation',
    formula: 'version of the weights that were evaluated',
    unit: 'steps',
    healthy: '0 in the evaluation before training',
  },
  'progress/tokens': {
    group: 'Progress',
    formula: 'prompt and sampled tokens of the rollouts of the step, failed ones included',
    unit: 'tokens',
    healthy: 'steady',
  },
  'progress/total_tokens': {
    group: 'Progress',
    formula: 'sum of `progress/tokens` since the start of the run, also across resumes',
    unit: 'tokens',
    healthy: 'grows',
    trl: 'num_tokens',
  },
  'progress/total_rollouts': {
    group: 'Progress',
    formula: 'rollouts since the start of the run, failed ones included',
    unit: 'rollouts',
    healthy: 'grows',
  },
  'perf/throughput': {
    group: 'Speed and memory',
    formula: 'tokens of the packed batch (also of prompts, a shared one as often as it is computed) / time/forward_backward',
    unit: 'tokens/s',
    healthy: 'steady',
    trl: 'training_tok/s',
  },
  'perf/generation_throughput': {
    group: 'Speed and memory',
    formula: 'tokens of training answers that ended since the last step / their sampling time, split among simultaneous ones',
    unit: 'tokens/s',
    healthy: 'steady; falls as completions grow longer; null if no answer ended',
    trl: 'generation_tok_per_s',
  },
  'perf/peak_memory': {
    group: 'Speed and memory',
    formula: 'peak total size of the GPU buffers alive at once, since the start, in bytes / 2^30',
    unit: 'GiB',
    healthy: 'does not grow after step 2',
  },
  'perf/buffers_made': {
    group: 'Speed and memory',
    formula: 'GPU buffers created by trainer and engine since the start of the process; reused ones are not counted',
    unit: 'buffers',
    healthy: 'does not grow after step 2, except by a few at the first evaluation or checkpoint',
  },
  'time/step': {
    group: 'Speed and memory',
    formula: 'waiting for the batch, training on it and publishing the weights, without evaluation and saving',
    unit: 's',
    healthy: 'steady',
    trl: 'step_time',
  },
  'time/wait_for_batch': {
    group: 'Speed and memory',
    formula: 'time in which the trainer had no batch to work on',
    unit: 's',
    healthy: 'most of time/step if sampling is the bottleneck, otherwise near 0',
  },
  'time/wait_for_trainer': {
    group: 'Speed and memory',
    formula: 'time since the last step in which no rollout was being sampled because the trainer had not asked for more',
    unit: 's',
    healthy: 'most of time/step if training is the bottleneck, otherwise near 0',
  },
  'time/forward_backward': {
    group: 'Speed and memory',
    formula: 'forward pass, loss and backward pass of all micro-batches, and the optimizer step',
    unit: 's',
    healthy: 'steady',
  },
  'time/generate': {
    group: 'Speed and memory',
    formula: 'time since the last step in which at least one training rollout was being sampled',
    unit: 's',
    healthy: 'overlaps time/forward_backward when max_async_level is 1',
  },
  'time/broadcast_weights': {
    group: 'Speed and memory',
    formula: 'from the end of the optimizer step until a vLLM sampler has the new weights; the embedded engine has them at once',
    unit: 's',
    healthy: 'small compared with time/step',
  },
  ...SAMPLER_METRICS,
  'time/save_ckpt': {
    group: 'Speed and memory',
    formula: 'writing the checkpoint of the previous step; only in `sft`, in steps after a checkpoint',
    unit: 's',
    healthy: 'small compared with time/step',
  },
}

const patterns = Object.keys(METRICS)
  .filter((name) => name.includes('<'))
  // Patterns with more literal characters first: 'eval/<env>/reward/<func>' before 'reward/<func>'.
  .toSorted((a, b) => b.replace(/<\w+>/g, '').length - a.replace(/<\w+>/g, '').length)
  .map((name) => ({ name, pattern: new RegExp(`^${name.replace(/[.@]/g, '\\$&').replace(/<\w+>/g, '.+')}$`) }))

/** The entry of METRICS for a key of a row, and its name there; undefined for a user's own metric. */
export function metricInfo(key: string): (MetricInfo & { name: string }) | undefined {
  const name = Object.hasOwn(METRICS, key) ? key : patterns.find((p) => p.pattern.test(key))?.name
  return name === undefined ? undefined : { ...METRICS[name], name }
}
