/**
 * Repeating sentences: the model gets a text of a few sentences, and is asked for one of them in each turn. The text is generated from a seed.
 * Reward: the mean over the questions of 2 LCS / (length of the answer + length of the sentence), where LCS is the length of the longest common
 * subsequence of characters, and the answer counts up to twice the sentence's length. Questions that were not reached count as 0.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { lcsRatio, type Message, MultiTurnEnv, parseArgs, Random, Rubric, UserError, z } from '../src/environments/index.ts'

const shape = {
  sentences: z.int().min(1).max(20).default(4).describe('Sentences of a text.'),
  questions: z.int().min(1).max(20).default(3).describe('Questions, one a turn.'),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  train_size: z.int().min(1).default(500).describe('Texts to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out texts.'),
  seed: z.int().default(0).describe('Decides the texts.'),
}

// prettier-ignore
const parts = {
  who: ['The baker', 'A young fox', 'My neighbour', 'The old captain', 'A tired nurse', 'The teacher', 'A small robot', 'The gardener', 'Our cat', 'The painter'],
  does: ['found', 'carried', 'lost', 'painted', 'sold', 'hid', 'repaired', 'wanted', 'dropped', 'counted'],
  what: ['three red apples', 'a broken clock', 'the long letter', 'two silver keys', 'a heavy box', 'the blue kite', 'an empty jar', 'some fresh bread', 'a wooden chair', 'the last map'],
  where: ['near the river', 'in the kitchen', 'behind the school', 'on a rainy morning', 'under the bridge', 'at the market', 'before lunch', 'in the garden', 'by the window', 'after the storm'],
}
const ordinals = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth', 'ninth', 'tenth']

export default async function loadEnvironment(args: Record<string, unknown>): Promise<MultiTurnEnv> {
  const options = parseArgs('sentence-repeater', shape, args)
  if (options.questions > options.sentences) {
    throw new UserError(
      `environment sentence-repeater: questions (${options.questions}) is above sentences (${options.sentences}).`,
    )
  }
  const random = new Random(options.seed)
  const sentence = () =>
    `${Object.values(parts)
      .map((list) => random.pick(list))
      .join(' ')}.`
  const ask = (index: number) => `What is the ${ordinals[index] ?? `${index + 1}th`} sentence? Answer with that sentence alone.`
  const seen = new Set<string>()
  const text = () => {
    for (let tries = 0; tries < 1000; tries++) {
      const sentences = Array.from({ length: options.sentences }, sentence)
      const isNew = new Set(sentences).size === sentences.length && !seen.has(sentences.join(' '))
      if (isNew) return sentences
    }
    throw new UserError('environment sentence-repeater: too few different texts. Raise sentences or lower the sizes.')
  }
  const rows = Array.from({ length: options.train_size + options.eval_size }, () => {
    const sentences = text()
    seen.add(sentences.join(' '))
    const order = random.shuffle(sentences.map((_, i) => i)).slice(0, options.questions)
    const wanted = order.map((i) => sentences[i])
    return { prompt: `${sentences.join(' ')}\n\n${ask(order[0])}`, answer: wanted[0], info: { asks: order.map(ask), wanted } }
  })
  const closeness = ({ completion, info }: { completion: Message[]; info: Record<string, unknown> }) => {
    const wanted = info.wanted as string[]
    const said = completion.filter((message) => message.role === 'assistant').map((message) => message.content.trim())
    return wanted.map((right, i) => (said[i] === undefined ? 0 : lcsRatio(said[i].slice(0, 2 * right.length), right)))
  }
  const mean = (values: number[]) => values.reduce((a, b) => a + b, 0) / values.length
  return await MultiTurnEnv.create({
    id: 'sentence-repeater',
    maxTurns: options.questions,
    rubric: new Rubric({
      repeated: (rollout) => mean(closeness(rollout)),
      exact: { reward: (rollout) => mean(closeness(rollout).map((ratio) => Number(ratio === 1))), weight: 0 },
    }),
    envResponse: (_, state) => (state.info.asks as string[])[state.turn],
    systemPrompt: options.system_prompt,
    dataset: rows.slice(options.eval_size),
    ...(options.eval_size > 0 ? { evalDataset: rows.slice(0, options.eval_size) } : { evalSize: 0 }),
  })
}
