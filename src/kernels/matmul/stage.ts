/**
 * Activations in textures, for CPU drivers: such a driver reads a storage texture three times faster than a buffer, and copying rows into one costs a
 * memcpy. They lie there row by row, or in panels of some columns, where a kernel goes down the rows and so reads on in memory.
 * Textures are kept, as long as nobody needs their room, and fewer rows take one that was made for more: to make one waits for all that the device has been
 * sent (seconds, behind a long prompt). A copy is left out where the texture still holds just that.
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
  /** In rows of texels. */
  height: number
  /** What it holds. */
  key: string
}

/** Bytes of a staging texture at most; more rows go through it in turns. */
const maxBytes = 4 << 20
/** By role and width (of panels: by role), as they were made. */
const stages = new WeakMap<Gpu, Map<string, Stage[]>>()

/** Whether rows can be staged: a copy wants them a multiple of 256 bytes apart and takes whole texels, for the last of which there is room, and a texture has a largest width. */
export function canStage(gpu: Gpu, { data, columns, stride = columns, column = 0 }: Rows): boolean {
  const end = column + Math.ceil(columns / 4) * 4
  if (data instanceof GpuTexture || stride % 64 !== 0 || end > stride || column % 4 !== 0) return false
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
  const { columns } = source
  const most = stageRows(gpu, columns)
  const found = roomFor(gpu, `${role},${columns}`, columns / 4, capacityOf(count), most)
  if (found.key !== (found.key = keyOf(gpu, source, from, count))) copy(gpu, source, from, count, found.texture, 0, columns)
  return found.texture
}

/** Columns of a panel: 16 texels, so 256 bytes of a row. */
export const panelColumns = 64
/** Rows of a panel at most. A constant, as a sum over rows has one order whatever the capacity of a plan. */
const panelRows = 1024

/** Rows in panels: column c of row m is in texel (c % 64 / 4, c / 64 * height + m). */
export interface Panels {
  texture: GpuTexture
  height: number
}

/** How many rows go through a texture in panels at once, and how many columns of so many. */
export function panelsOf(gpu: Gpu, rows: Count): { rows: number; height: number; columns: number } {
  const { maxTexture } = gpu.facts.limits
  const most = Math.min(panelRows, maxTexture)
  const height = Math.min(most, powerAbove(capacityOf(rows)))
  const panels = Math.max(1, Math.floor(Math.min(maxTexture, maxBytes / (panelColumns * 4)) / height))
  return { rows: most, height, columns: panels * panelColumns }
}

/**
 * As `stage`, in panels, for kernels that go down the rows: of one operand, or of several side by side, all but the last of whole panels. They have at most
 * `panelsOf` columns together.
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

/** Where `stagePanels` has put these rows already, if they are still there. */
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

/** A texture so wide, of at least `height` rows of texels and of `most` at most. */
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

/** Tells apart what a texture holds. */
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
