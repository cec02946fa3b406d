/** AdamW, sums of squares, and the working copy of a trained weight. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { BufferRange } from '../../gpu/gpu.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'
import { weightParams, type Weight } from '../common/weight.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { adamw: file('adamw.wgsl'), squares: file('sum_squares.wgsl'), round: file('round_weight.wgsl') }

export interface AdamWStep {
  learningRate: number
  beta1: number
  beta2: number
  eps: number
  weightDecay: number
  /** 1 for the first step. */
  step: number
  /** Gradients are multiplied by it (clipping by global norm). */
  clip: number
}

/** One AdamW step on elements first .. first + count of flat float32 banks. */
export function adamw(
  gpu: Gpu,
  t: { parameters: GpuBuffer; gradients: GpuBuffer; m: GpuBuffer; v: GpuBuffer },
  range: { first: number; count: number },
  s: AdamWStep,
): void {
  const params = {
    ...range,
    clip: s.clip,
    decay: 1 - s.learningRate * s.weightDecay,
    one_minus_beta1: 1 - s.beta1,
    beta2: s.beta2,
    one_minus_beta2: 1 - s.beta2,
    step_size: s.learningRate / (1 - s.beta1 ** s.step),
    root_correction2: Math.sqrt(1 - s.beta2 ** s.step),
    eps: s.eps,
  }
  dispatchFlat(gpu, paths.adamw, {}, [t.parameters, t.gradients, t.m, t.v], params, range.count)
}

/** Values of a block of `sumSquares`. */
const squaresBlock = 16384

/** Blocks, so values in `partial`, for a bank of `count` values. */
export const sumSquaresBlocks = (count: number): number => Math.ceil(count / squaresBlock)

/** partial[b] = sum of squares of block b of x's first `count` values. */
export function sumSquares(gpu: Gpu, x: GpuBuffer, partial: GpuBuffer, count: number): void {
  gpu.dispatch(
    gpu.kernel(paths.squares, lanes(gpu)),
    [x, partial],
    { count, block: squaresBlock },
    perRow(sumSquaresBlocks(count)),
  )
}

/** Writes the working copy of rows [row, row + rows) of `weight` from its float32 master (rows, K). */
export function roundWeight(gpu: Gpu, master: GpuBuffer | BufferRange, weight: Weight, row: number, rows: number): void {
  const k = weight.columns
  for (const slice of weight.slices) {
    const from = Math.max(row, slice.row)
    const to = Math.min(row + rows, slice.row + slice.rows)
    if (to <= from) continue
    // Two bf16 share a word: a part that starts or ends inside one would take its neighbour's value along.
    const splits = ((from - slice.row) * k) % 2 !== 0 || (((to - from) * k) % 2 !== 0 && to < slice.row + slice.rows)
    if (weight.bf16 && splits) throw new Error(`${weight.label}: rows ${from} .. ${to} of ${k} values begin or end inside a word`)
    const constants = { W_TEX: Number(slice.texture), W_BF16: Number(weight.bf16) }
    const params = { rows: to - from, k, first_row: from - row, w_row: from - slice.row, ...weightParams(weight, slice) }
    const count = slice.texture ? (to - from) * (k / 8) : Math.ceil(((to - from) * k) / (weight.bf16 ? 2 : 1))
    dispatchFlat(gpu, paths.round, constants, [master, slice.storage], params, count)
  }
}
