/**
 * Sleeps through waits on a software adapter. While a GPU promise is pending, Dawn's Node binding spins on a core that such an adapter needs for
 * computing. So most of a wait is spent asleep, and the promise is requested only near its end. From then on the event loop naps between its turns,
 * each of which polls the device once. Meanwhile the system is made to give the driver its cores (cores.ts).
 * - A wait has a name and an amount of work. The time per unit of work is learned from the last two waits of that name (the smaller, so that a pause
 *   of the machine does not make the next waits oversleep).
 * - Nothing is learned from a wait that may have included compiling a kernel, which this driver does at the kernel's first use: it takes a hundred
 *   times as long as the work, and a wait that overslept cannot tell by how much.
 * - The device executes its queue in order, so a wait begins where the previous one ends: a decode step behind a training step sleeps for both.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { beginWait } from './cores.ts'

/** What is waited for. */
export interface WaitFor {
  name: string
  /** Amount of work that is waited for, in any unit (for example rows). */
  work: number
}

/** Fraction of the expected time that is slept. */
const slept = 0.85
/**
 * Milliseconds: the shortest and the longest nap, which may delay an answer or anything else on the event loop; and a turn of that loop, including
 * Dawn's polling of the device.
 */
const [shortest, longest, aTurn] = [0.4, 2, 0.1]
const nobody = new Int32Array(new SharedArrayBuffer(4))

/** Learns how long waits take, and sleeps through most of them. */
export class WaitClock {
  /** Milliseconds per unit of work, from the last two waits of each name. */
  readonly #rates = new Map<string, [number, number]>()
  /** When the device is expected to finish all work that is waited for, and when the last wait ended. */
  #due = 0
  #done = 0
  /** Number of kernels that had been compiled by the end of the last wait. */
  #compiled = 0

  /**
   * Waits for `start()`, asleep for most of the expected time.
   * @param kernels number of kernels sent for the first time so far
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
    // The work may have finished before we woke. Its length is then unknown, but less than the sleep.
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

/** The waits in `napping`, newest last. */
const open: { begin: number }[] = []

/**
 * Waits for a promise of the device without taking a core from it. A turn of the event loop costs time of one core, while an answer seen late leaves
 * all of them idle. Their sum over a wait is smallest if a nap is the square root of the product of a turn's cost and the remaining wait, which is
 * unknown and taken to be as long as the wait so far. Of several waits, the newest naps for all.
 */
export async function napping(promise: Promise<unknown>): Promise<void> {
  const wait = { begin: performance.now(), over: false }
  const end = () => (wait.over = true)
  promise.then(end, end)
  // A promise that is already settled needs no nap.
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
