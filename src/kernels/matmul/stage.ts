/**
 * Activations in textures, for CPU drivers: such a driver reads a storage texture three times faster than a buffer, and copying rows into one costs a
 * memcpy. Textures are kept, as long as nobody needs their room, and fewer rows take one that was made for more: to make one waits for all that the device
 * has been sent (seconds, behind a long prompt). A copy is left out where the texture still holds just that.
 */
import { rangeOf, type Binding, type Gpu } from '../../gpu/gpu.ts'
import { GpuTexture } from '../../gpu/pool.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'

/** float32 rows in a buffer: `stride` values apart, `columns` of them from `column` on. */
export interface Rows {
  data: Binding
  rows: Count
  columns: number
  stride?: number
  column?: number
}

interface Stage {
  texture: GpuTexture
  height: number
  /** What it holds. */
  key: string
}

/** Bytes of a staging texture at most; more rows go through it in turns. */
const maxBytes = 4 << 20
/** By role and width, the lowest first. */
const stages = new WeakMap<Gpu, Map<string, Stage[]>>()

/** Whether rows can be staged: a copy wants them a multiple of 256 bytes apart, and a texture has a largest width. */
export function canStage(gpu: Gpu, { data, columns, stride = columns, column = 0 }: Rows): boolean {
  if (data instanceof GpuTexture || stride % 64 !== 0 || columns % 4 !== 0 || column % 4 !== 0) return false
  return columns / 4 <= gpu.facts.limits.maxTexture
}

/** How many rows of so many columns one stage takes. */
export function stageRows(gpu: Gpu, columns: number): number {
  return Math.min(gpu.facts.limits.maxTexture, Math.max(32, Math.floor(maxBytes / (columns * 64)) * 16))
}

/**
 * Copies rows [from, from + count) into a texture, a row a row, and gives it.
 * @param role tells apart two operands of one kernel
 */
export function stage(gpu: Gpu, source: Rows, from: number, count: Count, role: string): GpuTexture {
  const { data, columns, stride = columns, column = 0 } = source
  let own = stages.get(gpu)
  if (!own) stages.set(gpu, (own = new Map()))
  const name = `${role},${columns}`
  const known = (own.get(name) ?? []).filter(({ texture }) => !texture.released)
  own.set(name, known)
  let found = known.find(({ height }) => height >= capacityOf(count))
  if (!found) {
    const height = Math.min(stageRows(gpu, columns), Math.max(16, 2 ** Math.ceil(Math.log2(capacityOf(count)))))
    found = { texture: gpu.pool.staging(columns / 4, height), height, key: '' }
    known.push(found)
  }
  const { buffer, offset: start } = rangeOf(data)
  const offset = (from * stride + column) * 4
  const key = `${gpu.epoch},${buffer.id},${buffer.writes},${start + offset},${stride},${typeof count === 'number' ? count : `${count.variable.name} ${count.capacity}`}`
  if (found.key !== key) {
    gpu.copyToTexture(data, found.texture, { offset, bytesPerRow: stride * 4, rows: count, texels: columns / 4 })
    found.key = key
  }
  return found.texture
}
