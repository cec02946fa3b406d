/** The files that `env new` writes: small environments that run as they are. */
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { AT, CLI, TRAIN } from '../common/commands.ts'
import { nearest, UserError } from '../common/errors.ts'
import { unwritten } from './out-file.ts'

export const ENV_KINDS = ['single', 'multi', 'tools'] as const

/** Writes `<folder>/<name>.ts` and returns what to do next. @throws UserError for a bad name or kind, or if the file exists or cannot be written */
export function newEnvironment(name: string, kind: string, folder: string): string {
  if (!/^[A-Za-z][\w-]{0,63}$/u.test(name))
    throw new UserError(`env new: "${name}" is not a valid name: use letters, digits, - and _, starting with a letter.`)
  const known = ENV_KINDS.find((one) => one === kind)
  if (!known) {
    const near = nearest(kind, ENV_KINDS)
    throw new UserError(`env new: --kind is "${kind}"; it must be one of ${ENV_KINDS.join(', ')}${near ? ` (${near}?)` : ''}.`)
  }
  const path = join(folder, `${name}.ts`)
  if (existsSync(path)) throw new UserError(`env new: ${path} exists already: choose another name, or delete it.`)
  try {
    writeFileSync(path, sources[known](name))
  } catch (error) {
    // On a full disk an empty file, which would be there already the next time.
    rmSync(path, { force: true })
    unwritten(path)(error)
  }
  return [
    `wrote ${name}.ts`,
    `look at it:  ${CLI} env check ./${name}.ts`,
    `train on it: ${TRAIN} ${AT} configs/smollm2-arithmetic.toml --env.id ./${name}.ts${known === 'single' ? '' : ' --trainer.args.max_seq_len 512'}`,
  ].join('\n')
}

const rows = `  const random = new Random(seed)
  const rows = Array.from({ length: size }, () => {
    const [a, b] = [random.int(100), random.int(100)]
    return { prompt: \`Which number is larger, \${a} or \${b}?\`, answer: Math.max(a, b) }
  })`

const shape = `const shape = {
  size: z.int().min(10).default(1000).describe('Rows; a tenth of them is held out.'),
  seed: z.int().default(0).describe('Decides the rows.'),
}`

const sources: Record<(typeof ENV_KINDS)[number], (name: string) => string> = {
  single: (name) => `/** ${name}: one question, one answer, one reward. */
import { containsWords, parseArgs, Random, Rubric, SingleTurnEnv, z } from 'dawn-rl/environments'

${shape}

export default async function loadEnvironment(args: Record<string, unknown>) {
  const { size, seed } = parseArgs('${name}', shape, args)
${rows}
  const rubric = new Rubric({
    right: { reward: ({ text, answer }) => (containsWords(text, answer) ? 1 : 0), weight: 0.8 },
    ended: { reward: ({ isTruncated }) => (isTruncated ? 0 : 1), weight: 0.2 },
  })
  return await SingleTurnEnv.create({ id: '${name}', rubric, dataset: rows })
}
`,
  multi: (name) => `/** ${name}: the model guesses a number, and is told whether it is higher or lower. */
import { lastNumber, MultiTurnEnv, parseArgs, Random, Rubric, z } from 'dawn-rl/environments'

${shape}

/** What a rollout keeps for itself. */
interface Game {
  secret: number
}

export default async function loadEnvironment(args: Record<string, unknown>) {
  const { size, seed } = parseArgs('${name}', shape, args)
  const random = new Random(seed)
  const rows = Array.from({ length: size }, (_, i) => {
    const secret = 1 + random.int(20)
    return { prompt: \`Game \${i}: guess my number from 1 to 20. Answer with a number.\`, answer: secret, info: { secret } }
  })
  const rubric = new Rubric({
    found: ({ text, answer }) => Number(lastNumber(text) === Number(answer)),
    turns: { reward: ({ state }) => Number(state.turn), weight: 0 },
  })
  return await MultiTurnEnv.create<Game>({
    id: '${name}',
    rubric,
    dataset: rows,
    maxTurns: 5,
    setupState: ({ info }) => ({ secret: Number(info.secret) }),
    stop: { found: (state) => lastNumber(state.lastText) === state.secret },
    envResponse: (_, state) => {
      const guess = lastNumber(state.lastText)
      if (guess === null) return 'That is no number.'
      return guess < state.secret ? 'Higher.' : 'Lower.'
    },
  })
}
`,
  tools: (name) => `/** ${name}: the model looks a word up with a tool, and answers. */
import { containsWords, type Message, parseArgs, Random, Rubric, tool, ToolEnv, z } from 'dawn-rl/environments'

${shape}

const colours: Record<string, string> = { apple: 'red', banana: 'yellow', grass: 'green', sky: 'blue', coal: 'black', snow: 'white' }

const lookUp = tool({
  name: 'look_up',
  description: 'Tells the colour of a thing.',
  parameters: z.object({ thing: z.string().describe('One word.') }),
  run: ({ thing }) => colours[thing] ?? 'unknown',
})

export default async function loadEnvironment(args: Record<string, unknown>) {
  const { size, seed } = parseArgs('${name}', shape, args)
  const random = new Random(seed)
  const rows = Array.from({ length: size }, (_, i) => {
    const thing = random.pick(Object.keys(colours))
    return { prompt: \`Question \${i}: which colour is \${thing}? Look it up, then answer in one word.\`, answer: colours[thing] }
  })
  const rubric = new Rubric({
    right: { reward: ({ text, answer }) => (containsWords(text, answer) ? 1 : 0), weight: 0.8 },
    looked: { reward: ({ completion }) => Number(completion.some(isResult)), weight: 0.2 },
  })
  return await ToolEnv.create({ id: '${name}', rubric, dataset: rows, tools: [lookUp], maxTurns: 4 })
}

/** What the tool said, and not that a call was broken: a reward for any call is earned by broken ones too. */
const isResult = ({ role, content }: Message) => role === 'tool' && !content.startsWith('Error')
`,
}
