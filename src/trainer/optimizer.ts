/**
 * AdamW over all trained parameters, with clipping by their global norm, as in torch.optim.AdamW and torch.nn.utils.clip_grad_norm_. The host does
 * not wait for the GPU within a step: the norm, the clipping factor and whether the norm is finite stay in a buffer that the update reads. If the
 * norm is not finite the update changes nothing, and `settle` tells afterwards.
 */
import { pad, unpad, type Parameter, type ParameterStore } from '../autograd/parameters.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { BLOCK, codeOf, decode, encode, type Codes } from '../kernels/optimizer/codes.ts'
import { adamw, adamw8bit, gradientNorm, sumSquares, sumSquaresBlocks } from '../kernels/optimizer/optimizer.ts'

export interface AdamWOptions {
  beta1: number
  beta2: number
  eps: number
  /** Decoupled weight decay, for matrices only (not for gains and biases). */
  weightDecay: number
  /** Gradients with a larger global norm are scaled down to it. */
  maxGradNorm: number
  /** How the moments of matrices are stored; those of gains and biases are always float32. Default 'float32'. */
  moments?: 'float32' | '8bit'
}

/** PyTorch's names of the first and second moment. */
type Moment = 'exp_avg' | 'exp_avg_sq'
export const MOMENTS: readonly Moment[] = ['exp_avg', 'exp_avg_sq']

/** A moment of a parameter, in the parameter's shape: float32 values, or 8-bit codes whose blocks and scales are those of the padded matrix. */
export type MomentData = Float32Array | Codes

/** The moments of a bank: float32, or with `scale` 8-bit codes. `scale` has one float32 for each moment of every block of 256 values. */
interface BankState {
  exp_avg: GpuBuffer
  exp_avg_sq: GpuBuffer
  scale?: GpuBuffer
}

/** Allocates all its memory in the constructor. */
export class AdamW {
  readonly store: ParameterStore
  readonly options: AdamWOptions
  /** Updates made so far, for the bias correction. */
  steps = 0
  readonly #states: BankState[]
  readonly #partial: GpuBuffer
  /** (norm, clipping factor, finite) of the gradients. */
  readonly #norm: GpuBuffer
  #pending = false

  constructor(store: ParameterStore, options: AdamWOptions) {
    this.store = store
    this.options = options
    const { gpu, banks } = store
    const zeros = (bytes: number, label: string): GpuBuffer => {
      const buffer = gpu.pool.acquire(bytes, label, { exact: true })
      gpu.clear(buffer)
      return buffer
    }
    this.#states = banks.map(({ count, decays }) => {
      const in8bit = options.moments === '8bit' && decays
      const bytes = in8bit ? count : count * 4
      const moments = { exp_avg: zeros(bytes, 'first moments'), exp_avg_sq: zeros(bytes, 'second moments') }
      if (!in8bit) return moments
      // Where the scale is 0, every code means 0.
      return { ...moments, scale: zeros((count / BLOCK) * 8, 'scales of moments') }
    })
    const blocks = banks.reduce((sum, { count }) => sum + sumSquaresBlocks(count), 0)
    this.#partial = gpu.pool.acquire(Math.max(1, blocks) * 4, 'partial norms')
    this.#norm = gpu.pool.acquire(12, 'gradient norm')
    gpu.flush()
  }

  /** Bytes of both moments on the GPU. */
  get stateBytes(): number {
    return this.#states.flatMap((s) => [s.exp_avg, s.exp_avg_sq, s.scale]).reduce((sum, b) => sum + (b?.bytes ?? 0), 0)
  }

  /** Records the computation of the gradients' global norm, for `update` and `settle`. */
  measure(): void {
    const { gpu, banks } = this.store
    let blocks = 0
    for (const { gradients, count } of banks) {
      sumSquares(gpu, gradients, this.#partial, count, blocks)
      blocks += sumSquaresBlocks(count)
    }
    gradientNorm(gpu, this.#partial, blocks, this.options.maxGradNorm, this.#norm)
  }

  /** Records one update by the measured gradients. Call `settle` before the next update; it tells whether this one took effect. */
  update(learningRate: number): void {
    if (this.#pending) throw new Error('an update of the optimizer is not settled')
    this.#pending = true
    const { weightDecay, beta1, beta2, eps } = this.options
    const { gpu, banks } = this.store
    banks.forEach(({ values: parameters, gradients, count, decays }, i) => {
      const { exp_avg: m, exp_avg_sq: v, scale } = this.#states[i]
      const decay = decays ? weightDecay : 0
      const settings = { learningRate, beta1, beta2, eps, weightDecay: decay, step: this.steps + 1 }
      const tensors = { parameters, gradients, m, v, norm: this.#norm }
      if (scale) adamw8bit(gpu, { ...tensors, scale }, count, settings)
      else adamw(gpu, tensors, { first: 0, count }, settings)
    })
  }

  /** Waits for the GPU, and counts the update if there was one and the norm was finite. @returns the norm that was last measured */
  async settle(): Promise<number> {
    const [norm, , isFinite] = await this.store.gpu.readF32(this.#norm, 3, 'optimizer step')
    if (this.#pending && isFinite === 1) this.steps++
    this.#pending = false
    return isFinite === 1 || norm === Infinity ? norm : NaN
  }

  /** Reads a moment of a parameter in the format in which it is stored. */
  async read(parameter: Parameter, moment: Moment): Promise<MomentData> {
    const { gpu } = this.store
    const values = parameter.rows * parameter.columns
    if (!this.is8bit(parameter)) {
      const whole = new Float32Array(values)
      for (const { bank, offset, row, rows } of parameter.pieces) {
        const range = { buffer: this.#states[bank][moment], offset: offset * 4, bytes: rows * parameter.columns * 4 }
        whole.set(new Float32Array(await gpu.read(range, 'optimizer state')), row * parameter.columns)
      }
      return unpad(whole, parameter)
    }
    const held: Codes = { codes: new Uint8Array(values), scales: new Float32Array(Math.ceil(values / BLOCK)) }
    for (const piece of parameter.pieces) {
      const { buffers, first, count, block, blocks } = this.#codesOf(parameter, piece, moment)
      held.codes.set(
        new Uint8Array(await gpu.read({ buffer: buffers.codes, offset: piece.offset, bytes: count }, 'optimizer state')),
        first,
      )
      const pairs = await gpu.readF32(
        { buffer: buffers.scale, offset: (piece.offset / BLOCK) * 8, bytes: blocks * 8 },
        blocks * 2,
        'optimizer state',
      )
      for (let b = 0; b < blocks; b++) held.scales[block + b] = pairs[2 * b + MOMENTS.indexOf(moment)]
    }
    return { codes: repad(held.codes, parameter, unpad, 0), scales: held.scales }
  }

  /** Writes both moments of a parameter, as read from a checkpoint. Converts float32 to 8-bit codes and back if they are stored otherwise here. */
  write(parameter: Parameter, moments: Record<Moment, MomentData>): void {
    const { gpu } = this.store
    const padded = (moment: Moment): MomentData => {
      const data = moments[moment]
      if (data instanceof Float32Array) return pad(data, parameter)
      return { codes: repad(data.codes, parameter, pad, codeOf(0, moment === 'exp_avg')), scales: data.scales }
    }
    if (!this.is8bit(parameter)) {
      for (const moment of MOMENTS) {
        const data = padded(moment)
        const whole = data instanceof Float32Array ? data : decode(data, moment === 'exp_avg')
        for (const { bank, offset, row, rows } of parameter.pieces)
          gpu.write(
            this.#states[bank][moment],
            whole.subarray(row * parameter.columns, (row + rows) * parameter.columns),
            offset * 4,
          )
      }
      return
    }
    const held = MOMENTS.map((moment) => {
      const data = padded(moment)
      return data instanceof Float32Array ? encode(data, moment === 'exp_avg') : data
    })
    for (const piece of parameter.pieces) {
      const { buffers, block, blocks } = this.#codesOf(parameter, piece, 'exp_avg')
      const scales = Float32Array.from({ length: blocks * 2 }, (_, i) => held[i % 2].scales[block + (i >> 1)])
      gpu.write(buffers.scale, scales, (piece.offset / BLOCK) * 8)
      MOMENTS.forEach((moment, i) => {
        const { buffers: own, first, count } = this.#codesOf(parameter, piece, moment)
        // The padding of the last block is 0 as well.
        const whole = new Uint8Array(blocks * BLOCK).fill(codeOf(0, moment === 'exp_avg'))
        whole.set(held[i].codes.subarray(first, first + count))
        gpu.write(own.codes, whole, piece.offset)
      })
    }
  }

  /** Whether a parameter's moments are stored as 8-bit codes. */
  is8bit(parameter: Parameter): boolean {
    return !!this.#states[parameter.pieces[0].bank].scale
  }

  /** Where the codes of a piece are stored, and where they belong in the whole parameter. */
  #codesOf(parameter: Parameter, piece: Parameter['pieces'][number], moment: Moment) {
    const state = this.#states[piece.bank]
    const [first, count] = [piece.row * parameter.columns, piece.rows * parameter.columns]
    if (first % BLOCK !== 0) throw new Error(`${parameter.name} is split inside a block of 8-bit moments`)
    return {
      buffers: { codes: state[moment], scale: state.scale! },
      first, count, block: first / BLOCK, blocks: Math.ceil(count / BLOCK),
    } // prettier-ignore
  }

  release(): void {
    for (const state of this.#states) for (const buffer of [state.exp_avg, state.exp_avg_sq, state.scale]) buffer?.release()
    this.#partial.release()
    this.#norm.release()
  }
}

/** Adds or removes (`how`) the padding of a parameter's codes. `zero` is the code of 0. */
function repad(codes: Uint8Array, parameter: Parameter, how: typeof pad, zero: number): Uint8Array {
  const { shape, rows, columns } = parameter
  if (shape.reduce((a, b) => a * b, 1) === rows * columns) return codes
  const changed = how(
    Float32Array.from(codes, (code) => code - zero),
    parameter,
  )
  return Uint8Array.from(changed, (code) => code + zero)
}
