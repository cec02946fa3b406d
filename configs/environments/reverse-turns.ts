/**
 * Reversing one word after another, in one conversation (configs/tiny-turns.toml). Each turn asks for another word.
 * Reward: the mean over the turns of 2 LCS / (length of the answer + length of the correct answer), where LCS is the length of the longest common
 * subsequence. A turn that was not reached counts as 0. Metrics: the same for each turn.
 */
import { lcsRatio, MultiTurnEnv, parseArgs, Random, type RewardArgs, Rubric, z } from 'dawn-rl/environments'

const shape = {
  turns: z.int().min(1).max(9).default(3).describe('Words, one a turn.'),
  min_length: z.int().min(2).max(20).default(3).describe('Letters of the shortest word.'),
  max_length: z.int().min(2).max(20).default(6).describe('Letters of the longest word.'),
  train_size: z.int().min(1).default(2000).describe('Conversations to train on.'),
  eval_size: z.int().min(1).default(64).describe('Held-out conversations.'),
  seed: z.int().default(0).describe('Decides the words.'),
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<MultiTurnEnv> {
  const { turns, min_length, max_length, train_size, eval_size, seed } = parseArgs('reverse-turns', shape, args)
  const random = new Random(seed)
  const letters = Array.from('abcdefghijklmnopqrstuvwxyz')
  const word = () =>
    Array.from({ length: min_length + random.int(max_length - min_length + 1) }, () => random.pick(letters)).join('')
  const reversed = (text: string) => Array.from(text).toReversed().join('')
  const ask = (text: string) => `Reverse the text: ${text}`
  const rows = Array.from({ length: eval_size + train_size }, () => {
    const texts = Array.from({ length: turns }, word)
    return { prompt: ask(texts[0]), answer: texts.map(reversed).join(' '), info: { texts } }
  })

  const right = ({ completion, info }: RewardArgs, turn: number): number => {
    const said = completion.filter(({ role }) => role === 'assistant')[turn]
    return said ? lcsRatio(said.content, reversed((info.texts as string[])[turn])) : 0
  }
  const each = Array.from({ length: turns }, (_, turn) => turn)
  const metrics = each.map((turn) => [`turn_${turn + 1}`, { reward: (args: RewardArgs) => right(args, turn), weight: 0 }])
  return await MultiTurnEnv.create({
    id: 'reverse-turns',
    maxTurns: turns,
    rubric: new Rubric({
      reversed: (args) => each.reduce((sum, turn) => sum + right(args, turn), 0) / turns,
      ...Object.fromEntries(metrics),
    }),
    envResponse: (_, { info, turn }) => ask((info.texts as string[])[turn]),
    // The whole conversation: `sft` trains on all answers.
    sftCompletion: ({ info }) =>
      (info.texts as string[]).flatMap((text, turn) => [
        ...(turn > 0 ? [{ role: 'user' as const, content: ask(text) }] : []),
        { role: 'assistant' as const, content: reversed(text) },
      ]),
    dataset: rows.slice(eval_size),
    evalDataset: rows.slice(0, eval_size),
  })
}
