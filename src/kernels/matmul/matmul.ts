/**
 * The three products of a linear layer behind one name each. Which kernel runs is chosen here, from the adapter's facts and the shapes:
 * the `*_cpu.wgsl` for CPU drivers with subgroups of 8 (cpu.ts), else the register tile. Sums run over the same index in the same order for any
 * number of rows, so a token's numbers do not depend on its batch.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { slicesOf, type Weight, type WeightSlice } from '../common/weight.ts'
import * as cpu from './cpu.ts'

const tilePath = fileURLToPath(new URL('tile.wgsl', import.meta.url))

/** A low-rank addition: `x` (rows, rank) is already multiplied by one of the two matrices, `matrix` is the other. */
export interface LowRank {
  x: GpuBuffer
  matrix: GpuBuffer | BufferRange
  /** A multiple of 8. */
  rank: number
}

export interface LinearOptions {
  alpha?: number
  lora?: LowRank
  bias?: GpuBuffer | BufferRange
  residual?: GpuBuffer
  /** Only these rows of the weight, the bias and lora.matrix; y and residual then have as many columns. */
  slice?: { row: number; rows: number }
}

/**
 * y = alpha * (x Wᵀ + lora.x lora.matrixᵀ) + bias + residual.
 * @param x (rows, K) @param weight (N, K) @param y (rows, N); lora.matrix is B (N, rank)
 */
export function linear(gpu: Gpu, x: Binding, rows: number, weight: Weight, y: Binding, options: LinearOptions = {}): void {
  const { alpha = 1, lora, bias, residual } = options
  const wanted = options.slice ?? { row: 0, rows: weight.rows }
  const flags = { LORA: Number(!!lora), BIAS: Number(!!bias), RESIDUAL: Number(!!residual) }
  const extra: Binding[] = [...(lora ? [lora.x, lora.matrix] : []), ...(bias ? [bias] : []), ...(residual ? [residual] : [])]
  const [k, rank] = [weight.columns, lora?.rank ?? 0]
  for (const part of slicesOf(weight, wanted.row, wanted.rows)) {
    const column = part.row - wanted.row
    const storageRow = part.row - part.slice.row
    if (cpu.takesCpu(gpu, k)) {
      cpu.forward(gpu, x, rows, weight, y, { ...part, column, width: wanted.rows }, { alpha, rank, flags, extra })
    } else {
      const at = {
        a_stride: k,
        a_column: 0,
        b_stride: k,
        b_row: storageRow,
        out_stride: wanted.rows,
        out_row: 0,
        out_column: column,
        first_row: part.row,
      }
      const size = { rows, columns: part.rows, depth: k, rank, alpha }
      tile(gpu, { FORM_NT: 1, FORM_TN: 0, W_BF16: Number(weight.bf16), ...flags }, [x, y, bufferOf(part.slice), ...extra], {
        ...size,
        ...at,
      })
    }
  }
}

/**
 * dx (+)= alpha * (dy W + lora.x lora.matrix).
 * @param dy (rows, N) @param weight (N, K) @param dx (rows, K); lora.x is dy B (rows, rank), lora.matrix is A (rank, K)
 */
export function linearBackwardInput(
  gpu: Gpu,
  dy: Binding,
  rows: number,
  weight: Weight,
  dx: Binding,
  options: { alpha?: number; lora?: LowRank; accumulate?: boolean; slice?: { row: number; rows: number } } = {},
): void {
  const { alpha = 1, lora } = options
  const wanted = options.slice ?? { row: 0, rows: weight.rows }
  const k = weight.columns
  let accumulate = options.accumulate ?? false
  const parts = slicesOf(weight, wanted.row, wanted.rows)
  for (const [i, part] of parts.entries()) {
    const last = lora && i === parts.length - 1 ? lora : undefined
    const flags = { LORA: Number(!!last), ACCUMULATE: Number(accumulate) }
    const extra: Binding[] = last ? [last.x, last.matrix] : []
    const [column, storageRow, rank] = [part.row - wanted.row, part.row - part.slice.row, last?.rank ?? 0]
    if (cpu.takesCpu(gpu, k)) {
      cpu.backwardInput(gpu, dy, rows, weight, dx, { ...part, column, width: wanted.rows }, { alpha, rank, flags, extra })
    } else {
      const at = {
        a_stride: wanted.rows,
        a_column: column,
        b_stride: k,
        b_row: storageRow,
        out_stride: k,
        out_row: 0,
        out_column: 0,
        first_row: 0,
      }
      const size = { rows, columns: k, depth: part.rows, rank, alpha }
      const constants = { FORM_NT: 0, FORM_TN: 0, W_BF16: Number(weight.bf16), BIAS: 0, RESIDUAL: 0, ...flags }
      tile(gpu, constants, [dy, dx, bufferOf(part.slice), ...extra], { ...size, ...at })
    }
    accumulate = true
  }
}

/**
 * dW (+)= alpha * dyᵀ x, for rows [row, row + columns of dy) of dW.
 * @param dy (rows, n) @param x (rows, k) @param dw (N, k) float32
 */
export function linearBackwardWeight(
  gpu: Gpu,
  dy: Binding,
  x: Binding,
  rows: number,
  n: number,
  k: number,
  dw: GpuBuffer | BufferRange,
  options: { alpha?: number; accumulate?: boolean; row?: number; dyStride?: number; dyColumn?: number } = {},
): void {
  const { alpha = 1, accumulate = true, row = 0, dyStride = n, dyColumn = 0 } = options
  const aligned = n % 4 === 0 && k % 4 === 0 && dyStride % 4 === 0 && dyColumn % 4 === 0
  if (gpu.facts.software && gpu.facts.subgroupSize === 8 && aligned) {
    const [ofDy, ofX] = [
      { data: dy, rows, columns: n, stride: dyStride, column: dyColumn },
      { data: x, rows, columns: k },
    ]
    cpu.backwardWeight(gpu, ofDy, ofX, dw, { alpha, accumulate, row })
  } else {
    const at = {
      a_stride: dyStride,
      a_column: dyColumn,
      b_stride: k,
      b_row: 0,
      out_stride: k,
      out_row: row,
      out_column: 0,
      first_row: 0,
    }
    const constants = { FORM_NT: 0, FORM_TN: 1, W_BF16: 0, LORA: 0, BIAS: 0, RESIDUAL: 0, ACCUMULATE: Number(accumulate) }
    tile(gpu, constants, [dy, dw, x], { rows: n, columns: k, depth: rows, rank: 0, alpha, ...at })
  }
}

function tile(gpu: Gpu, constants: Record<string, number>, bindings: Binding[], params: Record<string, number>): void {
  const kernel = gpu.kernel(tilePath, { ACCUMULATE: 0, ...constants })
  gpu.dispatch(kernel, bindings, params, [Math.ceil(params.columns / 64), Math.ceil(params.rows / 64)])
}

function bufferOf(slice: WeightSlice): GpuBuffer | BufferRange {
  if (slice.texture) throw new Error('the register tile reads weights from buffers')
  return slice.storage as GpuBuffer | BufferRange
}
