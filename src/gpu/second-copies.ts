/**
 * A second copy of a kernel's machine code, for kernels whose first copy lies on unlucky pages of memory.
 *
 * AMD's cores (Zen 3 and Zen 5 were examined) cannot hold the code of certain pairs of memory pages at the same time, depending on the pages'
 * physical addresses. A kernel whose loop has such a pair among its four to nine pages runs at 0.4 to 0.9 of its speed for the life of the process:
 * one in fifty with 512-bit vectors (bench/LOG.md, "How often code lies badly"). A program cannot choose its physical pages, but a copy of the code
 * gets other ones. So a kernel that has taken a while is loaded from the driver's cache once more, dispatches use either copy and are timed, and the
 * slower copy is dropped. Both have the same instructions, so results do not depend on the choice.
 */
import type { GpuFacts } from './adapter.ts'
import type { Command, Dispatch } from './commands.ts'
import { cacheFault, isLavapipe } from './driver-cache.ts'
import type { Kernel } from './kernel.ts'
import { DispatchTimer, type PassTimer, type Span } from './timing.ts'

/**
 * Milliseconds that a kernel must have taken before it gets a second copy. Making it takes the main thread 100 to 150 ms, and one kernel in fifty
 * gains about as much as it has taken so far, so a copy pays from 5 to 7 s on.
 */
const worthIt = 20_000
/** A kernel's second submit is the first to be timed, since the driver compiles in the first; then each at which the number has doubled. */
const firstLook = 2
/** Dispatches of each copy before one is chosen, and timed submits after which one is chosen in any case. */
const enough = 10
const mostSubmits = 30
/** The copy replaces the original if it needs less than this share of its time. */
const clear = 0.93

/** Whether second copies may pay: only if they come from the driver's cache, so that making one does not compile. */
export const takesSecondCopies = ({ cpu, name, timestamps }: GpuFacts): boolean =>
  cpu !== 'other' && timestamps && isLavapipe(name) && !cacheFault()

/** A kernel whose copies have not been compared yet. */
interface Open {
  /** Submits that contained the kernel, and those since the last timed one. */
  submits: number
  since: number
  /** Milliseconds that the kernel has taken so far, estimated from the timed submits. */
  spent: number
  trial?: Trial
}
/** Two copies of a kernel, and the times of the dispatches of each, grouped by params and workgroups. */
interface Trial {
  pipelines: [GPUComputePipeline, GPUComputePipeline]
  submits: number
  works: Map<string, { sent: [number, number]; took: [number[], number[]] }>
}
/** A dispatch that was timed. */
interface Timed {
  kernel: Kernel
  /** The list that its time goes into. */
  took?: number[]
}

/** Decides which kernels get a second copy, and which copy a dispatch uses. */
export class SecondCopies {
  readonly #timer: DispatchTimer<Timed>
  readonly #worth: number
  readonly #open = new Map<Kernel, Open>()
  readonly #settled = new WeakSet<Kernel>()
  /** Whether timestamps are being read or copies made; stays true if the device is gone. */
  #busy = false
  /** Number of kernels whose copies were compared, and of those that now use the second copy. */
  compared = 0
  replaced = 0

  /** @param worth milliseconds that a kernel must have taken before it gets a second copy */
  constructor(device: GPUDevice, worth = worthIt) {
    this.#worth = worth
    this.#timer = new DispatchTimer(device, (dispatch) => this.#timed(dispatch))
  }

  /** The timer for a submit, which must then be encoded and sent at once; undefined if the submit need not be timed. */
  timer(commands: Command[]): PassTimer | undefined {
    const kernels = new Set<Kernel>()
    for (const c of commands) if ('kernel' in c && !this.#settled.has(c.kernel)) kernels.add(c.kernel)
    let due = false
    for (const kernel of kernels) {
      let open = this.#open.get(kernel)
      if (!open) this.#open.set(kernel, (open = { submits: 0, since: 0, spent: 0 }))
      open.submits++
      open.since++
      due ||= !!open.trial || open.since >= Math.max(firstLook, open.submits / 2)
    }
    if (!due || this.#busy) return undefined
    this.#busy = true
    void this.#time().then(
      () => (this.#busy = false),
      () => {}, // The device is lost or closed, which whoever waits for it hears.
    )
    return this.#timer
  }

  /** Chooses a copy for a dispatch that is about to be encoded: dispatches of the same work take turns. */
  #timed({ kernel, params, workgroups }: Dispatch): Timed {
    const trial = this.#open.get(kernel)?.trial
    if (!trial) return { kernel }
    const asked = `${workgroups.join()} ${params ? new Uint32Array(params).join() : ''}`
    let work = trial.works.get(asked)
    if (!work) trial.works.set(asked, (work = { sent: [0, 0], took: [[], []] }))
    const { sent, took } = work
    // Random if both were used equally often: with strict alternation, each layer would get the same copy in every submit.
    const copy = Math.random() < 0.5 + (sent[0] - sent[1]) / 2 ? 1 : 0
    sent[copy]++
    kernel.pipeline = trial.pipelines[copy]
    return { kernel, took: took[copy] }
  }

  async #time(): Promise<void> {
    const spans = await this.#timer.spans(async () => {})
    for (const [kernel, { trial }] of this.#open) if (trial) kernel.pipeline = trial.pipelines[0]
    for (const kernel of this.#note(spans)) {
      const { spent, trial } = this.#open.get(kernel)!
      if (trial) this.#judge(kernel, trial)
      else if (spent >= this.#worth) await this.#copy(kernel)
    }
  }

  /**
   * Adds up the timed dispatches.
   * @returns their kernels that are still being compared
   */
  #note(spans: Span<Timed>[]): Kernel[] {
    const sums = new Map<Kernel, number>()
    for (const { name, milliseconds } of spans) {
      name.took?.push(milliseconds)
      sums.set(name.kernel, (sums.get(name.kernel) ?? 0) + milliseconds)
    }
    const kernels = [...sums.keys()].filter((kernel) => this.#open.has(kernel))
    for (const kernel of kernels) {
      const open = this.#open.get(kernel)!
      open.spent += open.since * sums.get(kernel)!
      open.since = 0
    }
    return kernels
  }

  #judge(kernel: Kernel, trial: Trial): void {
    const { pipelines, works } = trial
    const sums = [0, 0]
    let least = 0
    for (const { took } of works.values()) {
      const both = Math.min(took[0].length, took[1].length)
      least += both
      if (both > 0) took.forEach((list, copy) => (sums[copy] += both * median(list)))
    }
    if (least < enough && ++trial.submits < mostSubmits) return
    this.compared++
    if (sums[1] < clear * sums[0]) {
      kernel.pipeline = pipelines[1]
      this.replaced++
    }
    this.#settle(kernel)
  }

  async #copy(kernel: Kernel): Promise<void> {
    const copy = await kernel.copy().catch(() => undefined)
    if (copy) this.#open.get(kernel)!.trial = { pipelines: [kernel.pipeline, copy], submits: 0, works: new Map() }
    else this.#settle(kernel)
  }

  #settle(kernel: Kernel): void {
    this.#settled.add(kernel)
    this.#open.delete(kernel)
  }
}

function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)]
}
