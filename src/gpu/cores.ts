/** What is done about the cores of a software adapter's driver while it is waited for: they are kept awake (awake.ts), and each of its threads has one of its own (pinned.ts). */
import { awake, awakeTried } from './awake.ts'
import { pinned } from './pinned.ts'

/** A wait under way. */
export interface Wait {
  /** It is over, or is given up. */
  rest(): void
  /** What it was, how long it was behind the wait before it, and for how much work. */
  took?(name: string, ms: number, work: number): void
}

/** Something that may make waits shorter. */
export interface Help {
  /** Milliseconds of waiting in all after which it starts: a short command does not pay for what it takes. */
  after: number
  start(): void
  /** A wait begins, before `start`, too. */
  wait?(): Wait
}

/** In the order of `after`. */
const helps: Help[] = [awake, pinned, awakeTried]
let waited = 0
let started = 0

/** Gives a device that computes on this machine's cores what makes it faster, until `rest`. */
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
