/** AdamW over all trained parameters, with clipping by their global norm: torch.optim.AdamW and torch.nn.utils.clip_grad_norm_. */
import { pad, unpad, type Parameter, type ParameterStore } from '../autograd/parameters.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { adamw, sumSquares, sumSquaresBlocks } from '../kernels/optimizer/optimizer.ts'

export interface AdamWOptions {
  beta1: number
  beta2: number
  eps: number
  /** Decoupled; for matrices, not for gains and biases. */
  weightDecay: number
  /** The gradient is scaled down to this norm where it is longer. */
  maxGradNorm: number
}

/** PyTorch's names of the first and second moment. */
export type Moment = 'exp_avg' | 'exp_avg_sq'
export const MOMENTS: readonly Moment[] = ['exp_avg', 'exp_avg_sq']

/** What each parameter has beside itself, in banks of the same layout. All memory is taken when it is made. */
export class AdamW {
  readonly store: ParameterStore
  readonly options: AdamWOptions
  /** Updates that were made; the bias correction counts them. */
  steps = 0
  readonly #banks: Record<Moment, GpuBuffer[]>
  readonly #partial: GpuBuffer

  constructor(store: ParameterStore, options: AdamWOptions) {
    this.store = store
    this.options = options
    const { gpu, banks } = store
    const zeros = (label: string) =>
      banks.map(({ count }) => {
        const buffer = gpu.pool.acquire(count * 4, label, { exact: true })
        gpu.clear(buffer)
        return buffer
      })
    this.#banks = { exp_avg: zeros('first moments'), exp_avg_sq: zeros('second moments') }
    const blocks = Math.max(1, ...banks.map(({ count }) => sumSquaresBlocks(count)))
    this.#partial = gpu.pool.acquire(blocks * 4, 'partial norms')
    gpu.flush()
  }

  /** The global norm of the gradients, summed up in float64; not finite where any gradient is not. Waits for the GPU. */
  async gradientNorm(): Promise<number> {
    const { gpu, banks } = this.store
    let sum = 0
    for (const { gradients, count } of banks) {
      sumSquares(gpu, gradients, this.#partial, count)
      for (const part of await gpu.readF32(this.#partial, sumSquaresBlocks(count), 'gradient norm')) sum += part
    }
    return Math.sqrt(sum)
  }

  /** One update, recorded and not waited for. `norm` is that of the gradients. */
  step(learningRate: number, norm: number): void {
    const { maxGradNorm, weightDecay, ...rest } = this.options
    const clip = Math.min(1, maxGradNorm / (norm + 1e-6))
    this.steps++
    this.store.banks.forEach(({ values, gradients, count, decayed }, i) => {
      const tensors = { parameters: values, gradients, m: this.#banks.exp_avg[i], v: this.#banks.exp_avg_sq[i] }
      const decay = decayed > 0 ? weightDecay : 0
      adamw(this.store.gpu, tensors, { first: 0, count }, { ...rest, learningRate, weightDecay: decay, step: this.steps, clip })
    })
  }

  /** A moment of a parameter, in the parameter's shape. */
  async read(parameter: Parameter, moment: Moment): Promise<Float32Array> {
    const whole = new Float32Array(parameter.rows * parameter.columns)
    for (const piece of parameter.pieces) {
      const range = {
        buffer: this.#banks[moment][piece.bank],
        offset: piece.offset * 4,
        bytes: piece.rows * parameter.columns * 4,
      }
      whole.set(new Float32Array(await this.store.gpu.read(range, 'optimizer state')), piece.row * parameter.columns)
    }
    return unpad(whole, parameter)
  }

  write(parameter: Parameter, moment: Moment, data: Float32Array): void {
    const whole = pad(data, parameter)
    for (const piece of parameter.pieces) {
      const part = whole.subarray(piece.row * parameter.columns, (piece.row + piece.rows) * parameter.columns)
      this.store.gpu.write(this.#banks[moment][piece.bank], part, piece.offset * 4)
    }
  }

  release(): void {
    for (const moment of MOMENTS) for (const buffer of this.#banks[moment]) buffer.release()
    this.#partial.release()
  }
}
