/** Helpers for waiting for a server: growing pauses, time limits, and aborts. */
import { setTimeout as sleep } from 'node:timers/promises'
import { pauseMs as growing } from '../../common/faults.ts'
import { isPassing } from './api.ts'

/** The pause before try `n` (from 0) of the same thing: 0.25, 0.5, 1, 2, 4, 5, 5 ... seconds. */
export const pauseMs = (n: number): number => growing(n, { firstMs: 250, longestMs: 5000 })

/**
 * Repeats a call that fails for a passing reason (see `VllmError.passing`) until it succeeds or the time is over.
 * @param log called with the first failure
 * @throws the last error; at once for an error that is not passing
 */
export async function withRetries<T>(
  call: (leftMs: number) => Promise<T>,
  limitMs: number,
  log?: (line: string) => void,
): Promise<T> {
  const end = performance.now() + limitMs
  for (let n = 0; ; n++) {
    try {
      return await call(Math.max(1, end - performance.now()))
    } catch (error) {
      if (!isPassing(error) || performance.now() + pauseMs(n) > end) throw error
      if (n === 0) log?.(`${error.message}; asking again for up to ${Math.round(limitMs / 1000)} s`)
      await sleep(pauseMs(n))
    }
  }
}

/** Whether `check` becomes true before the time limit; asked again after growing pauses, as long as `given` holds. */
export async function becomes(
  check: () => Promise<boolean>,
  limitMs: number,
  given: () => boolean = () => true,
): Promise<boolean> {
  const end = performance.now() + limitMs
  for (let n = 0; given(); n++) {
    if (await check()) return true
    if (performance.now() > end) return false
    await sleep(Math.min(pauseMs(n), 1000))
  }
  return false
}

/** The result of `work`. Rejects with the signal's reason if it aborts first. */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await work
  const { promise, reject } = Promise.withResolvers<never>()
  const stop = () => reject(signal.reason)
  if (signal.aborted) stop()
  signal.addEventListener('abort', stop, { once: true })
  try {
    return await Promise.race([work, promise])
  } finally {
    signal.removeEventListener('abort', stop)
    promise.catch(() => {})
  }
}

/** Returns a function that runs the given work one after another, in order, even if earlier work failed. */
export function oneAtATime(): <T>(work: () => Promise<T>) => Promise<T> {
  let before: Promise<unknown> = Promise.resolve()
  return (work) => {
    const mine = before.then(work)
    before = mine.catch(() => {})
    return mine
  }
}
