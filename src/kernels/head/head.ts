/** Pieces of the output head: statistics of vocabulary slices, log-probabilities, and the gradient of a slice. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'
import { sliceRows } from '../common/weight.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  slice: file('softmax_slice.wgsl'),
  pick: file('pick.wgsl'),
  finish: file('finish.wgsl'),
  dlogits: file('dlogits.wgsl'),
}

/** The slices in which every vocabulary is walked: fixed by its size, so that all users of the head sum in the same order. */
export function vocabularySlices(vocabulary: number): { row: number; rows: number }[] {
  const slices: { row: number; rows: number }[] = []
  for (let row = 0; row < vocabulary; row += sliceRows) slices.push({ row, rows: Math.min(sliceRows, vocabulary - row) })
  return slices
}

export interface SliceTensors {
  logits: Binding
  stats: GpuBuffer
  /** Keeps the target's logit as the slices go by. */
  targets?: Binding
}

/** Folds the slice (tokens row .. row + n) that lies in columns column .. of `logits` (rows, stride) into `stats` (rows, 4). */
export function softmaxSlice(
  gpu: Gpu,
  t: SliceTensors,
  at: { rows: Count; stride: number; column: number; slice: { row: number; rows: number }; inverseTemperature: number },
): void {
  const flags = { FIRST: Number(at.slice.row === 0), PICK: Number(!!t.targets), WHOLE: 0 }
  const bindings = [t.logits, t.stats, ...(t.targets ? [t.targets] : [])]
  const params = { rows: at.rows, n: at.slice.rows, stride: at.stride, column: at.column, first: at.slice.row, slice: 0 }
  const kernel = gpu.kernel(paths.slice, { ...lanes(gpu, true), ...flags })
  gpu.dispatch(kernel, bindings, { ...params, inv_temperature: at.inverseTemperature }, perRow(at.rows))
}

/** Statistics of whole rows of logits (rows, vocabulary), with the bits of `softmaxSlice` over all slices; rows whose inverse temperature is 0 are left out. */
export function softmaxRows(
  gpu: Gpu,
  t: { logits: Binding; stats: GpuBuffer; inverseTemperatures: Binding },
  rows: Count,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.slice, { ...lanes(gpu, true), FIRST: 1, PICK: 0, WHOLE: 1 })
  const params = { rows, n: vocabulary, stride: vocabulary, column: 0, first: 0, slice: sliceRows, inv_temperature: 1 }
  gpu.dispatch(kernel, [t.logits, t.stats, t.inverseTemperatures], params, perRow(rows))
}

/** stats.w = the chosen token's scaled logit; logits (rows, vocabulary). Rows whose inverse temperature is 0 are left out. */
export function pickLogits(
  gpu: Gpu,
  t: { logits: Binding; targets: Binding; inverseTemperatures: Binding; stats: GpuBuffer },
  rows: Count,
  stride: number,
): void {
  dispatchFlat(gpu, paths.pick, {}, [t.logits, t.targets, t.inverseTemperatures, t.stats], { rows, stride }, rows)
}

/** logprobs, entropy and lse (from row `first` on) out of finished statistics. */
export function finishLogprobs(
  gpu: Gpu,
  t: { stats: GpuBuffer; logprobs: Binding; entropy: GpuBuffer; lse: GpuBuffer },
  rows: Count,
  first = 0,
): void {
  dispatchFlat(gpu, paths.finish, {}, [t.stats, t.logprobs, t.entropy, t.lse], { rows, first }, rows)
}

/**
 * Turns logits (rows, stride), by default (rows, slice.rows), into the loss's gradient in place; targets, lse, coefficient and entropy start at row
 * `firstRow`. `bonus`: the loss has so much of each token's entropy taken from it.
 */
export function logitsBackward(
  gpu: Gpu,
  t: { logits: GpuBuffer; targets: GpuBuffer; lse: GpuBuffer; coefficient: GpuBuffer },
  at: { rows: Count; firstRow: number; slice: { row: number; rows: number }; stride?: number; inverseTemperature: number },
  bonus?: { weight: Count; entropy: GpuBuffer },
): void {
  const { row: first, rows: n } = at.slice
  const { stride = n } = at
  const params = { rows: at.rows, n, stride, first, first_row: at.firstRow, inv_temperature: at.inverseTemperature }
  const { software } = gpu.facts
  const [VEC4, PER] = [Number(software && n % 4 === 0 && stride % 4 === 0), software ? 16 : 1]
  const kernel = gpu.kernel(paths.dlogits, { VEC4, PER, ENTROPY: Number(!!bonus) })
  const [down, beyond] = perRow(at.rows)
  const bindings = [t.logits, t.targets, t.lse, t.coefficient, ...(bonus ? [bonus.entropy] : [])]
  gpu.dispatch(kernel, bindings, bonus ? { ...params, entropy_weight: bonus.weight } : params, [
    Math.ceil(n / (1 + 3 * VEC4) / (64 * PER)),
    down,
    beyond,
  ])
}
