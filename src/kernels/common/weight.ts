/** Where a weight lies on the GPU. Kernels read it through weight.wgsl; src/autograd says what it means. */
import { fileURLToPath } from 'node:url'
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import { GpuError } from '../../gpu/errors.ts'
import { GpuBuffer, type GpuTexture } from '../../gpu/pool.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import type { QuantisedFormat } from '../quantised/quantised.ts'
import { cpuLanes, dispatchFlat } from './lanes.ts'
import { matrixUnitOf } from './matrix-units.ts'

const narrowPath = fileURLToPath(new URL('narrow_weight.wgsl', import.meta.url))

/** A matrix (rows N, columns K) in row slices, each in its own storage, no larger than the adapter can bind. */
export interface Weight {
  label: string
  rows: number
  columns: number
  bf16: boolean
  /**
   * Whether the bf16 values are stored as f16, for matrix units (other kernels widen these too). Set if matrix units are in use when the weight is
   * allocated.
   */
  f16?: boolean
  /** The values. If the weight is quantised (`blocks`), `widen` (quantised.ts) fills them in, unless a product reads the blocks themselves. */
  slices: WeightSlice[]
  blocks?: WeightBlocks
  /** Whether it is a LoRA matrix, whose products may be thin (lora/thin.ts). */
  lowRank?: boolean
}

/** A quantised weight's blocks. */
export interface WeightBlocks {
  format: QuantisedFormat
  storage: GpuBuffer
  /** The weight whose slices have room for the values of these blocks. */
  room: Weight
}

export interface WeightSlice {
  /** The weight's row at which the storage begins; negative if other weights come before it in the storage (`allocateTogether`). */
  row: number
  /** Rows of the storage. */
  rows: number
  storage: GpuBuffer | BufferRange | GpuTexture
  texture: boolean
  /** Height of the texture in panels; further panels begin a new column beside these. 0 for buffers. */
  fold: number
  /**
   * For a texture that receives the values of quantised weights: a buffer with the same panels one after the other, which `widen` writes and from
   * which they are copied.
   */
  mirror?: GpuBuffer
  /**
   * Rows that lie side by side in the texture: as many as a subgroup has lanes, or fewer (8 or 1) if they would be wider than a texture may be; see
   * weight.wgsl.
   */
  panel: number
}

/** Vocabulary slices start at multiples of this, and storage slices end at them, so each of the head's slices lies in one storage. */
export const sliceRows = 4096

/** Whether a matrix of K columns is kept in a texture: if the kernels for CPU drivers take it. Matrix units read buffers. */
function keepsInTexture(gpu: Gpu, columns: number): boolean {
  return cpuLanes(gpu).LANES > 0 && columns % 8 === 0 && !matrixUnitOf(gpu)
}

/** How many rows lie side by side in a texture, and their width in texels. */
function panelOf(gpu: Gpu, bytesPerRow: number): { panel: number; width: number } {
  const texels = Math.ceil(bytesPerRow / 16)
  const panel = [cpuLanes(gpu).LANES, 8].find((rows) => rows > 0 && texels * rows <= gpu.facts.limits.maxTexture) ?? 1
  return { panel, width: texels * panel }
}

/**
 * Rows of a storage slice: all of them, or as many whole `sliceRows` as the adapter can bind, or for very wide rows a power of two, which divides
 * `sliceRows`.
 */
function rowsOfSlice(gpu: Gpu, rows: number, bytesPerRow: number, texture: boolean): number {
  const { maxBinding, maxTexture } = gpu.facts.limits
  const { panel, width } = panelOf(gpu, bytesPerRow)
  const most = texture ? panel * maxTexture * Math.floor(maxTexture / width) : Math.floor(maxBinding / bytesPerRow)
  const limited = Math.min(most, Math.floor(maxBinding / bytesPerRow))
  if (rows <= limited) return rows
  if (limited >= sliceRows) return Math.floor(limited / sliceRows) * sliceRows
  if (limited < 1) throw new GpuError(`a row of ${bytesPerRow} bytes is more than this adapter binds (${maxBinding})`)
  return 2 ** Math.floor(Math.log2(limited))
}

/**
 * Allocates a weight without filling it.
 * @param bf16 two bytes per value (pairs in a u32), else float32
 */
export function allocateWeight(gpu: Gpu, label: string, rows: number, columns: number, bf16: boolean): Weight {
  const texture = keepsInTexture(gpu, columns)
  const f16 = bf16 && columns % 8 === 0 && !!matrixUnitOf(gpu)
  const bytesPerRow = columns * (bf16 ? 2 : 4)
  const per = rowsOfSlice(gpu, rows, bytesPerRow, texture)
  const slices: WeightSlice[] = []
  for (let row = 0; row < rows; row += per) {
    const count = Math.min(per, rows - row)
    if (texture) {
      const { panel, width } = panelOf(gpu, bytesPerRow)
      const panels = Math.ceil(count / panel)
      const fold = Math.min(panels, gpu.facts.limits.maxTexture)
      const storage = gpu.pool.texture(width * Math.ceil(panels / fold), fold, bf16 ? 'rgba32uint' : 'rgba32float', label)
      slices.push({ row, rows: count, storage, texture, fold, panel })
    } else {
      const storage = gpu.pool.acquire(Math.ceil((count * bytesPerRow) / 16) * 16, label, { exact: true })
      slices.push({ row, rows: count, storage, texture, fold: 0, panel: 1 })
    }
  }
  return { label, rows, columns, bf16, f16, slices }
}

/**
 * Allocates weights of the same width that are read together: one after the other in one storage, if one holds them all and each begins at a whole
 * texel or vec4u; otherwise separately.
 * @returns the weights, and what is to be released instead of them
 */
export function allocateTogether(
  gpu: Gpu,
  parts: { label: string; rows: number }[],
  columns: number,
  bf16: boolean,
): { weights: Weight[]; owned: Weight[] } {
  const total = parts.reduce((sum, { rows }) => sum + rows, 0)
  const fits = columns % 8 === 0 && rowsOfSlice(gpu, total, columns * (bf16 ? 2 : 4), keepsInTexture(gpu, columns)) === total
  if (!fits || parts.length === 1) {
    const weights = parts.map(({ label, rows }) => allocateWeight(gpu, label, rows, columns, bf16))
    return { weights, owned: weights }
  }
  const joint = allocateWeight(gpu, parts.map(({ label }) => label).join(' + '), total, columns, bf16)
  let at = 0
  const weights = parts.map(({ label, rows }) => {
    const slices = [{ ...joint.slices[0], row: -at }]
    at += rows
    return { ...joint, label, rows, slices }
  })
  return { weights, owned: [joint] }
}

/** Whether a weight of `allocateTogether` comes after another one in their storage. */
export function liesBelow(above: Weight, { slices: [slice] }: Weight): boolean {
  return slice.storage === above.slices[0].storage && slice.row === above.slices[0].row - above.rows
}

/** Writes all values, row-major, rows x columns: bf16 bits for a bf16 weight, float32 otherwise. */
export function writeWeight(gpu: Gpu, weight: Weight, data: Uint16Array | Float32Array): void {
  const width = weight.columns
  for (const { slice, row, rows } of slicesOf(weight)) {
    const part = data.subarray(row * width, (row + rows) * width)
    if (!slice.texture) {
      gpu.write(slice.storage as GpuBuffer, part, (row - slice.row) * width * (weight.bf16 ? 2 : 4))
      if (weight.f16) {
        const [first, count] = [row - slice.row, rows].map((n) => (n * width) / 2)
        dispatchFlat(gpu, narrowPath, {}, [slice.storage], { first, count }, count)
        // Before any command that might read them is sent.
        gpu.flush()
      }
      continue
    }
    gpu.flush()
    writePanels(gpu, slice, row - slice.row, rows, part)
  }
}

/** Rows that are permuted into panels at a time. */
const permutedRows = 4096

/** Writes rows [first, first + rows) of a texture: whole panels many at a time, and rows of a panel that is not whole texel by texel. */
function writePanels(gpu: Gpu, slice: WeightSlice, first: number, rows: number, data: Uint16Array | Float32Array): void {
  const { panel, fold } = slice
  const texels = data.byteLength / rows / 16
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
  const words = new Uint32Array(bytes.byteOffset % 4 === 0 ? bytes.buffer : bytes.slice().buffer)
  const start = bytes.byteOffset % 4 === 0 ? bytes.byteOffset / 4 : 0
  const { queue } = gpu.device
  const texture = (slice.storage as GpuTexture).raw
  const write = (from: number, x: number, width: number, panels: number, values: Uint32Array<ArrayBuffer>): void => {
    const at = Math.floor(from / panel)
    const origin = [Math.floor(at / fold) * texels * panel + x, at % fold]
    queue.writeTexture({ texture, origin }, values, { bytesPerRow: width * 16, rowsPerImage: panels }, [width, panels])
  }
  for (let at = first; at < first + rows;) {
    const from = start + (at - first) * texels * 4
    const left = first + rows - at
    if (at % panel !== 0 || left < panel) {
      for (let c = 0; c < texels; c++) write(at, c * panel + (at % panel), 1, 1, words.slice(from + c * 4, from + c * 4 + 4))
      at++
      continue
    }
    // Not beyond the end of the fold.
    const inFold = fold - ((at / panel) % fold)
    const panels = Math.min(Math.floor(left / panel), inFold, permutedRows / panel)
    const values = new Uint32Array(panels * panel * texels * 4)
    let to = 0
    for (let p = 0; p < panels; p++) {
      for (let c = 0; c < texels; c++) {
        for (let r = 0; r < panel; r++) {
          const source = from + ((p * panel + r) * texels + c) * 4
          values[to++] = words[source]
          values[to++] = words[source + 1]
          values[to++] = words[source + 2]
          values[to++] = words[source + 3]
        }
      }
    }
    write(at, 0, texels * panel, panels, values)
    at += panels * panel
  }
}

/** Makes a weight from values on the host. */
export function uploadWeight(gpu: Gpu, label: string, rows: number, columns: number, data: Uint16Array | Float32Array): Weight {
  const weight = allocateWeight(gpu, label, rows, columns, data instanceof Uint16Array)
  writeWeight(gpu, weight, data)
  return weight
}

/** A float32 matrix in a part of a buffer (LoRA's A and B, in a parameter bank), as a weight. */
export function weightView(label: string, storage: GpuBuffer | BufferRange, rows: number, columns: number): Weight {
  const slices = [{ row: 0, rows, storage, texture: false, fold: 0, panel: 1 }]
  return { label, rows, columns, bf16: false, slices, lowRank: true }
}

export function releaseWeight(weight: Weight): void {
  for (const { storage } of weight.slices) (storage as GpuBuffer | GpuTexture).release()
}

/** Constants that tell a kernel the format of W's values in a buffer. */
export function kindOf(weight: Weight): Constants {
  return { W_BF16: Number(weight.bf16), ...(weight.f16 && { W_F16: 1 }) }
}

/** Constants of weight.wgsl for one slice. `at` is the number of its binding. */
export function weightConstants(weight: Weight, slice: WeightSlice, at: number): Constants {
  const folded = slice.texture && slice.rows > slice.fold * slice.panel
  return { W_TEX: Number(slice.texture), ...kindOf(weight), W_FOLDED: Number(folded), W_PANEL: slice.panel, W_AT: at }
}

export function weightParams(weight: Weight, slice: WeightSlice): { w_fold: number; w_panel: number; w_texels: number } {
  return { w_fold: Math.max(1, slice.fold), w_panel: slice.panel, w_texels: weight.columns / (weight.bf16 ? 8 : 4) }
}

/** Rows [row, row + rows) in parts, each with the storage slice in which it lies. */
export function slicesOf(weight: Weight, row = 0, rows = weight.rows): { slice: WeightSlice; row: number; rows: number }[] {
  const parts: { slice: WeightSlice; row: number; rows: number }[] = []
  for (const slice of weight.slices) {
    const from = Math.max(row, slice.row)
    const to = Math.min(row + rows, slice.row + slice.rows)
    if (to > from) parts.push({ slice, row: from, rows: to - from })
  }
  return parts
}

/**
 * Records a copy of whole panels of `bytes` each, which lie one after the other from byte `offset` of a buffer on, to panels [first, first + count)
 * of a slice's texture. The texture has `fold` panels one below the other, and then the next ones beside these.
 */
export function copyPanels(
  gpu: Gpu,
  source: GpuBuffer,
  slice: WeightSlice,
  { first, count, bytes, offset = 0 }: { first: number; count: number; bytes: number; offset?: number },
): void {
  const texels = bytes / 16
  for (let at = 0; at < count;) {
    const panel = first + at
    const rows = Math.min(count - at, slice.fold - (panel % slice.fold))
    const origin: [number, number] = [Math.floor(panel / slice.fold) * texels, panel % slice.fold]
    const place = { offset: offset + at * bytes, bytesPerRow: bytes, rows, texels, origin }
    gpu.copyToTexture(source, slice.storage as GpuTexture, place)
    at += rows
  }
}
