/** Time limits within a rollout: for each answer of the policy, and for the environment's work between two answers. */
import { lived, timerAfter } from '../common/timers.ts'
import { abortError } from './limit.ts'

/**
 * A time limit that restarts with each step, and one for all steps together. `ended` rejects when either limit passes or the outer signal fires.
 * `signal` fires at the same time, so that running work can stop.
 */
export class StepClock {
  readonly #ending = Promise.withResolvers<never>()
  readonly ended = this.#ending.promise
  readonly #seconds: number
  readonly #total: number
  readonly #began = lived()
  /** Milliseconds spent in earlier steps, and when the current step began (undefined if none is running). */
  #spent = 0
  #since: number | undefined
  readonly #outer: AbortSignal | undefined
  readonly #controller = new AbortController()
  readonly #onAbort: () => void
  #endTimer = () => {}
  #closed = false

  /** `seconds`: limit of one step. `total`: limit of all steps together. Infinity: no limit. */
  constructor(seconds: number, outer?: AbortSignal, total = Infinity) {
    this.#seconds = seconds
    this.#total = total
    this.#outer = outer
    this.ended.catch(() => {}) // it may reject while nothing awaits it
    this.#onAbort = () => this.#end(abortError('generation', outer!))
    if (outer?.aborted) this.#onAbort()
    else outer?.addEventListener('abort', this.#onAbort, { once: true })
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Milliseconds so far in which the clock stood still. */
  get idle(): number {
    const now = lived()
    return now - this.#began - this.#spent - (this.#since === undefined ? 0 : now - this.#since)
  }

  /** Begins a step with this name. With null the clock stops until the next step. Does nothing once the clock is closed. */
  step(name: string | null): void {
    // An environment may still be working when its rollout has ended. A timer would then keep the process running.
    if (this.#closed) return
    this.#endTimer()
    const now = lived()
    if (this.#since !== undefined) this.#spent += now - this.#since
    this.#since = name === null ? undefined : now
    const [ofStep, ofAll] = [this.#seconds * 1000, Math.max(0, this.#total * 1000 - this.#spent)]
    const ms = Math.min(ofStep, ofAll)
    if (name === null) return
    const what =
      ofAll < ofStep
        ? `the rollout took longer than its limit of ${this.#total} s (in ${name})`
        : `${name} took longer than its limit of ${this.#seconds} s`
    this.#endTimer = timerAfter(ms, () => this.#end(new Error(what)))
  }

  close(): void {
    this.#closed = true
    this.#endTimer()
    this.#outer?.removeEventListener('abort', this.#onAbort)
  }

  #end(error: Error): void {
    this.#endTimer()
    this.#ending.reject(error) // before the abort, so that this error is reported rather than the one thrown by the aborted work
    this.#controller.abort(error)
  }
}
