/** Timers of limits that a user sets, which may be very long, or Infinity. */

/** The longest that setTimeout waits: 31 bits of milliseconds. It fires at once for more. A limit of as much (24 days) counts as none. */
export const MOST_MS = 2 ** 31 - 1

/** Like setTimeout; no timer for a limit that counts as none. */
export const timerAfter = (ms: number, fire: () => void): ReturnType<typeof setTimeout> | undefined =>
  ms < MOST_MS ? setTimeout(fire, ms) : undefined
