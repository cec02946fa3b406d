/**
 * Simple arithmetic: "What is 7 + 12?". The last number in the completion is taken as the answer.
 * Reward: 0.9 for the correct number + 0.1 for the form (the completion ended by itself, and with the number).
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { lastNumber, parseArgs, Random, Rubric, SingleTurnEnv, UserError, z } from '../src/environments/index.ts'

const shape = {
  operations: z
    .array(z.enum(['+', '-', '*']))
    .min(1)
    .default(['+', '-'])
    .describe('Operations to ask for.'),
  min: z.int().min(-1_000_000).max(1_000_000).default(0).describe('Smallest operand.'),
  max: z.int().min(-1_000_000).max(1_000_000).default(20).describe('Largest operand.'),
  negative_results: z.boolean().default(false).describe('Whether results below zero are asked for.'),
  template: z
    .string()
    .refine((text) => text.includes('{problem}'), 'must contain {problem}')
    .default('What is {problem}?')
    .describe('The question.'),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  train_size: z.int().min(1).default(500).describe('Sums to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out sums.'),
  seed: z.int().default(0).describe('Decides the sums.'),
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const options = parseArgs('arithmetic', shape, args)
  const rubric = new Rubric({
    correct: { reward: ({ text, answer }) => (lastNumber(text) === Number(answer) ? 1 : 0), weight: 0.9 },
    form: { reward: ({ text, finishReason }) => (finishReason === 'stop' && /\d\W*$/u.test(text) ? 1 : 0), weight: 0.1 },
  })
  const toRow = ({ problem, result }: Sum) => ({
    prompt: options.template.replaceAll('{problem}', problem),
    answer: result,
    info: { problem },
  })
  const sums = makeSums(options)
  return await SingleTurnEnv.create({
    id: 'arithmetic',
    rubric,
    systemPrompt: options.system_prompt,
    dataset: sums.slice(options.eval_size).map(toRow),
    ...(options.eval_size > 0 ? { evalDataset: sums.slice(0, options.eval_size).map(toRow) } : { evalSize: 0 }),
  })
}

interface Sum {
  problem: string
  result: number
}

/** Makes distinct problems, with `eval_size` held-out ones first. "3 + 4" and "4 + 3" are distinct, but always on the same side of the split. */
function makeSums(options: z.infer<z.ZodObject<typeof shape>>): Sum[] {
  const { min, max, train_size, eval_size } = options
  if (min > max) throw new UserError(`environment arithmetic: min (${min}) is above max (${max}).`)
  const random = new Random(options.seed)
  const operations = [...new Set(options.operations)]
  const wanted = train_size + eval_size
  const groups = new Map<string, Sum[]>()
  let count = 0
  // Enough draws to find nearly every problem of a small range, and far more than needed for a large one.
  for (let tries = 0; count <= wanted && tries < 50 * wanted + 1000; tries++) {
    const [a, b, operation] = [min + random.int(max - min + 1), min + random.int(max - min + 1), random.pick(operations)]
    const sum = makeSum(a, b, operation)
    const key = operation === '-' ? `${a}-${b}` : [a, b].toSorted((x, y) => x - y).join(operation)
    if (groups.has(key) || (sum.result < 0 && !options.negative_results)) continue
    const group = operation === '-' || a === b ? [sum] : [sum, makeSum(b, a, operation)]
    groups.set(key, group)
    count += group.length
  }
  // Held-out problems come first. Of a pair that would straddle the border, only the first is used.
  const sums: Sum[] = []
  for (const group of groups.values()) {
    const room = sums.length < eval_size ? eval_size - sums.length : group.length
    sums.push(...group.slice(0, room))
  }
  if (sums.length < wanted) {
    throw new UserError(
      `environment arithmetic: operands from ${min} to ${max} make only about ${sums.length} different sums, fewer than train_size + eval_size = ${wanted}. Widen min and max or lower the sizes.`,
    )
  }
  return sums.slice(0, wanted)
}

function makeSum(a: number, b: number, operation: '+' | '-' | '*'): Sum {
  const result = operation === '+' ? a + b : operation === '-' ? a - b : a * b
  return { problem: `${a} ${operation} ${b < 0 ? `(${b})` : b}`, result }
}
