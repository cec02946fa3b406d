/** Groups of projections on the register tile of GPUs, and the first LoRA product of a group. */
import { fileURLToPath } from 'node:url'
import { rangeOf, type Binding, type BufferRange, type Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { lanes } from '../common/lanes.ts'
import { kindOf } from '../common/weight.ts'
import { downParams, takesThin, thinForward, type ThinForward } from '../lora/thin.ts'
import { blockConstants } from '../quantised/quantised.ts'
import { takesCpu } from './cpu.ts'
import type { GroupCall } from './group.ts'
import { bufferOf } from './part.ts'
import { tileConstants, tileFor } from './register-tile.ts'
import type { Tile } from './tiles.ts'

const path = fileURLToPath(new URL('group_tile.wgsl', import.meta.url))

/**
 * The variant of a group's kernel: its epilogues, and its norm as a prologue (norm_rows.wgsl, with `ofThreads` threads), which gives a row the same
 * lanes as rms_norm.wgsl.
 */
export function variantOf(gpu: Gpu, call: Omit<GroupCall, 'x'>, tileRows: number, ofThreads: number): Constants {
  const { rows, members, ys, lora, norm, rotary, gate } = call
  const GATED = Number(ys.length === 1 && members.length > 0)
  const paired = { GATED, ROPE: Number(!!rotary), PAIRED: GATED || Number(!!rotary), ...(rotary && { HALF: rotary.headDim / 2 }) }
  const flags = { ...paired, GELU: Number(gate === 'gelu'), LORA: Number(!!lora), BIAS: Number(!!members[0]?.bias) }
  if (!norm) return { ...flags, OUTPUTS: ys.length, NORM: 0 }
  const { LANES, SUBGROUP } = lanes(gpu)
  // Two variants at most: one round, if all rows have lanes of their own at the same time, or as many rounds as a whole tile takes.
  const atOnce = ofThreads / LANES
  const NORM_ROUNDS = capacityOf(rows) <= atOnce ? 1 : Math.ceil(tileRows / atOnce)
  const NORM_AHEAD = Math.ceil(16 / NORM_ROUNDS)
  const lanesOfRows = {
    NORM_LANES: LANES,
    NORM_SUBGROUP: SUBGROUP,
    NORM_ROWS: atOnce,
    NORM_ROUNDS,
    NORM_AHEAD,
    THREADS: ofThreads,
  }
  return { ...flags, OUTPUTS: ys.length, NORM: 1, ...lanesOfRows }
}

/** Parameters: where the members' parts of `bank` and of the biases begin, how far apart their xa are, and how many entries of `places` a row has. */
export function placesOf({ members, lora, rotary }: GroupCall): Record<string, number> {
  const params: Record<string, number> = { rank: lora?.rank ?? 0, xa_stride: 0, per_row: rotary?.perRow ?? 0 }
  if (lora) params.xa_stride = (rangeOf(lora.xa[1]).offset - rangeOf(lora.xa[0]).offset) / 4
  for (let s = 0; s < 3; s++) {
    const member = members[s]
    params[`n_${s}`] = member?.weight.rows ?? 0
    params[`b_${s}`] = (member?.b?.offset ?? 0) / 4
    params[`c_${s}`] = member?.bias ? rangeOf(member.bias).offset / 4 : 0
  }
  return params
}

/** Inputs and outputs of a group in the order of its kernels' bindings. */
export function bindingsOf(x: Binding, { members: [{ weight, bias, b }], ys, lora, norm, rotary, blocks }: GroupCall): Binding[] {
  const [w, ...ws] = blocks?.map(({ storage }) => storage) ?? [bufferOf(weight.slices[0])]
  const more: Binding[] = lora ? [b!.buffer, rangeOf(lora.xa[0]).buffer] : []
  if (bias) more.push(rangeOf(bias).buffer)
  if (norm) more.push(norm.gain)
  if (rotary) more.push(rotary.places, rotary.table)
  return [x, w, ...ys, ...more, ...ws]
}

/** Workgroups across. In a gated group each has the same number of columns of both members. */
export function acrossOf({ members, ys }: GroupCall, columns: number): number {
  if (ys.length === 1) return Math.ceil(members[0].weight.rows / (columns / 2))
  return members.reduce((sum, { weight }) => sum + Math.ceil(weight.rows / columns), 0)
}

/**
 * The constants of a tile in a group. PART: neighbouring columns that are divided between the two members of a pair. 4 if a thread has 4 neighbouring
 * columns, else the whole tile, as 4 of a thread's 8 columns are in each half of it.
 */
function shapeOf(gpu: Gpu, tile: Tile, inFours: boolean): Constants {
  const shape = tileConstants(gpu, tile)
  return { ...shape, PART: shape.RN === 4 ? 4 : tile.columns, FORM_NT: 1, FORM_TN: 0, VEC: Number(inFours) }
}

/** Runs a group. */
export function run(gpu: Gpu, call: GroupCall): void {
  const { rows, members, norm, blocks } = call
  const [{ weight }] = members
  const columns = members.reduce((sum, { weight: { rows: n } }) => sum + n, 0)
  const inFours = weight.columns % 4 === 0
  const tile = tileFor(gpu, rows, columns, 1, inFours)
  const shape = shapeOf(gpu, tile, inFours)
  const variant = variantOf(gpu, call, tile.rows, shape.THREADS)
  const kind: Constants = blocks ? { W_BF16: 0, W_BLOCKS: blocks.length, ...blockConstants(blocks[0].format) } : kindOf(weight)
  const kernel = gpu.kernel(path, { ...shape, ...kind, DOWN: 0, STACKED: 0, ...variant })
  const params = { rows, k: weight.columns, eps: norm?.eps ?? 0, ...placesOf(call) }
  gpu.dispatch(kernel, bindingsOf(call.x, call), params, [acrossOf(call, tile.columns), groupsOf(rows, tile.rows)])
}

/** Distance in values between the starts of two xa of a group, rounded up so that each can be bound separately. */
export const downStride = (rows: Count, rank: number): number => Math.ceil((capacityOf(rows) * rank) / 64) * 64

/** The xa of `count` members in one buffer of `count * downStride(rows, rank)` values. */
export function downRanges(buffer: GpuBuffer, rows: Count, rank: number, count: number): BufferRange[] {
  const bytes = downStride(rows, rank) * 4
  return Array.from({ length: count }, (_, s) => ({ buffer, offset: s * bytes, bytes }))
}

/** Whether `groupDown` gives the bits of a separate matmul for each of these matrices. */
export function takesDown(gpu: Gpu, k: number, matrices: BufferRange[]): boolean {
  return !takesCpu(gpu, k) && matrices.length > 1 && matrices.every(({ buffer }) => buffer === matrices[0].buffer)
}

/** Whether the rows and starts of matrices with K columns are aligned to vec4. */
const areInFours = (k: number, matrices: BufferRange[]): boolean =>
  k % 4 === 0 && matrices.every(({ offset }) => offset % 16 === 0)

/** Whether `groupDown` uses the kernel of thin.ts, which can also write x normalised and in f16. */
export const takesThinDown = (gpu: Gpu, k: number, matrices: BufferRange[]): boolean =>
  takesThin(gpu, k) && areInFours(k, matrices)

/**
 * LoRA's first product of two or three members on GPUs, in one dispatch: scale_s * x A_sᵀ, with the bits of `linear`.
 * @param x (rows, K) @param parts A_s (rank, K), all in one bank @param xa as from `downRanges`
 * @param more as for `thinForward`; `norm` and `half` only if `takesThinDown`
 */
export function groupDown(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  { k, rank, parts }: { k: number; rank: number; parts: { a: BufferRange; scale: number }[] },
  xa: GpuBuffer,
  more: Pick<ThinForward, 'stacked' | 'norm' | 'half'> = {},
): void {
  const matrices = parts.map(({ a }) => a)
  const places = parts.map(({ a, scale }) => ({ at: a.offset / 4, scale }))
  const stride = downStride(rows, rank)
  if (takesThinDown(gpu, k, matrices))
    return thinForward(gpu, x, rows, { k, rank, parts: places }, matrices[0].buffer, { xa, stride }, more)
  const { stacked } = more
  const tile = tileFor(gpu, rows, parts.length * rank)
  const shape = shapeOf(gpu, tile, areInFours(k, matrices))
  const variant = variantOf(gpu, { rows, members: [], ys: [xa] }, tile.rows, shape.THREADS)
  const kernel = gpu.kernel(path, { ...shape, W_BF16: 0, DOWN: 1, STACKED: Number(!!stacked), ...variant })
  const params = { rows, k, n: rank, xa_stride: stride, ...downParams(places, stacked) }
  const bindings: Binding[] = [x, matrices[0].buffer, xa]
  if (stacked) bindings.push(stacked.places, stacked.scales)
  const across = parts.length * Math.ceil(rank / tile.columns)
  gpu.dispatch(kernel, bindings, params, [across, groupsOf(rows, tile.rows)])
}
