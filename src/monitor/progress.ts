/**
 * What a run is waiting for. Every wait has a name and a limit; there is no way to wait without saying for what.
 * - A wait that reaches its limit rejects with an Error that names it; the work behind it goes on, and nobody hears what comes of it.
 * - The timer of a wait keeps the process alive: a promise that nobody will settle ends in that error, not in a silent exit.
 */
import { formatDuration } from './format.ts'

interface WaitOptions {
  /** Milliseconds until the wait gives up. */
  limitMs: number
  /** What stands behind the name in the status line, at the start. */
  details?: string | (() => string)
  /** What to do when the limit is reached, as the end of the error's message: 'raise trainer.args.generation_timeout'. */
  hint?: string
}

/** The error of a wait that reached its limit. */
export class WaitTimeoutError extends Error {
  override name = 'WaitTimeoutError'
}

/** One thing that is being waited for. Made by `Progress.wait`. */
export interface Wait {
  readonly name: string
  /** On the clock of `performance.now()`, which nobody sets. */
  readonly startedAt: number
  /** Rejects at the limit; never resolves, and stays pending after `done`. */
  readonly expired: Promise<never>
  /** Replaces what stands behind the name: 'micro-batch 2 of 4'. A function is asked anew each time the line is drawn. */
  update(details: string | (() => string)): void
  /** Replaces the whole text, name included: 'waiting for 3 of 32 rollouts, oldest 12s, decoding'. */
  say(line: string | (() => string)): void
  /** The text of the wait as it is now. */
  text(): string
  /** Ends the wait. */
  done(): void
}

export class Progress {
  // In the order in which they began; a wait is in it from `wait` to `done` or its limit.
  readonly #waits = new Set<Wait>()
  readonly #listeners = new Set<() => void>()
  readonly #now: () => number

  constructor({ now = () => performance.now() }: { now?: () => number } = {}) {
    this.#now = now
  }

  /** The waits of this moment, oldest first. */
  get active(): readonly Wait[] {
    return [...this.#waits]
  }

  /** Calls back whenever a wait begins, changes or ends. Returns the way to stop that. */
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
    // Whoever does not race with it must not be ended by an unhandled rejection.
    expired.catch(() => {})
    const end = () => {
      clearTimeout(timer)
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
    const timer = setTimeout(
      () => {
        const error = new WaitTimeoutError(
          `Gave up on "${name}" after ${formatDuration(limitMs / 1000)}, its limit (it was at: ${text()})${hint ? `: ${hint}` : ''}.`,
        )
        end()
        reject(error)
      },
      Math.min(limitMs, 2 ** 31 - 1),
    )
    this.#waits.add(wait)
    this.#changed()
    return wait
  }

  /** Runs `work` as a wait: its value or error, or a WaitTimeoutError at the limit. */
  async run<T>(name: string, options: WaitOptions, work: (wait: Wait) => Promise<T>): Promise<T> {
    const wait = this.wait(name, options)
    try {
      return await Promise.race([work(wait), wait.expired])
    } finally {
      wait.done()
    }
  }

  /** Everything that is being waited for, on one line; '' for nothing. */
  line(): string {
    return this.lines().join(' | ')
  }

  /** The same, a text for each wait. */
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
