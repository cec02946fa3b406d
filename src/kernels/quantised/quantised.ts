/**
 * Weights that stay in the blocks of a GGUF file, with a few bits per value: a model takes 4.5 to 8.5 bits per weight, and gives the same numbers as
 * one that was widened when it was loaded. Products of few rows on GPUs read the blocks (matmul/blocks.ts). All others read values, so one weight at
 * a time is widened, right before its use, into room that the weights of all layers share.
 */
import { fileURLToPath } from 'node:url'
import { UserError } from '../../common/errors.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { dispatchFlat, perRow } from '../common/lanes.ts'
import { allocateTogether, copyPanels, kindOf, type Weight, type WeightBlocks, type WeightSlice } from '../common/weight.ts'

const path = fileURLToPath(new URL('widen.wgsl', import.meta.url))

interface Format {
  /** Number of values, and of bytes in the file, of a block. */
  values: 32 | 256
  bytes: number
  /** Byte at which a two-byte scale lies, if because of it a block is not whole words. On the GPU these scales come after all blocks. */
  split?: number
  /** Constants of blocks.wgsl. QUANTS: where the small integers begin, after removal of that scale. */
  constants: Record<string, number>
}

/** Formats by their names in ggml. */
const FORMATS = {
  Q4_0: { values: 32, bytes: 18, split: 0, constants: { QUANTS: 0, CENTER: 8 } },
  Q4_1: { values: 32, bytes: 20, constants: { QUANTS: 4, MINIMUM: 1 } },
  Q5_0: { values: 32, bytes: 22, split: 0, constants: { QUANTS: 4, CENTER: 16, FIVE: 1 } },
  Q5_1: { values: 32, bytes: 24, constants: { QUANTS: 8, MINIMUM: 1, FIVE: 1 } },
  Q8_0: { values: 32, bytes: 34, split: 0, constants: { EIGHT: 1 } },
  Q4_K: { values: 256, bytes: 144, constants: { QUANTS: 16, K256: 1 } },
  Q5_K: { values: 256, bytes: 176, constants: { QUANTS: 48, K256: 1, FIVE: 1 } },
  Q6_K: { values: 256, bytes: 210, split: 208, constants: { K256: 1, SIX: 1 } },
} satisfies Record<string, Format>
export type QuantisedFormat = keyof typeof FORMATS

const formatOf = (name: QuantisedFormat): Format => FORMATS[name]

/** Whether `name` is a format whose blocks can be read here. */
export const isQuantised = (name: string): name is QuantisedFormat => Object.hasOwn(FORMATS, name)

/** Bytes of a row of `columns` values. */
export const quantisedBytes = (format: QuantisedFormat, columns: number): number =>
  (columns / FORMATS[format].values) * FORMATS[format].bytes

/**
 * Allocates room for the values of weights of one width that are read together (`allocateTogether`), to be shared by those of all layers.
 * @returns as `allocateTogether`
 */
export function allocateRooms(
  gpu: Gpu,
  parts: { label: string; rows: number }[],
  columns: number,
): { rooms: Weight[]; owned: (Weight | GpuBuffer)[] } {
  const { weights, owned } = allocateTogether(gpu, parts, columns, true)
  const mirrors = new Map<WeightSlice['storage'], GpuBuffer>()
  for (const slice of owned.flatMap(({ slices }) => slices)) {
    if (!slice.texture) continue
    const bytes = Math.ceil(slice.rows / slice.panel) * slice.panel * columns * 2
    mirrors.set(slice.storage, gpu.pool.acquire(bytes, `${parts[0].label} in a buffer`, { exact: true }))
  }
  const rooms = weights.map((weight) => {
    const slices = weight.slices.map((slice) => ({ ...slice, mirror: mirrors.get(slice.storage) }))
    return { ...weight, slices }
  })
  return { rooms, owned: [...owned, ...mirrors.values()] }
}

/**
 * Allocates a weight in blocks without filling it.
 * @param room one of `allocateRooms`, of the same shape; it holds the values of the weight that used it last
 * @throws UserError if the weight is larger than the adapter binds
 */
export function allocateBlocks(gpu: Gpu, label: string, room: Weight, format: QuantisedFormat): Weight {
  const bytes = room.rows * quantisedBytes(format, room.columns)
  const { maxBinding } = gpu.facts.limits
  if (bytes > maxBinding) {
    throw new UserError(
      `${label} has ${bytes} bytes in ${format}, and this GPU adapter binds ${maxBinding} in one piece. Load the model without quantization: its weights are then used in slices.`,
    )
  }
  const storage = gpu.pool.acquire(Math.ceil(bytes / 4) * 4, label, { exact: true })
  return { ...room, label, blocks: { format, storage, room } }
}

/** Writes all blocks of a weight, row by row as in a GGUF file. */
export function writeBlocks(gpu: Gpu, { storage, format }: WeightBlocks, data: Uint8Array): void {
  const { bytes, split } = formatOf(format)
  gpu.write(storage, split === undefined ? data : inWords(data, bytes, split))
}

/** The blocks without the scale at byte `split`, and then these scales. */
function inWords(data: Uint8Array, bytes: number, split: number): Uint8Array {
  const blocks = data.length / bytes
  const rest = bytes - 2
  const out = new Uint8Array(data.length)
  for (let block = 0, from = 0; block < blocks; block++, from += bytes) {
    const [to, scale] = [block * rest, blocks * rest + block * 2]
    for (let i = 0; i < split; i++) out[to + i] = data[from + i]
    for (let i = split; i < rest; i++) out[to + i] = data[from + i + 2]
    out[scale] = data[from + split]
    out[scale + 1] = data[from + split + 1]
  }
  return out
}

/** The constants of blocks.wgsl for a format. */
export function blockConstants(format: QuantisedFormat): Constants {
  const { values: VALUES, bytes, constants } = formatOf(format)
  return { VALUES, WORDS: Math.floor(bytes / 4), ...constants }
}

/** The word of a weight's blocks at which the two-byte scales begin, if its format has them after all blocks. */
export function scalesAt(format: QuantisedFormat, rows: number, columns: number): number {
  const { VALUES, WORDS } = blockConstants(format)
  return rows * (columns / VALUES) * WORDS
}

/** What each room holds: which weight's blocks, and in which uninterrupted stretch of recorded commands they were widened. */
const held = new WeakMap<Weight, string>()

/**
 * Records commands that put the values of a weight where its slices say. To be called before each use. Does nothing for a weight that is not in
 * blocks.
 */
export function widen(gpu: Gpu, weight: Weight): void {
  if (!weight.blocks) return
  const { storage, room } = weight.blocks
  const key = `${gpu.epoch},${storage.id},${storage.writes}`
  if (held.get(room) === key) return
  for (const slice of weight.slices) widenSlice(gpu, weight, weight.blocks, slice)
  held.set(room, key)
}

function widenSlice(gpu: Gpu, weight: Weight, { format, storage }: WeightBlocks, slice: WeightSlice): void {
  const { columns: k, rows: all } = weight
  const [row, end] = [Math.max(0, slice.row), Math.min(all, slice.row + slice.rows)]
  const [rows, at] = [end - row, row - slice.row]
  const texels = k / 8
  const params = { rows, k, first_row: row, w_row: at, w_texels: texels, scales: scalesAt(format, all, k) }
  const constants = { ...blockConstants(format), ...kindOf(weight) }
  const { panel, mirror } = slice
  if (!mirror) return dispatchFlat(gpu, path, constants, [storage, slice.storage], params, rows * texels)
  const kernel = gpu.kernel(path, { ...constants, PANELS: 1, W_PANEL: panel, LANES: Math.max(panel, 8) })
  gpu.dispatch(kernel, [storage, mirror], params, perRow(Math.ceil(rows / panel)))
  // Whole panels, in which the rows of other weights stay as they were.
  const first = Math.floor(at / panel)
  const bytes = texels * panel * 16
  copyPanels(gpu, mirror, slice, { first, count: Math.ceil((at + rows) / panel) - first, bytes, offset: first * bytes })
}
