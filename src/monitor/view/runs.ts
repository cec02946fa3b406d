/**
 * The runs below a folder. Ids are looked up among the found runs, so a request's text never becomes a path; links are not followed.
 * Files are read on demand, and again only when they have changed.
 */
import { constants, lstatSync } from 'node:fs'
import { access, lstat, readdir, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { numbersIn } from '../../common/folders.ts'
import { lockState } from '../run-lock.ts'
import { Cache } from './cache.ts'
import { readConfig, type RunConfigText } from './config.ts'
import { readSmall } from './lines.ts'
import { MetricsTable } from './metrics.ts'
import type { RunSummary } from './types.ts'

/** How many levels below the outputs folder are searched for runs. */
const depth = 4
const mostRuns = 5000
/** How many numbers of metrics are kept in memory: about 64 MB. */
const mostCells = 8_000_000

/** A run's summary, and the state of the files that it was made from. */
interface Known {
  stamp: string
  summary: RunSummary
}

/** One run folder. */
export class Run {
  readonly id: string
  readonly path: string
  #config: { mtimeMs: number; config: RunConfigText } | undefined

  constructor(id: string, path: string) {
    this.id = id
    this.path = path
  }

  /** The path of a file. If its folder is a link, the path of that link instead, which nothing opens. */
  file(folder: string, ...names: string[]): string {
    const path = join(this.path, folder)
    const isLink = names.length > 0 && lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() === true
    return isLink ? path : join(path, ...names)
  }

  async config(): Promise<RunConfigText> {
    const mtimeMs = await mtimeOf(this.file('config.toml'))
    if (this.#config?.mtimeMs !== mtimeMs)
      this.#config = { mtimeMs, config: readConfig(await readSmall(this.file('config.toml'))) }
    return this.#config.config
  }

  /** Steps that have a file of rollouts, ascending. */
  async rolloutSteps(): Promise<number[]> {
    const isThere = (await mtimeOf(this.file('rollouts'))) > 0
    const names = isThere ? await readdir(this.file('rollouts')).catch(() => []) : []
    return numbersIn(names, /^step_(\d{1,9})\.jsonl$/)
  }
}

/** All runs below a folder. */
export class Runs {
  readonly root: string
  #runs = new Map<string, Run>()
  readonly #known = new Map<string, Known>()
  readonly #tables = new Cache<MetricsTable>(mostCells, (table) => table.cells)

  constructor(root: string) {
    this.root = root
  }

  /** All current runs, by id. */
  async scan(): Promise<Map<string, Run>> {
    const found = new Map<string, Run>()
    const look = async (path: string, id: string, level: number): Promise<void> => {
      const entries = await readdir(path, { withFileTypes: true }).catch(() => [])
      if (entries.some((entry) => entry.isFile() && (entry.name === 'metrics.jsonl' || entry.name === 'config.toml'))) {
        const key = id === '' ? basename(this.root) || 'run' : id
        if (found.size < mostRuns) found.set(key, this.#runs.get(key) ?? new Run(key, path))
        return
      }
      if (level === depth) return
      for (const entry of entries) {
        if (entry.isDirectory() && !entry.name.startsWith('.'))
          await look(join(path, entry.name), id === '' ? entry.name : `${id}/${entry.name}`, level + 1)
      }
    }
    await look(this.root, '', 0)
    this.#runs = found
    for (const id of this.#known.keys()) if (!found.has(id)) this.#known.delete(id)
    return found
  }

  /** The run with this id; searches again where it is not known yet. */
  async get(id: string): Promise<Run | undefined> {
    const run = this.#runs.get(id)
    if (run && (await exists(run.path))) return run
    return (await this.scan()).get(id)
  }

  /** The current metrics of a run. */
  async metrics(run: Run): Promise<MetricsTable> {
    const table = this.#tables.get(run.id, () => new MetricsTable(run.file('metrics.jsonl')))
    await table.refresh()
    this.#tables.trim()
    return table
  }

  /** Summaries of all runs, most recently changed first. */
  async list(): Promise<RunSummary[]> {
    const summaries: RunSummary[] = []
    for (const run of (await this.scan()).values()) summaries.push(await this.summary(run))
    return summaries.toSorted((a, b) => (b.updated ?? 0) - (a.updated ?? 0) || a.id.localeCompare(b.id))
  }

  async summary(run: Run): Promise<RunSummary> {
    const stamp = await stampOf(run)
    const known = this.#known.get(run.id)
    if (known?.stamp === stamp) return known.summary
    const summary = await this.#summary(run)
    this.#known.set(run.id, { stamp, summary })
    return summary
  }

  async #summary(run: Run): Promise<RunSummary> {
    const config = await run.config()
    const table = await this.metrics(run)
    const step = table.steps.at(-1) ?? 0
    const files = ['metrics.jsonl', 'config.toml', 'rollouts', 'trace.json', 'report.html']
    const [metrics, begun, rollouts, trace, report] = await Promise.all(files.map((name) => mtimeOf(run.file(name))))
    const [timeline, bench] = [await mtimeOf(run.file('logs', 'timeline.jsonl')), await mtimeOf(run.file('bench.json'))]
    const times = (table.columns.get('time') ?? []).filter((time) => time !== null)
    const newest = Math.max(metrics, rollouts, begun)
    return {
      id: run.id,
      name: basename(run.path),
      status: statusOf(run, step, config.maxSteps),
      step,
      max_steps: config.maxSteps,
      model: config.model,
      envs: config.envs,
      started: times[0] ?? (begun > 0 ? begun / 1000 : null),
      updated: newest > 0 ? newest / 1000 : null,
      reward: table.reward(),
      has: {
        metrics: table.rows > 0,
        rollouts: rollouts > 0 && (await run.rolloutSteps()).length > 0,
        timeline: timeline > 0,
        kernels: trace > 0 || bench > 0,
        report: report > 0,
      },
    }
  }
}

function statusOf(run: Run, step: number, maxSteps: number | null): RunSummary['status'] {
  const lock = lockState(run.file('run.lock'))
  if (lock === 'held') return 'running'
  if (maxSteps !== null && step >= maxSteps) return 'finished'
  return lock === 'dead' ? 'killed' : 'stopped'
}

/** Everything that a summary depends on, as text. The lock is checked each time, as its process may have died. */
async function stampOf(run: Run): Promise<string> {
  const names = ['metrics.jsonl', 'config.toml', 'rollouts', 'logs', 'trace.json', 'bench.json', 'report.html']
  const times = await Promise.all(names.map((name) => mtimeOf(run.file(name))))
  return [...times, lockState(run.file('run.lock'))].join(' ')
}

/** The last change of a file or folder; 0 where it is missing or a link. */
export async function mtimeOf(path: string): Promise<number> {
  try {
    const found = await lstat(path)
    return found.isSymbolicLink() ? 0 : found.mtimeMs
  } catch {
    return 0
  }
}

const exists = (path: string): Promise<boolean> => access(path, constants.R_OK).then(() => true, () => false) // prettier-ignore

/** Whether a folder can be shown. */
export async function isFolder(path: string): Promise<boolean> {
  return await stat(path).then((found) => found.isDirectory(), () => false) // prettier-ignore
}
