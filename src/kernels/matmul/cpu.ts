/**
 * The matmul tier for CPU drivers with subgroups of 8 or 16 (lavapipe): which kernel, tile and staging each shape gets. The head of each kernel says
 * how such a driver runs it, and so why it is written that way.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, within, type Count } from '../../gpu/size.ts'
import { apartOf, cpuLanes, heldOf } from '../common/lanes.ts'
import { weightConstants, weightParams, type Weight } from '../common/weight.ts'
import type { Extras, Part } from './part.ts'
import { canStage, heldPanels, panelsOf, stage, stagePanels, stageRows, type Rows } from './stage.ts'
import { isUsual, tilesOf } from './tiles.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  nt: file('nt_cpu.wgsl'),
  few: file('nt_few_cpu.wgsl'),
  nn: file('nn_cpu.wgsl'),
  thin: file('nn_thin_cpu.wgsl'),
  tn: file('tn_cpu.wgsl'),
  tnStage: file('tn_stage_cpu.wgsl'),
}

/** Whether the kernels of this tier take a product: they read 8 values of a row at a time. */
export function takesCpu(gpu: Gpu, k: number): boolean {
  return cpuLanes(gpu).LANES > 0 && k % 8 === 0
}

/** Fewest columns of a product for which staging its activations pays. A thin product (LoRA's) reads them only once or twice. */
export const stagingColumns = 64
/**
 * Weights larger than this many bytes are walked column tile by column tile, so that they are read from memory once and not once for every 16 rows.
 */
export const cachedBytes = 1 << 20

/** y = alpha * (x Wᵀ + LoRA + bias) + residual of one part. `extra`: xa, B, bias, residual. */
export function forward(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, part: Part, options: Extras): void {
  const { alpha, rank, flags, extra } = options
  const { LANES, WIDE } = cpuLanes(gpu)
  const k = weight.columns
  const constants = { ...weightConstants(weight, part.slice, 2), ...flags }
  const place = { w_row: part.row - part.slice.row, first_row: part.row, y_stride: part.width, y_column: part.column }
  const params = { n: part.rows, k, rank, alpha, ...weightParams(weight, part.slice), ...place }
  const many = capacityOf(rows)
  if (many <= 2 && typeof rows === 'number') {
    const NT = part.rows <= LANES ? 1 : 32 / LANES
    const kernel = gpu.kernel(paths.few, { LANES, WIDE, MT: many, NT, ...constants })
    gpu.dispatch(kernel, [x, y, part.slice.storage, ...extra], params, [Math.ceil(part.rows / (LANES * NT))])
    return
  }
  const { MT, NT } = forwardTile(gpu, many, part.rows)
  const rowsFirst = part.rows * k * 2 > cachedBytes
  const source: Rows = { data: x, rows, columns: k }
  const X_TEX = Number(many > 4 && part.rows >= stagingColumns && canStage(gpu, source))
  const kernel = gpu.kernel(paths.nt, {
    LANES,
    MT,
    NT,
    X_TEX,
    ...heldOf(gpu, MT, NT),
    ...vectorsOf(NT, part.rows, part.width, part.column),
    ...constants,
  })
  const most = X_TEX ? stageRows(gpu, k) : many
  for (let row0 = 0; row0 < many; row0 += most) {
    const count = within(rows, row0, most)
    const [down, across] = [groupsOf(count, MT), Math.ceil(part.rows / (LANES * NT))]
    const from = X_TEX ? stage(gpu, source, row0, count, 'x') : x
    const bindings = [from, y, part.slice.storage, ...extra]
    gpu.dispatch(
      kernel,
      bindings,
      { ...params, row0, rows: map(count, (n) => row0 + n), rows_first: Number(rowsFirst) },
      rowsFirst ? [down, across] : [across, down],
    )
  }
}

/** How many neighbouring columns are stored at once (out.wgsl): the largest of 4, 2 and 1 that divides all these numbers of columns. */
export function vectorsOf(...columns: number[]): { VEC2: number; VEC4: number } {
  const [even, VEC4] = [2, 4].map((size) => Number(columns.every((n) => n % size === 0)))
  return { VEC2: even - VEC4, VEC4 }
}

/**
 * How much more, as a fraction, one tile may compute than another, masked outputs included; beyond that it costs what it gains. Forward (nt), and to
 * the input (nn).
 */
const wasted = { nt: 0.08, nn: 0.04 }
/** Number of rows (or columns) that tiles of `size` compute, masked ones included. */
const covered = (count: number, size: number): number => Math.ceil(count / size) * size

/** A tile width in columns, and the relative time that a column takes in it. */
interface Width {
  columns: number
  time: number
}
/**
 * Tiles with 512-bit vectors for this many rows, with widths to choose from: the more columns a tile has, the more products each broadcast of x
 * serves. Without fused multiply-adds, the code for 32 rows of more than 64 columns does not stay in the instruction cache: AMD's Zen 5 is then
 * faster with 16 rows of 96 columns, or 64 where multiples of four are needed (bench/LOG.md, "Zen 5 again"); a Zen 4 is fastest with the largest
 * tile.
 * @returns undefined for the usual tile
 */
function wideShapes(gpu: Gpu, rows: number, inFours: boolean): { rows: number; widths: Width[] } | undefined {
  const { fused, cpu } = gpu.facts
  if (!cpuLanes(gpu).WIDE) return undefined
  // Fewer rows were measured on Intel only: up to 8, whose code is small, gain from more columns (bench/LOG.md, "An Intel host that others share").
  if (rows < 16) return cpu === 'other' && rows <= 8 ? { rows, widths: widths(1.03, 1, 1.1) } : undefined
  if (cpu === 'zen4') return { rows: 32, widths: widths(1, 1.03, 1.1) }
  if (fused) return { rows: 32, widths: cpu === 'amd' ? widths(1.09, 1, 1.07) : widths(1, 1.06, 1.1) }
  if (cpu === 'other') return undefined
  return { rows: 16, widths: inFours ? [{ columns: 64, time: 1 }] : widths(1.02, 1, 1.08) }
}
const widths = (of128: number, of96: number, of64: number): Width[] => [
  { columns: 128, time: of128 },
  { columns: 96, time: of96 },
  { columns: 64, time: of64 },
]

/**
 * The tile of a forward product. Rows are split evenly: 20 rows become 12 + 8, not 16 + 4. So are columns, among a few widths.
 * @param columns of the weight, or of each weight that the dispatch takes, as a tile lies within one weight
 * @param inFours whether a lane should have a multiple of four columns
 */
export function forwardTile(gpu: Gpu, rows: number, columns: number | number[], inFours = false): { MT: number; NT: number } {
  const { LANES } = cpuLanes(gpu)
  const tile = tilesOf(gpu).ntCpu
  const members = Array.isArray(columns) ? columns : [columns]
  const total = members.reduce((sum, n) => sum + n, 0)
  const MT = Math.min(16, Math.ceil(rows / Math.ceil(rows / 16) / 4) * 4)
  const takesHigh = rows > 16 && covered(rows, tile.rows) * (1 - wasted.nt) <= covered(rows, MT)
  const computed = (width: number): number => members.reduce((sum, n) => sum + covered(n, width), 0)
  const wide = isUsual(gpu, 'ntCpu') && total >= 64 ? wideShapes(gpu, takesHigh ? 32 : MT, inFours) : undefined
  if (wide) {
    const fit = wide.widths.filter(({ columns: width }) => !inFours || width % (4 * LANES) === 0)
    const cost = ({ columns: width, time }: Width): number => computed(width) * time
    const best = fit.reduce((least, width) => (cost(width) < cost(least) ? width : least))
    return { MT: takesHigh ? wide.rows : MT, NT: best.columns / LANES }
  }
  // An even number of vectors, as a lane holds columns in pairs.
  const otherColumns = tile.columns !== 64 ? 64 : LANES === 16 ? 32 : 48
  // 144 columns are 3 x 48 rather than 3 x 64, and 128 are 2 x 64 rather than 3 x 48. Such a tile has 16 rows, as the code for more would not stay in
  // the instruction cache.
  if (total > 32 && computed(otherColumns) <= computed(tile.columns) * (1 - wasted.nt)) return { MT, NT: otherColumns / LANES }
  const NT = Math.ceil(total / Math.ceil(total / tile.columns) / LANES)
  return { MT: takesHigh ? tile.rows : MT, NT: total <= LANES ? 1 : NT * LANES <= 32 ? 32 / LANES : tile.columns / LANES }
}

/**
 * Whether the thin products of LoRA's backward pass read dy from a texture. It must fit in one piece, mostly the one that the product with the weight
 * itself also stages; and have many rows, since for a narrow model only this would stage dy, and take the memory.
 */
function staysWhole(gpu: Gpu, dy: Rows): boolean {
  const many = capacityOf(dy.rows)
  return many >= 128 && canStage(gpu, dy) && many <= stageRows(gpu, dy.columns)
}

/**
 * dx (+)= alpha * (dy W + LoRA) of one part. `extra`: dxa, A.
 * @param together what dy consists of, side by side in a texture, instead of `dy` (joint.ts)
 */
export function backwardInput(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  weight: Weight,
  dx: Binding,
  part: Part,
  options: Extras,
  together?: Rows[],
): void {
  const { alpha, rank, flags, extra } = options
  const { LANES, WIDE } = cpuLanes(gpu)
  const k = weight.columns
  const whole = part.rows === weight.rows && part.rows % 4 === 0
  if (k <= 32 && !weight.bf16 && !part.slice.texture && whole && !flags.LORA && !flags.ACCUMULATE) {
    const source: Rows = { data: dy, rows, columns: part.rows }
    const DY_TEX = Number(staysWhole(gpu, source))
    const [MT, TURN] = [DY_TEX && capacityOf(rows) > 256 ? 32 : 16, DY_TEX && part.rows % 8 === 0 ? 2 : 1]
    const bindings = [DY_TEX ? stage(gpu, source, 0, rows, 'dy') : dy, dx, part.slice.storage]
    const kernel = gpu.kernel(paths.thin, { LANES, WIDE, MT, DY_TEX, TURN })
    gpu.dispatch(kernel, bindings, { rows, n: part.rows, k, alpha }, [k / 8, groupsOf(rows, MT)])
    return
  }
  const high = tilesOf(gpu).nnCpu.rows
  const many = capacityOf(rows)
  const takesHigh = many > 16 && covered(many, high) * (1 - wasted.nn) <= covered(many, 16)
  const MT = many <= 8 ? 8 : takesHigh ? high : 16
  const BY4 = Number(part.width % 4 === 0 && part.column % 4 === 0 && part.rows % 4 === 0)
  const rowsFirst = part.rows * k * 2 > cachedBytes
  const source: Rows = { data: dy, rows, columns: part.rows, stride: part.width, column: part.column }
  const DY_TEX = Number(!!together || (k >= stagingColumns && part.rows % 8 === 0 && canStage(gpu, source)))
  // With two groups of 4 n per iteration, each sum is written once for both, but the code doubles: with 32 rows only a Zen 4 gains.
  const TURN = DY_TEX && (MT <= 24 || (WIDE && gpu.facts.cpu === 'zen4')) ? 2 : 1
  const blocks = DY_TEX ? heldOf(gpu, MT, 8) : { HELD: 0, ...apartOf(gpu, 8) }
  const variant = { LANES, WIDE, MT, BY4, DY_TEX, TURN, ...blocks, ...weightConstants(weight, part.slice, 2), ...flags }
  const place = { w_row: part.row - part.slice.row, dy_stride: part.width, dy_column: part.column }
  const params = { n: part.rows, k, rank, alpha, ...weightParams(weight, part.slice), ...place }
  const most = together ? panelsOf(gpu, rows).rows : DY_TEX ? stageRows(gpu, part.rows) : many
  for (let row0 = 0; row0 < many; row0 += most) {
    const count = within(rows, row0, most)
    // If the weight is trained, its gradient was computed before this and left dy in a texture.
    const held = together
      ? stagePanels(gpu, together, row0, count, 'dy')
      : DY_TEX
        ? heldPanels(gpu, [source], row0, count, 'dy')
        : undefined
    const from = held ? held.texture : DY_TEX ? stage(gpu, source, row0, count, 'dy') : dy
    const bindings = [from, dx, part.slice.storage, ...extra]
    const own = { row0, rows: map(count, (n) => row0 + n), rows_first: Number(rowsFirst), dy_height: held?.height ?? 0 }
    const down = groupsOf(count, MT)
    for (const { COLS, first, across } of columnTiles(k, LANES)) {
      const kernel = gpu.kernel(paths.nn, { ...variant, COLS, PANELS: Number(!!held) })
      gpu.dispatch(kernel, bindings, { ...params, ...own, first_texel: first / 8 }, rowsFirst ? [down, across] : [across, down])
    }
  }
}

/**
 * Column tiles of a gradient of the input: `across` tiles with COLS columns per lane. All are whole, except one of half the width if no more columns
 * are left, as with SmolLM2's 576.
 */
function columnTiles(k: number, lanes: number): { COLS: number; first: number; across: number }[] {
  const [whole, left] = [Math.floor(k / (8 * lanes)), k % (8 * lanes)]
  const halved = left > 0 && left <= 4 * lanes
  const tiles = { COLS: 8, first: 0, across: whole + Number(left > 0 && !halved) }
  return [tiles, { COLS: 4, first: whole * 8 * lanes, across: Number(halved) }].filter(({ across }) => across > 0)
}

/** Whether `backwardWeight` reads both operands from textures. dy may then have any number of columns, if its rows have room for whole texels. */
export function stagesWeight(gpu: Gpu, dy: Rows, x: Rows): boolean {
  return (
    dy.columns >= stagingColumns && x.columns >= stagingColumns && x.columns % 4 === 0 && canStage(gpu, dy) && canStage(gpu, x)
  )
}

/** dW (+)= alpha * dyᵀ x. Widths, strides and columns are multiples of 4, except dy's width if `stagesWeight`. */
export function backwardWeight(
  gpu: Gpu,
  dy: Rows,
  x: Rows,
  dw: GpuBuffer | BufferRange,
  options: { alpha: number; accumulate: boolean; row: number },
): void {
  const { alpha, accumulate, row } = options
  const [n, k, rows] = [dy.columns, x.columns, dy.rows]
  const { LANES } = cpuLanes(gpu)
  if (stagesWeight(gpu, dy, x)) {
    stagedBackwardWeight(gpu, [dy], x, dw, options)
    return
  }
  // Lanes take the wider side: one side of a LoRA factor is only as wide as the rank.
  const TRANSPOSED = Number(k < 4 * LANES && n > k)
  const [a, b] = TRANSPOSED ? [x, dy] : [dy, x]
  const RT = a.columns <= 8 ? 8 : 16
  const B_TEX = Number(TRANSPOSED && staysWhole(gpu, b))
  const kernel = gpu.kernel(paths.tn, { LANES, ACCUMULATE: Number(accumulate), TRANSPOSED, RT, B_TEX })
  const ofA = { a_count: a.columns, a_stride: a.stride ?? a.columns, a_column: a.column ?? 0 }
  const ofB = { b_count: b.columns, b_stride: b.stride ?? b.columns, b_column: b.column ?? 0 }
  const groups: [number, number] = [Math.ceil(b.columns / (4 * LANES)), Math.ceil(a.columns / RT)]
  const wide = B_TEX ? stage(gpu, b, 0, rows, 'dy') : b.data
  gpu.dispatch(kernel, [a.data, wide, dw], { rows, ...ofA, ...ofB, out_row: row, alpha }, groups)
}

/**
 * `backwardWeight` with operands in panels. Up to 1,024 rows are staged at once, and as many of their columns as there is room for, so that dW is
 * read and written once for all of them.
 * @param dys one below the other in dW; several of them have room together
 */
export function stagedBackwardWeight(
  gpu: Gpu,
  dys: Rows[],
  x: Rows,
  dw: GpuBuffer | BufferRange,
  { alpha, accumulate, row }: { alpha: number; accumulate: boolean; row: number },
): void {
  const { LANES, WIDE } = cpuLanes(gpu)
  const held = heldOf(gpu, 64, 4)
  // Eight rows per iteration are 2,048 multiply-adds of code, more than the instruction caches of most CPUs hold beside what another tenant of the
  // core has there. A Zen 4 gains from them with 512-bit vectors if the operand that is broadcast lies on the stack.
  const TURN = gpu.facts.cpu === 'zen4' && WIDE && held.HELD ? 8 : 4
  const [{ rows }] = dys
  const room = panelsOf(gpu, rows)
  const slices = dys.length > 1 ? [dys] : columnsOf(dys[0], room.columns).map((slice) => [slice])
  for (let row0 = 0; row0 < capacityOf(rows); row0 += room.rows) {
    const count = within(rows, row0, room.rows)
    const kernel = gpu.kernel(paths.tnStage, { LANES, ACCUMULATE: Number(accumulate || row0 > 0), TURN, ...held })
    let column = 0
    for (const ofX of columnsOf(x, room.columns)) {
      const right = stagePanels(gpu, [ofX], row0, count, 'x')
      let out = row
      for (const ofDy of slices) {
        const left = stagePanels(gpu, ofDy, row0, count, 'dy')
        const [n, k] = [ofDy.reduce((sum, { columns }) => sum + columns, 0), ofX.columns]
        const columnsFirst = k <= n
        const across = [Math.ceil(k / (4 * LANES)), Math.ceil(n / 64)]
        const heights = { dy_height: left.height, x_height: right.height }
        const place = { stride: x.columns, out_row: out, out_column: column }
        const params = { rows: count, columns_first: Number(columnsFirst), n, k, ...heights, ...place, alpha }
        const [down, along] = columnsFirst ? across : across.toReversed()
        gpu.dispatch(kernel, [left.texture, right.texture, dw], params, [down, along])
        out += n
      }
      column += ofX.columns
    }
  }
}

/** `source` in parts of at most this many columns. */
function columnsOf(source: Rows, most: number): Rows[] {
  const parts: Rows[] = []
  const { columns, stride = columns, column = 0 } = source
  for (let first = 0; first < columns; first += most)
    parts.push({ ...source, stride, column: column + first, columns: Math.min(most, columns - first) })
  return parts
}
