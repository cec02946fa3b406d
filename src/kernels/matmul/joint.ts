/**
 * Backward pass, on CPU drivers, of several linear layers with one input as if they were one layer. The gradients of their outputs lie side by side
 * in one texture (stage.ts), and their weights one below the other in another. So dX is one sum over all of them, and dW is one dispatch if the
 * weights' gradients are one range of a bank. Each dispatch saved is worth some 50 us on such a driver, and dx is not read and written again for each
 * layer.
 */
import { follows, rangeOf, type BufferRange, type Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { liesBelow, type Weight } from '../common/weight.ts'
import { backwardInput, stagedBackwardWeight, takesCpu } from './cpu.ts'
import { panelColumns, panelsOf, type Rows } from './stage.ts'

/** Gradients of the outputs, (rows, N_i), of layers with the weights (N_i, K). */
interface JointGradients {
  dys: GpuBuffer[]
  rows: Count
  weights: Weight[]
}

const columnsOf = (weights: Weight[]): number => weights.reduce((sum, { rows }) => sum + rows, 0)

/**
 * Whether these layers go back together: weights of `allocateTogether` in a texture, in whole panels, with no more columns than are staged with the
 * most rows. It depends on shapes alone, as the bits of dX differ from those of one layer after the other.
 */
export function takesJoint(gpu: Gpu, weights: Weight[]): boolean {
  const [{ columns: k, slices, blocks }] = weights
  if (weights.length < 2 || !slices[0].texture || blocks || !takesCpu(gpu, k) || k % panelColumns !== 0) return false
  if (!weights.every(({ rows }) => rows % panelColumns === 0)) return false
  if (!weights.slice(1).every((weight, i) => liesBelow(weights[i], weight))) return false
  return columnsOf(weights) <= panelsOf(gpu, gpu.facts.limits.maxTexture).columns
}

function operands({ dys, rows, weights }: JointGradients): Rows[] {
  return weights.map((weight, i) => ({ data: dys[i], rows, columns: weight.rows }))
}

/** dx (+)= the sum of dy_i W_i, (rows, K). Only if `takesJoint`. */
export function jointBackwardInput(gpu: Gpu, gradients: JointGradients, dx: GpuBuffer, accumulate: boolean): void {
  const { dys, rows, weights } = gradients
  const [weight] = weights
  const n = columnsOf(weights)
  const part = { slice: weight.slices[0], row: 0, rows: n, column: 0, width: n }
  const options = { alpha: 1, rank: 0, flags: { LORA: 0, ACCUMULATE: Number(accumulate) }, extra: [] }
  backwardInput(gpu, dys[0], rows, weight, dx, part, options, operands(gradients))
}

/** dW_i += dy_iᵀ x, with x (rows, K). Only if `takesJoint`. One dispatch for all `dws` (N_i, K) if each begins where the one before it ends. */
export function jointBackwardWeight(gpu: Gpu, gradients: JointGradients, x: GpuBuffer, dws: (GpuBuffer | BufferRange)[]): void {
  const { rows, weights } = gradients
  const ofX: Rows = { data: x, rows, columns: weights[0].columns }
  const options = { alpha: 1, accumulate: true, row: 0 }
  const ranges = dws.map(rangeOf)
  if (ranges.slice(1).every((range, i) => follows(ranges[i], range))) {
    const bytes = ranges.reduce((sum, range) => sum + range.bytes, 0)
    stagedBackwardWeight(gpu, operands(gradients), ofX, { ...ranges[0], bytes }, options)
  } else operands(gradients).forEach((dy, i) => stagedBackwardWeight(gpu, [dy], ofX, dws[i], options))
}
