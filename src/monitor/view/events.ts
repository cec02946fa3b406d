/** Tells open pages what changed on disk, also between a page's first read and its subscription. Without open pages nothing is watched. */
import { mtimeOf, type Run, type Runs } from './runs.ts'
import type { RunSummary, ViewEvent } from './types.ts'

/** The state of a run that is compared between two looks. */
interface Seen {
  metrics: number
  rollouts: number
  status: RunSummary['status']
}

/** `at`: the time (ms, by Date.now) up to which everything has been reported with this event. */
type Tell = (event: ViewEvent, at: number) => void

/** By how many milliseconds a file's time may be earlier than the clock at its writing. */
const clockMs = 100

/** Looks at the files of all runs at intervals, and reports changes to its listeners. */
export class Events {
  readonly #runs: Runs
  readonly #everyMs: number
  readonly #listeners = new Set<Tell>()
  /** Listeners that have not been told yet what has changed since this time. */
  readonly #behind = new Map<Tell, number>()
  #timer: NodeJS.Timeout | undefined
  #seen: Map<string, Seen> | undefined

  constructor(runs: Runs, everyMs: number) {
    this.#runs = runs
    this.#everyMs = everyMs
  }

  /**
   * Calls `tell` with each event until the returned function is called. With `since` (ms, as of Date.now), the first events are those of changes since
   * then.
   */
  listen(tell: Tell, since?: number): () => void {
    this.#listeners.add(tell)
    if (since !== undefined) this.#behind.set(tell, since - clockMs)
    if (this.#listeners.size === 1) this.#plan(0)
    return () => {
      this.#listeners.delete(tell)
      this.#behind.delete(tell)
      if (this.#listeners.size > 0) return
      clearTimeout(this.#timer)
      this.#seen = undefined
    }
  }

  close(): void {
    this.#listeners.clear()
    this.#behind.clear()
    clearTimeout(this.#timer)
  }

  #plan(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#look().finally(() => this.#listeners.size > 0 && this.#plan(this.#everyMs)), ms)
  }

  async #look(): Promise<void> {
    const before = this.#seen
    const behind = [...this.#behind]
    const at = Date.now()
    const now = new Map<string, Seen>()
    // A folder that is removed during the look is reported the next time.
    try {
      for (const run of (await this.#runs.scan()).values()) now.set(run.id, await lookAt(run, this.#runs))
    } catch {
      return
    }
    // All listeners have left meanwhile; the next one starts anew.
    if (this.#listeners.size === 0) return
    this.#seen = now
    if (before) this.#tellOf(changes(before, now), [...this.#listeners], at)
    for (const [tell, since] of behind) {
      // A run may have been removed: pages must load the list again.
      this.#tellOf([...changesSince(since, now), { run: null, kind: 'runs' }], [tell], at)
      if (this.#behind.get(tell) === since) this.#behind.delete(tell)
    }
  }

  #tellOf(events: ViewEvent[], listeners: Tell[], at: number): void {
    for (const event of events) for (const tell of listeners) if (this.#listeners.has(tell)) tell(event, at)
  }
}

function changes(before: Map<string, Seen>, now: Map<string, Seen>): ViewEvent[] {
  const events: ViewEvent[] = []
  let list = [...before.keys()].some((id) => !now.has(id))
  for (const [run, { metrics, rollouts, status }] of now) {
    const old = before.get(run)
    if (!old || old.status !== status) list = true
    if (old && old.metrics !== metrics) events.push({ run, kind: 'metrics' })
    if (old && old.rollouts !== rollouts) events.push({ run, kind: 'rollouts' })
  }
  return list ? [...events, { run: null, kind: 'runs' }] : events
}

function changesSince(since: number, now: Map<string, Seen>): ViewEvent[] {
  const events: ViewEvent[] = []
  for (const [run, { metrics, rollouts }] of now) {
    if (metrics >= since) events.push({ run, kind: 'metrics' })
    if (rollouts >= since) events.push({ run, kind: 'rollouts' })
  }
  return events
}

/** The folder's time changes with each new file, the newest file's time while rollouts are added to it. */
async function lookAt(run: Run, runs: Runs): Promise<Seen> {
  const { status } = await runs.summary(run)
  const newest = (await run.rolloutSteps()).at(-1)
  const files = [run.file('metrics.jsonl'), run.file('rollouts'), run.file('rollouts', `step_${newest}.jsonl`)]
  const [metrics, folder, file] = await Promise.all(files.map(mtimeOf))
  return { metrics, rollouts: Math.max(folder, file), status }
}
