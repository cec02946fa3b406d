/**
 * How training and generation share one device. A device works its queue in order, so a micro-batch sent whole would keep every decode step waiting
 * for seconds. While an engine is open, training is therefore sent in sections (a layer forward or backward, a chunk of the head: `gpu.cut`):
 * - Generation goes first: a section is sent when the engine has nothing to run. Rollouts are chains of small steps with waits in between
 *   (environments, tools); training is one long job that fits into those waits.
 * - Neither starves. While training waits it is owed the share `least` of the time that the engine works, and is given it a section at a time
 *   between two decode steps. A decode step waits for one section at most, or for two where none had run just before.
 * - An engine runs dry at the latest when the batches that it may sample ahead are complete; training then has the device alone. An engine that
 *   also serves others may never run dry: there training gets as much time as the engine (`evenShare`).
 */
import type { Gpu, Plan } from './gpu.ts'

/** Values of `least`: training's time for each second of the engine's. The default, and that of an engine which serves others too. */
const leastShare = 1 / 16
export const evenShare = 1

export class DeviceShare {
  /** Engines that are open on this device: training is cut into sections while there are any. */
  engines = 0
  /** Training's least share of the engine's time. */
  least = leastShare
  /** Engines that have requests to run. */
  #busy = 0
  /** Milliseconds that training is owed: its least share of the engines' time, minus the time it got while they were busy. */
  #owed = 0
  #waiting: (() => void) | undefined

  /** An engine has requests from here on. Each call is followed by one of `rest`. */
  work(): void {
    this.#busy++
  }

  /** An engine has none left. */
  rest(): void {
    this.#busy--
    if (this.#busy === 0) this.#wake()
  }

  /** An engine's step has ended, `ms` after it was sent or after the end of the step before it. */
  stepped(ms: number): void {
    if (!this.#waiting) return
    this.#owed += ms * this.least
    if (this.#owed > 0) this.#wake()
  }

  /** Whether no engine has requests to run. */
  get idle(): boolean {
    return this.#busy === 0
  }

  /** Resolves when a section of training may be sent. */
  async turn(): Promise<void> {
    if (this.#busy === 0 || this.#owed > 0) return
    await new Promise<void>((resolve) => (this.#waiting = resolve))
  }

  /** A section of training has ended; it took `ms`. */
  trained(ms: number): void {
    if (this.#busy === 0) this.#owed = 0
    else this.#owed -= ms
  }

  #wake(): void {
    this.#waiting?.()
    this.#waiting = undefined
  }
}

/**
 * Sends a plan section by section, each when `gpu.share` gives it a turn; resolves when the last one is sent. Two are in flight, so that the
 * device has no gap; one beside an engine that works on a software adapter, whose steps fill the gap. Until then the plan must not be replayed otherwise.
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
      share.trained(end - Math.max(begin, last))
      last = end
    })
    // Its error is thrown by whoever waits for it, here or at the next read-back.
    done.catch(() => {})
    await (facts.software && !share.idle ? done : before)
    before = done
  }
}
