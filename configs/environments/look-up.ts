/**
 * Words in a secret alphabet, which only a tool knows: configs/tiny-tools.toml. The model calls `code` with the word, reads the result, and
 * answers with it.
 * Reward: 2 LCS / (length of the answer + length of the code), LCS being the longest common subsequence; 0 without a call that
 * came back. Metric `right_call`: whether the word that was asked for is what the tool was called with.
 *
 * To start from a copy elsewhere, write 'dawn-rl/environments' for the path in the import.
 */
import { lcsRatio, type Message, parseArgs, Random, Rubric, tool, ToolEnv, z } from '../../src/environments/index.ts'

const shape = {
  length: z.int().min(1).max(9).default(3).describe('Letters of a word.'),
  train_size: z.int().min(1).default(2000).describe('Words to train on.'),
  eval_size: z.int().min(1).default(64).describe('Held-out words.'),
  seed: z.int().default(0).describe('Decides the words and the alphabet.'),
}

const letters = Array.from('abcdefghijklmnopqrstuvwxyz')

export default async function loadEnvironment(args: Record<string, unknown>): Promise<ToolEnv> {
  const { length, train_size, eval_size, seed } = parseArgs('look-up', shape, args)
  const random = new Random(seed)
  const secret = random.shuffle([...letters])
  const encode = (word: string) => Array.from(word, (letter) => secret[letters.indexOf(letter)] ?? letter).join('')
  const words = new Set<string>()
  while (words.size < eval_size + train_size) words.add(Array.from({ length }, () => random.pick(letters)).join(''))
  const rows = [...words].map((word) => ({ prompt: `Code of ${word}`, answer: encode(word), info: { word } }))
  const code = tool({
    name: 'code',
    description: '',
    parameters: z.object({ of: z.string() }),
    run: ({ of }) => encode(of),
  })
  const results = (completion: Message[]) =>
    completion.filter(({ role, content }) => role === 'tool' && !content.startsWith('Error')).map(({ content }) => content)
  return await ToolEnv.create({
    id: 'look-up',
    tools: [code],
    maxTurns: 2,
    rubric: new Rubric({
      answered: ({ text, answer, completion }) => (results(completion).length > 0 ? lcsRatio(text, answer) : 0),
      right_call: { reward: ({ completion, answer }) => Number(results(completion).includes(answer)), weight: 0 },
    }),
    // What sft teaches: the whole conversation, as the model would have it.
    sftCompletion: ({ answer, info }) => {
      const call = { name: 'code', arguments: JSON.stringify({ of: info.word }) }
      return [
        { role: 'assistant', content: '', tool_calls: [{ id: 'call', type: 'function', function: call }] },
        { role: 'tool', tool_call_id: 'call', name: 'code', content: answer },
        { role: 'assistant', content: answer },
      ]
    },
    dataset: rows.slice(eval_size),
    evalDataset: rows.slice(0, eval_size),
  })
}
