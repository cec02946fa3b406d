/**
 * The way back of several linear layers of one input, as if they were one, for CPU drivers: the gradients of their outputs lie side by side in one texture (stage.ts)
 * and their weights one below the other in another, so that dX is one sum over all of them, and dW one dispatch where the weights' gradients are one range of a bank.
 * A dispatch less is some 50 us less for such a driver, and dx is not read and written again for each layer.
 */
import { follows, rangeOf, type BufferRange, type Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, within, type Count } from '../../gpu/size.ts'
import { cpuLanes } from '../common/lanes.ts'
import { liesBelow, weightConstants, weightParams, type Weight } from '../common/weight.ts'
import { cachedBytes, inputTile, paths, stagedBackwardWeight, takesCpu } from './cpu.ts'
import { panelColumns, panelsOf, stagePanels, type Rows } from './stage.ts'

/** Gradients of the outputs, (rows, N_i), of layers with the weights (N_i, K). */
export interface JointGradients {
  dys: GpuBuffer[]
  rows: Count
  weights: Weight[]
}

const columnsOf = (weights: Weight[]): number => weights.reduce((sum, { rows }) => sum + rows, 0)

/**
 * Whether layers go back together: weights of `allocateTogether` in a texture, in whole panels, with no more columns than are staged of the most rows. It depends on the
 * shapes alone, as dX has other bits than of one layer after the other.
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

/** dx (+)= the sum of dy_i W_i, (rows, K); where `takesJoint`. */
export function jointBackwardInput(gpu: Gpu, gradients: JointGradients, dx: GpuBuffer, accumulate: boolean): void {
  const { rows, weights } = gradients
  const [weight] = weights
  const [slice] = weight.slices
  const { LANES, WIDE } = cpuLanes(gpu)
  const [k, n, many] = [weight.columns, columnsOf(weights), capacityOf(rows)]
  const MT = inputTile(gpu, many)
  const flags = { LORA: 0, ACCUMULATE: Number(accumulate), BY4: 1, DY_TEX: 1, PANELS: 1, TURN: MT <= 24 ? 2 : 1 }
  const kernel = gpu.kernel(paths.nn, { LANES, WIDE, MT, ...flags, ...weightConstants(weight, slice, 2) })
  const rowsFirst = n * k * 2 > cachedBytes
  const across = Math.ceil(k / (8 * LANES))
  const most = panelsOf(gpu, rows).rows
  for (let row0 = 0; row0 < many; row0 += most) {
    const count = within(rows, row0, most)
    const { texture, height } = stagePanels(gpu, operands(gradients), row0, count, 'dy')
    const own = { row0, rows: map(count, (m) => row0 + m), rows_first: Number(rowsFirst), dy_height: height }
    const place = { w_row: -slice.row, dy_stride: n, dy_column: 0, ...weightParams(weight, slice) }
    const down = groupsOf(count, MT)
    const params = { n, k, rank: 0, alpha: 1, ...place, ...own }
    gpu.dispatch(kernel, [texture, dx, slice.storage], params, rowsFirst ? [down, across] : [across, down])
  }
}

/** dW_i += dy_iᵀ x; x (rows, K); where `takesJoint`. `dws` (N_i, K) in one dispatch, where each begins where the one before it ends. */
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
