/** Parts of the output head: statistics of vocabulary slices, log-probabilities, and the gradient of a slice. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'
import { sliceRows } from '../common/weight.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  slice: file('softmax_slice.wgsl'),
  part: file('softmax_part.wgsl'),
  join: file('softmax_join.wgsl'),
  finish: file('finish.wgsl'),
  dlogits: file('dlogits.wgsl'),
}

/** The slices in which a vocabulary is processed. They depend on its size alone, so that all users of the head sum in the same order. */
export function vocabularySlices(vocabulary: number): { row: number; rows: number }[] {
  const slices: { row: number; rows: number }[] = []
  for (let row = 0; row < vocabulary; row += sliceRows) slices.push({ row, rows: Math.min(sliceRows, vocabulary - row) })
  return slices
}

/** Number of 32-bit words for the statistics of a row of logits: four, and on GPUs also four for each slice. */
export function statisticsWords(gpu: Gpu, vocabulary: number): number {
  return gpu.facts.software ? 4 : 4 * (1 + Math.ceil(vocabulary / sliceRows))
}

interface ScoredRows {
  /** (rows, stride) float32. */
  logits: Binding
  /** (rows) u32. With a temperature per row, they may lie in the buffer of `logprobs`. */
  targets: Binding
  /**
   * Room for `statisticsWords` per row. Afterwards it begins with four words for each row, one row after the other: maximum, sum, weighted sum,
   * target's logit.
   */
  stats: GpuBuffer
  logprobs: Binding
  entropy: Binding
  lse: Binding
}

export interface ScoreOptions {
  rows: Count
  vocabulary: number
  /** Length of a row of logits. Default: the vocabulary. */
  stride?: number
  /** Row of logprobs, entropy and lse to which the first row's results go. */
  first?: number
  /** Factor of the logits: a number, or (rows) float32, in which 0 skips the row. */
  inverseTemperature: number | Binding
}

/**
 * Log-probabilities of `targets`, entropies and log-sum-exps of rows of logits. On CPU drivers, the slices of a row are folded one after the other;
 * on GPUs, each slice has its own workgroup and the results are merged. The bits do not depend on the other rows, nor on whether temperatures are
 * given per row.
 */
export function scoreRows(gpu: Gpu, t: ScoredRows, at: ScoreOptions): void {
  const { rows, vocabulary, stride = vocabulary, first = 0, inverseTemperature } = at
  const byRow = typeof inverseTemperature !== 'number'
  const extra = byRow ? [inverseTemperature] : []
  const inv_temperature = byRow ? 1 : inverseTemperature
  if (!gpu.facts.software) {
    const slices = Math.ceil(vocabulary / sliceRows)
    const params = { rows, n: vocabulary, stride, slices, inv_temperature, first }
    const BY_ROW = Number(byRow)
    const part = gpu.kernel(paths.part, { ...lanes(gpu, true), BY_ROW, SLICE: sliceRows })
    gpu.dispatch(part, [t.logits, t.stats, ...extra], params, [...perRow(rows), slices])
    // With a temperature per row, a sampler's targets lie in the buffer of its logprobs, and no dispatch may read and write one.
    const FINISH = Number(!byRow)
    const outs = FINISH ? [t.logprobs, t.entropy, t.lse] : []
    const join = gpu.kernel(paths.join, { ...lanes(gpu), BY_ROW, FINISH })
    gpu.dispatch(join, [t.logits, t.targets, t.stats, ...outs, ...extra], params, perRow(rows))
    if (!FINISH) dispatchFlat(gpu, paths.finish, {}, [t.stats, t.logprobs, t.entropy, t.lse], { rows, first }, rows)
    return
  }
  const foldSlices = (flags: Record<string, number>, bindings: Binding[], params: Record<string, number>): void => {
    const kernel = gpu.kernel(paths.slice, { ...lanes(gpu, true), ...flags })
    gpu.dispatch(kernel, bindings, { rows, stride, inv_temperature, ...params }, perRow(rows))
  }
  if (byRow) {
    const params = { n: vocabulary, column: 0, first: 0, slice: sliceRows }
    foldSlices({ FIRST: 1, BY_ROW: 1 }, [t.logits, t.stats, t.targets, inverseTemperature], params)
  } else {
    for (const { row, rows: n } of vocabularySlices(vocabulary)) {
      const flags = { FIRST: Number(row === 0), BY_ROW: 0 }
      foldSlices(flags, [t.logits, t.stats, t.targets], { n, column: row, first: row, slice: 0 })
    }
  }
  dispatchFlat(gpu, paths.finish, {}, [t.stats, t.logprobs, t.entropy, t.lse], { rows, first }, rows)
}

/**
 * Turns logits (rows, stride), by default (rows, slice.rows), into the gradient of the loss, in place. targets, lse, coefficient and entropy start at
 * row `firstRow`. The gradient is that of the logits before they were multiplied by `at.scale`. `bonus`: the loss has this much of each token's
 * entropy subtracted.
 */
export function logitsBackward(
  gpu: Gpu,
  t: { logits: GpuBuffer; targets: GpuBuffer; lse: GpuBuffer; coefficient: GpuBuffer },
  at: {
    rows: Count
    firstRow: number
    slice: { row: number; rows: number }
    stride?: number
    inverseTemperature: number
    scale?: number
  },
  bonus?: { weight: Count; entropy: GpuBuffer },
): void {
  const { row: first, rows: n } = at.slice
  const { stride = n, inverseTemperature: inv_temperature, scale = 1 } = at
  const params = { rows: at.rows, n, stride, first, first_row: at.firstRow, inv_temperature, slope: inv_temperature * scale }
  const VEC4 = Number(stride % 4 === 0 && Math.ceil(n / 4) * 4 <= stride)
  const RAGGED = Number(VEC4 && n % 4 !== 0)
  const PER = gpu.facts.software ? 16 : 4
  const kernel = gpu.kernel(paths.dlogits, { VEC4, RAGGED, PER, ENTROPY: Number(!!bonus) })
  const [down, beyond] = perRow(at.rows)
  const bindings = [t.logits, t.targets, t.lse, t.coefficient, ...(bonus ? [bonus.entropy] : [])]
  gpu.dispatch(kernel, bindings, bonus ? { ...params, entropy_weight: bonus.weight } : params, [
    Math.ceil(n / (1 + 3 * VEC4) / (64 * PER)),
    down,
    beyond,
  ])
}
