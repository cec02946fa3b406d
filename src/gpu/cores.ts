/** The cores that a software adapter's driver computes on: while the device is waited for they are kept awake (awake.ts), and each driver thread is pinned to one (pinned.ts). */
import { awake, awakeTried } from './awake.ts'
import { pinned } from './pinned.ts'

/** A wait under way. */
export interface Wait {
  /** The wait is over, or is given up. */
  rest(): void
  /** Reports the wait's name, how long it took (from the end of the wait before it, where both overlap), and its amount of work. */
  took?(name: string, ms: number, work: number): void
}

/** Something that may make waits shorter. */
export interface Help {
  /** Milliseconds of waiting in all after which it starts: a short command does not pay for what it takes. */
  after: number
  start(): void
  /** Called when a wait begins, also before `start`. */
  wait?(): Wait
}

/** In the order of `after`. */
const helps: Help[] = [awake, pinned, awakeTried]
let waited = 0
let started = 0

/** Starts the helps that are due, and tells all that a wait begins; the result's `rest` and `took` reach all of them. */
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
