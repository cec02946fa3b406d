/**
 * The matmul tier of matrix units: f16 x f16 -> float32. Off unless a run asks for it (`useMatrixUnits`), since arithmetic is float32 otherwise. Whether
 * a product is taken depends on the weight's shape and never on the number of rows, so a row has the same bits in every batch here too.
 * An operand rounds to 11 bits (bf16 weights have 8, so they only lose what lies outside f16's range); sums are float32.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, times, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'
import { KT, matrixUnitOf } from '../common/matrix-units.ts'
import type { Weight } from '../common/weight.ts'
import { bufferOf, type Extras, type Part } from './part.ts'
import { tilesOf, type Tile } from './tiles.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { units: file('units.wgsl'), stage: file('units_stage.wgsl') }
/** Gradients are small: times this they keep their bits down to 6e-8; more than 64 is cut off. A power of two, so it changes no bit otherwise. */
const gradientScale = 1024

/** Activations that a product reads: `depth` columns of rows `stride` apart, from `column` on, times `scale`. */
interface Activations {
  data: Binding
  depth: number
  stride: number
  column: number
  scale: number
}

/**
 * Activations in f16, to be released: rows of `stride` values each. Once for all of a product's workgroups, which would each have to convert what they read: it reads
 * and writes 6 bytes a value, and a workgroup that multiplies 128 x 128 outputs keeps the registers that four bytes a value would take.
 * @param shape of the kernel that reads them (`shapeFor`)
 */
export function staged(
  gpu: Gpu,
  { data, depth, stride, column, scale }: Activations,
  rows: Count,
  { TM, STRAIGHT }: { TM: number; STRAIGHT: number },
): { x: GpuBuffer; stride: number } {
  const words = Math.ceil(depth / 8)
  // Fragments that come straight from memory reach to the tile's last row.
  const held = STRAIGHT ? Math.ceil(capacityOf(rows) / TM) * TM : capacityOf(rows)
  const x = gpu.pool.acquire(held * words * 16, 'activations in f16')
  const params = { count: times(rows, words), words, depth, x_stride: stride, x_column: column, scale }
  dispatchFlat(gpu, paths.stage, {}, [data, x], params, times(rows, words))
  return { x, stride: words * 8 }
}

/** Whether a product with this weight runs here: `stride` is of the activations that are multiplied, `column` where they start. */
export function takesUnits(gpu: Gpu, weight: Weight, part: Part, stride: number, column: number): boolean {
  if (!matrixUnitOf(gpu) || !weight.bf16 || part.slice.texture) return false
  return weight.columns % 8 === 0 && stride % 4 === 0 && column % 4 === 0 && part.rows % 4 === 0
}

/** y = alpha * (x Wᵀ + LoRA) + bias + residual of one part. */
export function forward(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, part: Part, options: Extras): void {
  const k = weight.columns
  const place = { out_stride: part.width, out_column: part.column, first_row: part.row }
  const activations = { data: x, depth: k, stride: k, column: 0, scale: 1 }
  run(gpu, activations, y, weight, part, options, { FORM_NT: 1 }, { rows, columns: part.rows, depth: k, ...place })
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
  const place = { out_stride: k, out_column: 0, first_row: 0 }
  const activations = { data: dy, depth: part.rows, stride: part.width, column: part.column, scale: gradientScale }
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
  const shape = shapeFor(gpu, params.rows, params.columns, { depth: activations.depth, forward: !!form.FORM_NT })
  const constants = { ...shape, LORA: 0, BIAS: 0, RESIDUAL: 0, ACCUMULATE: 0, TN_PART: 0, ...flags, ...form }
  const { x, stride } = staged(gpu, activations, params.rows, shape)
  const bindings = [x, out, bufferOf(part.slice), ...extra]
  const groups: [Count, Count, number] = [groupsOf(params.columns, shape.TN), groupsOf(params.rows, shape.TM), parts]
  const b = { b_stride: weight.columns, b_row: part.row - part.slice.row }
  gpu.dispatch(
    gpu.kernel(paths.units, constants),
    bindings,
    { ...params, rank, alpha, a_stride: stride, out_scale: 1 / activations.scale, ...b },
    groups,
  )
  x.release()
}

/** What a workgroup and its subgroups (`down` and `across`) own, and how much of the depth it stages at once. */
interface UnitTile extends Tile {
  down: number
  across: number
  depth: number
  /** Vectors of an operand that a thread asks for a turn ahead, at most, of four registers each. */
  ahead: number
}
/** What a product asks of a tile besides its size. */
interface UnitUse {
  /** Steps of the sum. */
  depth: number
  /** x Wᵀ. */
  forward: boolean
  /** Whether the columns of a subgroup are of two members, or of the halves of heads. */
  paired?: boolean
}

/** What a workgroup and its subgroups own, and the fragments that they multiply, as constants of the kernels. @param columns of the product */
export function shapeFor(gpu: Gpu, rows: Count, columns: number, use: UnitUse) {
  const { m, n, k } = matrixUnitOf(gpu)!
  const tile = tileFor(gpu, capacityOf(rows), columns, use)
  const { down, across, depth, straight, loaders } = tile
  const LANES = gpu.facts.subgroupSize
  const WORKERS = down * across * LANES
  const LOAD_THREADS = loaders ? loadingSubgroups * LANES : WORKERS
  const vectors = (side: number): number => (side * depth) / 8 / LOAD_THREADS
  const most = Math.min(tile.ahead, isWide(gpu) ? Infinity : 2)
  const ahead = (side: number): number => Math.min(most, Math.floor(vectors(side)))
  const [A_AHEAD, B_AHEAD] = [straight ? 0 : ahead(tile.rows), ahead(tile.columns)]
  const sizes = { TM: tile.rows, TN: tile.columns, SM: down, SN: across, LANES, KT: depth, FM: m, FN: n, FK: k }
  const threads = { WORKERS, LOAD_THREADS, THREADS: loaders ? WORKERS + LOAD_THREADS : WORKERS, LOADERS: Number(!!loaders) }
  const memory = { HALVES: loaders ? 2 : 1, A_HALF: tile.rows * (depth + 8), B_HALF: halfOfB(tile, use.forward) }
  const more = { A_MORE: Number(!straight && A_AHEAD < vectors(tile.rows)), B_MORE: Number(B_AHEAD < vectors(tile.columns)) }
  // What is written out: of a software driver's units, whose products are thousands of instructions, little.
  const STEPS = straight ? Math.min(stepsOf(use.depth, k), isWide(gpu) ? Infinity : 2) : 0
  const loops = { STRAIGHT: Number(!!straight), STEPS, DEEP: isWide(gpu) ? depth / k : 1 }
  return { ...sizes, ...threads, ...memory, A_AHEAD, B_AHEAD, ...more, ...loops }
}

/** Whether a GPU's subgroups have the lanes that most have: those of narrow ones (and of software drivers) would have to hold, and their compilers to write out, many times as much. */
const isWide = (gpu: Gpu): boolean => gpu.facts.subgroupSize >= 32

/** Values of workgroup memory that the columns of a turn take. */
const halfOfB = ({ columns, depth }: UnitTile, forward: boolean): number =>
  forward ? columns * (depth + 8) : depth * (columns + 8)

/** Subgroups that load for others, as many as multiply in the largest of such tiles. */
const loadingSubgroups = 4
/** Fragments of the depth that are asked for at once, straight from memory: so many that they divide it. None where fragments would reach over a row's end. */
const stepsOf = (depth: number, k: number): number => [8, 4, 2, 1].find((steps) => depth % (steps * k) === 0) ?? 0

/** Few rows and not many columns: narrow workgroups, which go a long way between two barriers, as what they wait for is their loads. */
const fewTile: UnitTile = { rows: 32, columns: 32, down: 2, across: 1, depth: 4 * KT, ahead: 8 }
const fewColumns = 16_384

/** Small tiles for few rows; else the tuned one, or the largest smaller one that the adapter's workgroup memory holds. */
function tileFor(gpu: Gpu, rows: number, columns: number, use: UnitUse): UnitTile {
  if (rows <= 32) {
    const tile = straightTile(gpu, use)
    if (columns <= fewColumns && tile) return tile
    return columns <= fewColumns && holds(gpu, fewTile) ? fewTile : arranged(gpu, { rows: 32, columns: 64 })
  }
  if (rows <= 64) return arranged(gpu, { rows: 64, columns: 64 })
  const sizes: Tile[] = [tilesOf(gpu).units, { rows: 128, columns: 128 }, { rows: 64, columns: 64 }]
  return arranged(gpu, sizes.find((tile) => holdsUnitTile(gpu, tile)) ?? { rows: 32, columns: 64 })
}

/** The tuned tile of few rows, where it takes x straight from memory and this product can. */
function straightTile(gpu: Gpu, { depth, forward, paired }: UnitUse): UnitTile | undefined {
  const chosen = tilesOf(gpu).fewUnits
  if (!chosen.straight || !forward || stepsOf(depth, matrixUnitOf(gpu)!.k) === 0) return undefined
  const tile = alone(gpu, chosen, paired)
  return holds(gpu, tile) ? tile : undefined
}

/** One subgroup with fragments straight from memory. Paired columns are two fragments at least. */
function alone(gpu: Gpu, { rows, columns, straight = KT }: Tile, paired = false): UnitTile {
  const fewest = matrixUnitOf(gpu)!.n * (paired ? 2 : 1)
  return { rows, columns: Math.max(columns, fewest), straight, down: 1, across: 1, depth: straight, ahead: 16 }
}

/** Each subgroup owns 64 x 64 outputs of large tiles where it has 32 lanes or more, which is 128 registers of them, and else 32 x 32. */
function arranged(gpu: Gpu, { rows, columns, loaders }: Tile): UnitTile {
  const each = rows * columns > 64 * 64 && isWide(gpu) ? 64 : 32
  // Those that only load keep all of a turn in registers.
  const ahead = loaders ? Infinity : 4
  return { rows, columns, loaders, down: rows / each, across: columns / each, depth: KT, ahead }
}

/** Whether a workgroup may have the threads of a tile, and its memory holds the operands. Only after `useMatrixUnits`. */
export function holdsUnitTile(gpu: Gpu, tile: Tile): boolean {
  return holds(gpu, tile.straight ? alone(gpu, tile) : arranged(gpu, tile))
}

function holds(gpu: Gpu, tile: UnitTile): boolean {
  const { rows, down, across, depth, straight, loaders } = tile
  const { m, n } = matrixUnitOf(gpu)!
  const { limits, subgroupSize } = gpu.facts
  const operands = (straight ? 0 : rows * (depth + 8)) + Math.max(halfOfB(tile, true), straight ? 0 : halfOfB(tile, false))
  const bytes = operands * 2 * (loaders ? 2 : 1) + down * across * m * n * 4
  const subgroups = down * across + (loaders ? loadingSubgroups : 0)
  return bytes <= limits.maxWorkgroupMemory && subgroups * subgroupSize <= limits.maxInvocations
}
