/**
 * Projections of one input in one dispatch: q, k and v, and gate and up with the product that follows them. Each output has the bits of its own `linear`, on
 * every tier: CPU drivers (group_cpu.wgsl), the register tile (group_tile.wgsl), matrix units (group_units.wgsl). On GPUs LoRA's first product and RMSNorm of
 * the input go along too.
 */
import { rangeOf, type Binding, type BufferRange, type Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'
import type { CacheData } from '../common/kv-texture.ts'
import { liesBelow, type Weight, type WeightBlocks } from '../common/weight.ts'
import type { Gate } from '../elementwise/elementwise.ts'
import { widen } from '../quantised/quantised.ts'
import { readsBlocks } from './blocks.ts'
import { takesCpu } from './cpu.ts'
import * as cpu from './group-cpu.ts'
import * as tile from './group-tile.ts'
import * as units from './group-units.ts'

/** One projection of a group: a weight of `allocateTogether`, with the bias and B (N, rank) of an adapter where it has them. */
export interface GroupMember {
  weight: Weight
  bias?: GpuBuffer | BufferRange
  b?: BufferRange
}

/** Scaled x A of each member, (rows, rank): in buffers of their own on CPU drivers, else in one as of `downRanges`. */
export interface GroupLora {
  xa: (GpuBuffer | BufferRange)[]
  rank: number
}

/** RMSNorm of the rows of the input: `gain` (K). */
export interface InputNorm {
  gain: Binding
  eps: number
}

/**
 * RoPE of q and k by the kernel of q, k and v: `table` (positions, headDim / 2) of (cos, sin). Of `places`, `perRow` vec2u a row:
 * - 1: (rows) cache row and position. The outputs of k, turned, and v are then caches (cache rows, N_s), on CPU drivers in textures as of `kvTextures` too.
 * - 2: `info` of attention, of which only the position is read. The outputs are rows like those of q.
 */
export interface GroupRotary {
  places: GpuBuffer
  perRow: 1 | 2
  table: GpuBuffer
  headDim: number
}

/** A group as the tiers take it: of one output where it is gated, and on CPU drivers of three where what is multiplied is kept. */
export interface GroupCall {
  x: GpuBuffer
  rows: Count
  members: GroupMember[]
  ys: CacheData[]
  lora?: GroupLora
  /** What the members multiply in f16, (rows, K), where LoRA's first products or a norm have left it for matrix units (`takesHalf`). */
  half?: GpuBuffer
  norm?: InputNorm
  rotary?: GroupRotary
  /** Of each member, where they are read in place of its values: on the register tile. */
  blocks?: WeightBlocks[]
  /** Of the first of a gated pair. Default: silu. */
  gate?: Gate
  /** What a gated pair gives is in f16, as products on matrix units read it (`takesHalf`): where it runs on them. */
  narrow?: boolean
}

export type GroupTier = 'cpu' | 'tile' | 'units'

/** Which kernel does these in one dispatch: their weights lie in one storage, their biases in one buffer, their B in one bank. Undefined where none does. */
export function groupTier(gpu: Gpu, members: GroupMember[], gated: boolean): GroupTier | undefined {
  const [{ weight, bias, b }] = members
  const [slice] = weight.slices
  const together =
    members.length > 1 &&
    slice.row === 0 &&
    members.slice(1).every((m, i) => liesBelow(members[i].weight, m.weight)) &&
    members.every((m) => (m.bias && rangeOf(m.bias).buffer) === (bias && rangeOf(bias).buffer)) &&
    members.every((m) => m.b?.buffer === b?.buffer)
  if (!together || members.length > 3 || (gated && members.length !== 2)) return undefined
  if (slice.texture) return takesCpu(gpu, weight.columns) && (gated || members.length === 3) ? 'cpu' : undefined
  const by = members.map((m) => units.takesUnitsGroup(gpu, m.weight))
  if (by.every((takes) => takes)) return gated && !units.halves(gpu) ? undefined : 'units'
  // As a matmul of its own each would run on CPU kernels, or some of them on matrix units.
  return takesCpu(gpu, weight.columns) || by.some((takes) => takes) ? undefined : 'tile'
}

/** Rows up to which a group normalises its input itself. */
export const normRows = 32

/**
 * Whether a group does RMSNorm of its input as a prologue. Every column tile repeats it for its rows, so only where the rows are one tile of the lowest kind: x, read once more, is then at
 * most as many bytes as the tile's weights, and a multiply-add of the norm's sum stands beside 32 and more of the projection. It changes no bit. Matrix units
 * read x in f16, normalised already.
 */
export function takesNorm(
  gpu: Gpu,
  tier: GroupTier,
  members: GroupMember[],
  rows: Count,
  { gated = members.length === 2, rotary = false } = {},
): boolean {
  const buffers = 1 + buffersOf(members, gated) + (rotary ? 2 : 0)
  return tier === 'tile' && capacityOf(rows) <= normRows && buffers <= gpu.facts.limits.maxStorageBuffers
}

/** Storage buffers that a group's kernel binds on GPUs, at the least. */
const buffersOf = (members: GroupMember[], gated: boolean): number =>
  2 + (gated ? 1 : members.length) + (members[0].b ? 2 : 0) + (members[0].bias ? 1 : 0)

/**
 * Whether a group's kernel turns q and k too, and writes k and v into a cache of float32. Both halves of a head must be whole columns of one invocation: vectors of
 * 8 on CPU drivers, fragments of matrix units; and angles and places must be bound besides.
 */
export function takesRotary(gpu: Gpu, tier: GroupTier, members: GroupMember[], headDim: number): boolean {
  if (members.length !== 3 || members.some(({ weight }) => weight.rows % headDim !== 0)) return false
  if (tier === 'cpu') return headDim % 16 === 0
  return (tier === 'tile' || units.halves(gpu)) && buffersOf(members, false) + 2 <= gpu.facts.limits.maxStorageBuffers
}

/**
 * y_s = x W_sᵀ + xa_s B_sᵀ + bias_s for three members, on GPUs also for two; where `groupTier` has one for them.
 * @param x (rows, K) @param ys (rows, N_s) each @param norm of x, where `takesNorm` @param rotary where `takesRotary`
 * @param half as of `GroupCall`; x is not read then
 */
export function linearGroup(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  members: GroupMember[],
  ys: CacheData[],
  lora?: GroupLora,
  { norm, half, rotary }: { norm?: InputNorm; half?: GpuBuffer; rotary?: GroupRotary } = {},
): void {
  run(gpu, { x, rows, members, ys, lora, half, norm, rotary }, groupTier(gpu, members, false))
}

/**
 * y = silu(g) * u, or gelu(g) * u, where g and u are x W_sᵀ + xa_s B_sᵀ + bias_s of two members of one width. Parameters as of `linearGroup`.
 * @param options.kept get g and u, which a backward pass reads: on CPU drivers alone @param options.narrow as of `GroupCall`
 */
export function linearGated(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  members: GroupMember[],
  y: GpuBuffer,
  lora?: GroupLora,
  options: Pick<GroupCall, 'norm' | 'half' | 'gate' | 'narrow'> & { kept?: GpuBuffer[] } = {},
): void {
  const { kept = [], ...more } = options
  run(gpu, { x, rows, members, ys: [y, ...kept], lora, ...more }, groupTier(gpu, members, true))
}

/** The members' blocks where the group reads those: all of one format, which the kernel is made for, and the adapter binds each. */
function blocksOf(gpu: Gpu, { members, ys, rows, norm, rotary }: GroupCall): WeightBlocks[] | undefined {
  const columns = members.reduce((sum, { weight }) => sum + weight.rows, 0)
  const blocks = members.flatMap(({ weight }) => weight.blocks ?? [])
  const buffers = buffersOf(members, ys.length === 1) + members.length - 1 + (norm ? 1 : 0) + (rotary ? 2 : 0)
  const alike = blocks.length === members.length && blocks.every(({ format }) => format === blocks[0].format)
  const reads = alike && buffers <= gpu.facts.limits.maxStorageBuffers && readsBlocks(gpu, members[0].weight, rows, columns)
  return reads ? blocks : undefined
}

function run(gpu: Gpu, call: GroupCall, tier: GroupTier | undefined): void {
  if (!tier) throw new Error('these projections are no group')
  const blocks = tier === 'tile' ? blocksOf(gpu, call) : undefined
  if (!blocks) for (const { weight } of call.members) widen(gpu, weight)
  if (tier === 'cpu') cpu.run(gpu, call)
  else if (tier === 'tile') tile.run(gpu, { ...call, blocks })
  else units.run(gpu, call)
}
