/** The keys of one [[env]]: an environment of a run, trained on or only evaluated. */
import * as z from 'zod'
import { freeTable } from './algorithm-schema.ts'

export const envSchema = z.strictObject({
  id: z
    .string()
    .min(1)
    .describe(
      'A bundled environment ("short-answers", "reverse-text", "arithmetic"), a file such as "./my_env.ts", an npm package, or one that Python knows.',
    ),
  args: freeTable().default({}).describe('Handed to the environment, which checks them.'),
  name: z.string().min(1).optional().describe('Name in metrics and rollouts. Default: the id.'),
  weight: z
    .number()
    .min(0)
    .default(1.0)
    .describe(
      'Share of the tasks, relative to the other environments. 0: it is only evaluated, on its held-out tasks, or on all where it has none (with eval_strategy = "steps").',
    ),
  python: z
    .boolean()
    .optional()
    .describe(
      'Whether this is an environment in Python, for verifiers 0.1.14 to 0.3.0, or a taskset, for 0.4.0. Default: true where no other environment has the id and Python knows it.',
    ),
  python_path: z
    .string()
    .min(1)
    .optional()
    .describe('For a Python environment: the Python that has it and verifiers. Default: that of scripts/setup-verifiers.sh.'),
  num_workers: z.int().min(1).optional().describe('For a Python environment: processes that play its rollouts. Default 1.'),
  extra_env_kwargs: freeTable()
    .optional()
    .describe(
      'For a Python environment: attributes set on it once it is loaded, as { max_turns = 5 } or { timeout_seconds = 60 }. For a taskset: keys of verifiers beside the taskset, as { agent = { max_turns = 5 } }.',
    ),
})
