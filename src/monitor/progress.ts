/**
 * What a run is waiting for. Every wait has a name and a limit.
 * - A wait that reaches its limit rejects with an Error that names it; the work behind it goes on, and its result is ignored.
 * - The timer of a wait keeps the process alive: a promise that never settles ends in that error, not in a silent exit.
 */
import { MOST_MS, timerAfter } from '../common/timers.ts'
import { formatDuration } from './format.ts'

interface WaitOptions {
  /** Milliseconds until the wait gives up. */
  limitMs: number
  /** The initial text after the name in the status line. */
  details?: string | (() => string)
  /** The end of the error's message, which says what to do: 'raise trainer.args.generation_timeout'. */
  hint?: string
}

/** The error of a wait that reached its limit. */
export class WaitTimeoutError extends Error {
  override name = 'WaitTimeoutError'
}

/** One wait. Made by `Progress.wait`. */
export interface Wait {
  readonly name: string
  /** The start, by `performance.now()`, which is monotonic. */
  readonly startedAt: number
  /** Rejects at the limit; never resolves, and stays pending after `done`. */
  readonly expired: Promise<never>
  /** Replaces the text after the name: 'micro-batch 2 of 4'. A function is called each time the line is drawn. */
  update(details: string | (() => string)): void
  /** Replaces the whole text, name included: 'waiting for 3 of 32 rollouts, oldest 12s, decoding'. */
  say(line: string | (() => string)): void
  /** The current text of the wait. */
  text(): string
  /** Ends the wait. */
  done(): void
}

/** The current waits of a run. */
export class Progress {
  // In order of their start; a wait is in the set from `wait` until `done` or its limit.
  readonly #waits = new Set<Wait>()
  readonly #listeners = new Set<() => void>()
  readonly #now: () => number

  constructor({ now = () => performance.now() }: { now?: () => number } = {}) {
    this.#now = now
  }

  /** The current waits, oldest first. */
  get active(): readonly Wait[] {
    return [...this.#waits]
  }

  /** Calls `listener` whenever a wait begins, changes or ends. Returns a function that stops this. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /**
   * Begins a wait. The caller races its work with `expired`, or uses `run`.
   * @throws RangeError when the limit is no positive finite number: a wait without a limit is a hang without a reason
   */
  wait(name: string, options: WaitOptions): Wait {
    const { limitMs, hint } = options
    if (!(limitMs > 0 && Number.isFinite(limitMs)))
      throw new RangeError(`wait "${name}": limitMs is ${limitMs}, not a positive number`)
    let text: () => string = textOf(name, options.details ?? '')
    const { promise: expired, reject } = Promise.withResolvers<never>()
    // A caller that does not await `expired` must not get an unhandled rejection.
    expired.catch(() => {})
    const end = () => {
      endTimer()
      if (this.#waits.delete(wait)) this.#changed()
    }
    const change = (next: () => string) => {
      text = next
      if (this.#waits.has(wait)) this.#changed()
    }
    const wait: Wait = {
      name,
      startedAt: this.#now(),
      expired,
      update: (details) => change(textOf(name, details)),
      say: (line) => change(typeof line === 'string' ? () => line : line),
      text: () => text(),
      done: end,
    }
    // Without a timer nothing would keep the process alive.
    const endTimer = timerAfter(Math.min(limitMs, MOST_MS - 1), () => {
      const error = new WaitTimeoutError(
        `Gave up on "${name}" after its limit of ${formatDuration(limitMs / 1000)} (last state: ${text()})${hint ? `: ${hint}` : ''}.`,
      )
      end()
      reject(error)
    })
    this.#waits.add(wait)
    this.#changed()
    return wait
  }

  /** Runs `work` as a wait: returns its value or throws its error; throws a WaitTimeoutError at the limit. */
  async run<T>(name: string, options: WaitOptions, work: (wait: Wait) => Promise<T>): Promise<T> {
    const wait = this.wait(name, options)
    try {
      return await Promise.race([work(wait), wait.expired])
    } finally {
      wait.done()
    }
  }

  /** All current waits on one line; '' for none. */
  line(): string {
    return this.lines().join(' | ')
  }

  /** The text of each current wait. */
  lines(): string[] {
    return this.active.map((w) => `${w.text()} (${formatDuration((this.#now() - w.startedAt) / 1000)})`)
  }

  #changed(): void {
    for (const listener of this.#listeners) listener()
  }
}

function textOf(name: string, details: string | (() => string)): () => string {
  return () => {
    const now = typeof details === 'string' ? details : details()
    return now === '' ? name : `${name}: ${now}`
  }
}

/** The text of the wait for a batch, for `Wait.say`: 'waiting for 3 of 32 rollouts, oldest 12.0s, decoding'. */
export function rolloutsLeft(left: { left: number; total: number; oldestMs?: number; state?: string }): string {
  const oldest = left.oldestMs === undefined ? '' : `, oldest ${formatDuration(left.oldestMs / 1000)}`
  return `waiting for ${left.left} of ${left.total} rollouts${oldest}${left.state ? `, ${left.state}` : ''}`
}
