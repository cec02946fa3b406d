/** [trainer.ckpt]: when checkpoints are written, and which ones are kept. Keys are named as in prime-rl. The Hugging Face Trainer's names are aliases. */
import * as z from 'zod'

export const ckptSchema = z.strictObject({
  interval: z
    .int()
    .min(0)
    .default(50)
    .describe(
      'Steps between two checkpoints (weights, optimizer state, position in the data). One is always written at the end; 0: only that one. `save_steps` of [trainer.args] is the same key.',
    ),
  keep_last: z
    .int()
    .min(1)
    .default(3)
    .describe(
      'Number of newest checkpoints to keep; older ones are deleted. `save_total_limit` of [trainer.args] is the same key.',
    ),
  keep_interval: z
    .int()
    .min(1)
    .optional()
    .describe('Never delete checkpoints of steps that are a multiple of this number. Default: off.'),
  keep_best: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Also keep the checkpoint with the highest value of this metric, as checkpoints/best. With a metric of evaluations, such as `"eval/<env>/avg@k"`, each step with the best evaluation so far is saved; others are compared among the steps that are saved anyway. A "-" before the name: the lowest value, as in "-loss/mean".',
    ),
})

/** [trainer.ckpt] with defaults filled in. */
export type CkptConfig = z.output<typeof ckptSchema>

/** Names in [trainer.args] that stand for keys of [trainer.ckpt]. */
export const CKPT_ALIASES: Readonly<Record<string, keyof CkptConfig>> = { save_steps: 'interval', save_total_limit: 'keep_last' }
