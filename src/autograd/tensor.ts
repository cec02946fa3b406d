/** A float32 matrix on the GPU with a reference count. */
import { GpuMemoryError } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { capacityOf, times, type Count } from '../gpu/size.ts'

/**
 * A row-major float32 matrix. `references` counts who still needs its values: the code that created it (until it calls `tape.done`) and every
 * recorded operation that keeps it for its backward pass. At zero the buffer returns to the pool. In a plan the number of rows may be open; the
 * buffer then has room for the capacity.
 */
export class Tensor {
  /** Number of tensors created so far. For tests: a replayed plan creates none. */
  static made = 0
  readonly rows: Count
  readonly columns: number
  readonly buffer: GpuBuffer
  /** Not readonly: tensors that a checkpointed function keeps (`Tape.once`) are created in a run without gradients. */
  needsGrad: boolean
  references = 1
  /**
   * Whether it holds f16 values, two in the place of each float32 (`columns` is then half their number). Such tensors are inputs of matrix products
   * on matrix units (`takesHalf`).
   */
  half = false
  /** dLoss/d(this tensor), during a backward pass. */
  grad: Tensor | undefined
  /**
   * Set if the node that created this tensor recomputes its values in the backward pass, so that nobody has to keep them (`Tape.nodeRecomputed`).
   * Backward rules that ran before add here what they will do with the values.
   */
  whenRecomputed: ((values: Tensor) => void)[] | undefined

  constructor(buffer: GpuBuffer, rows: Count, columns: number, needsGrad: boolean) {
    Tensor.made++
    this.buffer = buffer
    this.rows = rows
    this.columns = columns
    this.needsGrad = needsGrad
  }

  get count(): Count {
    return times(this.rows, this.columns)
  }

  /** Adds a reference. */
  keep(): this {
    this.references++
    return this
  }

  /** Removes a reference, and releases the buffer with the last one. @throws Error if there is none */
  drop(): void {
    if (--this.references === 0) this.buffer.release()
    if (this.references < 0) throw new Error(`tensor '${this.buffer.label}' is dropped more often than kept`)
  }
}

/**
 * Allocates a tensor with undefined values. @throws GpuMemoryError if memory does not suffice, or kernels could not bind it in one piece; with fewer
 * rows it may succeed
 */
export function makeTensor(gpu: Gpu, rows: Count, columns: number, label: string, needsGrad = false): Tensor {
  const bytes = capacityOf(rows) * columns * 4
  const { maxBinding } = gpu.facts.limits
  if (bytes > maxBinding) {
    const [needed, bound] = [bytes, maxBinding].map((n) => `${(n / 2 ** 20).toPrecision(4)} MiB`)
    throw new GpuMemoryError(`'${label}' needs ${needed} in one piece, and this adapter binds at most ${bound}`)
  }
  return new Tensor(gpu.pool.acquire(bytes, label), rows, columns, needsGrad)
}
