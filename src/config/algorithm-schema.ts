/** The keys of [trainer.args] that make the algorithm: loss, KL term, advantage, filters (docs/algorithms.md). */
import * as z from 'zod'

/** Losses, advantages and filters that are called by name; anything else is a file. */
export const BUILT_IN = { loss: ['cispo', 'cispo_mask'], advantage: ['group_mean'], filters: ['zero_variance'] }

/** A table whose keys the schema does not check: the environment or the loss that gets them does. */
export const freeTable = () => z.record(z.string(), z.unknown())

export const algorithmFields = {
  loss: z
    .string()
    .min(1)
    .default('cispo')
    .describe(
      '"cispo", "cispo_mask" (RLTrainer\'s form: tokens outside the range are dropped), or a file such as "configs/losses/ppo-clip.ts".',
    ),
  loss_args: freeTable().default({}).describe('Arguments for a loss file.'),
  beta: z
    .number()
    .min(0)
    .default(0)
    .describe(
      'Weight of a KL term that is added to any loss: beta x the mean over loss tokens of exp(d) - d - 1, d = logp of the reference model - logp (docs/algorithms.md). Above 0 the model that the run began with is kept as the reference, and scores every batch.',
    ),
  entropy_coef: z
    .number()
    .default(0)
    .describe(
      'Weight of an entropy bonus that is added to any loss: so much of the mean entropy over the loss tokens is taken from it, which keeps a policy from settling too soon (docs/algorithms.md). Below 0 entropy is pushed down.',
    ),
  use_ref_model: z
    .boolean()
    .default(false)
    .describe(
      'Keep the reference model even where beta is 0: for the metric ref_kl/all/mean, or for a loss file that reads refLogprobs.',
    ),
  ref_model: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Another model as the reference, a folder, a .gguf or a hub id with the same tokens: a teacher, whose log-probabilities of the sampled tokens a KL term or a loss file reads (on-policy distillation, docs/algorithms.md). Default: the model that the run began with.',
    ),
  ref_model_sync_steps: z
    .int()
    .min(0)
    .default(0)
    .describe(
      "After every so many steps the reference model takes the policy's weights (TRL's sync_ref_model with a mixup of 1), for long runs. 0: it stays the model that the run began with.",
    ),
  num_iterations: z
    .int()
    .min(1)
    .max(64)
    .default(1)
    .describe(
      "Weight updates with each batch, all against the log-probabilities that its tokens were sampled with (mu of GRPO, TRL's num_iterations, verl's ppo_epochs). They count as one step and have one learning rate.",
    ),
  mask_ratio_low: z
    .number()
    .min(0)
    .default(0.125)
    .describe(
      'Lower bound of the importance ratio exp(logp_trainer - logp_inference): clamped (cispo) or dropped (cispo_mask) below it.',
    ),
  mask_ratio_high: z.number().positive().default(8.0).describe('Upper bound of the importance ratio.'),
  advantage: z.string().min(1).default('group_mean').describe('"group_mean" (reward - mean reward of the group), or a file.'),
  advantage_args: freeTable().default({}).describe('Arguments for an advantage file.'),
  filters: z
    .array(z.string().min(1))
    .default(['zero_variance'])
    .describe(
      'Groups must pass all of these: "zero_variance" (drops groups whose rewards are all equal), or files. []: keep every group.',
    ),
  filter_args: freeTable().default({}).describe('Arguments for each filter file.'),
  mask_truncated_completions: z
    .boolean()
    .default(false)
    .describe(
      "Rollouts that were cut off (max_tokens, max_seq_len) count in their group's advantages and are not trained on (DAPO's overlong filtering).",
    ),
  zero_truncated_completions: z
    .boolean()
    .default(false)
    .describe('Training rollouts that were cut off have the reward 0, whatever the environment gave.'),
  oversampling_factor: z
    .number()
    .min(1)
    .max(16)
    .default(1)
    .describe(
      "Groups that a filter drops, or whose rollouts failed, are replaced by other tasks until the batch is full or this many times batch_size rollouts were played (DAPO's dynamic sampling). 1: nothing is replaced, and the batch gets smaller.",
    ),
}

/** Whether a run has a reference model. */
export const keepsReference = (args: { beta: number; use_ref_model: boolean; ref_model?: string }): boolean =>
  args.beta > 0 || args.use_ref_model || args.ref_model !== undefined

/** How many groups may be replaced. The small addend is for rounding: 10 x (1.1 - 1) is a little less than 1 and must give 1. */
export const spareGroups = (groups: number, factor: number): number => Math.floor(groups * (factor - 1) + 1e-9)
