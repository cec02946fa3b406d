/**
 * The three products of a linear layer: forward, gradient of the input, gradient of the weight. Each function chooses its kernel from the GPU adapter
 * and the shapes: matrix units if a run asks for them (units.ts), kernels for CPU drivers with subgroups of 8 or 16 (cpu.ts), on GPUs LoRA's own
 * kernels for its thin products (lora/thin.ts), otherwise the register tile (tile.ts). Sums run over the same index in the same order for any number
 * of rows, so a token's numbers do not depend on its batch.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, times, type Count } from '../../gpu/size.ts'
import { cpuLanes, dispatchFlat } from '../common/lanes.ts'
import { slicesOf, type Weight } from '../common/weight.ts'
import { takesThinBack, takesThinForward, thinBack, thinForward } from '../lora/thin.ts'
import { widen } from '../quantised/quantised.ts'
import { readsBlocks } from './blocks.ts'
import * as cpu from './cpu.ts'
import { bufferOf, type Part } from './part.ts'
import * as tile from './tile.ts'
import * as units from './units.ts'

const addPath = fileURLToPath(new URL('add_parts.wgsl', import.meta.url))

/** A low-rank addition. `x` (rows, rank) is already multiplied by one of the two LoRA matrices; `matrix` is the other. */
interface LowRank {
  x: GpuBuffer | BufferRange
  matrix: GpuBuffer | BufferRange
  /** A multiple of 8. */
  rank: number
}

interface LinearOptions {
  alpha?: number
  lora?: LowRank
  bias?: GpuBuffer | BufferRange
  residual?: GpuBuffer
  /** x in f16, (rows, K), if an earlier kernel wrote it; products on matrix units read it (`takesHalf` in units.ts). */
  half?: GpuBuffer
  /** Receives x in f16, (rows, K), if the product is LoRA's thin one (`takesThinForward`). */
  leaves?: GpuBuffer
  /** Only these rows of the weight, the bias and lora.matrix; y and residual then have this many columns. */
  slice?: { row: number; rows: number }
}

/**
 * y = alpha * (x Wᵀ + lora.x lora.matrixᵀ + bias) + residual.
 * @param x (rows, K) @param weight (N, K) @param y (rows, N); lora.matrix is B (N, rank)
 */
export function linear(gpu: Gpu, x: Binding, rows: Count, weight: Weight, y: Binding, options: LinearOptions = {}): void {
  const { alpha = 1, lora, bias, residual, half } = options
  if (takesThinForward(gpu, weight) && !lora && !bias && !residual && !options.slice) {
    const shape = { k: weight.columns, rank: weight.rows, parts: [{ at: 0, scale: alpha }] }
    return thinForward(gpu, x, rows, shape, bufferOf(weight.slices[0]), { xa: y }, { half: options.leaves })
  }
  const wanted = options.slice ?? { row: 0, rows: weight.rows }
  const flags = { LORA: Number(!!lora), BIAS: Number(!!bias), RESIDUAL: Number(!!residual) }
  const extra: Binding[] = [...(lora ? [lora.x, lora.matrix] : []), ...(bias ? [bias] : []), ...(residual ? [residual] : [])]
  const [k, rank] = [weight.columns, lora?.rank ?? 0]
  for (const part of partsOf(gpu, weight, rows, wanted.rows, wanted)) {
    const tier = units.takesUnits(gpu, weight, part, k, 0) ? units : cpu.takesCpu(gpu, k) ? cpu : tile
    tier.forward(gpu, x, rows, weight, y, part, { alpha, rank, flags, extra, half })
  }
}

/**
 * Rows `wanted` of a weight: its blocks if the product reads those, else its slices, into which quantised values are widened. @param columns of the
 * product
 */
function partsOf(gpu: Gpu, weight: Weight, rows: Count, columns: number, wanted: { row: number; rows: number }): Part[] {
  const width = wanted.rows
  if (wanted.row % 4 === 0 && width % 4 === 0 && readsBlocks(gpu, weight, rows, columns))
    return [{ slice: weight.slices[0], ...wanted, column: 0, width, blocks: weight.blocks }]
  widen(gpu, weight)
  return slicesOf(weight, wanted.row, wanted.rows).map((part) => ({ ...part, column: part.row - wanted.row, width }))
}

/**
 * dx (+)= alpha * (dy W + lora.x lora.matrix).
 * @param dy (rows, N) @param weight (N, K) @param dx (rows, K); lora.x is dy B (rows, rank), lora.matrix is A (rank, K)
 */
export function linearBackwardInput(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  weight: Weight,
  dx: Binding,
  options: { alpha?: number; lora?: LowRank; accumulate?: boolean; slice?: { row: number; rows: number } } = {},
): void {
  const { alpha = 1, lora } = options
  if (takesThinBack(gpu, weight) && !lora && !options.accumulate && !options.slice) {
    const shape = { n: weight.rows, rank: weight.columns, alpha }
    return thinBack(gpu, dy, rows, shape, bufferOf(weight.slices[0]), dx)
  }
  const wanted = options.slice ?? { row: 0, rows: weight.rows }
  const k = weight.columns
  let accumulate = options.accumulate ?? false
  const most = wanted.rows > longSum ? longSum / 8 : wanted.rows
  const slices = partsOf(gpu, weight, rows, k, wanted)
  if (most < wanted.rows && !lora && !cpu.takesCpu(gpu, k) && capacityOf(rows) <= fewRows) {
    for (const part of slices) {
      sideBySide(gpu, dy, rows, weight, dx, part, { alpha, accumulate, most })
      accumulate = true
    }
    return
  }
  const parts = slices.flatMap((part) => inParts(part, most))
  for (const [i, part] of parts.entries()) {
    const last = lora && i === parts.length - 1 ? lora : undefined
    const flags = { LORA: Number(!!last), ACCUMULATE: Number(accumulate) }
    const extra: Binding[] = last ? [last.x, last.matrix] : []
    const own = { ...part, column: part.row - wanted.row }
    const tier = units.takesUnits(gpu, weight, own, own.width, own.column) ? units : cpu.takesCpu(gpu, k) ? cpu : tile
    tier.backwardInput(gpu, dy, rows, weight, dx, own, { alpha, rank: last?.rank ?? 0, flags, extra })
    accumulate = true
  }
}

/**
 * A gradient of the input with sums of more terms than this is computed in parts of an eighth of it, each added to dx as a whole: with one running
 * sum over a vocabulary of 49,152, the rounding error is 25 times as large. (Also, the part of W that all rows share stays in a CPU's cache.)
 */
const longSum = 16_384

/**
 * Limits of split-K: up to this many rows (the head's chunks), a gradient of the input has too few tiles to fill a GPU; and partial products take at
 * most this many bytes at once (512 tiles of 64 x 64).
 */
const fewRows = 512
const productBytes = 8 * 2 ** 20

/**
 * dx (+)= alpha * dy W of a part by split-K: separate workgroups sum `most` terms each, and the partial products are then added in order. The bits
 * are those of adding one part after the other.
 */
function sideBySide(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  weight: Weight,
  dx: Binding,
  part: Part,
  { alpha, accumulate, most }: { alpha: number; accumulate: boolean; most: number },
): void {
  const k = weight.columns
  const bytes = capacityOf(rows) * k * 4
  const atOnce = Math.max(1, Math.floor(productBytes / bytes)) * most
  const VEC4 = Number(k % 4 === 0)
  const count = times(rows, VEC4 ? k / 4 : k)
  for (const [i, own] of inParts(part, atOnce).entries()) {
    own.column = part.column + own.row - part.row
    const parts = Math.ceil(own.rows / most)
    const products = gpu.pool.acquire(parts * bytes, 'products of parts')
    const tier = units.takesUnits(gpu, weight, own, own.width, own.column) ? units : tile
    const flags = { LORA: 0, ACCUMULATE: 0, SPLIT_K: most }
    tier.backwardInput(gpu, dy, rows, weight, products, own, { alpha, rank: 0, flags, extra: [] }, parts)
    const ACCUMULATE = Number(accumulate || i > 0)
    dispatchFlat(gpu, addPath, { ACCUMULATE, VEC4 }, [products, dx], { count, parts }, count)
    products.release()
  }
}

function inParts<Part extends { row: number; rows: number }>(part: Part, most: number): Part[] {
  const parts: Part[] = []
  for (let row = 0; row < part.rows; row += most)
    parts.push({ ...part, row: part.row + row, rows: Math.min(most, part.rows - row) })
  return parts
}

/**
 * dW (+)= alpha * dyᵀ x, for rows [row, row + columns of dy) of dW.
 * @param dy (rows, n) @param x (rows, k) @param dw (N, k) float32
 */
export function linearBackwardWeight(
  gpu: Gpu,
  dy: Binding,
  x: Binding,
  rows: Count,
  n: number,
  k: number,
  dw: GpuBuffer | BufferRange,
  options: { alpha?: number; accumulate?: boolean; row?: number; dyStride?: number; dyColumn?: number } = {},
): void {
  const { alpha = 1, accumulate = true, row = 0, dyStride = n, dyColumn = 0 } = options
  const ofDy = { data: dy, rows, columns: n, stride: dyStride, column: dyColumn }
  const ofX = { data: x, rows, columns: k }
  const aligned = k % 4 === 0 && dyStride % 4 === 0 && dyColumn % 4 === 0
  const onCpu = cpuLanes(gpu).LANES > 0 && aligned
  // Except with staged operands, the fast kernels take four rows of dW at a time; the last n % 4 rows are a product of their own.
  const whole = n % 4 === 0 || (onCpu && cpu.stagesWeight(gpu, ofDy, ofX))
  if (!whole && n > 4) {
    const fours = n - (n % 4)
    linearBackwardWeight(gpu, dy, x, rows, fours, k, dw, { ...options, dyStride })
    const rest = { ...options, row: row + fours, dyStride, dyColumn: dyColumn + fours }
    return linearBackwardWeight(gpu, dy, x, rows, n - fours, k, dw, rest)
  }
  const tier = onCpu && whole ? cpu : tile
  tier.backwardWeight(gpu, ofDy, ofX, dw, { alpha, accumulate, row })
}
