/** The keys of [trainer.args] that define the algorithm: loss, KL term, advantage, filters (docs/algorithms.md). */
import * as z from 'zod'

/** Built-in losses, advantages and filters. Any other name is a file. */
export const BUILT_IN = { loss: ['cispo', 'cispo_mask'], advantage: ['group_mean'], filters: ['zero_variance'] }

/** A table whose keys the schema does not check. The environment or loss that receives them does. */
export const freeTable = () => z.record(z.string(), z.unknown())

export const algorithmFields = {
  loss: z
    .string()
    .min(1)
    .default('cispo')
    .describe(
      '"cispo", "cispo_mask" (RLTrainer\'s form, which drops tokens whose importance ratio is out of bounds), or a file such as "configs/losses/ppo-clip.ts".',
    ),
  loss_args: freeTable().default({}).describe('Arguments for a loss from a file.'),
  beta: z
    .number()
    .min(0)
    .default(0)
    .describe(
      'Weight of a KL term that is added to any loss: beta x the mean over loss tokens of exp(d) - d - 1, with d = logp of the reference model - logp of the policy (docs/algorithms.md). Above 0, a reference model (by default the one that the run began with) scores every batch.',
    ),
  entropy_coef: z
    .number()
    .default(0)
    .describe(
      'Weight of an entropy bonus for any loss: entropy_coef x the mean entropy over loss tokens is subtracted from the loss, which keeps the policy from settling too early (docs/algorithms.md). Below 0, entropy is pushed down.',
    ),
  use_ref_model: z
    .boolean()
    .default(false)
    .describe(
      'Keep a reference model even if beta is 0, for the metric ref_kl/all/mean or for a loss from a file that reads refLogprobs.',
    ),
  ref_model: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Another model as the reference: a folder, a .gguf file or a hub id, with the same tokens. In on-policy distillation it is the teacher: a KL term or a loss from a file reads its log-probabilities of the sampled tokens (docs/algorithms.md). Default: the model that the run began with.',
    ),
  ref_model_sync_steps: z
    .int()
    .min(0)
    .default(0)
    .describe(
      "Steps between two updates of the reference model to the policy's weights (TRL's sync_ref_model with a mixup of 1), for long runs. 0: it stays the model that the run began with.",
    ),
  num_iterations: z
    .int()
    .min(1)
    .max(64)
    .default(1)
    .describe(
      'Weight updates per batch, all with importance ratios relative to the log-probabilities at sampling (mu in GRPO, num_iterations in TRL, ppo_epochs in verl). They count as one step and use one learning rate.',
    ),
  mask_ratio_low: z
    .number()
    .min(0)
    .default(0.125)
    .describe(
      'Lower bound of the importance ratio exp(logp_trainer - logp_inference). Below it, the ratio is clamped (cispo) or the token is dropped (cispo_mask).',
    ),
  mask_ratio_high: z.number().positive().default(8.0).describe('Upper bound, used in the same way.'),
  advantage: z.string().min(1).default('group_mean').describe('"group_mean" (reward - mean reward of the group), or a file.'),
  advantage_args: freeTable().default({}).describe('Arguments for an advantage from a file.'),
  filters: z
    .array(z.string().min(1))
    .default(['zero_variance'])
    .describe(
      'Train only on groups that pass all of these: "zero_variance" (drops groups whose rewards are all equal), or files. []: keep every group.',
    ),
  filter_args: freeTable().default({}).describe('Arguments for filters from files; each gets all of them.'),
  mask_truncated_completions: z
    .boolean()
    .default(false)
    .describe(
      "Do not train on rollouts that were cut off (by max_tokens or max_seq_len), but count them in their group's advantages (DAPO's overlong filtering).",
    ),
  zero_truncated_completions: z
    .boolean()
    .default(false)
    .describe('Set the reward of training rollouts that were cut off to 0, whatever the environment gave.'),
  oversampling_factor: z
    .number()
    .min(1)
    .max(16)
    .default(1)
    .describe(
      "Replace groups that a filter drops, or whose rollouts failed, by other tasks until the batch is full or this many times batch_size rollouts were played (DAPO's dynamic sampling). 1: nothing is replaced, and the batch gets smaller.",
    ),
}

/** Whether a run has a reference model. */
export const keepsReference = (args: { beta: number; use_ref_model: boolean; ref_model?: string }): boolean =>
  args.beta > 0 || args.use_ref_model || args.ref_model !== undefined

/** The number of groups that may be replaced. The small addend compensates for rounding: 10 x (1.1 - 1) is slightly less than 1 and must give 1. */
export const spareGroups = (groups: number, factor: number): number => Math.floor(groups * (factor - 1) + 1e-9)
