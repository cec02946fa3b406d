/** Waiting with a name and a limit. Everything this room awaits from outside (the policy, a user's reward function) goes through here. */

/** A limit has passed. `what`: the name of what was waited for. */
export class TimeLimitError extends Error {
  readonly what: string
  constructor(what: string, seconds: number) {
    super(`${what} took longer than its limit of ${seconds} s`)
    this.what = what
  }
}

export interface Limits {
  /** What is being waited for, as it should read in an error: 'generation', 'reward function "correct"'. */
  what: string
  /** Infinity: no limit. */
  seconds: number
  /** An outer end: the run stops, or a sibling failed. */
  signal?: AbortSignal
}

/**
 * Runs `work` with a signal that fires at the limit or with `limits.signal`, and stops waiting then even if `work` does not listen.
 * Throws a TimeLimitError, or an Error with the reason of the outer abort. A synchronous endless loop cannot be stopped.
 */
export async function withLimit<T>(limits: Limits, work: (signal: AbortSignal) => T | Promise<T>): Promise<T> {
  const { what, seconds, signal } = limits
  if (signal?.aborted) throw abortError(what, signal)
  const controller = new AbortController()
  const { promise: ended, reject } = Promise.withResolvers<never>()
  const end = (error: Error) => {
    reject(error) // before the abort, so that it is this error that wins, not what the work throws when aborted
    controller.abort(error)
  }
  const ms = seconds * 1000
  // setTimeout counts in 32 bits; 24 days and more mean no limit.
  const timer = ms < 2 ** 31 - 1 ? setTimeout(() => end(new TimeLimitError(what, seconds)), ms) : undefined
  const onAbort = () => end(abortError(what, signal!))
  signal?.addEventListener('abort', onAbort, { once: true })
  try {
    // Both promises are raced, so a late rejection of the work is seen and never unhandled.
    return await Promise.race([ended, Promise.resolve(controller.signal).then(work)])
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', onAbort)
  }
}

/** That `what` was aborted, with the reason that the signal has. */
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
