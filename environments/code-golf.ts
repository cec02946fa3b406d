/**
 * Writing short JavaScript functions: "Write a JavaScript function of a number x that returns x plus 3." The model's code runs in the sandbox.
 * Reward: 0.8 x (fraction of tests passed) + 0.2 x (a score for brevity, once all tests pass).
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { isDeepStrictEqual } from 'node:util'
import {
  type Message,
  Parser,
  parseArgs,
  Random,
  type RewardArgs,
  Rubric,
  runSandboxed,
  type SandboxResult,
  SingleTurnEnv,
  UserError,
  z,
} from '../src/environments/index.ts'

const shape = {
  kinds: z.array(z.enum(['number', 'text', 'list'])).min(1).default(['number', 'text', 'list']).describe('What the functions take.'),
  max: z.int().min(2).max(1000).default(20).describe('Largest constant in a task.'),
  tests: z.int().min(2).max(50).default(8).describe('Calls that a function is tested with.'),
  shown: z.int().min(0).max(10).default(2).describe('Tests that the question shows.'),
  seconds: z.number().min(0.05).max(60).default(0.5).describe('Processor time for all calls of one function.'),
  spare: z.int().min(1).default(60).describe('Characters beyond the reference at which brevity earns nothing.'),
  solved: z.boolean().default(true).describe('Whether a solved task of each kind stands before the question.'),
  system_prompt: z.string().default('Answer with one JavaScript arrow function and nothing else.').describe('System message.'),
  train_size: z.int().min(1).default(256).describe('Tasks to train on.'),
  eval_size: z.int().min(0).default(32).describe('Held-out tasks.'),
  seed: z.int().default(0).describe('Decides tasks and tests.'),
} // prettier-ignore

export default async function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const options = parseArgs('code-golf', shape, args)
  const { spare, seconds, eval_size } = options
  const runs = new WeakMap<Message[], Promise<SandboxResult>>()
  const play = (rollout: RewardArgs) => {
    // All reward functions of a rollout share a single run.
    const run = runs.get(rollout.completion) ?? judge(rollout, seconds)
    runs.set(rollout.completion, run)
    return run
  }
  const passed = async (rollout: RewardArgs) => {
    const { calls } = await play(rollout)
    const outputs = rollout.info.outputs as unknown[]
    return (
      outputs.filter((output, i) => calls[i]?.error === null && isDeepStrictEqual(calls[i].value, output)).length / outputs.length
    )
  }
  const rubric = new Rubric(
    {
      tests: { reward: passed, weight: 0.8 },
      short: {
        reward: async (rollout) => {
          if ((await passed(rollout)) < 1) return 0
          const over = Array.from(rollout.text).length - rollout.answer.length
          return Math.max(0, Math.min(1, 1 - over / spare))
        },
        weight: 0.2,
      },
      characters: { reward: ({ text }) => Array.from(text).length, weight: 0 },
      ran: { reward: async (rollout) => ((await play(rollout)).calls.some((call) => call.error === null) ? 1 : 0), weight: 0 },
      // 1 if a limit of the sandbox was hit: time, memory, stack or output.
      stopped: { reward: async (rollout) => (['code', null].includes((await play(rollout)).cause) ? 0 : 1), weight: 0 },
    },
    // `seconds` limits one run. This limit includes the time in the queue.
    { parser: new Parser(codeOf), timeoutSeconds: 1200 },
  )
  const rows = makeTasks(options)
  return await SingleTurnEnv.create({
    id: 'code-golf',
    rubric,
    systemPrompt: options.system_prompt,
    dataset: rows.slice(eval_size),
    ...(eval_size > 0 ? { evalDataset: rows.slice(0, eval_size) } : { evalSize: 0 }),
  })
}

/** Calls the model's function with the inputs of all tests. The expected outputs stay outside the sandbox and are compared there. */
async function judge({ text, info, signal }: RewardArgs, seconds: number): Promise<SandboxResult> {
  const run = await runSandboxed(`(${text}\n)`, { calls: info.inputs as unknown[][], seconds, signal })
  // These two causes say nothing about the code.
  if (run.cause === 'abort' || run.cause === 'crash') throw new Error(`the sandbox was ended: ${run.error}`)
  return run
}

/** Extracts the code of an answer, the first fenced block or else the whole text, as an expression: without a name in front or a semicolon at the end. */
function codeOf(text: string): string {
  const fenced = /```[a-zA-Z]*\n([\s\S]*?)(?:```|$)/u.exec(text)?.[1] ?? /^\s*`([^`]+)`\s*$/u.exec(text)?.[1]
  return (fenced ?? text)
    .trim()
    .replace(/^(?:const|let|var)\s+[A-Za-z_$][\w$]*\s*=\s*/u, '')
    .replace(/[;\s]+$/u, '')
}

type Kind = z.infer<typeof shape.kinds>[number]

interface Template {
  kind: Kind
  /** The task in words, for the constants k (a number) and w (a letter). */
  says: string
  /** A short solution, with the constants written as {k} and {w}. */
  code: string
  /** The reference solution as a function of our own, because tests must not come out of the sandbox. */
  of: (input: never, k: number, w: string) => unknown
}

const number = (says: string, code: string, of: (x: number, k: number) => unknown): Template => ({
  kind: 'number',
  says,
  code,
  of,
})
const text = (says: string, code: string, of: (s: string, k: number, w: string) => unknown): Template => ({
  kind: 'text',
  says,
  code,
  of,
})
const list = (says: string, code: string, of: (a: number[], k: number) => unknown): Template => ({ kind: 'list', says, code, of })

const templates: Template[] = [
  number('x plus {k}', 'x=>x+{k}', (x, k) => x + k),
  number('x times {k}', 'x=>x*{k}', (x, k) => x * k),
  number('{k} minus x', 'x=>{k}-x', (x, k) => k - x),
  number('the square of x, plus {k}', 'x=>x*x+{k}', (x, k) => x * x + k),
  number('the remainder of x divided by {k}', 'x=>x%{k}', (x, k) => x % k),
  number('true if {k} divides x, else false', 'x=>x%{k}<1', (x, k) => x % k === 0),
  number('the larger one of x and {k}', 'x=>x>{k}?x:{k}', (x, k) => Math.max(x, k)),
  number('true if x is larger than {k}, else false', 'x=>x>{k}', (x, k) => x > k),
  number('x divided by {k}, rounded down', 'x=>x/{k}|0', (x, k) => Math.floor(x / k)),
  text('s repeated {k} times', 's=>s.repeat({k})', (s, k) => s.repeat(k)),
  text('the first {k} characters of s', 's=>s.slice(0,{k})', (s, k) => s.slice(0, k)),
  text('the last {k} characters of s', 's=>s.slice(-{k})', (s, k) => s.slice(-k)),
  text('s without its first {k} characters', 's=>s.slice({k})', (s, k) => s.slice(k)),
  text('s with the letter {w} put before it', "s=>'{w}'+s", (s, _, w) => w + s),
  text('s with the letter {w} put behind it', "s=>s+'{w}'", (s, _, w) => s + w),
  text('how often the letter {w} is in s', "s=>s.split('{w}').length-1", (s, _, w) => Array.from(s).filter((c) => c === w).length),
  text('s without the letter {w}', "s=>s.replaceAll('{w}','')", (s, _, w) => Array.from(s).filter((c) => c !== w).join('')),
  text('true if s starts with the letter {w}, else false', "s=>s[0]=='{w}'", (s, _, w) => s.startsWith(w)),
  text('the length of s, plus {k}', 's=>s.length+{k}', (s, k) => s.length + k),
  list('the sum of the list a, plus {k}', 'a=>a.reduce((p,x)=>p+x,{k})', (a, k) => a.reduce((sum, x) => sum + x, k)),
  list('the list a with {k} added to each number', 'a=>a.map(x=>x+{k})', (a, k) => a.map((x) => x + k)),
  list('the list a with each number times {k}', 'a=>a.map(x=>x*{k})', (a, k) => a.map((x) => x * k)),
  list('the numbers of the list a that are larger than {k}', 'a=>a.filter(x=>x>{k})', (a, k) => a.filter((x) => x > k)),
  list('how many numbers of the list a are smaller than {k}', 'a=>a.filter(x=>x<{k}).length', (a, k) => a.filter((x) => x < k).length),
  list('true if {k} is in the list a, else false', 'a=>a.includes({k})', (a, k) => a.includes(k)),
  list('the list a with {k} put at its end', 'a=>[...a,{k}]', (a, k) => [...a, k]),
] // prettier-ignore

const argument: Record<Kind, string> = { number: 'a number x', text: 'a text s', list: 'a list of numbers a' }
const ask = (kind: Kind, says: string) => `Write a JavaScript function f of ${argument[kind]} that returns ${says}.`
const shot = (kind: Kind, says: string, code: string): Message[] => [
  { role: 'user', content: ask(kind, says) },
  { role: 'assistant', content: code },
]

/** For each kind, a worked example that no template makes. */
const solution: Record<Kind, Message[]> = {
  number: shot('number', 'half of x', 'x=>x/2'),
  text: shot('text', 's in capital letters', 's=>s.toUpperCase()'),
  list: shot('list', 'the first number of the list a', 'a=>a[0]'),
}
const letters = 'abcdefgh'

/** Makes distinct tasks, in an order that depends on the seed. Throws UserError if there are not that many. */
function makeTasks(options: z.infer<z.ZodObject<typeof shape>>) {
  const { kinds, max, train_size, eval_size, seed } = options
  const random = new Random(seed)
  const all = templates
    .filter(({ kind }) => kinds.includes(kind))
    .flatMap((template) =>
      template.says.includes('{k}')
        ? Array.from({ length: max - 1 }, (_, i) => ({ template, k: i + 2, w: '' }))
        : Array.from(letters, (w) => ({ template, k: 0, w })),
    )
  const wanted = train_size + eval_size
  if (all.length < wanted) {
    throw new UserError(
      `environment code-golf: there are ${all.length} tasks with constants up to ${max}, fewer than train_size + eval_size = ${wanted}. Raise max or lower the sizes.`,
    )
  }
  return random
    .shuffle(all)
    .slice(0, wanted)
    .map(({ template, k, w }) => toRow(template, k, w, random, options))
}

function toRow(
  template: Template,
  k: number,
  w: string,
  random: Random,
  { tests, shown, solved, kinds }: Pick<z.infer<z.ZodObject<typeof shape>>, 'tests' | 'shown' | 'solved' | 'kinds'>,
) {
  const fill = (words: string) => words.replaceAll('{k}', String(k)).replaceAll('{w}', w)
  // The shortest tests come first: they are shown in the prompt if they are short enough.
  const inputs = Array.from({ length: tests }, () => makeInput(template.kind, k, w, random)).toSorted(
    (x, y) => JSON.stringify(x).length - JSON.stringify(y).length,
  )
  const outputs = inputs.map((input) => template.of(input as never, k, w))
  const examples = inputs
    .slice(0, shown)
    .map((input, i) => `f(${JSON.stringify(input)}) is ${JSON.stringify(outputs[i])}`)
    .filter((example) => example.length <= 60)
  const question = ask(template.kind, fill(template.says))
  return {
    prompt: [
      ...(solved ? kinds.flatMap((kind) => solution[kind]) : []),
      { role: 'user' as const, content: examples.length > 0 ? `${question} For example, ${examples.join(', ')}.` : question },
    ],
    answer: fill(template.code),
    info: { kind: template.kind, inputs: inputs.map((input) => [input]), outputs },
  }
}

/** Makes inputs on both sides of the distinction that a task makes: numbers around k, texts with and without the letter. */
function makeInput(kind: Kind, k: number, w: string, random: Random): unknown {
  const near = () => (random.int(2) ? random.int(3) * k + random.int(2) : random.int(3 * k + 5))
  if (kind === 'number') return near()
  if (kind === 'list') return Array.from({ length: 2 + random.int(4) }, near)
  const start = w !== '' && random.int(2) ? w : ''
  return (
    start +
    Array.from({ length: 1 + random.int(6) + (random.int(2) ? k : 0) }, () => letters[random.int(letters.length)]).join('')
  )
}
