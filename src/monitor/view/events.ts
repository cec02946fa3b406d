/** Tells open pages what has changed on disk. While nobody listens nothing is looked at. */
import { mtimeOf, type Run, type Runs } from './runs.ts'
import type { RunSummary, ViewEvent } from './types.ts'

/** What is compared from one look to the next. */
interface Seen {
  metrics: number
  rollouts: number
  status: RunSummary['status']
}

export class Events {
  readonly #runs: Runs
  readonly #everyMs: number
  readonly #listeners = new Set<(event: ViewEvent) => void>()
  #timer: NodeJS.Timeout | undefined
  #seen: Map<string, Seen> | undefined

  constructor(runs: Runs, everyMs: number) {
    this.#runs = runs
    this.#everyMs = everyMs
  }

  /** Calls `tell` with each event until the returned function is called. */
  listen(tell: (event: ViewEvent) => void): () => void {
    this.#listeners.add(tell)
    if (this.#listeners.size === 1) this.#plan(0)
    return () => {
      this.#listeners.delete(tell)
      if (this.#listeners.size > 0) return
      clearTimeout(this.#timer)
      this.#seen = undefined
    }
  }

  close(): void {
    this.#listeners.clear()
    clearTimeout(this.#timer)
  }

  #plan(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#look().finally(() => this.#listeners.size > 0 && this.#plan(this.#everyMs)), ms)
  }

  async #look(): Promise<void> {
    const before = this.#seen
    const now = new Map<string, Seen>()
    // A folder that goes away while it is looked at is told of the next time.
    try {
      for (const run of (await this.#runs.scan()).values()) now.set(run.id, await lookAt(run, this.#runs))
    } catch {
      return
    }
    this.#seen = now
    if (!before) return
    let list = [...before.keys()].some((id) => !now.has(id))
    for (const [id, { metrics, rollouts, status }] of now) {
      const old = before.get(id)
      if (!old || old.status !== status) list = true
      if (old && old.metrics !== metrics) this.#tell({ run: id, kind: 'metrics' })
      if (old && old.rollouts !== rollouts) this.#tell({ run: id, kind: 'rollouts' })
    }
    if (list) this.#tell({ run: null, kind: 'runs' })
  }

  #tell(event: ViewEvent): void {
    for (const tell of this.#listeners) tell(event)
  }
}

/** The folder of rollouts changes with each new file; the newest file, while rollouts are added to it. */
async function lookAt(run: Run, runs: Runs): Promise<Seen> {
  const { status } = await runs.summary(run)
  const newest = (await run.rolloutSteps()).at(-1)
  const files = [run.file('metrics.jsonl'), run.file('rollouts'), run.file('rollouts', `step_${newest}.jsonl`)]
  const [metrics, folder, file] = await Promise.all(files.map(mtimeOf))
  return { metrics, rollouts: Math.max(folder, file), status }
}
