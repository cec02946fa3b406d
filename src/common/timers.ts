/** Timers of limits that a user sets, which may be very long, or Infinity. */

/** The longest that setTimeout waits: 31 bits of milliseconds. It fires at once for more. A limit of as much (24 days) counts as none. */
export const MOST_MS = 2 ** 31 - 1

/** How often a running limit looks at the clock, and the longest time without a look that counts in full. */
const LOOK_MS = 1000
const GAP_MS = 3000

let [looked, still] = [performance.now(), 0]

/**
 * Like performance.now(), without the time in which this process stood still while a limit was running: after Ctrl-Z and `fg`, or in a container
 * that was paused, what is limited has not been worked on either.
 */
export function lived(): number {
  const now = performance.now()
  if (now - looked > GAP_MS) still += now - looked - LOOK_MS
  looked = now
  return now - still
}

/** Calls `fire` after `ms` of `lived`; never for a limit that counts as none. Returns a function that ends the timer. */
export function timerAfter(ms: number, fire: () => void): () => void {
  if (ms >= MOST_MS) return () => {}
  const end = lived() + ms
  let timer: ReturnType<typeof setTimeout>
  const wait = (left: number) => void (timer = setTimeout(look, Math.min(Math.ceil(left), LOOK_MS)))
  const look = () => {
    const left = end - lived()
    if (left <= 0) fire()
    else wait(left)
  }
  wait(Math.max(0, ms))
  return () => clearTimeout(timer)
}
