/**
 * How training and generation share one device. A device executes its queue in order, so a micro-batch sent as a whole would delay every decode step
 * by seconds. While an engine is open, training is therefore sent in sections (one layer forward or backward, one chunk of the head: `gpu.cut`):
 * - Generation goes first: a section is sent when the engine has nothing to run. Rollouts are chains of small steps with waits in between
 *   (environments, tools), and training is one long job that fits into those waits.
 * - Neither starves. While training waits, it is owed a share `least` of the engine's working time, and gets it one section at a time between two
 *   decode steps. A decode step waits for at most one section, or for two if no decode step ran just before it.
 * - The engine runs out of requests at the latest when the batches that it may sample ahead are complete; training then has the device to itself. If
 *   the engine also serves other clients, it may never run out; training then gets as much time as the engine (`evenShare`).
 */
import type { Gpu, Plan } from './gpu.ts'

/** Values of `least`, training time per second of engine time: the default, and for an engine that also serves other clients. */
const leastShare = 1 / 16
export const evenShare = 1

/** Decides when a section of training may be sent. */
export class DeviceShare {
  /** Number of engines open on this device. Training is cut into sections while there are any. */
  engines = 0
  /** Minimum training time, as a fraction of the engine's time. */
  least = leastShare
  /** Number of engines that have requests to run, and since when (by `performance.now()`) there has been one. */
  #busy = 0
  #since = 0
  /** Milliseconds that training is owed: its share of the engines' time, minus the time it got while they were busy. */
  #owed = 0
  /** Sections that wait for their turn: more than one where several batches are scored at the same time. */
  readonly #waiting: (() => void)[] = []

  /** Called when an engine gets requests to run; followed by one call of `rest`. */
  work(now = performance.now()): void {
    if (this.#busy++ === 0) this.#since = now
  }

  /** Called when an engine has no requests left. */
  rest(): void {
    this.#busy--
    if (this.#busy > 0) return
    for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Called when an engine's step has ended, `ms` after it was sent or after the end of the step before it, whichever is later. */
  stepped(ms: number): void {
    if (this.#waiting.length === 0) return
    this.#owed += ms * this.least
    if (this.#owed > 0) this.#waiting.shift()!()
  }

  /** Whether no engine has requests to run. */
  get idle(): boolean {
    return this.#busy === 0
  }

  /** Resolves when a section of training may be sent. */
  async turn(): Promise<void> {
    if (this.#busy === 0 || this.#owed > 0) return
    await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  /** Called when a section of training has ended. Its time before an engine got requests is not counted. */
  trained(begin: number, end: number): void {
    if (this.#busy === 0) this.#owed = 0
    else this.#owed -= end - Math.max(begin, this.#since)
  }
}

/**
 * Sends a plan section by section, each when `gpu.share` gives it a turn. Resolves when the last section is sent; until then the plan must not be
 * replayed elsewhere. Two sections are in flight, so that the device has no gap; only one on a software adapter with a working engine, whose steps
 * fill the gap.
 * @param work amount of work in any unit, from which the length of waits is predicted (waits.ts)
 */
export async function sendInSections(gpu: Gpu, plan: Plan, values: Record<string, number>, work: number): Promise<void> {
  const { share, facts } = gpu
  let [before, last] = [Promise.resolve(), performance.now()]
  for (let i = 0; i <= plan.cuts.length; i++) {
    await share.turn()
    gpu.replay(plan, values, i)
    const begin = performance.now()
    const done = gpu.sync({ name: `section ${i} of ${plan.cuts.length}`, work }).then(() => {
      const end = performance.now()
      share.trained(Math.max(begin, last), end)
      last = end
    })
    // Whoever waits throws its error: the await below, or the next read-back.
    done.catch(() => {})
    await (facts.software && !share.idle ? done : before)
    before = done
  }
}
