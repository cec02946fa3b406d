/** A float32 matrix on the GPU with a counted lifetime. */
import { GpuMemoryError } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { capacityOf, times, type Count } from '../gpu/size.ts'

/**
 * Rows x columns of float32, row-major. `references` counts who still needs the values: the code that made it (until it says
 * `tape.done`) and every recorded operation that kept it for its backward pass. At zero the buffer goes back to the pool. In a plan the number of rows may be
 * open: the buffer then has room for its capacity.
 */
export class Tensor {
  /** Tensors made so far, for tests: a replayed plan makes none. */
  static made = 0
  readonly rows: Count
  readonly columns: number
  readonly buffer: GpuBuffer
  /** Not readonly: tensors that a checkpointed function keeps (`Tape.once`) were made in a run without gradients. */
  needsGrad: boolean
  references = 1
  /** Whether it holds f16 values, two in each float32's place (`columns` is half their number): input for products on matrix units (`takesHalf`). */
  half = false
  /** dLoss / dthis while a backward pass is under way. */
  grad: Tensor | undefined
  /**
   * Set where the node that made this tensor can recompute its values on the way back, so that nobody has to keep them (`Tape.nodeRecomputed`): what
   * backward rules that ran before want to do with the values then.
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

  keep(): this {
    this.references++
    return this
  }

  drop(): void {
    if (--this.references === 0) this.buffer.release()
    if (this.references < 0) throw new Error(`tensor '${this.buffer.label}' is dropped more often than kept`)
  }
}

/** @throws GpuMemoryError where kernels could not bind it: fewer rows can be tried, as where the memory does not hold it */
export function makeTensor(gpu: Gpu, rows: Count, columns: number, label: string, needsGrad = false): Tensor {
  const bytes = capacityOf(rows) * columns * 4
  const { maxBinding } = gpu.facts.limits
  if (bytes > maxBinding) {
    const [needed, bound] = [bytes, maxBinding].map((n) => `${(n / 2 ** 20).toPrecision(4)} MiB`)
    throw new GpuMemoryError(`'${label}' needs ${needed} in one piece, and this adapter binds at most ${bound}`)
  }
  return new Tensor(gpu.pool.acquire(bytes, label), rows, columns, needsGrad)
}
