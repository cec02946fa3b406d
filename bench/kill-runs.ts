/**
 * Runs that are killed: small training runs as child processes, SIGKILL to the whole process group at a drawn instant, --resume, again and
 * again, and what the finished run differs in from one that was never killed. bench/kill.ts counts them by the thousand, test/cli/kill.test.ts a few.
 *
 * The instants: 'time' is uniform over the run from the first instant of the process on; the others follow an event on the disk by some
 * milliseconds, because that is where a kill can hurt: 'save' while a checkpoint is written or deleted, 'record' while metrics and rollouts are,
 * 'start' while the folder is opened or taken back.
 */
import { spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, watch, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Random } from '../src/common/random.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { writeTuned } from '../src/kernels/matmul/tuned.ts'
import { brokenBecause } from '../src/trainer/checkpoint.ts'

const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
const root = join(import.meta.dirname, '..')

type Keys = Record<string, string | number | boolean>

/** What a run trains, as keys of [trainer.args] on top of `base`, and when it saves. */
export interface Kind {
  name: string
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
  { name: 'all weights, 8-bit moments', args: { ...full, optim: 'adamw_8bit' }, ckpt: { interval: 1, keep_best: '-loss/mean' } },
]

const base = {
  max_steps: 8,
  batch_size: 8,
  rollouts_per_example: 4,
  max_seq_len: 16,
  max_prompt_len: 12,
  max_tokens: 4,
  micro_batch_tokens: 16,
  lora_rank: 4,
  learning_rate: 1e-2,
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

/** A run that nobody kills: its folder, how long it took, and what it said. */
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

/** Where a kill hit, read from what it left. */
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
  /** Sentences; empty where the run is that which was never killed. */
  differences: string[]
}

/** Draws how the next start is killed. `seconds`: of a whole run. */
export function drawKill(random: Random, seconds: number): Kill {
  const how = random.pick<When>(['time', 'time', 'time', 'time', 'save', 'save', 'save', 'record', 'record', 'start'])
  const most = { time: 800 * seconds, save: 40, record: 12, start: 25 }[how]
  return { how, delay: random.next() * most, nth: 1 + random.int(how === 'start' ? 2 : 4) }
}

/** One folder of configs and runs. */
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
   * Chooses small tiles for the runs (in a tune.json of their own): no bit hangs on them, and the driver has a third less to compile, which is
   * most of what a start costs.
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

  /** The run of a kind that nobody kills; made once. */
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

  /** What a finished run differs in from another one, in sentences. */
  compare(want: string, have: string): string[] {
    const inTurns = this.#asyncLevel === 0
    return [
      ...sameRows(
        'metrics.jsonl',
        rowsOf(join(want, 'metrics.jsonl')),
        rowsOf(join(have, 'metrics.jsonl')),
        inTurns ? metricOf : countOf,
      ),
      ...sameRollouts(want, have, inTurns),
      ...sameCheckpoints(want, have, inTurns),
      ...leftovers(have),
    ]
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
    // What the driver compiled is kept where it always is.
    return { MESA_SHADER_CACHE_DIR: cache, ...process.env, NO_COLOR: '1', XDG_CACHE_HOME: join(this.dir, 'cache') }
  }

  async #start(kind: Kind, name: string, kill?: Kill): Promise<{ code: number | null; output: string; killed: boolean }> {
    const folder = join(this.dir, 'outputs', name)
    const config = join(this.dir, `${slug(kind)}.toml`)
    if (!existsSync(config)) writeFileSync(config, configText(kind, this.#asyncLevel))
    const resume = existsSync(folder) ? ['--resume'] : []
    const words = [join(root, 'train.js'), '@', config, '--run-name', name, ...resume]
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
      // The group is the child's own, so whatever it started dies with it.
      killed = process.kill(-child.pid!, 'SIGKILL')
    }
    if (kill) void instant(kill, folder, over.signal).then(shoot, () => {})
    const code = await ended
    over.abort()
    return { code, output, killed: killed && code === null }
  }
}

const slug = ({ name }: Kind) => name.replaceAll(/[^a-z0-9]+/gi, '-')

function configText(kind: Kind, asyncLevel: number): string {
  const lines = (keys: Keys) => Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`)
  const args = lines({ ...base, max_async_level: asyncLevel, ...kind.args }).join('')
  const model = JSON.stringify(join(root, 'models/tiny'))
  const sampler = '[inference]\nmax_num_seqs = 4\nmax_num_batched_tokens = 8'
  return `model = ${model}\n[env]\nid = "./even.ts"\nname = "even"\n${sampler}\n[trainer.args]\n${args}[trainer.ckpt]\n${lines(kind.ckpt).join('')}`
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

/** What a killed process left. */
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

type Row = Record<string, unknown>

const textOf = (path: string) => (existsSync(path) ? readFileSync(path, 'utf8') : '')
const namesIn = (folder: string) => (existsSync(folder) ? readdirSync(folder).toSorted() : [])
/** Every line must be whole: a line that is no JSON throws. */
const rowsOf = (path: string): Row[] => textOf(path).split('\n').filter(Boolean).map((line) => JSON.parse(line) as Row) // prettier-ignore
const pick = (row: Row, keep: (key: string) => boolean): Row =>
  Object.fromEntries(Object.entries(row).filter(([key]) => keep(key)))

/** Metrics without what a clock or an allocator decides. */
const metricOf = (row: Row) => pick(row, (key) => !/^(time|time\/.*|perf\/.*)$/.test(key))
/** What does not hang on which weights sampled. */
const countOf = (row: Row) =>
  pick(row, (key) => ['step', 'progress/rollouts', 'progress/total_rollouts', 'optim/lr'].includes(key))
const rolloutOf = (row: Row) => pick(row, (key) => key !== 'timing')
const taskOf = (row: Row) =>
  pick(row, (key) => ['step', 'split', 'env', 'group', 'index', 'example_id', 'seed', 'prompt', 'answer'].includes(key))
const placeOf = (row: Row) => pick(row, (key) => ['step', 'split', 'group', 'index'].includes(key))

function sameRows(file: string, want: Row[], have: Row[], view: (row: Row) => Row): string[] {
  if (want.length !== have.length) return [`${file} has ${have.length} rows instead of ${want.length}`]
  return want.flatMap((row, i) => {
    const [a, b] = [view(row), view(have[i])]
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter(
      (key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]),
    )
    const [key] = keys
    return key === undefined
      ? []
      : [
          `${file}, row ${i} (step ${String(row.step)}): ${key} is ${JSON.stringify(b[key])} instead of ${JSON.stringify(a[key])} (${keys.length} keys differ)`,
        ]
  })
}

function sameRollouts(want: string, have: string, inTurns: boolean): string[] {
  const [a, b] = [want, have].map((folder) => namesIn(join(folder, 'rollouts')))
  if (a.join() !== b.join()) return [`rollouts/ holds ${b.join(', ')} instead of ${a.join(', ')}`]
  const all = a.filter((name) => !name.includes('.tokens.')).flatMap((name) => rowsOf(join(have, 'rollouts', name)))
  const places = all.map((row) => JSON.stringify(placeOf(row)))
  const twice = places.find((place, i) => places.indexOf(place) < i)
  const of = (name: string) =>
    name.includes('.tokens.') ? (inTurns ? (row: Row) => row : placeOf) : inTurns ? rolloutOf : taskOf
  return [
    ...(twice === undefined ? [] : [`a rollout is there twice: ${twice}`]),
    ...a.flatMap((name) =>
      sameRows(`rollouts/${name}`, rowsOf(join(want, 'rollouts', name)), rowsOf(join(have, 'rollouts', name)), of(name)),
    ),
  ]
}

function sameCheckpoints(want: string, have: string, inTurns: boolean): string[] {
  const [a, b] = [want, have].map((folder) => namesIn(join(folder, 'checkpoints')))
  // Which step is the best hangs on the numbers, and they on which weights sampled.
  if (!inTurns) return namesIn(join(have, 'checkpoints')).filter((name) => /^step_\d+$/.test(name)).flatMap((name) => brokenBecause(join(have, 'checkpoints', name)) ?? []) // prettier-ignore
  if (a.join() !== b.join()) return [`checkpoints/ holds ${b.join(', ')} instead of ${a.join(', ')}`]
  const [x, y] = [want, have].map((folder) => bestOf(folder))
  if (x !== y) return [`checkpoints/best is ${y} instead of ${x}`]
  const steps = a.filter((name) => /^step_\d+$/.test(name))
  const broken = steps.flatMap((name) => brokenBecause(join(have, 'checkpoints', name)) ?? [])
  const different = steps.flatMap((step) =>
    namesIn(join(want, 'checkpoints', step)).flatMap((file) => {
      const [x, y] = [want, have].map((folder) => hashOf(join(folder, 'checkpoints', step, file)))
      return x === y ? [] : [`checkpoints/${step}/${file} has other bytes`]
    }),
  )
  return [...broken, ...different]
}

const bestOf = (folder: string) =>
  existsSync(join(folder, 'checkpoints/best')) ? readlinkSync(join(folder, 'checkpoints/best')) : 'not there'

const hashOf = (file: string) =>
  existsSync(file) && statSync(file).isFile() ? createHash('sha256').update(readFileSync(file)).digest('hex') : 'not there'

/** Files that only a process that runs may have. */
function leftovers(folder: string): string[] {
  const names = ['', 'logs', 'checkpoints', 'rollouts'].flatMap((sub) =>
    namesIn(join(folder, sub)).map((name) => join(sub, name)),
  )
  return names
    .filter((name) => /\.(tmp|stale)$|\.(partial|old)-|run\.lock|superseded/.test(name))
    .map((name) => `${name} was left`)
}
