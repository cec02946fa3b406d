/**
 * The matmul tier for CPU drivers with subgroups of 8 or 16 (lavapipe): which kernel, tile and staging a shape takes. What such a driver does with a shader,
 * and so why, is at the head of each kernel.
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

/** Whether the kernels here run: they read 8 values of a row at a time. */
export function takesCpu(gpu: Gpu, k: number): boolean {
  return cpuLanes(gpu).LANES > 0 && k % 8 === 0
}

/** Fewest columns of a product for which staging its activations pays: a thin product (LoRA's) reads them once or twice. */
export const stagingColumns = 64
/** Weights larger than this are walked column tile by column tile, so that each is read from memory once and not for every 16 rows. */
export const cachedBytes = 1 << 20

/** y = alpha * (x Wᵀ + LoRA) + bias + residual of one part. `extra`: xa, B, bias, residual. */
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

/** How many neighbouring columns are stored at once (out.wgsl): what divides all these counts of columns. */
export function vectorsOf(...columns: number[]): { VEC2: number; VEC4: number } {
  const [even, VEC4] = [2, 4].map((size) => Number(columns.every((n) => n % size === 0)))
  return { VEC2: even - VEC4, VEC4 }
}

/** How much more, as a share, one tile may compute than another, masked outputs included: beyond that it costs what it gains. Forward, and to the input. */
const wasted = { nt: 0.08, nn: 0.04 }
/** Rows (or columns) that tiles of so many compute, masked ones included. */
const covered = (count: number, size: number): number => Math.ceil(count / size) * size

/** A width of tiles, in columns, and how long a column takes in it. */
interface Width {
  columns: number
  time: number
}
/**
 * Tiles of 512 bits for so many rows, in widths to choose from: the more columns a tile has, the more products a broadcast of x serves. Where a multiplication and an addition are apart, the code
 * of 32 rows of more than 64 columns does not stay in the instruction cache, and AMD's Zen 5 is faster with 16 rows of 96, in fours of 64 (bench/LOG.md, "Zen 5 again"), but a Zen 4 with
 * the largest. None: the usual tile.
 */
function wideShapes(gpu: Gpu, rows: number, inFours: boolean): { rows: number; widths: Width[] } | undefined {
  const { fused, cpu } = gpu.facts
  if (!cpuLanes(gpu).WIDE) return undefined
  // Fewer rows are measured on Intel's alone: up to 8, whose code is small, gain by more columns (bench/LOG.md, "An Intel host that others share").
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
 * The tile of a forward product. Rows are split evenly, so that 20 rows are 12 + 8 and not 16 + 4; columns likewise, in few widths.
 * @param columns of the weight, or of each of those that one dispatch takes, as a tile lies in one
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
  // An even number of vectors, as pairs of columns lie in a lane.
  const otherColumns = tile.columns !== 64 ? 64 : LANES === 16 ? 32 : 48
  // 144 columns are 3 x 48 and not 3 x 64, 128 are 2 x 64 and not 3 x 48; such a tile is 16 rows high, as more would not stay in the instruction cache.
  if (total > 32 && computed(otherColumns) <= computed(tile.columns) * (1 - wasted.nt)) return { MT, NT: otherColumns / LANES }
  const NT = Math.ceil(total / Math.ceil(total / tile.columns) / LANES)
  return { MT: takesHigh ? tile.rows : MT, NT: total <= LANES ? 1 : NT * LANES <= 32 ? 32 / LANES : tile.columns / LANES }
}

/**
 * Whether the thin products of LoRA's backward read dy from a texture: mostly one that the product with the weight itself
 * stages too, so in one piece; and of many rows, as a narrow model's product with the weight stages none, and its memory counts.
 */
function staysWhole(gpu: Gpu, dy: Rows): boolean {
  const many = capacityOf(dy.rows)
  return many >= 128 && canStage(gpu, dy) && many <= stageRows(gpu, dy.columns)
}

/**
 * dx (+)= alpha * (dy W + LoRA) of one part. `extra`: dxa, A.
 * @param together what dy is put together from, side by side in a texture, in place of `dy` (joint.ts)
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
  // Two groups of 4 n an iteration write a sum once for both, but are twice the code: with 32 rows only a Zen 4 gains.
  const TURN = DY_TEX && (MT <= 24 || (WIDE && gpu.facts.cpu === 'zen4')) ? 2 : 1
  const blocks = DY_TEX ? heldOf(gpu, MT, 8) : { HELD: 0, ...apartOf(gpu, 8) }
  const variant = { LANES, WIDE, MT, BY4, DY_TEX, TURN, ...blocks, ...weightConstants(weight, part.slice, 2), ...flags }
  const place = { w_row: part.row - part.slice.row, dy_stride: part.width, dy_column: part.column }
  const params = { n: part.rows, k, rank, alpha, ...weightParams(weight, part.slice), ...place }
  const most = together ? panelsOf(gpu, rows).rows : DY_TEX ? stageRows(gpu, part.rows) : many
  for (let row0 = 0; row0 < many; row0 += most) {
    const count = within(rows, row0, most)
    // The gradient of a weight that is trained whole goes before: it has dy in a texture.
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

/** Column tiles of a product to the input, `across` of them with COLS columns a lane: whole ones, and one of half as many where no more are left, as of the 576 of SmolLM2. */
function columnTiles(k: number, lanes: number): { COLS: number; first: number; across: number }[] {
  const [whole, left] = [Math.floor(k / (8 * lanes)), k % (8 * lanes)]
  const halved = left > 0 && left <= 4 * lanes
  const tiles = { COLS: 8, first: 0, across: whole + Number(left > 0 && !halved) }
  return [tiles, { COLS: 4, first: whole * 8 * lanes, across: Number(halved) }].filter(({ across }) => across > 0)
}

/** Whether `backwardWeight` has both operands in textures: any number of columns of dy will do then, where a row of it has room for whole texels. */
export function stagesWeight(gpu: Gpu, dy: Rows, x: Rows): boolean {
  return (
    dy.columns >= stagingColumns && x.columns >= stagingColumns && x.columns % 4 === 0 && canStage(gpu, dy) && canStage(gpu, x)
  )
}

/** dW (+)= alpha * dyᵀ x; widths, strides and columns are multiples of 4, but for dy's width where `stagesWeight`. */
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
  // Lanes take the wider side: a LoRA factor has one of its sides as narrow as the rank.
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
 * `backwardWeight` of operands in panels: up to 1,024 rows at once, and of them as many columns as there is room for, so that dW is read and written once for all of those.
 * @param dys one below the other in dW; where there are several, they have room together
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
  // Eight rows a turn are 2,048 multiply-adds of code: more than most CPUs' caches of instructions hold beside what another tenant of the core has there. A Zen 4 gains by them
  // where vectors have 512 bits and what is broadcast is an operand on the stack.
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

/** `source` in parts of at most so many columns. */
function columnsOf(source: Rows, most: number): Rows[] {
  const parts: Rows[] = []
  const { columns, stride = columns, column = 0 } = source
  for (let first = 0; first < columns; first += most)
    parts.push({ ...source, stride, column: column + first, columns: Math.min(most, columns - first) })
  return parts
}
