/**
 * Manages the cores that a software adapter's driver computes on: while the device is waited for, they are kept awake (awake.ts), and each driver
 * thread is pinned to a core (pinned.ts).
 */
import { awake, awakeTried } from './awake.ts'
import { pinned } from './pinned.ts'

/** A wait in progress. */
export interface Wait {
  /** Called when the wait is over or is given up. */
  rest(): void
  /** Reports the wait's name, its duration (from the end of the previous wait, if both overlap), and its amount of work. */
  took?(name: string, ms: number, work: number): void
}

/** A measure that may make waits shorter. */
export interface Help {
  /** Total milliseconds of waiting after which it starts, so that short commands do not pay for it. */
  after: number
  start(): void
  /** Called when a wait begins, also before `start`. */
  wait?(): Wait
}

/** Sorted by `after`. */
const helps: Help[] = [awake, pinned, awakeTried]
let waited = 0
let started = 0

/** Starts the helps that are due, and tells all of them that a wait begins; `rest` and `took` of the result reach all of them. */
export function beginWait(): Required<Wait> {
  while (started < helps.length && waited >= helps[started].after) helps[started++].start()
  const waits = helps.flatMap((help) => help.wait?.() ?? [])
  const begin = performance.now()
  return {
    rest() {
      waited += performance.now() - begin
      for (const wait of waits) wait.rest()
    },
    took(name, ms, work) {
      for (const wait of waits) wait.took?.(name, ms, work)
    },
  }
}
