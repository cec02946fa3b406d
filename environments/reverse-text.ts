/**
 * Reversing a short text. The words are generated from a seed, so nothing is downloaded, and held-out words are never trained on.
 * Reward: 2 LCS / (length of the answer + length of the correct answer), where LCS is the length of the longest common subsequence.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { lcsRatio, parseArgs, Random, Rubric, SingleTurnEnv, UserError, z } from '../src/environments/index.ts'

const shape = {
  min_length: z.int().min(1).max(200).default(3).describe('Letters of the shortest word.'),
  max_length: z.int().min(1).max(200).default(6).describe('Letters of the longest word.'),
  words: z.int().min(1).max(50).default(1).describe('Words in a text, with one space between.'),
  alphabet: z.string().min(1).default('abcdefghijklmnopqrstuvwxyz').describe('Letters the words are made of.'),
  instruction: z.string().default('Reverse the text:').describe('Stands before the text, with a space.'),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  train_size: z.int().min(1).default(2000).describe('Texts to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out texts.'),
  seed: z.int().default(0).describe('Decides the texts.'),
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const options = parseArgs('reverse-text', shape, args)
  const rubric = new Rubric({
    lcs: ({ text, answer }) => lcsRatio(text, answer),
    exact: { reward: ({ text, answer }) => (text === answer ? 1 : 0), weight: 0 },
  })
  const texts = makeTexts(options)
  const toRow = (text: string) => ({
    prompt: `${options.instruction} ${text}`.trim(),
    answer: Array.from(text).toReversed().join(''),
    info: { text },
  })
  return await SingleTurnEnv.create({
    id: 'reverse-text',
    rubric,
    systemPrompt: options.system_prompt,
    dataset: texts.slice(options.eval_size).map(toRow),
    ...(options.eval_size > 0 ? { evalDataset: texts.slice(0, options.eval_size).map(toRow) } : { evalSize: 0 }),
  })
}

/** Makes distinct texts, with `eval_size` held-out ones first. */
function makeTexts(options: z.infer<z.ZodObject<typeof shape>>): string[] {
  const { min_length, max_length, words, train_size, eval_size } = options
  if (min_length > max_length)
    throw new UserError(`environment reverse-text: min_length (${min_length}) is above max_length (${max_length}).`)
  const letters = [...new Set(options.alphabet)]
  let possible = 0
  for (let length = min_length; length <= max_length; length++) possible += letters.length ** length
  possible **= words
  const wanted = train_size + eval_size
  // If there were fewer than twice as many, the last draws would take many tries.
  if (possible < 2 * wanted) {
    throw new UserError(
      `environment reverse-text: ${letters.length} letters at length ${min_length} to ${max_length} make only ${possible} texts, too few for train_size + eval_size = ${wanted} different ones. Raise max_length or lower the sizes.`,
    )
  }
  const random = new Random(options.seed)
  const word = () =>
    Array.from({ length: min_length + random.int(max_length - min_length + 1) }, () => random.pick(letters)).join('')
  const texts = new Set<string>()
  // Lengths are drawn uniformly, so the few shortest texts are used up long before the longest ones. Repeated texts are simply drawn again.
  for (let tries = 0; texts.size < wanted; tries++) {
    if (tries > 200 * wanted)
      throw new UserError('environment reverse-text: too few different texts to draw. Raise min_length or lower the sizes.')
    texts.add(Array.from({ length: words }, word).join(' '))
  }
  return [...texts]
}
