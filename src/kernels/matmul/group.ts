/**
 * Projections of one input in one dispatch: q, k and v; or gate and up together with the product that follows them. Each output has the bits of its
 * own `linear` on every tier: CPU drivers (group_cpu.wgsl), the register tile (group_tile.wgsl) and matrix units (group_units.wgsl). On GPUs, LoRA's
 * first product and RMSNorm of the input can be part of the dispatch.
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

/** One projection of a group: a weight of `allocateTogether`, its bias if it has one, and B (N, rank) if there is an adapter. */
export interface GroupMember {
  weight: Weight
  bias?: GpuBuffer | BufferRange
  b?: BufferRange
}

/** Scaled x A of each member, (rows, rank): on CPU drivers in separate buffers, else in one buffer as from `downRanges`. */
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
 * RoPE of q and k in the kernel that computes q, k and v. `table` (positions, headDim / 2) holds (cos, sin). `places` has `perRow` vec2u per row:
 * - 1: (cache row, position). The outputs k, rotated, and v are then caches (cache rows, N_s), on CPU drivers possibly textures from `kvTextures`.
 * - 2: `info` of attention, of which only the position is read. The outputs are rows like those of q.
 */
export interface GroupRotary {
  places: GpuBuffer
  perRow: 1 | 2
  table: GpuBuffer
  headDim: number
}

/** A group as the tiers take it. A gated group has one output, or on CPU drivers three if gate and up are kept. */
export interface GroupCall {
  x: GpuBuffer
  rows: Count
  members: GroupMember[]
  ys: CacheData[]
  lora?: GroupLora
  /** The members' input in f16, (rows, K), if LoRA's first products or a norm wrote it for matrix units (`takesHalf`). */
  half?: GpuBuffer
  norm?: InputNorm
  rotary?: GroupRotary
  /** Quantised blocks of each member, if they are read instead of its values: only on the register tile. */
  blocks?: WeightBlocks[]
  /** Activation of the first member of a gated pair. Default: silu. */
  gate?: Gate
  /** Whether a gated pair on matrix units gives its output in f16, as products there read it (`takesHalf`). */
  narrow?: boolean
}

export type GroupTier = 'cpu' | 'tile' | 'units'

/**
 * The kernel that computes these in one dispatch, if their weights lie in one storage, their biases in one buffer and their B in one bank; else
 * undefined.
 */
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
  // As separate matmuls, each would run on CPU kernels, or some of them on matrix units.
  return takesCpu(gpu, weight.columns) || by.some((takes) => takes) ? undefined : 'tile'
}

/** Up to this many rows, a group normalises its input itself. */
export const normRows = 32

/**
 * Whether a group applies RMSNorm to its input as a prologue. Every column tile repeats it for its rows, so it is done only if the rows fit the
 * lowest kind of tile: x, which is read once more, then has at most as many bytes as the tile's weights, and there is one multiply-add of the norm's
 * sum for 32 or more of the projection. It changes no bit. Not on matrix units, which read x in f16, already normalised.
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

/** The fewest storage buffers that a group's kernel binds on GPUs. */
const buffersOf = (members: GroupMember[], gated: boolean): number =>
  2 + (gated ? 1 : members.length) + (members[0].b ? 2 : 0) + (members[0].bias ? 1 : 0)

/**
 * Whether a group's kernel also rotates q and k, and writes k and v into a float32 cache. One invocation must hold both halves of a head in whole
 * columns (vectors of 8 on CPU drivers, fragments on matrix units), and the GPU adapter must bind the angles and places too.
 */
export function takesRotary(gpu: Gpu, tier: GroupTier, members: GroupMember[], headDim: number): boolean {
  if (members.length !== 3 || members.some(({ weight }) => weight.rows % headDim !== 0)) return false
  if (tier === 'cpu') return headDim % 16 === 0
  return (tier === 'tile' || units.halves(gpu)) && buffersOf(members, false) + 2 <= gpu.facts.limits.maxStorageBuffers
}

/**
 * y_s = x W_sᵀ + xa_s B_sᵀ + bias_s for three members, on GPUs also for two, if `groupTier` has a kernel for them.
 * @param x (rows, K) @param ys (rows, N_s) each @param norm of x, if `takesNorm` @param rotary if `takesRotary`
 * @param half as in `GroupCall`; x is not read then
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
 * y = silu(g) * u, or gelu(g) * u, where g and u are x W_sᵀ + xa_s B_sᵀ + bias_s of two members of the same width. Parameters as for `linearGroup`.
 * @param options.kept receive g and u for the backward pass: on CPU drivers only @param options.narrow as in `GroupCall`
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

/**
 * The members' blocks if the group reads them: all must have one format, for which the kernel is specialised, and the GPU adapter must bind each of
 * them.
 */
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
