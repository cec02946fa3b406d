/** [trainer.ckpt]: when a checkpoint is written, and which ones are kept. Keys are named as in prime-rl; the Hugging Face Trainer's names are aliases. */
import * as z from 'zod'

export const ckptSchema = z.strictObject({
  interval: z
    .int()
    .min(0)
    .default(50)
    .describe(
      'Checkpoint (weights, optimizer, position in the data) every so many steps. There is always one at the end; 0: only that one. `save_steps` of [trainer.args] is the same key.',
    ),
  keep_last: z
    .int()
    .min(1)
    .default(3)
    .describe('Newest checkpoints kept; older ones are deleted. `save_total_limit` of [trainer.args] is the same key.'),
  keep_interval: z
    .int()
    .min(1)
    .optional()
    .describe('Checkpoints of steps that this number divides are never deleted. Default: none of them.'),
  keep_best: z
    .string()
    .min(1)
    .optional()
    .describe(
      'The checkpoint with the highest value of this metric is kept too, as checkpoints/best: "eval/<env>/avg@k" (then each evaluation that is the best so far is saved), or any other (among the steps that are saved). With a "-" before it the lowest, as in "-loss/mean".',
    ),
})

/** [trainer.ckpt], its defaults filled in. */
export type CkptConfig = z.output<typeof ckptSchema>

/** Keys of [trainer.args] that are keys of [trainer.ckpt] under another name. */
export const CKPT_ALIASES: Readonly<Record<string, keyof CkptConfig>> = { save_steps: 'interval', save_total_limit: 'keep_last' }
