/**
 * The matmul tier of matrix units: f16 x f16 -> float32. It is off unless a run asks for it (`useMatrixUnits`), since arithmetic is float32
 * otherwise. Whether it takes a product depends on the weight's shape and never on the number of rows, so a row has the same bits in every batch here
 * too.
 * Operands are rounded to 11 significant bits, sums are float32. bf16 weights have only 8 bits, so they lose nothing but what lies outside f16's
 * range, and that when they are written (Weight.f16).
 */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, times, type Count } from '../../gpu/size.ts'
import { dispatchFlat, hasWideSubgroups } from '../common/lanes.ts'
import { gradientScaleOf, KT, matrixUnitOf } from '../common/matrix-units.ts'
import type { Weight } from '../common/weight.ts'
import { bufferOf, type Extras, type Part } from './part.ts'
import { tileCandidates, tilesOf, type Tile } from './tiles.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { units: file('units.wgsl'), stage: file('units_stage.wgsl') }
/** Activations that a product reads, multiplied by `scale`: `depth` columns, from `column` on, of rows that are `stride` apart. */
interface Activations {
  data: Binding
  depth: number
  stride: number
  column: number
  scale: Count
  /** The same in f16, (rows, depth), if an earlier kernel wrote it (`takesHalf`). */
  half?: GpuBuffer
}

/** The deepest K-block of any tile; all others divide it. */
const deepest = Math.max(KT, ...[...tileCandidates.units, ...tileCandidates.fewUnits].map(({ depth = KT }) => depth))

/**
 * Whether products with this weight run on matrix units for any number of rows and can read activations in f16 that another kernel wrote, (rows, K)
 * without padding.
 */
export function takesHalf(gpu: Gpu, weight: Weight): boolean {
  return !!matrixUnitOf(gpu) && !!weight.f16 && weight.columns % deepest === 0
}

/**
 * Activations in f16, rows of `stride` values each. The caller calls `release` after use. They are converted once for all workgroups of a product,
 * which would otherwise each convert what they read. That reads and writes 6 bytes per value, and prefetching f16 takes half the registers that
 * float32 would take, which a workgroup with 128 x 128 outputs needs.
 * @param KT of the kernel that reads them: rows end with zeros up to a multiple of it
 * @param behind rows of room after the last, for a kernel that reads some of them but does not use their contents
 */
export function inHalf(
  gpu: Gpu,
  { data, depth, stride, column, scale, half }: Activations,
  rows: Count,
  KT: number,
  behind = 0,
): { x: GpuBuffer; stride: number; release: () => void } {
  if (half) return { x: half, stride: depth, release: () => {} }
  const words = (Math.ceil(depth / KT) * KT) / 8
  const x = gpu.pool.acquire((capacityOf(rows) + behind) * words * 16, 'activations in f16')
  const params = { count: times(rows, words), words, depth, x_stride: stride, x_column: column, scale }
  dispatchFlat(gpu, paths.stage, {}, [data, x], params, times(rows, words))
  return { x, stride: words * 8, release: () => x.release() }
}

/** Whether a product with this weight runs here. `stride` and `column` are those of the activations that are multiplied. */
export function takesUnits(gpu: Gpu, weight: Weight, part: Part, stride: number, column: number): boolean {
  if (!matrixUnitOf(gpu) || !weight.f16) return false
  return stride % 4 === 0 && column % 4 === 0 && part.rows % 4 === 0
}

/** y = alpha * (x Wᵀ + LoRA) + bias + residual of one part. */
export function forward(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, part: Part, options: Extras): void {
  const k = weight.columns
  const place = { out_stride: part.width, out_column: part.column, first_row: part.row }
  const activations = { data: x, depth: k, stride: k, column: 0, scale: 1, half: options.half }
  run(gpu, activations, y, weight, part, options, { FORM_NT: 1 }, { rows, columns: part.rows, depth: k, ...place })
}

/** dx (+)= alpha * (dy W + LoRA) of one part. @param parts if `flags` has SPLIT_K: dx is (parts, rows, K), with that many terms in each part */
export function backwardInput(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  weight: Weight,
  dx: Binding,
  part: Part,
  options: Extras,
  parts = 1,
): void {
  const k = weight.columns
  const place = { out_stride: k, out_column: 0, first_row: 0 }
  const activations = { data: dy, depth: part.rows, stride: part.width, column: part.column, scale: gradientScaleOf(gpu) }
  run(gpu, activations, dx, weight, part, options, { FORM_NT: 0 }, { rows, columns: k, depth: part.rows, ...place }, parts)
}

function run(
  gpu: Gpu,
  activations: Activations,
  out: Binding,
  weight: Weight,
  part: Part,
  { alpha, rank, flags, extra }: Extras,
  form: { FORM_NT: number },
  params: { rows: Count; columns: number } & Record<string, Count>,
  parts = 1,
): void {
  const shape = shapeFor(gpu, params.rows, params.columns)
  const { x, stride, release } = inHalf(gpu, activations, params.rows, shape.KT)
  const constants = { ...shape, LORA: 0, BIAS: 0, RESIDUAL: 0, ACCUMULATE: 0, SPLIT_K: 0, ...flags, ...form }
  const bindings = [x, out, bufferOf(part.slice), ...extra]
  const groups: [Count, Count, number] = [groupsOf(params.columns, shape.TN), groupsOf(params.rows, shape.TM), parts]
  const b = { b_stride: weight.columns, b_row: part.row - part.slice.row }
  gpu.dispatch(
    gpu.kernel(paths.units, constants),
    bindings,
    { ...params, rank, alpha, a_stride: stride, out_scale: map(activations.scale, (n) => 1 / n), ...b },
    groups,
  )
  release()
}

/** A tile with its subgroups (`down` x `across`) and its K-block. */
interface UnitTile extends Tile {
  down: number
  across: number
  depth: number
}

/**
 * The constants of the kernels: what a workgroup and its subgroups own, and the fragments that they multiply.
 * @param columns of the product
 * @param paired whether a subgroup's columns belong to two members, or to both halves of heads
 */
export function shapeFor(gpu: Gpu, rows: Count, columns: number, paired = false) {
  const { m, n, k } = matrixUnitOf(gpu)!
  const tile = tileFor(gpu, capacityOf(rows), columns, paired)
  const { down, across, depth } = tile
  const LANES = gpu.facts.subgroupSize
  const THREADS = down * across * LANES
  const vectors = (side: number): number => (side * depth) / 8 / THREADS
  const ahead = (side: number): number => Math.min(hasWideSubgroups(gpu) ? 16 : 2, Math.floor(vectors(side)))
  const [A_AHEAD, B_AHEAD] = [ahead(tile.rows), ahead(tile.columns)]
  const sizes = { TM: tile.rows, TN: tile.columns, SM: down, SN: across, LANES, KT: depth, FM: m, FN: n, FK: k, THREADS }
  const more = { A_MORE: Number(A_AHEAD < vectors(tile.rows)), B_MORE: Number(B_AHEAD < vectors(tile.columns)) }
  // How many steps of the loop over a K-block are unrolled. On a software driver's matrix units, whose products are thousands of instructions: one.
  return { ...sizes, A_AHEAD, B_AHEAD, ...more, DEEP: hasWideSubgroups(gpu) ? depth / k : 1 }
}

/**
 * Up to this many columns, products of few rows take narrow workgroups with a deep K-block between two barriers, as they mostly wait for their loads.
 */
const fewColumns = 16_384

/**
 * From this many columns on, up to 64 rows (the head's chunks) take a wider tile, which still gives at least 256 tiles. On an H200 it reached 131
 * TFLOP/s in the tuner, 64 x 64 reached 103.
 */
const headColumns = 32_768
const headTile: Tile = { rows: 64, columns: 128, subgroup: { rows: 32, columns: 64 } }

/** Small tiles for few rows; else the tuned tile, or the largest smaller one that fits the GPU adapter's workgroup memory. */
function tileFor(gpu: Gpu, rows: number, columns: number, paired = false): UnitTile {
  if (rows <= 32) {
    const tile = arranged(gpu, tilesOf(gpu).fewUnits, paired)
    return columns <= fewColumns && holds(gpu, tile) ? tile : arranged(gpu, { rows: 32, columns: 64 })
  }
  if (rows <= 64)
    return arranged(gpu, columns >= headColumns && holdsUnitTile(gpu, headTile) ? headTile : { rows: 64, columns: 64 })
  const sizes: Tile[] = [tilesOf(gpu).units, { rows: 128, columns: 128 }, { rows: 64, columns: 64 }]
  return arranged(gpu, sizes.find((tile) => holdsUnitTile(gpu, tile)) ?? { rows: 32, columns: 64 })
}

/**
 * The subgroups of a tile, unless it says otherwise: with 32 lanes or more, each owns 64 x 64 outputs of a large tile, which take 128 registers; else
 * 32 x 32, and with few rows and columns as many rows as a fragment. Paired columns take at least two fragments.
 */
function arranged(gpu: Gpu, { rows, columns, depth = KT, subgroup }: Tile, paired = false): UnitTile {
  const { m, n } = matrixUnitOf(gpu)!
  if (rows === 32 && columns <= 32) {
    return { rows, columns: Math.max(columns, n * (paired ? 2 : 1)), down: 32 / Math.max(16, m), across: 1, depth }
  }
  const side = rows * columns > 64 * 64 ? 64 : 32
  const own = hasWideSubgroups(gpu) ? (subgroup ?? { rows: side, columns: side }) : { rows: 32, columns: 32 }
  return { rows, columns, down: rows / own.rows, across: columns / own.columns, depth }
}

/** Whether a workgroup may have the threads of a tile, and its memory holds the operands. To be called only after `useMatrixUnits`. */
export const holdsUnitTile = (gpu: Gpu, tile: Tile): boolean => holds(gpu, arranged(gpu, tile))

function holds(gpu: Gpu, { rows, columns, down, across, depth }: UnitTile): boolean {
  const { m, n } = matrixUnitOf(gpu)!
  const { limits, subgroupSize } = gpu.facts
  const operands = rows * (depth + 8) + Math.max(columns * (depth + 8), depth * (columns + 8))
  const bytes = operands * 2 + down * across * m * n * 4
  return bytes <= limits.maxWorkgroupMemory && down * across * subgroupSize <= limits.maxInvocations
}
