/** Times each dispatch by two timestamps around it. */
import type { Dispatch } from './commands.ts'

/** Assigns timestamps to passes while commands are encoded. */
export interface PassTimer {
  /** Whether each dispatch is a pass of its own. */
  readonly each: boolean
  /** Timestamp slots for the next pass. */
  next(encoder: GPUCommandEncoder): GPUComputePassTimestampWrites
  /** Adds a dispatch to the pass. */
  add(dispatch: Dispatch): void
  /** Ends a submit: copies its timestamps out. */
  resolve(encoder: GPUCommandEncoder): void
}

/** Number and total time of the dispatches with one label. */
export interface KernelTime {
  label: string
  calls: number
  milliseconds: number
}

/** Number of timestamps in a query set. */
export const capacity = 4096

/** The duration of a dispatch, and the timer's name for it. */
export interface Span<Name> {
  name: Name
  milliseconds: number
}

/** Times each dispatch. */
export class DispatchTimer<Name> implements PassTimer {
  readonly each = true
  readonly #device: GPUDevice
  readonly #nameOf: (dispatch: Dispatch) => Name
  #names: Name[][] = []
  #results: GPUBuffer[] = []
  /** Query sets and buffers of submits that may not have run yet; destroyed with the results. */
  #spent: { destroy(): void }[] = []
  #set: GPUQuerySet | undefined
  #used = 0
  running = false

  /** @param nameOf called for each dispatch just before its pipeline is encoded */
  constructor(device: GPUDevice, nameOf: (dispatch: Dispatch) => Name) {
    this.#device = device
    this.#nameOf = nameOf
  }

  /** Times everything that `fn` has sent by the time it resolves, in order. */
  async spans(fn: () => Promise<void>): Promise<Span<Name>[]> {
    this.running = true
    this.#names = []
    this.#results = []
    try {
      await fn()
    } finally {
      this.running = false
    }
    return await this.#result()
  }

  /** If the query set is full, it is resolved first. */
  next(encoder: GPUCommandEncoder): GPUComputePassTimestampWrites {
    if (this.#used + 2 > capacity) this.resolve(encoder)
    this.#set ??= this.#device.createQuerySet({ type: 'timestamp', count: capacity })
    if (this.#used === 0) this.#names.push([])
    const begin = this.#used
    this.#used += 2
    return { querySet: this.#set, beginningOfPassWriteIndex: begin, endOfPassWriteIndex: begin + 1 }
  }

  add(dispatch: Dispatch): void {
    this.#names.at(-1)!.push(this.#nameOf(dispatch))
  }

  /** Copies the timestamps of the current query set to a mappable buffer. */
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

  async #result(): Promise<Span<Name>[]> {
    const spans: Span<Name>[] = []
    for (const [i, staging] of this.#results.entries()) {
      await staging.mapAsync(GPUMapMode.READ)
      const stamps = new BigUint64Array(staging.getMappedRange())
      this.#names[i].forEach((name, k) => spans.push({ name, milliseconds: Number(stamps[2 * k + 1] - stamps[2 * k]) / 1e6 }))
      staging.unmap()
      staging.destroy()
    }
    for (const made of this.#spent.splice(0)) made.destroy()
    return spans
  }
}

/** Spans summed by name, the longest first. */
export function summed(spans: Span<string>[]): KernelTime[] {
  const table = new Map<string, KernelTime>()
  for (const { name: label, milliseconds } of spans) {
    const row = table.get(label) ?? { label, calls: 0, milliseconds: 0 }
    row.calls++
    row.milliseconds += milliseconds
    table.set(label, row)
  }
  return [...table.values()].sort((a, b) => b.milliseconds - a.milliseconds)
}
