/** A float32 matrix on the GPU with a counted lifetime. */
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'

/**
 * Rows x columns of float32, row-major. `references` counts who still needs the values: the code that made it (until it says
 * `tape.done`) and every recorded operation that kept it for its backward pass. At zero the buffer goes back to the pool.
 */
export class Tensor {
  readonly rows: number
  readonly columns: number
  readonly buffer: GpuBuffer
  readonly needsGrad: boolean
  references = 1
  /** dLoss / dthis while a backward pass is under way. */
  grad: Tensor | undefined

  constructor(buffer: GpuBuffer, rows: number, columns: number, needsGrad: boolean) {
    this.buffer = buffer
    this.rows = rows
    this.columns = columns
    this.needsGrad = needsGrad
  }

  get count(): number {
    return this.rows * this.columns
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

export function makeTensor(gpu: Gpu, rows: number, columns: number, label: string, needsGrad = false): Tensor {
  return new Tensor(gpu.pool.acquire(rows * columns * 4, label), rows, columns, needsGrad)
}
