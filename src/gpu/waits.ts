/**
 * Sleeping through waits on a software adapter. While a GPU promise is pending Dawn's Node binding spins on a core, which such an adapter
 * computes with; so most of a wait is slept through first, and the promise is asked for near its end. From then on the event loop naps
 * between its turns, each of which asks the device once.
 * - A wait has a name and an amount of work; what a unit of work takes is learned from the last two waits of that name (the smaller: one that held a pause of
 *   the machine must not make the next ones oversleep).
 * - Nothing is learned from a wait that may have held a kernel's compilation, which this driver does at a kernel's first use: it takes a hundred times as long
 *   as the work, and a wait that overslept cannot tell by how much.
 * - The device works its queue in order, so a wait begins where the one before it ends: a decode step behind a training step sleeps for both.
 * Meanwhile the system is made to give the driver its cores (cores.ts).
 */
import { setImmediate as turn } from 'node:timers/promises'
import { beginWait } from './cores.ts'

export interface WaitFor {
  name: string
  /** Amount of work that is waited for, in any unit (rows). */
  work: number
}

/** Part of the expected time that is slept. */
const slept = 0.85
/** Milliseconds of a nap, the most that an answer, or anything else that the event loop has to do, is late; and what a turn of that loop takes, Dawn's questions to the device included. */
const [shortest, longest, aTurn] = [0.4, 2, 0.1]
const nobody = new Int32Array(new SharedArrayBuffer(4))

export class WaitClock {
  /** Milliseconds a unit of work, of the last two waits. */
  readonly #rates = new Map<string, [number, number]>()
  /** When the device is expected to have done all work that is waited for, and when the last wait ended. */
  #due = 0
  #done = 0
  /** Kernels that were compiled by the end of the last wait. */
  #compiled = 0

  /**
   * Waits for `start()`, asleep for most of the time that `wait` is expected to take.
   * @param kernels how many were sent so far that had not been sent before
   */
  async through(wait: WaitFor, start: () => Promise<unknown>, kernels: number): Promise<void> {
    const cores = beginWait()
    const begin = performance.now()
    const rates = this.#rates.get(wait.name)
    const expected = (rates ? Math.min(...rates) : 0) * wait.work
    const due = Math.max(begin, this.#due) + expected
    this.#due = due
    const pause = (due - begin) * slept
    if (pause > 2) await new Promise((resolve) => setTimeout(resolve, pause))
    const woke = performance.now()
    try {
      await napping(start())
    } finally {
      cores.rest()
    }
    const end = performance.now()
    // It may have been over before we woke: then its length is unknown, and shorter than what was slept.
    const own = end - Math.max(begin, this.#done)
    const took = own * (pause > 2 && end - woke < 0.5 ? 0.7 : 1)
    if (this.#compiled >= kernels) {
      const work = Math.max(1, wait.work)
      const rate = took / work
      this.#rates.set(wait.name, [rates?.[1] ?? rate, rate])
      cores.took(wait.name, own, work)
    } else this.#compiled = kernels
    this.#done = end
    if (this.#due === due) this.#due = end
  }
}

/** The waits that are napped through now, the newest last. */
const open: { begin: number }[] = []

/**
 * Waits for a promise of the device without taking a core from it. A turn of the event loop takes some of the time of a core, an answer that is seen late leaves
 * all of them idle: their sum over a wait is least where a nap is the root of what a turn takes times what is left of the wait. That is not known, and taken to be
 * as long as the wait was so far. Of several waits the newest naps for all.
 */
export async function napping(promise: Promise<unknown>): Promise<void> {
  const wait = { begin: performance.now(), over: false }
  const end = () => (wait.over = true)
  promise.then(end, end)
  // A promise that is settled already needs no nap.
  await turn()
  open.push(wait)
  while (!wait.over) {
    if (open.at(-1) === wait) {
      const nap = Math.sqrt(aTurn * (performance.now() - wait.begin))
      Atomics.wait(nobody, 0, 0, Math.min(Math.max(nap, shortest), longest))
    }
    await turn()
  }
  open.splice(open.indexOf(wait), 1)
  await promise
}
