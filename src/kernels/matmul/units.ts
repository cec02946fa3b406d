/**
 * The matmul tier of matrix units: f16 x f16 -> float32. Off unless a run asks for it (`useMatrixUnits`), since arithmetic is float32 otherwise. Whether
 * a product is taken depends on the weight's shape and never on the number of rows, so a row has the same bits in every batch here too.
 * An operand rounds to 11 bits (bf16 weights have 8, so they only lose what lies outside f16's range); sums are float32.
 */
import { fileURLToPath } from 'node:url'
import type { MatrixUnit } from '../../gpu/adapter.ts'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { KT, matrixUnitOf } from '../common/matrix-units.ts'
import { capacityOf, groupsOf, type Count } from '../../gpu/size.ts'
import type { Weight } from '../common/weight.ts'
import { bufferOf, type Extras, type Part } from './part.ts'
import { tilesOf, type Tile } from './tiles.ts'

const path = fileURLToPath(new URL('units.wgsl', import.meta.url))
/** Gradients are small: times this they keep their bits down to 6e-8; more than 64 is cut off. A power of two, so it changes no bit otherwise. */
const gradientScale = 1024

interface Arrangement {
  /** Subgroups of a workgroup, down and across. */
  down: number
  across: number
}

/** Whether a product with this weight runs here: `stride` is of the activations that are multiplied, `column` where they start. */
export function takesUnits(gpu: Gpu, weight: Weight, part: Part, stride: number, column: number): boolean {
  if (!matrixUnitOf(gpu) || !weight.bf16 || part.slice.texture) return false
  return weight.columns % 8 === 0 && stride % 4 === 0 && column % 4 === 0 && part.rows % 4 === 0
}

/** y = alpha * (x Wᵀ + LoRA) + bias + residual of one part. */
export function forward(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, part: Part, options: Extras): void {
  const k = weight.columns
  const place = { a_stride: k, a_column: 0, out_stride: part.width, out_column: part.column, first_row: part.row }
  const size = { rows, columns: part.rows, depth: k }
  run(gpu, x, y, weight, part, options, { FORM_NT: 1 }, { ...size, ...place, a_scale: 1, out_scale: 1 })
}

/** dx (+)= alpha * (dy W + LoRA) of one part. @param parts where `flags` has TN_PART: dx is (parts, rows, K), of so many terms each */
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
  const place = { a_stride: part.width, a_column: part.column, out_stride: k, out_column: 0, first_row: 0 }
  const size = { rows, columns: k, depth: part.rows }
  const scales = { a_scale: gradientScale, out_scale: 1 / gradientScale }
  run(gpu, dy, dx, weight, part, options, { FORM_NT: 0 }, { ...size, ...place, ...scales }, parts)
}

function run(
  gpu: Gpu,
  a: Binding,
  out: Binding,
  weight: Weight,
  part: Part,
  { alpha, rank, flags, extra }: Extras,
  form: { FORM_NT: number },
  params: { rows: Count; columns: number } & Record<string, Count>,
  parts = 1,
): void {
  const shape = shapeFor(gpu, params.rows)
  const kernel = gpu.kernel(path, {
    ...shape,
    NORM: 0,
    LORA: 0,
    BIAS: 0,
    RESIDUAL: 0,
    ACCUMULATE: 0,
    TN_PART: 0,
    ...flags,
    ...form,
  })
  const bindings = [a, out, bufferOf(part.slice), ...extra]
  const groups: [Count, Count, number] = [groupsOf(params.columns, shape.TN), groupsOf(params.rows, shape.TM), parts]
  gpu.dispatch(kernel, bindings, { ...params, rank, alpha, b_stride: weight.columns, b_row: part.row - part.slice.row }, groups)
}

/** What a workgroup and its subgroups own, and the fragments that they multiply, as constants of the kernels. */
export function shapeFor(gpu: Gpu, rows: Count) {
  const { m, n, k } = matrixUnitOf(gpu)!
  const tile = tileFor(gpu, capacityOf(rows))
  const { down, across } = arrange(tile)
  const LANES = gpu.facts.subgroupSize
  const THREADS = down * across * LANES
  // Vectors of a thread that are asked for a turn ahead: 32 registers at most.
  const ahead = (values: number): number => Math.min(4, Math.floor((values * KT) / THREADS))
  const loads = { THREADS, A_AHEAD: ahead(tile.rows / 4), B_AHEAD: ahead(tile.columns / 8) }
  return { TM: tile.rows, TN: tile.columns, SM: down, SN: across, LANES, ...loads, KT, FM: m, FN: n, FK: k }
}

/** Small tiles for few rows; else the tuned one, or the largest smaller one that the adapter's workgroup memory holds. */
function tileFor(gpu: Gpu, rows: number): Tile {
  const sizes: Tile[] = [tilesOf(gpu).units, { rows: 128, columns: 128 }, { rows: 64, columns: 64 }]
  const few = rows <= 32 ? { rows: 32, columns: 64 } : rows <= 64 ? { rows: 64, columns: 64 } : undefined
  return few ?? sizes.find((tile) => holdsUnitTile(gpu, tile)) ?? { rows: 32, columns: 64 }
}

/** Each subgroup owns 32 x 32 outputs, more where there would be over eight of them. */
function arrange({ rows, columns }: Tile): Arrangement {
  const [down, across] = [Math.min(2, rows / 32), Math.min(4, columns / 32)]
  return { down, across }
}

/** Whether the workgroup memory holds the operands of a tile. Only after `useMatrixUnits`. */
export function holdsUnitTile(gpu: Gpu, tile: Tile): boolean {
  return workgroupBytes(matrixUnitOf(gpu)!, tile) <= gpu.facts.limits.maxWorkgroupMemory
}

function workgroupBytes(unit: MatrixUnit, tile: Tile): number {
  const { down, across } = arrange(tile)
  const operands = tile.rows * (KT + 8) + Math.max(tile.columns * (KT + 8), KT * (tile.columns + 8))
  return operands * 2 + down * across * unit.m * unit.n * 4
}
