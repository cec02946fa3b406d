/** What is done about the cores of a software adapter's driver while it is waited for: they are kept awake (awake.ts), and each of its threads has one of its own (pinned.ts). */
import { awake } from './awake.ts'
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
  /** The process has waited long enough for it to pay. */
  start(): void
  /** A wait begins. */
  wait(): Wait
}

/** Milliseconds of waiting in all after which helps are started: a short command does not pay for threads (10 MB each) and children. */
const startAfter = 1000
const helps = [awake, pinned]
let waited = 0
let started = false

/** Gives a device that computes on this machine's cores what makes it faster, until `rest`. */
export function beginWait(): Required<Wait> {
  if (!started && waited >= startAfter) {
    started = true
    for (const help of helps) help.start()
  }
  const waits = helps.map((help) => help.wait())
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
