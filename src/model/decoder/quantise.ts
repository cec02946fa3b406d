/** Which matrices of a model are held in blocks of few bits, and 8-bit blocks of those that come without (the GPU's side: kernels/quantised). */
import { UserError } from '../../common/errors.ts'
import { quantisedBytes, type QuantisedFormat } from '../../kernels/quantised/quantised.ts'
import { floatsOf } from '../bf16.ts'
import { linearShapes, weightCount } from './shapes.ts'
import type { ModelConfig, Quantization, TensorBlocks, TensorData, TensorSource } from '../types.ts'

/** The format in which a layer's matrix is held; undefined where it is not in blocks: rows that are not whole blocks, or `gguf` and a tensor of F16. */
export function heldFormat(tensors: TensorSource, name: string, quantization: Quantization): QuantisedFormat | undefined {
  const own = tensors.blocks?.format(name)
  if (own || quantization === 'gguf') return own
  return tensors.shape(name)[1] % blockValues === 0 ? 'Q8_0' : undefined
}

/** A layer's matrix as it is held. */
export type Matrix = TensorData | TensorBlocks

/** Rows of a matrix; views of its values. */
export function rowsOf<M extends Matrix>(matrix: M, row: number, rows: number): M {
  const { shape, data } = matrix
  const width = data.length / shape[0]
  return { ...matrix, shape: [rows, ...shape.slice(1)], data: data.subarray(row * width, (row + rows) * width) }
}

/** A layer's matrix in blocks of `format`: as it lies in the file, or made. */
export async function readBlocks(tensors: TensorSource, name: string, format: QuantisedFormat): Promise<TensorBlocks> {
  if (tensors.blocks?.format(name) === format) return await tensors.blocks.read(name)
  if (format !== 'Q8_0')
    throw new UserError(
      `${name} is not in ${format} in these files, in which the model was loaded (quantization). Load a GGUF file of the same formats.`,
    )
  const read = await tensors.read(name)
  return { format, shape: read.shape, data: quantiseQ8(floatsOf(read)) }
}

/** The matrices that are held in blocks: their values and bytes together, and their formats. */
export function blocksOf(
  config: ModelConfig,
  tensors: TensorSource,
  quantization: Quantization,
): { values: number; bytes: number; formats: QuantisedFormat[] } {
  const found = { values: 0, bytes: 0, formats: new Set<QuantisedFormat>() }
  for (const [name, [rows, columns]] of linearShapes(config)) {
    const format = heldFormat(tensors, `${name}.weight`, quantization)
    if (!format) continue
    found.values += rows * columns
    found.bytes += rows * quantisedBytes(format, columns)
    found.formats.add(format)
  }
  return { ...found, formats: [...found.formats] }
}

/** Default quantization of a frozen model: a quantised file stays in its own blocks, which give the same values as loading it otherwise. */
export const ownBlocks = (model: { config: ModelConfig; tensors: TensorSource }): 'gguf' | undefined =>
  blocksOf(model.config, model.tensors, 'gguf').values > 0 ? 'gguf' : undefined

/** For a line about a model: how much of it is held in which blocks. Empty without a quantization. */
export function wordsOfBlocks(
  model: { config: ModelConfig; tensors: TensorSource },
  quantization: Quantization | undefined,
): string {
  if (!quantization) return ''
  const { values, formats } = blocksOf(model.config, model.tensors, quantization)
  return `, ${Math.round((100 * values) / weightCount(model.config))}% of them in ${formats.join(', ')}`
}

/** @throws UserError for `gguf` and a model that has no matrix in blocks */
export function checkQuantization(
  model: { name: string; config: ModelConfig; tensors: TensorSource },
  quantization: Quantization,
): void {
  if (blocksOf(model.config, model.tensors, quantization).values > 0) return
  throw new UserError(
    quantization === 'gguf'
      ? `${model.name} has no quantised matrices, which quantization = "gguf" keeps as they are in a GGUF file. Name a quantised .gguf, or take "q8_0".`
      : `The rows of ${model.name}'s matrices are not whole blocks of ${blockValues}, so quantization = "q8_0" cannot hold any. Remove it.`,
  )
}

const blockValues = 32
const blockBytes = 34

/**
 * Blocks of ggml's Q8_0: of 32 values their largest magnitude / 127 as f16, then the values over it, rounded to integers (halves away from 0). Float32
 * arithmetic throughout, which gives the bytes of gguf-py's quantize. A block with a value that is not finite gets a scale that makes all its values NaN.
 */
export function quantiseQ8(values: Float32Array): Uint8Array {
  const blocks = values.length / blockValues
  const out = new Uint8Array(blocks * blockBytes)
  const integers = new Int8Array(out.buffer)
  const half = new Float16Array(1)
  const halfBits = new Uint16Array(half.buffer)
  for (let block = 0; block < blocks; block++) {
    const first = block * blockValues
    // No Math.max, sign or floor: a model has billions of these.
    let [most, sum] = [0, 0]
    for (let i = first; i < first + blockValues; i++) {
      const size = Math.abs(values[i])
      if (size > most) most = size
      sum += size
    }
    const scale = Number.isFinite(sum) ? Math.fround(most / 127) : NaN
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale)
    const at = block * blockBytes
    half[0] = scale
    out[at] = halfBits[0] & 255
    out[at + 1] = halfBits[0] >>> 8
    for (let i = 0; i < blockValues; i++) {
      const x = Math.fround(values[first + i] * inverse)
      integers[at + 2 + i] = (x < 0 ? x - 0.5 : x + 0.5) | 0
    }
  }
  return out
}
