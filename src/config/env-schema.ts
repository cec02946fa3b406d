/** The keys of an [[env]]: an environment of a run, either trained on or only evaluated. */
import * as z from 'zod'
import { freeTable } from './algorithm-schema.ts'

export const envSchema = z.strictObject({
  id: z
    .string()
    .min(1)
    .describe(
      'A bundled environment ("short-answers", "reverse-text", "arithmetic", ...), a file such as "./my_env.ts", an npm package, or a Python environment.',
    ),
  args: freeTable().default({}).describe('Arguments for the environment, which checks them.'),
  name: z.string().min(1).optional().describe('Name in metrics and rollouts. Default: the id.'),
  weight: z
    .number()
    .min(0)
    .default(1.0)
    .describe(
      'Share of the tasks, relative to the other environments. 0: only evaluate it (with eval_strategy = "steps"), on its held-out tasks, or on all tasks if it has none.',
    ),
  python: z
    .boolean()
    .optional()
    .describe(
      'Whether this is a Python environment (for verifiers 0.1.14 to 0.3.0) or taskset (for 0.4.0). Default: true for a .py file, with python_path, or if only Python knows the id.',
    ),
  python_path: z
    .string()
    .min(1)
    .optional()
    .describe('For a Python environment: the Python that has it and verifiers. Default: the one of scripts/setup-verifiers.sh.'),
  num_workers: z
    .int()
    .min(1)
    .optional()
    .describe('For a Python environment: number of processes that play its rollouts. Default: 1.'),
  extra_env_kwargs: freeTable()
    .optional()
    .describe(
      'For a Python environment: attributes that are set on it after loading, such as { max_turns = 5 } or { timeout_seconds = 60 }. For a taskset: keys of verifiers next to the taskset, such as { agent = { max_turns = 5 } }.',
    ),
})
