/** Time limits for everything outside the project's code that is awaited during a rollout (the policy, a user's reward function). */

import { lived, timerAfter } from '../common/timers.ts'

/** A time limit has passed. `what`: the name of the awaited work. */
export class TimeLimitError extends Error {
  readonly what: string
  constructor(what: string, seconds: number) {
    super(`${what} took longer than its limit of ${seconds} s`)
    this.what = what
  }
}

export interface Limits {
  /** Name of the awaited work for error messages: 'generation', 'reward function "correct"'. */
  what: string
  /** Infinity: no limit. */
  seconds: number
  /** Fires when the run stops, or when a sibling (such as another reward function) failed. */
  signal?: AbortSignal
  /** Milliseconds so far that count toward no limit (`RolloutContext.idle`). */
  idle?: () => number
}

/**
 * Runs `work` with a signal that fires at the time limit or with `limits.signal`. Stops waiting at that moment even if `work` ignores the signal.
 * Throws a TimeLimitError, or an Error with the outer signal's reason. A synchronous endless loop cannot be stopped.
 */
export async function withLimit<T>(limits: Limits, work: (signal: AbortSignal) => T | Promise<T>): Promise<T> {
  const { what, seconds, signal, idle = () => 0 } = limits
  if (signal?.aborted) throw abortError(what, signal)
  const controller = new AbortController()
  const { promise: ended, reject } = Promise.withResolvers<never>()
  const end = (error: Error) => {
    reject(error) // before the abort, so that this error is reported rather than the one thrown by the aborted work
    controller.abort(error)
  }
  const until = lived() - idle() + seconds * 1000
  let endTimer = () => {}
  const watch = () => {
    const left = until - (lived() - idle())
    if (left <= 0) end(new TimeLimitError(what, seconds))
    else endTimer = timerAfter(left, watch)
  }
  watch()
  const onAbort = () => end(abortError(what, signal!))
  signal?.addEventListener('abort', onAbort)
  try {
    // The race also handles a late rejection of `work`.
    return await Promise.race([ended, Promise.resolve(controller.signal).then(work)])
  } finally {
    endTimer()
    signal?.removeEventListener('abort', onAbort)
  }
}

/** The error for aborted work named `what`, with the signal's reason. */
export function abortError(what: string, signal: AbortSignal): Error {
  const reason: unknown = signal.reason
  const why =
    reason instanceof Error && reason.name !== 'AbortError'
      ? `: ${reason.message}`
      : typeof reason === 'string'
        ? `: ${reason}`
        : ''
  return new Error(`${what} was aborted${why}`)
}
