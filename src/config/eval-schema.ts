/** The schema of verifiers' eval configs, as read by `eval @ FILE`: `[[eval]]` tables, and defaults for all of them at the top of the file. */
import * as z from 'zod'
import { MOST_ROLLOUTS } from '../common/sampling.ts'
import { freeTable } from './algorithm-schema.ts'
import type { Check, Written } from './checks.ts'
import { show } from './problems.ts'

const defaults = {
  num_examples: z.int().min(-1).optional().describe('Number of examples; -1: all.'),
  rollouts_per_example: z.int().min(1).max(MOST_ROLLOUTS).optional().describe('Answers per example.'),
  temperature: z.number().min(0).optional().describe('Sampling temperature; 0 is greedy.'),
  max_tokens: z.int().min(1).optional().describe('Maximum number of tokens per answer.'),
  sampling_args: freeTable().optional().describe('top_p, top_k, ...; other keys that an endpoint knows are passed on to it.'),
}

const idle = Object.fromEntries(
  ['save_results', 'verbose', 'debug'].map((key) => [key, z.boolean().optional().describe('Has no effect.')]),
)

/** The whole file. */
export const evalSchema = z.strictObject({
  model: z
    .strictObject({ name: z.string().min(1).describe('Folder, hub id, file.gguf or name of an endpoint.') })
    .optional()
    .describe('`model = "folder, hub id, file.gguf or name of an endpoint"`.'),
  ...defaults,
  ...idle,
  eval: z
    .array(
      z.strictObject({
        env_id: z.string().min(1).describe('Id or path of the environment.'),
        name: z.string().min(1).optional().describe('Its name in the results. Default: env_id.'),
        env_args: freeTable().default({}).describe('Arguments that are passed to the environment.'),
        model: z.string().min(1).optional().describe('As at the top of the file.'),
        ...defaults,
        ...idle,
      }),
    )
    .min(1)
    .describe('The environments to evaluate.'),
})

type Parsed = z.output<typeof evalSchema>
/** All `[[eval]]` tables, with the defaults from the top of the file filled in. */
export interface EvalFile {
  evals: Parsed['eval']
}

/** Fills the defaults from the top of the file into every `[[eval]]` table. */
export function resolveEval({ model, eval: evals, ...common }: Parsed): EvalFile {
  return { evals: evals.map((one) => ({ ...(model && { model: model.name }), ...common, ...one })) }
}

/** Keys that must be equal in all `[[eval]]` tables, as one model answers and is sampled in one way. */
const ALIKE = ['model', 'temperature', 'max_tokens', 'sampling_args'] as const

export const evalChecks: Check<EvalFile>[] = [
  ...ALIKE.map((key): Check<EvalFile> => ({
    keys: [key, 'eval'],
    find({ evals }) {
      const i = evals.findIndex((one) => JSON.stringify(one[key]) !== JSON.stringify(evals[0][key]))
      if (i < 0) return undefined
      const valueOf = (one: EvalFile['evals'][number]) => (one[key] === undefined ? 'not set' : show(one[key]))
      const [first, other] = [evals[0], evals[i]].map((one) => `${valueOf(one)} for ${one.env_id}`)
      return {
        key: `eval.${i}.${key}`,
        text: `eval: ${key} is ${first} and ${other}, and an evaluation has one. Evaluate them by a file each.`,
      }
    },
  })),
  {
    keys: ['num_examples', 'eval'],
    find({ evals }, written) {
      const i = evals.findIndex((one) => one.num_examples === 0)
      const own = `eval.${i}.num_examples`
      const text = 'num_examples is 0; it must be an integer >= 1, or -1 for all.'
      return i < 0 ? undefined : { key: written.isSet(own) ? own : 'num_examples', text }
    },
  },
]

/** One line for each key that was set but has no effect. */
export function evalNotices({ evals }: EvalFile, written: Written): string[] {
  const places = ['', ...evals.map((_, i) => `eval.${i}.`)]
  const set = Object.keys(idle).filter((key) => places.some((place) => written.isSet(place + key)))
  return set.map((key) => `${key} has no effect: results are always written, and progress is told.`)
}
