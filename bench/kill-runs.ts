/**
 * Kills small training runs: each is a child process that gets SIGKILL (the whole process group) at a random instant, then --resume, again
 * and again; the finished run is compared with one that was never killed. bench/kill.ts makes thousands of kills, test/cli/kill.test.ts a few.
 *
 * The instants: 'time' is uniform over the whole time of the process; the others are some milliseconds after an event on disk, where a kill
 * can do harm: 'save' while a checkpoint is written or deleted, 'record' while metrics and rollouts are written, 'start' while the folder is
 * opened or rewound.
 */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, watch, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from '../src/common/random.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { writeTuned } from '../src/kernels/matmul/tuned.ts'
import { brokenBecause } from '../src/trainer/checkpoint.ts'
import { differences, namesIn, textOf } from './kill-compare.ts'

const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
const root = join(import.meta.dirname, '..')

type Keys = Record<string, string | number | boolean>

/** A kind of run: keys of [trainer.args] on top of `base`, and when it saves. */
export interface Kind {
  name: string
  /** Default: train. */
  verb?: 'sft'
  args: Keys
  ckpt: Keys
}

const best = 'eval/even/avg@1'
const full = { use_lora: false, learning_rate: 1e-3 }

export const KINDS: readonly Kind[] = [
  { name: 'adapter', args: {}, ckpt: { interval: 1 } },
  {
    name: 'adapter, dropout, cosine',
    args: { lora_dropout: 0.1, lr_scheduler_type: 'cosine', eval_steps: 1 },
    ckpt: { interval: 2, keep_last: 1, keep_interval: 4, keep_best: best },
  },
  { name: 'adapter, 8-bit moments', args: { optim: 'adamw_8bit' }, ckpt: { interval: 1, keep_last: 1 } },
  { name: 'all weights', args: full, ckpt: { interval: 2, keep_last: 1 } },
  { name: 'supervised', verb: 'sft', args: {}, ckpt: { interval: 1, keep_last: 2, keep_best: '-loss/mean' } },
  { name: 'all weights, 8-bit moments', args: { ...full, optim: 'adamw_8bit' }, ckpt: { interval: 1, keep_best: '-loss/mean' } },
]

const shared = { max_steps: 8, batch_size: 8, lora_rank: 4, learning_rate: 1e-2 }
const supervised = { ...shared, batch_size: 4, max_seq_len: 64, micro_batch_tokens: 64 }
const base = {
  ...shared,
  rollouts_per_example: 4,
  max_seq_len: 16,
  max_prompt_len: 12,
  max_tokens: 4,
  micro_batch_tokens: 16,
  eval_strategy: 'steps',
  eval_steps: 4,
  eval_examples: 3,
  log_completions: false,
}

/** Short prompts, and a reward that differs from answer to answer. */
const environment = `
import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
export default () => {
  const rubric = new Rubric({ even: ({ completionIds }) => completionIds.filter((id) => id % 2 === 0).length / completionIds.length })
  const rows = (word, n) => Array.from({ length: n }, (_, i) => ({ prompt: word + i, answer: String(i) }))
  return SingleTurnEnv.create({ id: 'even', rubric, dataset: rows('a', 9), evalDataset: rows('b', 4) })
}
`

/** A run that is not killed: its folder, its time, and its output. */
export interface Reference {
  folder: string
  seconds: number
  output: string
}

/** How a start of a run is to end. */
export type When = 'time' | 'save' | 'record' | 'start'

export interface Kill {
  how: When
  /** Milliseconds: from the start of the process, or after the event. */
  delay: number
  /** The event that counts. */
  nth: number
}

/** What a kill interrupted, seen from the files that it left. */
export interface Left {
  how: When
  /** Rows of steps in metrics.jsonl, and the newest whole checkpoint (0: none). */
  rows: number
  checkpoint: number
  /** A checkpoint half written or half deleted, a row cut off, a file left aside. */
  halfSaved: boolean
  cutRow: boolean
  aside: boolean
  /** Seconds that the process lived. */
  seconds: number
}

export interface Trial {
  kind: string
  folder: string
  kills: Left[]
  starts: number
  seconds: number
  /** Differences as sentences; empty where the run equals the one that was never killed. */
  differences: string[]
}

/** Draws how the next start is killed. `seconds`: of a whole run. */
export function drawKill(random: Random, seconds: number): Kill {
  const how = random.pick<When>(['time', 'time', 'time', 'time', 'save', 'save', 'save', 'record', 'record', 'start'])
  const most = { time: 800 * seconds, save: 40, record: 12, start: 25 }[how]
  return { how, delay: random.next() * most, nth: 1 + random.int(how === 'start' ? 2 : 4) }
}

/** A folder with configs and runs. */
export class KillRuns {
  readonly dir: string
  readonly #asyncLevel: number
  readonly #references = new Map<string, Promise<Reference>>()

  /** @param dir made when missing */
  constructor(dir: string, { asyncLevel }: { asyncLevel: number }) {
    this.dir = dir
    this.#asyncLevel = asyncLevel
    mkdirSync(dir, { recursive: true })
    writeFileSync(join(dir, 'even.ts'), environment)
  }

  /**
   * Chooses small tiles for the runs (in their own tune.json): they change no bit, and the driver compiles a third less, which is most of
   * the time of a start.
   */
  async prepare(): Promise<void> {
    const before = process.env.XDG_CACHE_HOME
    const gpu = await Gpu.open()
    try {
      process.env.XDG_CACHE_HOME = join(this.dir, 'cache')
      writeTuned(gpu, { ntCpu: { rows: 16, columns: 32 } })
    } finally {
      if (before === undefined) delete process.env.XDG_CACHE_HOME
      else process.env.XDG_CACHE_HOME = before
      gpu.close()
    }
  }

  /** The run of a kind that is not killed; made once. */
  reference(kind: Kind): Promise<Reference> {
    let made = this.#references.get(kind.name)
    if (!made) {
      made = this.#makeReference(kind)
      this.#references.set(kind.name, made)
    }
    return made
  }

  async #makeReference(kind: Kind): Promise<Reference> {
    const name = `whole ${slug(kind)}`
    const begin = performance.now()
    const { code, output } = await this.#start(kind, name)
    if (code !== 0) throw new Error(`the run of "${kind.name}" that nobody kills ended with ${code}:\n${output}`)
    return { folder: join(this.dir, 'outputs', name), seconds: (performance.now() - begin) / 1000, output }
  }

  /**
   * Runs a kind to its end through at most `kills` kills, each drawn by `next`, and compares.
   * @param name of the run; its folder is left for the caller to delete
   */
  async trial(kind: Kind, name: string, kills: number, next: (seconds: number) => Kill): Promise<Trial> {
    const whole = await this.reference(kind)
    const folder = join(this.dir, 'outputs', name)
    const trial: Trial = { kind: kind.name, folder, kills: [], starts: 0, seconds: 0, differences: [] }
    const begin = performance.now()
    for (;;) {
      trial.starts++
      const since = performance.now()
      const kill = trial.kills.length < kills ? next(whole.seconds) : undefined
      const { code, output, killed } = await this.#start(kind, name, kill)
      if (killed && kill) {
        trial.kills.push(leftBy(kill.how, folder, (performance.now() - since) / 1000))
        continue
      }
      if (code !== 0)
        trial.differences.push(
          `start ${trial.starts} (after ${trial.kills.length} kills) ended with ${code}: ${output.slice(-2000)}`,
        )
      break
    }
    trial.seconds = (performance.now() - begin) / 1000
    if (trial.differences.length === 0) trial.differences.push(...this.compare(whole.folder, folder))
    return trial
  }

  /** The differences between two finished runs, in sentences. */
  compare(want: string, have: string): string[] {
    return differences(want, have, { inTurns: this.#asyncLevel === 0 })
  }

  /** `train` with these words, to its end. */
  run(words: string[]): { status: number | null; stdout: string; stderr: string } {
    return spawnSync(process.execPath, [join(root, 'train.js'), ...words], {
      cwd: this.dir,
      env: this.#environment,
      encoding: 'utf8',
    })
  }

  get #environment(): NodeJS.ProcessEnv {
    // The driver's shader cache stays in its usual place.
    return { MESA_SHADER_CACHE_DIR: cache, ...process.env, NO_COLOR: '1', XDG_CACHE_HOME: join(this.dir, 'cache') }
  }

  async #start(kind: Kind, name: string, kill?: Kill): Promise<{ code: number | null; output: string; killed: boolean }> {
    const folder = join(this.dir, 'outputs', name)
    const config = join(this.dir, `${slug(kind)}.toml`)
    if (!existsSync(config)) writeFileSync(config, configText(kind, this.#asyncLevel))
    const resume = existsSync(folder) ? ['--resume'] : []
    const words = [join(root, 'cli.js'), kind.verb ?? 'train', '@', config, '--run-name', name, ...resume]
    const child = spawn(process.execPath, words, {
      cwd: this.dir,
      env: this.#environment,
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk))
    const ended = new Promise<number | null>((resolve) => child.on('close', resolve))
    const over = new AbortController()
    let killed = false
    const shoot = () => {
      if (over.signal.aborted || child.exitCode !== null) return
      // The child has its own process group, so everything that it started dies too.
      killed = process.kill(-child.pid!, 'SIGKILL')
    }
    if (kill) void instant(kill, folder, over.signal).then(shoot, () => {})
    const code = await ended
    over.abort()
    return { code, output, killed: killed && code === null }
  }
}

const slug = ({ name }: Kind) => name.replaceAll(/[^a-z0-9]+/gi, '-')

const toml = (keys: Keys) => Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`).join('') // prettier-ignore

function configText({ verb, args, ckpt }: Kind, asyncLevel: number): string {
  const model = `model = ${JSON.stringify(join(root, 'models/tiny'))}\n`
  const end = `[trainer.ckpt]\n${toml(ckpt)}`
  if (verb === 'sft')
    return `${model}[data]\nmax_examples = 20\n[data.env]\nid = "reverse-text"\n[trainer.args]\n${toml({ ...supervised, ...args })}${end}`
  const parts = '[env]\nid = "./even.ts"\nname = "even"\n[inference]\nmax_num_seqs = 4\nmax_num_batched_tokens = 8\n'
  return `${model}${parts}[trainer.args]\n${toml({ ...base, max_async_level: asyncLevel, ...args })}${end}`
}

/** Resolves when the time has come; rejects where the process ended before. */
async function instant({ how, delay, nth }: Kill, folder: string, signal: AbortSignal): Promise<void> {
  if (how !== 'time') {
    const place = how === 'save' ? join(folder, 'checkpoints') : folder
    while (!existsSync(place)) await sleep(4, undefined, { signal })
    await events(place, how, nth, signal)
  }
  await sleep(delay, undefined, { signal })
}

/** Waits for the nth event of a kind in a folder. */
async function events(place: string, how: When, nth: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  let left = nth
  const counts = (name: string | null) =>
    how === 'save' ? name?.includes('.partial-') || name?.includes('.old-') : how === 'record' ? name === 'metrics.jsonl' : true
  const watcher = watch(place, { signal }, (_, name) => {
    if (counts(name) && --left <= 0) resolve()
  })
  watcher.on('error', reject)
  signal.addEventListener('abort', () => reject(new Error('over')), { once: true })
  await promise.finally(() => watcher.close())
}

/** The state that a killed process left. */
function leftBy(how: When, folder: string, seconds: number): Left {
  const text = textOf(join(folder, 'metrics.jsonl'))
  const saved = namesIn(join(folder, 'checkpoints'))
  const whole = saved.filter((name) => /^step_\d+$/.test(name) && !brokenBecause(join(folder, 'checkpoints', name)))
  return {
    how,
    rows: text.split('\n').filter((line) => line.includes('"step":') && !line.includes('"step":0,')).length,
    checkpoint: Math.max(0, ...whole.map((name) => Number(name.slice(5)))),
    halfSaved: saved.some((name) => /\.(partial|old)-/.test(name)),
    cutRow: text !== '' && !text.endsWith('\n'),
    aside: [...namesIn(folder), ...namesIn(join(folder, 'logs'))].some((name) => /\.\d+\.(tmp|stale)$/.test(name)),
    seconds,
  }
}
