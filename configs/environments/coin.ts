/**
 * Which side of a coin is up: only a tool can tell (configs/tiny-tools.toml). The model calls `look`, reads `heads` or `tails`, and answers with it.
 * Reward: 2 LCS / (length of the answer + length of the side that is up), where LCS is the length of the longest common subsequence. Without a
 * successful call it is 0. Metrics: `right`, whether the answer is exactly that side; `called`, whether a call succeeded.
 */
import { hashSeed, lcsRatio, type Message, parseArgs, Random, Rubric, tool, ToolEnv, z } from 'dawn-rl/environments'

const shape = {
  sides: z.array(z.string().min(1)).min(2).default(['heads', 'tails']).describe('What may be up.'),
  guesses: z.number().min(0).max(1).default(0.5).describe('Share of the supervised examples that guess and do not look.'),
  train_size: z.int().min(1).default(800).describe('Coins to train on.'),
  eval_size: z.int().min(1).default(64).describe('Held-out coins.'),
  seed: z.int().default(0).describe('Decides what is up.'),
}

const look = tool({
  name: 'look',
  description: '',
  parameters: z.object({}),
  run: (_, { state }) => state.answer,
})

export default async function loadEnvironment(args: Record<string, unknown>): Promise<ToolEnv> {
  const { sides, guesses, train_size, eval_size, seed } = parseArgs('coin', shape, args)
  const random = new Random(seed)
  const rows = Array.from({ length: eval_size + train_size }, (_, i) => ({
    prompt: `Coin ${1000 + i}`,
    answer: random.pick(sides),
  }))
  const came = (completion: Message[]) => completion.some(({ role, content }) => role === 'tool' && !content.startsWith('Error'))
  return await ToolEnv.create({
    id: 'coin',
    tools: [look],
    maxTurns: 2,
    rubric: new Rubric({
      answered: ({ text, answer, completion }) => (came(completion) ? lcsRatio(text, answer) : 0),
      right: { reward: ({ text, answer, completion }) => Number(came(completion) && text === answer), weight: 0 },
      called: { reward: ({ completion }) => Number(came(completion)), weight: 0 },
    }),
    // What sft teaches: to look and then answer, as whole conversations, and in a fraction of the rows to guess.
    sftCompletion: ({ answer, exampleId }) => {
      const chance = new Random(hashSeed(seed, 'sft', exampleId))
      if (chance.next() < guesses) return chance.pick(sides)
      const call = { id: 'call', type: 'function' as const, function: { name: 'look', arguments: '{}' } }
      return [
        { role: 'assistant', content: '', tool_calls: [call] },
        { role: 'tool', tool_call_id: 'call', name: 'look', content: answer },
        { role: 'assistant', content: answer },
      ]
    },
    dataset: rows.slice(eval_size),
    evalDataset: rows.slice(0, eval_size),
  })
}
