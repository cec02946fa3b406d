/** The time limit of a rollout's steps: each answer of the policy, and each stretch of the environment's own work between two of them. */
import { abortError } from './limit.ts'

/**
 * A limit that starts anew with each step, and one of all steps together. `ended` rejects when a step is late or the outer signal fires;
 * `signal` fires with it, so that what is under way can stop.
 */
export class StepClock {
  readonly #ending = Promise.withResolvers<never>()
  readonly ended = this.#ending.promise
  readonly #seconds: number
  readonly #total: number
  /** Milliseconds of the steps before, and since when the one under way runs; undefined where none does. */
  #spent = 0
  #since: number | undefined
  readonly #outer: AbortSignal | undefined
  readonly #controller = new AbortController()
  readonly #onAbort: () => void
  #timer: ReturnType<typeof setTimeout> | undefined

  /** `seconds`: of one step, `total`: of all of them; Infinity: no limit. */
  constructor(seconds: number, outer?: AbortSignal, total = Infinity) {
    this.#seconds = seconds
    this.#total = total
    this.#outer = outer
    this.ended.catch(() => {}) // nobody may be waiting when it comes
    this.#onAbort = () => this.#end(abortError('generation', outer!))
    if (outer?.aborted) this.#onAbort()
    else outer?.addEventListener('abort', this.#onAbort, { once: true })
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Begins a step under its name; null: what comes now has no limit. */
  step(name: string | null): void {
    clearTimeout(this.#timer)
    const now = performance.now()
    if (this.#since !== undefined) this.#spent += now - this.#since
    this.#since = name === null ? undefined : now
    const [ofStep, ofAll] = [this.#seconds * 1000, Math.max(0, this.#total * 1000 - this.#spent)]
    const ms = Math.min(ofStep, ofAll)
    // setTimeout counts in 32 bits; 24 days and more mean no limit.
    if (name === null || this.signal.aborted || ms >= 2 ** 31 - 1) return
    const what =
      ofAll < ofStep
        ? `the rollout took longer than its limit of ${this.#total} s (in ${name})`
        : `${name} took longer than its limit of ${this.#seconds} s`
    this.#timer = setTimeout(() => this.#end(new Error(what)), ms)
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#outer?.removeEventListener('abort', this.#onAbort)
  }

  #end(error: Error): void {
    clearTimeout(this.#timer)
    this.#ending.reject(error) // before the abort, so that it is this error that wins, not what the work throws when aborted
    this.#controller.abort(error)
  }
}
