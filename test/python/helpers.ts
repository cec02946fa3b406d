/** What the tests of the bridge to Python share: whether it can be tested here, its environments, and a policy that says what it is told. */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect } from 'vitest'
import type { GenerationRequest, Generator } from '../../src/common/types.ts'
import {
  ChatTemplate,
  loadEnvironment,
  PolicyClient,
  runRollout,
  type PolicyClientOptions,
} from '../../src/environments/index.ts'
import type { PythonEnv, PythonOptions } from '../../src/environments/python/environment.ts'
import { toolCallParser } from '../../src/cli/tool-calls.ts'
import type { Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { sampling } from '../environments/scripted.ts'
import { newFolder as newTestFolder } from '../folders.ts'
import { openTiny } from '../inference/tokenizers.ts'
import { seedWords } from '../seed.ts'

export const root = fileURLToPath(new URL('../..', import.meta.url))
export const fixtures = fileURLToPath(new URL('fixtures', import.meta.url))
export const python = join(root, '.venv-verifiers', 'bin', 'python')
export const withoutVerifiers = !existsSync(python)
/** The Python of verifiers' tasksets. */
export const tasksetsPython = join(root, '.venv-verifiers-v1', 'bin', 'python')
export const withoutTasksets = !existsSync(tasksetsPython)
if (withoutVerifiers) console.log('.venv-verifiers is missing: tests on it are skipped (scripts/setup-verifiers.sh makes it)')
if (withoutTasksets) console.log('.venv-verifiers-v1 is missing: tests on it are skipped (scripts/setup-verifiers.sh v1)')

/** What closes things once the test file is done, last first: Vitest ignores an `afterAll` that a test or a hook calls. */
const endings: (() => unknown)[] = []
afterAll(async () => {
  for (const end of endings.reverse()) await end()
})

/** A new folder for a test or a hook. Not while tests are collected: where all of them are skipped, Vitest runs no `afterAll`, and nothing removes it. */
export const newFolder = (): string => newTestFolder('python')

/** Starts train.js or cli.js in a folder; what it has said is told as it comes. */
export function startCommand(
  script: string,
  words: string[],
  cwd: string,
  onText: (text: string) => void = () => {},
): { child: ChildProcess; ended: Promise<string> } {
  const env = { ...process.env, NO_COLOR: '1' }
  const child = spawn(process.execPath, [join(root, script), ...words], { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
  let text = ''
  const onData = (piece: Buffer) => onText((text += piece.toString()))
  child.stdout.on('data', onData)
  child.stderr.on('data', onData)
  const ended = new Promise<string>((resolve) => child.on('close', (code) => resolve(`${text}\nexit code ${code}`)))
  return { child, ended }
}

/** An environment of bridge_tasks.py, closed when the test file is done. */
export async function openTasks(args: Record<string, unknown>, options: PythonOptions = {}): Promise<PythonEnv> {
  return await opened('./bridge_tasks.py', args, { base: fixtures, ...options })
}

export async function opened(id: string, args: Record<string, unknown>, options: PythonOptions): Promise<PythonEnv> {
  const env = (await loadEnvironment(id, args, options)) as PythonEnv
  const logs = newFolder()
  endings.push(() => env.close())
  await env.open({ logs, name: id })
  return env
}

/** Samples what a function of the prompt's text says, as tokens of models/tiny; 'wait' in place of a text waits for the end. */
export class SaysGenerator implements Generator {
  version = 0
  readonly requests: GenerationRequest[] = []
  readonly #tokenizer: Tokenizer
  readonly #say: (prompt: string, request: GenerationRequest) => string | Promise<string>
  constructor(tokenizer: Tokenizer, say: (prompt: string, request: GenerationRequest) => string | Promise<string>) {
    this.#tokenizer = tokenizer
    this.#say = say
  }

  async generate(request: GenerationRequest) {
    this.requests.push(request)
    const text = await this.#say(this.#tokenizer.decode(request.promptIds), request)
    const aborted = request.signal?.aborted === true
    const ids = aborted ? [] : [...this.#tokenizer.encode(text, { addSpecialTokens: false }), 257]
    return {
      text,
      ids,
      logprobs: ids.map((id, i) => -(id + 1) / 1000 - i / 1e6),
      // Two versions in one answer.
      versions: ids.map((_, i) => this.version + (i > 0 ? 1 : 0)),
      finishReason: aborted ? ('abort' as const) : ('stop' as const),
      stopCondition: aborted ? 'abort' : 'eos',
    }
  }
}

/** A client of the policy as a run has it, over a generator that says what it is told. */
export async function saying(
  say: (prompt: string, request: GenerationRequest) => string | Promise<string>,
  options: PolicyClientOptions = {},
) {
  const tokenizer = await openTiny()
  const template = new ChatTemplate(tokenizer)
  const generator = new SaysGenerator(tokenizer, say)
  const client = new PolicyClient(generator, template, { parseTools: toolCallParser('auto', tokenizer, template), ...options })
  return { tokenizer, template, generator, client }
}

interface Judged {
  row: number
  reward: number
  metrics: Record<string, number>
}

/** An environment, and what is said to each last message of a prompt. */
export interface Said {
  env: PythonEnv
  /** As Python's load_environment is called; `folders`: where its module lies. */
  id: string
  args: Record<string, unknown>
  folders?: string[]
  answers: Record<string, string>
}

/**
 * Plays the held-out rows of environments (those of training where one has none) and holds rewards and metrics against those of Python's own
 * env.evaluate, in a process of its own where the model says the same. Returns the rewards of each.
 */
export async function asPythonJudges(said: readonly Said[]): Promise<number[][]> {
  const input = JSON.stringify(said.map(({ id, args, folders = [], answers }) => ({ id, args, folders, answers })))
  const script = join(fixtures, 'evaluate.py')
  const out = execFileSync(python, [script], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'ignore'] })
  const judged = JSON.parse(out.trimEnd().split('\n').at(-1)!) as Judged[][]
  return await Promise.all(said.map(async (one, i) => await asJudged(one, judged[i])))
}

async function asJudged({ env, id, answers }: Said, judged: Judged[]): Promise<number[]> {
  const { client } = await saying((prompt) => {
    // The last message stands last in the prompt; of texts that hold each other it is the longer.
    const found = Object.keys(answers).filter((question) => prompt.includes(question))
    const end = (question: string) => prompt.lastIndexOf(question) + question.length
    return answers[found.reduce((a, b) => ((end(a) - end(b) || a.length - b.length) > 0 ? a : b))]
  })
  const rows = env.evalDataset.length > 0 ? env.evalDataset : env.dataset
  const play = (row: (typeof rows)[number], index: number) =>
    runRollout(env, row, { client, sampling, group: `g${index}`, index: 0, generationTimeoutSeconds: 60 })
  const rollouts = await Promise.all(rows.map(play))
  expect(judged.length, id).toBe(rows.length)
  for (const { exampleId, reward, metrics, error } of rollouts) {
    const own = judged.find(({ row }) => row === exampleId)!
    const words = `${id}, row ${exampleId}, ${seedWords}`
    expect({ reward, metrics, error }, words).toEqual({ reward: own.reward, metrics: own.metrics, error: null })
  }
  return rollouts.map(({ reward }) => reward!)
}
