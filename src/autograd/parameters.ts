/**
 * Trained parameters in flat banks: every parameter is a range of one float32 buffer, and its gradient the same range of another. An optimizer step
 * therefore takes a few kernels over whole banks, and cannot miss a parameter.
 */
import type { BufferRange, Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'

/** Consecutive rows of a parameter in one bank. */
interface ParameterPiece {
  bank: number
  /** In values from the bank's start. A multiple of 256: the range can be bound by itself, and no block of 8-bit moments is shared. */
  offset: number
  row: number
  rows: number
}

/** A trained matrix, (rows, columns), or a vector. */
export interface Parameter {
  /** Its name in Hugging Face's or PEFT's format. */
  name: string
  rows: number
  columns: number
  /** Shape in files. Differs from [rows, columns] where the rank is padded, and for vectors. */
  shape: number[]
  pieces: ParameterPiece[]
  /** Where this is rows of another parameter (`ParameterStore.part`): that one. */
  whole?: Parameter
}

/** Float32 values that a layer reads besides its matrices. */
export interface TrainedValues {
  name: string
  values: GpuBuffer | BufferRange
  trained?: { store: ParameterStore; parameter: Parameter }
}

interface Bank {
  /** Number of values in use, and whether weight decay applies to them. */
  count: number
  decays: boolean
  values: GpuBuffer
  gradients: GpuBuffer
}

/** Declares parameters, then holds their values and gradients. */
export class ParameterStore {
  readonly gpu: Gpu
  readonly parameters: Parameter[] = []
  banks: Bank[] = []
  /** The buffers that `release` frees. A snapshot does not own its gradients, which belong to another store. */
  readonly #owned: GpuBuffer[] = []
  #planned: { parameter: Parameter; decay: boolean }[] = []
  #parts: { part: Parameter; of: Parameter; row: number }[] = []

  constructor(gpu: Gpu) {
    this.gpu = gpu
  }

  /**
   * Declares a parameter. Its place is known after `allocate`.
   * @param decay whether weight decay applies (as in transformers: to matrices, not to norms and biases). Default true
   */
  declare(name: string, rows: number, columns: number, options: { shape?: number[]; decay?: boolean } = {}): Parameter {
    const parameter: Parameter = { name, rows, columns, shape: options.shape ?? [rows, columns], pieces: [] }
    this.parameters.push(parameter)
    this.#planned.push({ parameter, decay: options.decay ?? true })
    return parameter
  }

  /**
   * Rows of a declared parameter, for a product that reads only these. Values and gradients are those of the whole, which is what is trained, saved and
   * read. Call it before `allocate`. `row` times the columns must be a multiple of 64, so that the range can be bound.
   */
  part(of: Parameter, row: number, rows: number): Parameter {
    if ((row * of.columns) % 64 !== 0) throw new Error(`${of.name} has no part that begins at row ${row}`)
    const part: Parameter = { name: of.name, rows, columns: of.columns, shape: [rows, of.shape.at(-1)!], pieces: [], whole: of }
    this.#parts.push({ part, of, row })
    return part
  }

  /** Lays out all declared parameters in banks that the adapter can bind, and allocates their values and gradients, both zero. */
  allocate(): void {
    const limit = Math.floor(this.gpu.facts.limits.maxBinding / 4)
    const plans: { count: number; decay: boolean }[] = []
    // Parameters with and without weight decay are in separate banks, so that the optimizer needs one dispatch for each bank.
    for (const decay of [true, false]) {
      let bank = -1
      for (const { parameter } of this.#planned.filter((p) => p.decay === decay)) {
        const rowsAtMost = Math.max(1, Math.floor(limit / parameter.columns))
        const step =
          rowsAtMost >= parameter.rows
            ? parameter.rows
            : Math.floor(rowsAtMost / 4096) * 4096 || Math.floor(rowsAtMost / 256) * 256 || rowsAtMost
        for (let row = 0; row < parameter.rows; row += step) {
          const rows = Math.min(step, parameter.rows - row)
          const size = Math.ceil((rows * parameter.columns) / 256) * 256
          if (bank < 0 || plans[bank].count + size > limit) {
            bank = plans.length
            plans.push({ count: 0, decay })
          }
          parameter.pieces.push({ bank, offset: plans[bank].count, row, rows })
          plans[bank].count += size
        }
      }
    }
    this.#planned = []
    for (const { part, of, row } of this.#parts.splice(0)) {
      for (const piece of of.pieces) {
        const [first, end] = [Math.max(piece.row, row), Math.min(piece.row + piece.rows, row + part.rows)]
        const offset = piece.offset + (first - piece.row) * of.columns
        if (first < end) part.pieces.push({ bank: piece.bank, offset, row: first - row, rows: end - first })
      }
    }
    this.banks = plans.map(({ count, decay }) => {
      const [values, gradients] = ['parameters', 'gradients'].map((label) => this.#acquire(count, label))
      this.gpu.clear(values)
      this.gpu.clear(gradients)
      return { count, decays: decay, values, gradients }
    })
  }

  #acquire(count: number, label: string): GpuBuffer {
    const buffer = this.gpu.pool.acquire(count * 4, label, { exact: true })
    this.#owned.push(buffer)
    return buffer
  }

  /** The values of a parameter, or of one of its pieces, as a range to bind. */
  value(parameter: Parameter, piece = parameter.pieces[0]): BufferRange {
    return { buffer: this.banks[piece.bank].values, offset: piece.offset * 4, bytes: piece.rows * parameter.columns * 4 }
  }

  gradient(parameter: Parameter, piece = parameter.pieces[0]): BufferRange {
    return { ...this.value(parameter, piece), buffer: this.banks[piece.bank].gradients }
  }

  /** Number of trained values, without padding. */
  get size(): number {
    return this.parameters.reduce((sum, p) => sum + p.shape.reduce((a, b) => a * b, 1), 0)
  }

  /** A store with the same parameters and a copy of their current values. It is for reading only: its gradients are those of this store. */
  snapshot(): ParameterStore {
    const copy = new ParameterStore(this.gpu)
    copy.parameters.push(...this.parameters)
    copy.banks = this.banks.map((bank) => {
      const values = copy.#acquire(bank.count, 'frozen parameters')
      this.gpu.copy(bank.values, 0, values, 0, bank.count * 4)
      return { ...bank, values }
    })
    return copy
  }

  zeroGradients(): void {
    for (const bank of this.banks) this.gpu.clear(bank.gradients)
  }

  /** Writes a parameter's values. `data` is (rows, columns), including padding. */
  write(parameter: Parameter, data: Float32Array): void {
    for (const piece of parameter.pieces) {
      const part = data.subarray(piece.row * parameter.columns, (piece.row + piece.rows) * parameter.columns)
      this.gpu.write(this.banks[piece.bank].values, part, piece.offset * 4)
    }
  }

  /** Reads a parameter's values or gradients, in the shape that files have. */
  async read(parameter: Parameter, what: 'values' | 'gradients' = 'values'): Promise<Float32Array> {
    const whole = new Float32Array(parameter.rows * parameter.columns)
    for (const piece of parameter.pieces) {
      const range = what === 'values' ? this.value(parameter, piece) : this.gradient(parameter, piece)
      whole.set(new Float32Array(await this.gpu.read(range, 'parameters')), piece.row * parameter.columns)
    }
    return unpad(whole, parameter)
  }

  release(): void {
    for (const buffer of this.#owned.splice(0)) buffer.release()
    this.banks = []
  }
}

/** Drops padded rows and columns: (rows, columns) to the parameter's shape. */
export function unpad(data: Float32Array, parameter: Parameter): Float32Array {
  const rows = parameter.shape.length === 2 ? parameter.shape[0] : parameter.rows
  const columns = parameter.shape.at(-1)!
  if (columns === parameter.columns) return data.slice(0, rows * columns)
  const out = new Float32Array(rows * columns)
  for (let r = 0; r < rows; r++) out.set(data.subarray(r * parameter.columns, r * parameter.columns + columns), r * columns)
  return out
}

/** Pads with zeros: the parameter's shape to (rows, columns). */
export function pad(data: Float32Array, parameter: Parameter): Float32Array {
  const columns = parameter.shape.at(-1)!
  const rows = data.length / columns
  if (columns === parameter.columns && rows === parameter.rows) return data
  const out = new Float32Array(parameter.rows * parameter.columns)
  for (let r = 0; r < rows; r++) out.set(data.subarray(r * columns, (r + 1) * columns), r * parameter.columns)
  return out
}
