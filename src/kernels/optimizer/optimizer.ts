/** AdamW, the global norm of the gradients, and the rounded working copy of a trained weight. */
import { fileURLToPath } from 'node:url'
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { cpuLanes, dispatchFlat, lanes, perRow } from '../common/lanes.ts'
import { copyPanels, kindOf, weightParams, type Weight, type WeightSlice } from '../common/weight.ts'
import { BLOCK } from './codes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  adamw: file('adamw.wgsl'),
  adamw8bit: file('adamw_8bit.wgsl'),
  squares: file('sum_squares.wgsl'),
  norm: file('norm.wgsl'),
  round: file('round_weight.wgsl'),
  panels: file('round_panels_cpu.wgsl'),
}

export interface AdamWStep {
  learningRate: number
  beta1: number
  beta2: number
  eps: number
  weightDecay: number
  /** Number of the step; 1 for the first. */
  step: number
}

/** Whether the first moment's mean is computed from the gradient (FROM_G of adamw.wgsl). */
const fromGradient = ({ beta1 }: AdamWStep): boolean => beta1 <= 0.5

const stepParams = (s: AdamWStep): Record<string, number> => ({
  decay: 1 - s.learningRate * s.weightDecay,
  m_weight: fromGradient(s) ? s.beta1 : 1 - s.beta1,
  beta2: s.beta2,
  one_minus_beta2: 1 - s.beta2,
  step_size: s.learningRate / (1 - s.beta1 ** s.step),
  root_correction2: Math.sqrt(1 - s.beta2 ** s.step),
  eps: s.eps,
})

/**
 * One AdamW step on elements first .. first + count of flat float32 banks. `norm` comes from `gradientNorm`; if it is not finite, nothing changes.
 */
export function adamw(
  gpu: Gpu,
  t: { parameters: GpuBuffer; gradients: GpuBuffer; m: GpuBuffer; v: GpuBuffer; norm: GpuBuffer },
  range: { first: number; count: number },
  s: AdamWStep,
): void {
  const bindings = [t.parameters, t.gradients, t.m, t.v, t.norm]
  const fours = range.first % 4 === 0 && range.count % 4 === 0
  const size = fours ? 4 : 1
  const [first, count] = [range.first / size, range.count / size]
  const constants = { VEC4: Number(fours), FROM_G: Number(fromGradient(s)) }
  dispatchFlat(gpu, paths.adamw, constants, bindings, { first, count, ...stepParams(s) }, count)
}

/**
 * `adamw` with both moments in 8 bits, on the first `count` values of flat banks, a multiple of 256. m and v hold four codes per word, `scale` two
 * float32 per block of 256: the largest |m| and the largest v (codes.ts).
 */
export function adamw8bit(
  gpu: Gpu,
  t: { parameters: GpuBuffer; gradients: GpuBuffer; m: GpuBuffer; v: GpuBuffer; scale: GpuBuffer; norm: GpuBuffer },
  count: number,
  s: AdamWStep,
): void {
  if (count % BLOCK !== 0) throw new Error(`${count} values are not whole blocks of ${BLOCK}`)
  const blocks = count / BLOCK
  const kernel = gpu.kernel(paths.adamw8bit, { ...lanes(gpu), FROM_G: Number(fromGradient(s)) })
  const bindings = [t.parameters, t.gradients, t.m, t.v, t.scale, t.norm]
  gpu.dispatch(kernel, bindings, { blocks, ...stepParams(s) }, perRow(blocks))
}

/** Number of values in a block of `sumSquares`. */
const squaresBlock = 16384

/** Number of blocks, and so of values in `partial`, for a bank of `count` values. */
export const sumSquaresBlocks = (count: number): number => Math.ceil(count / squaresBlock)

/** partial[at + b] = sum of squares of block b of x's first `count` values, in the same order on every adapter. */
export function sumSquares(gpu: Gpu, x: GpuBuffer, partial: GpuBuffer, count: number, at = 0): void {
  const kernel = gpu.kernel(paths.squares, lanes(gpu))
  gpu.dispatch(kernel, [x, partial], { count, block: squaresBlock, at }, perRow(sumSquaresBlocks(count)))
}

/**
 * norm = (norm, clip, finite) from the sums of squares partial[0 .. count), like torch.nn.utils.clip_grad_norm_ with max_norm `most`; `norm` has 3
 * values.
 */
export function gradientNorm(gpu: Gpu, partial: GpuBuffer, count: number, most: number, norm: GpuBuffer): void {
  gpu.dispatch(gpu.kernel(paths.norm), [partial, norm], { count, most }, [1])
}

/** Writes the working copy of rows [row, row + rows) of `weight` from its float32 master (rows, K). */
export function roundWeight(gpu: Gpu, master: GpuBuffer | BufferRange, weight: Weight, row: number, rows: number): void {
  const k = weight.columns
  for (const slice of weight.slices) {
    const from = Math.max(row, slice.row)
    const to = Math.min(row + rows, slice.row + slice.rows)
    if (to <= from) continue
    // Two bf16 values share a word: a part that starts or ends inside a word would overwrite its neighbour's value.
    const splits = ((from - slice.row) * k) % 2 !== 0 || (((to - from) * k) % 2 !== 0 && to < slice.row + slice.rows)
    if (weight.bf16 && splits) throw new Error(`${weight.label}: rows ${from} .. ${to} of ${k} values begin or end inside a word`)
    if (takesPanels(slice, from, to, k)) {
      roundPanels(gpu, master, weight, slice, { first: from - row, from: from - slice.row, rows: to - from })
      continue
    }
    const BY8 = Number(!gpu.facts.software && !slice.texture && k % 8 === 0)
    const constants = { W_TEX: Number(slice.texture), ...kindOf(weight), BY8 }
    const params = { rows: to - from, k, first_row: from - row, w_row: from - slice.row, ...weightParams(weight, slice) }
    const values = slice.texture || BY8 ? 8 : weight.bf16 ? 2 : 1
    const count = Math.ceil(((to - from) * k) / values)
    dispatchFlat(gpu, paths.round, constants, [master, slice.storage], params, count)
  }
}

/** Whether rows [from, to) of a texture are whole panels, of a width that a copy can take. */
function takesPanels(slice: WeightSlice, from: number, to: number, k: number): boolean {
  if (!slice.texture || slice.panel < 8 || k % 16 !== 0) return false
  return (from - slice.row) % slice.panel === 0 && ((to - slice.row) % slice.panel === 0 || to === slice.row + slice.rows)
}

/** Bytes that are rounded into a buffer at a time before they are copied. */
const roundedBytes = 4 << 20

/** Rounds rows of the master from `first` on into rows of a texture from `from` on. */
function roundPanels(
  gpu: Gpu,
  master: GpuBuffer | BufferRange,
  weight: Weight,
  slice: WeightSlice,
  { first, from, rows }: { first: number; from: number; rows: number },
): void {
  const k = weight.columns
  const { panel } = slice
  const bytes = k * panel * (weight.bf16 ? 2 : 4)
  const all = Math.ceil(rows / panel)
  const most = Math.min(all, Math.max(1, Math.floor(roundedBytes / bytes)))
  const kernel = gpu.kernel(paths.panels, { LANES: cpuLanes(gpu).LANES, PANEL: panel, W_BF16: Number(weight.bf16) })
  const panels = gpu.pool.acquire(most * bytes, 'rounded panels')
  for (let at = 0; at < all; at += most) {
    const count = Math.min(most, all - at)
    const params = { rows: Math.min(rows - at * panel, count * panel), k, first_row: first + at * panel }
    gpu.dispatch(kernel, [master, panels], params, perRow(count))
    copyPanels(gpu, panels, slice, { first: from / panel + at, count, bytes })
  }
  panels.release()
}
