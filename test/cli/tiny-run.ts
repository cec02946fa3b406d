/** What the tests of `train` share: a folder with a tiny random model, an environment and files of a user's, and the command line as a child process. */
import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll } from 'vitest'
import { writeModelFolder } from '../../src/model/files/export.ts'
import { newModel } from '../../src/trainer/new-model.ts'
import { asPosix } from '../windows.ts'

const trainJs = fileURLToPath(new URL('../../train.js', import.meta.url))

/** Tokens are bytes; the reward is the share of them that are even, so every group of random answers has variance. */
const environment = `
import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
export default (args) => {
  const rubric = new Rubric({ even: ({ completionIds }) => {
    if (args.fails) throw new Error('the judge is away')
    if (args.hangs) return new Promise(() => {})
    return completionIds.filter((id) => id % 2 === 0).length / completionIds.length
  } })
  const rows = (word, n) => Array.from({ length: n }, (_, i) => ({ prompt: word + ' ' + i, answer: String(i) }))
  return SingleTurnEnv.create({ id: 'even', rubric, dataset: args.dataset ?? rows('say', 5), evalDataset: rows('held', 2) })
}
`

export interface Outcome {
  code: number | null
  stdout: string
  stderr: string
  seconds: number
}

export class TinyRuns {
  readonly dir = mkdtempSync(join(tmpdir(), 'dawn-rl-train-'))
  readonly outputs = join(this.dir, 'outputs')

  constructor() {
    afterAll(() => rmSync(this.dir, { recursive: true, force: true }))
  }

  path(...names: string[]): string {
    return join(this.dir, ...names)
  }

  write(name: string, text: string | Uint8Array): string {
    writeFileSync(this.path(name), text)
    return this.path(name)
  }

  /** A Qwen3 of random weights and bytes for tokens, the environment, and a config of small steps: run.toml. */
  async prepare(): Promise<void> {
    const made = newModel(
      {
        family: 'qwen3', hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16,
        tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 128, initializer_range: 0.1,
      },
      7,
    ) // prettier-ignore
    const tensors = made.tensors.names().map((name) => ({
      name,
      dtype: 'bf16' as const,
      shape: made.tensors.shape(name),
      read: () => made.tensors.read(name),
    }))
    await writeModelFolder(this.path('tiny'), { ...made, tensors })
    this.write('even.ts', environment)
    this.write('run.toml', config())
  }

  /** Its words are as another system's (windows.ts). Starts `node train.js @ run.toml WORDS` in the folder. Words of the form `key=value` are overrides of [trainer.args]. */
  start(words: string[], env: NodeJS.ProcessEnv = {}): { child: ChildProcess; outcome: Promise<Outcome> } {
    const begin = performance.now()
    const args = words.flatMap((word) => {
      const [, key, value] = /^(\w+)=(.*)$/.exec(word) ?? []
      return key ? [`--trainer.args.${key}`, value] : word
    })
    const child = spawn(process.execPath, [trainJs, '@', 'run.toml', ...args], {
      cwd: this.dir,
      env: {
        ...process.env,
        NO_COLOR: '1',
        ...env,
        NODE_OPTIONS: [process.env.NODE_OPTIONS, env.NODE_OPTIONS].filter(Boolean).join(' '),
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const text = { stdout: '', stderr: '' }
    child.stdout.on('data', (chunk) => (text.stdout += chunk))
    child.stderr.on('data', (chunk) => (text.stderr += chunk))
    const outcome = new Promise<Outcome>((resolve) =>
      child.on('close', (code) =>
        resolve({
          code,
          stdout: asPosix(text.stdout),
          stderr: asPosix(text.stderr),
          seconds: (performance.now() - begin) / 1000,
        }),
      ),
    )
    return { child, outcome }
  }

  async run(words: string[], env: NodeJS.ProcessEnv = {}): Promise<Outcome> {
    return await this.start(words, env).outcome
  }

  /** Rows of a file of a run, one JSON object a line. */
  rows(run: string, file: string): Record<string, unknown>[] {
    const lines = readFileSync(join(this.outputs, run, file), 'utf8')
      .trimEnd()
      .split('\n')
    return lines.map((line) => JSON.parse(line) as Record<string, unknown>)
  }

  /** metrics.jsonl without what a clock or an allocator decides. */
  numbers(run: string): Record<string, unknown>[] {
    return this.rows(run, 'metrics.jsonl').map((row) =>
      Object.fromEntries(Object.entries(row).filter(([key]) => !/^(time|time\/.*|perf\/.*)$/.test(key))),
    )
  }

  /** Names of the runs there are. */
  runs(): string[] {
    try {
      return readdirSync(this.outputs)
    } catch {
      return []
    }
  }
}

function config(): string {
  return `
model = "tiny"
[env]
id = "./even.ts"
name = "even"
[inference]
max_num_seqs = 8
[trainer.args]
max_steps = 2
batch_size = 8
rollouts_per_example = 4
max_seq_len = 32
max_prompt_len = 20
max_tokens = 6
micro_batch_tokens = 64
lora_rank = 4
learning_rate = 1e-2
save_steps = 0
`
}
