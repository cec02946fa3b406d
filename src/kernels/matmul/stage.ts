/**
 * Activations in textures, for CPU drivers. Such a driver reads a storage texture three times as fast as a buffer, and copying rows into one costs no
 * more than a memcpy. They lie there row by row, or in panels of some columns, which a kernel that walks down the rows reads contiguously.
 * Textures are kept as long as nothing else needs their memory, and fewer rows use one that was made for more: creating a texture waits for all work
 * that the device has been sent (seconds, behind a long prompt). A copy is skipped if the texture still holds the same data.
 */
import { rangeOf, type Binding, type Gpu } from '../../gpu/gpu.ts'
import { GpuTexture } from '../../gpu/pool.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'

/** float32 rows in a buffer, `stride` values apart: `columns` values of each, from `column` on. */
export interface Rows {
  data: Binding
  rows: Count
  columns: number
  stride?: number
  column?: number
}

interface Stage {
  texture: GpuTexture
  /** Number of rows of texels. */
  height: number
  /** Identifies its contents. */
  key: string
}

/** Bytes of a staging texture at most; more rows go through it part by part. */
const maxBytes = 4 << 20
/** By role and width (panels: by role only), in order of creation. */
const stages = new WeakMap<Gpu, Map<string, Stage[]>>()

/**
 * Whether rows can be staged: a copy needs rows a multiple of 256 bytes apart, and whole texels, with room for the last one; and textures have a
 * maximum width.
 */
export function canStage(gpu: Gpu, { data, columns, stride = columns, column = 0 }: Rows): boolean {
  const end = column + Math.ceil(columns / 4) * 4
  if (data instanceof GpuTexture || stride % 64 !== 0 || end > stride || column % 4 !== 0) return false
  return columns / 4 <= gpu.facts.limits.maxTexture
}

/** How many rows of `columns` columns are staged at once. */
export function stageRows(gpu: Gpu, columns: number): number {
  return Math.min(gpu.facts.limits.maxTexture, Math.max(32, Math.floor(maxBytes / (columns * 64)) * 16))
}

/**
 * Copies rows [from, from + count) into a texture, one below the other, and returns it.
 * @param role distinguishes two operands of one kernel
 */
export function stage(gpu: Gpu, source: Rows, from: number, count: Count, role: string): GpuTexture {
  const { columns } = source
  const most = stageRows(gpu, columns)
  const found = roomFor(gpu, `${role},${columns}`, columns / 4, capacityOf(count), most)
  if (found.key !== (found.key = keyOf(gpu, source, from, count))) copy(gpu, source, from, count, found.texture, 0, columns)
  return found.texture
}

/** Columns of a panel: 16 texels, so 256 bytes of a row. */
export const panelColumns = 64
/** Rows of a panel at most. A constant, so that a sum over rows has one order whatever the capacity of a plan. */
const panelRows = 1024

/** Rows in panels: column c of row m is in texel (c % 64 / 4, c / 64 * height + m). */
export interface Panels {
  texture: GpuTexture
  height: number
}

/** How many rows are staged in panels at once, in panels of which height, and how many columns of that many rows. */
export function panelsOf(gpu: Gpu, rows: Count): { rows: number; height: number; columns: number } {
  const { maxTexture } = gpu.facts.limits
  const most = Math.min(panelRows, maxTexture)
  const height = Math.min(most, powerAbove(capacityOf(rows)))
  const panels = Math.max(1, Math.floor(Math.min(maxTexture, maxBytes / (panelColumns * 4)) / height))
  return { rows: most, height, columns: panels * panelColumns }
}

/**
 * Like `stage`, but in panels, for kernels that walk down the rows: one operand, or several side by side, all but the last in whole panels. Together
 * they have at most the columns that `panelsOf` gives.
 */
export function stagePanels(gpu: Gpu, sources: Rows[], from: number, count: Count, role: string): Panels {
  const { height } = panelsOf(gpu, count)
  const panels = sources.reduce((sum, { columns }) => sum + Math.ceil(columns / panelColumns), 0)
  const found = roomFor(gpu, panelName(role), panelColumns / 4, panels * height, gpu.facts.limits.maxTexture)
  if (found.key !== (found.key = panelsKey(gpu, sources, from, count))) {
    let panel = 0
    for (const source of sources) {
      const { columns, stride = columns, column = 0 } = source
      for (let first = 0; first < columns; first += panelColumns, panel++) {
        const own = { ...source, stride, column: column + first }
        copy(gpu, own, from, count, found.texture, panel * height, Math.min(panelColumns, columns - first))
      }
    }
  }
  return { texture: found.texture, height }
}

/** The panels in which an earlier `stagePanels` put these rows, if they are still there. */
export function heldPanels(gpu: Gpu, sources: Rows[], from: number, count: Count, role: string): Panels | undefined {
  const key = panelsKey(gpu, sources, from, count)
  const found = stages
    .get(gpu)
    ?.get(panelName(role))
    ?.find((one) => one.key === key && !one.texture.released)
  return found && { texture: found.texture, height: panelsOf(gpu, count).height }
}

const panelsKey = (gpu: Gpu, sources: Rows[], from: number, count: Count): string =>
  sources.map((source) => `${keyOf(gpu, source, from, count)},${source.columns}`).join(' ')
const panelName = (role: string): string => `${role} panels`
const powerAbove = (rows: number): number => Math.max(16, 2 ** Math.ceil(Math.log2(rows)))

/** A texture of this width, with at least `height` and at most `most` rows of texels. */
function roomFor(gpu: Gpu, name: string, width: number, height: number, most: number): Stage {
  let own = stages.get(gpu)
  if (!own) stages.set(gpu, (own = new Map()))
  const known = (own.get(name) ?? []).filter(({ texture }) => !texture.released)
  own.set(name, known)
  let found = known.find((one) => one.height >= height)
  if (!found) {
    const made = Math.min(most, powerAbove(height))
    found = { texture: gpu.pool.staging(width, made), height: made, key: '' }
    known.push(found)
  }
  return found
}

/** Identifies what a texture holds. */
function keyOf(gpu: Gpu, { data, columns, stride = columns, column = 0 }: Rows, from: number, count: Count): string {
  const { buffer, offset } = rangeOf(data)
  const first = offset + (from * stride + column) * 4
  const rows = typeof count === 'number' ? count : `${count.variable.name} ${count.capacity}`
  return `${gpu.epoch},${buffer.id},${buffer.writes},${first},${stride},${rows}`
}

function copy(gpu: Gpu, source: Rows, from: number, rows: Count, texture: GpuTexture, y: number, columns: number): void {
  const { data, stride = columns, column = 0 } = source
  const offset = (from * stride + column) * 4
  gpu.copyToTexture(data, texture, { offset, bytesPerRow: stride * 4, rows, texels: Math.ceil(columns / 4), origin: [0, y] })
}
