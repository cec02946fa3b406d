/** Timestamp timing per kernel: two timestamps around every dispatch, summed by label. */
import type { Dispatch } from './commands.ts'

/** Gives passes their timestamps while commands are encoded. */
export interface PassTimer {
  /** Whether each dispatch is a pass of its own. */
  readonly each: boolean
  /** Timestamp slots for the next pass. */
  next(encoder: GPUCommandEncoder): GPUComputePassTimestampWrites
  /** Says what is in it. */
  add(dispatch: Dispatch): void
  /** Ends a submit. */
  resolve(encoder: GPUCommandEncoder): void
}

export interface KernelTime {
  label: string
  calls: number
  milliseconds: number
}

/** Timestamps a query set may hold. */
export const capacity = 4096

export class KernelTimer implements PassTimer {
  readonly each = true
  readonly #device: GPUDevice
  #labels: string[][] = []
  #results: GPUBuffer[] = []
  /** Query sets and buffers of submits that have not run yet; destroyed with the results. */
  #spent: { destroy(): void }[] = []
  #set: GPUQuerySet | undefined
  #used = 0
  running = false

  constructor(device: GPUDevice) {
    this.#device = device
  }

  /** Times what `fn` has done by the time it resolves: by label, the longest first. */
  async times(fn: () => Promise<void>): Promise<KernelTime[]> {
    this.running = true
    this.#labels = []
    this.#results = []
    try {
      await fn()
    } finally {
      this.running = false
    }
    return await this.#result()
  }

  /** A full set is resolved first. */
  next(encoder: GPUCommandEncoder): GPUComputePassTimestampWrites {
    if (this.#used + 2 > capacity) this.resolve(encoder)
    this.#set ??= this.#device.createQuerySet({ type: 'timestamp', count: capacity })
    if (this.#used === 0) this.#labels.push([])
    const begin = this.#used
    this.#used += 2
    return { querySet: this.#set, beginningOfPassWriteIndex: begin, endOfPassWriteIndex: begin + 1 }
  }

  add({ kernel }: Dispatch): void {
    this.#labels.at(-1)!.push(kernel.label)
  }

  /** Its timestamps are copied out, since the set is used again. */
  resolve(encoder: GPUCommandEncoder): void {
    if (this.#used === 0 || !this.#set) return
    const size = this.#used * 8
    const resolved = this.#device.createBuffer({ size, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC })
    const staging = this.#device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST })
    encoder.resolveQuerySet(this.#set, 0, this.#used, resolved, 0)
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, size)
    this.#results.push(staging)
    this.#spent.push(this.#set, resolved)
    this.#set = undefined
    this.#used = 0
  }

  async #result(): Promise<KernelTime[]> {
    const table = new Map<string, KernelTime>()
    for (const [i, staging] of this.#results.entries()) {
      await staging.mapAsync(GPUMapMode.READ)
      const stamps = new BigUint64Array(staging.getMappedRange())
      this.#labels[i].forEach((label, k) => {
        const row = table.get(label) ?? { label, calls: 0, milliseconds: 0 }
        row.calls++
        row.milliseconds += Number(stamps[2 * k + 1] - stamps[2 * k]) / 1e6
        table.set(label, row)
      })
      staging.unmap()
      staging.destroy()
    }
    for (const made of this.#spent.splice(0)) made.destroy()
    return [...table.values()].sort((a, b) => b.milliseconds - a.milliseconds)
  }
}
