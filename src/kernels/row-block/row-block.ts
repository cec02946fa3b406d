/**
 * All of a layer except attention in two kernels, for CPU drivers: what comes before attention (qkv_cpu.wgsl) and what comes after it (mlp_cpu.wgsl).
 * Neither mixes rows, so a workgroup takes a block of rows through one product after the other. The products of a narrow model are so short that such
 * a driver takes longer to begin and end a dispatch with all its threads than to compute one. These kernels save eight dispatches per layer, with the
 * same bits as separate ones.
 */
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { kvConstants, type CacheData } from '../common/kv-texture.ts'
import { cpuLanes, heldOf } from '../common/lanes.ts'
import type { Weight } from '../common/weight.ts'
import type { Gate } from '../elementwise/elementwise.ts'
import type { InputNorm } from '../matmul/group.ts'
import { takesNormRope } from '../rope/rope.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { qkv: file('qkv_cpu.wgsl'), mlp: file('mlp_cpu.wgsl') }

/** A projection with the matrices of its adapter, A (rank, K) and B (N, rank), in one bank. */
export interface BlockProjection {
  weight: Weight
  lora?: { a: BufferRange; b: BufferRange; rank: number; scale: number }
}

/** Limit of the bytes of a layer's weights: every thread of the driver reads all of them, so they should (nearly) fit its own cache. */
const mostBytes = 2.5 * 2 ** 20
/** Widest input that is normalised, as each lane keeps its part of the block's rows. */
const mostHidden = 384
/** Highest rank, as the block's x Aᵀ stay in registers. */
const mostRank = 16
/**
 * Microseconds that a thread takes for a block of `height` rows and a million weights, and those that the saved dispatches would take (bench/LOG.md).
 * Only their ratio matters.
 */
const costs = [
  { height: 4, cost: 400 },
  { height: 8, cost: 600 },
  { height: 16, cost: 950 },
]
const dispatches = 270

/**
 * Rows per workgroup for a layer with this many weights: the height with which the driver's threads finish first, or the largest such height.
 * Undefined if sharing each product among all threads is faster.
 */
export function blockRows(rows: number, weights: number, threads = availableParallelism()): number | undefined {
  const ways = costs.map(({ height, cost }) => {
    const blocks = Math.ceil(rows / height)
    return { height, time: Math.ceil(blocks / threads) * cost, shared: (blocks / threads) * cost }
  })
  const { height, time, shared } = ways.reduce((best, way) => (way.time <= best.time ? way : best))
  return ((time - shared) * weights) / 1e6 <= dispatches ? height : undefined
}

/**
 * Rows per workgroup if both kernels take a layer's projections for this many rows. Undefined if they do not, or if separate products are faster.
 * @param groups projections, grouped by those that lie one after the other in one storage: [q, k, v], [o], [gate, up], [down]
 */
export function rowBlocks(
  gpu: Gpu,
  rows: number,
  groups: BlockProjection[][],
  { headDim, cache }: { headDim: number; cache: CacheData },
): number | undefined {
  const all = groups.flat()
  const [q, k] = groups[0].map(({ weight }) => weight)
  const [hidden, inner] = [q.columns, groups[3][0].weight.columns]
  const weights = all.reduce((sum, { weight }) => sum + weight.rows * weight.columns, 0)
  const { lora } = all[0]
  const alike = all.every(
    (one) => one.lora?.rank === lora?.rank && one.lora?.a.buffer === lora?.a.buffer && one.lora?.b.buffer === lora?.a.buffer,
  )
  const suit = q.rows % 64 === 0 && k.rows % 64 === 0 && hidden % 64 === 0 && inner % 32 === 0
  const taken =
    cpuLanes(gpu).LANES === 8 &&
    2 * weights <= mostBytes &&
    hidden <= mostHidden &&
    (lora?.rank ?? 0) <= mostRank &&
    alike &&
    suit &&
    groups.every(together) &&
    'KV_FOLD' in kvConstants(cache) &&
    takesNormRope(gpu, headDim) &&
    gpu.facts.limits.maxStorageBuffers >= 10
  return taken ? blockRows(rows, weights) : undefined
}

/** Whether these weights, one after the other, are all that one bf16 texture holds. */
function together(projections: BlockProjection[]): boolean {
  let at = 0
  const { storage } = projections[0].weight.slices[0]
  return projections.every(({ weight }) => {
    const [slice] = weight.slices
    const here =
      weight.bf16 && slice.texture && slice.panel === 8 && !weight.blocks && slice.storage === storage && slice.row === -at
    at += weight.rows
    return here && weight.slices.length === 1 && slice.rows <= slice.fold * slice.panel
  })
}

/** What comes before attention: what `linearGroup` and then `normRopeIntoCache` compute. */
interface QkvBlock {
  /** Rows per workgroup: 4, 8 or 16. */
  height: number
  x: GpuBuffer
  norm: InputNorm
  /** q, k, v. */
  projections: BlockProjection[]
  /** Norms over the heads of q and of k; undefined if there are none. */
  norms?: InputNorm[]
  /** Output, rotated: (rows, heads * headDim). */
  q: GpuBuffer
  /** Scratch for intermediate results: (rows, kvHeads * headDim) each. */
  between: [GpuBuffer, GpuBuffer]
  slots: GpuBuffer
  table: GpuBuffer
  kCache: CacheData
  vCache: CacheData
  headDim: number
}

/** Computes RMSNorm of x (rows, hidden), q, k and v from it, RMSNorm of the heads of q and k, RoPE, and writes k and v to the cache. */
export function qkvBlock(gpu: Gpu, rows: number, t: QkvBlock): void {
  const [q, k] = t.projections.map(({ weight }) => weight)
  const { base, params, bank, groups } = common(gpu, rows, q.columns, t)
  const PER_LANE = t.headDim / base.LANES
  const [ofQ, ofK] = t.norms ?? []
  const shape = { PER_LANE, PLAIN: Number(!t.norms), NQ: q.rows, NKV: k.rows }
  const kernel = gpu.kernel(paths.qkv, { ...base, ...shape, ...kvConstants(t.kCache) })
  const into = [t.q, ...t.between, t.slots, t.table, t.kCache, t.vCache]
  const gains = t.norms ? [ofQ.gain, ofK.gain] : []
  const bindings: Binding[] = [t.x, t.norm.gain, q.slices[0].storage, ...into, ...gains, ...bank]
  const heads = { heads: q.rows / t.headDim, kv_heads: k.rows / t.headDim, eps_q: ofQ?.eps ?? 0, eps_k: ofK?.eps ?? 0 }
  gpu.dispatch(kernel, bindings, { ...params, ...heads }, groups)
}

/** What comes after attention. */
interface MlpBlock {
  /** Rows per workgroup: 4, 8 or 16. */
  height: number
  /** Output of attention: (rows, heads * headDim). */
  attended: GpuBuffer
  /** The layer's input, (rows, hidden). */
  residual: GpuBuffer
  /** Norm of the MLP's input. */
  norm: InputNorm
  /** o, gate, up, down. */
  projections: BlockProjection[]
  gate: Gate
  /** (rows, hidden). */
  y: GpuBuffer
  /** Scratch for intermediate results: (rows, inner). */
  gated: GpuBuffer
}

/** y = m + down(act(gate(n)) * up(n)), m = residual + o(attended), n = RMSNorm(m). */
export function mlpBlock(gpu: Gpu, rows: number, t: MlpBlock): void {
  const [o, gate, , down] = t.projections.map(({ weight }) => weight)
  const { base, params, bank, groups } = common(gpu, rows, o.rows, t)
  const kernel = gpu.kernel(paths.mlp, { ...base, A: o.columns, I: down.columns, GELU: Number(t.gate === 'gelu') })
  const storages = [o, gate, down].map(({ slices }) => slices[0].storage)
  gpu.dispatch(kernel, [t.attended, t.residual, t.y, t.gated, t.norm.gain, ...storages, ...bank], params, groups)
}

function common(gpu: Gpu, rows: number, hidden: number, { height: MT, norm, projections }: QkvBlock | MlpBlock) {
  const params: Record<string, number> = { rows, k: hidden, eps: norm.eps }
  projections.forEach(({ lora }, i) => {
    params[`a_${i}`] = (lora?.a.offset ?? 0) / 16
    params[`b_${i}`] = (lora?.b.offset ?? 0) / 16
    params[`scale_${i}`] = lora?.scale ?? 0
  })
  const { lora } = projections[0]
  const base = {
    ...cpuLanes(gpu),
    ...heldOf(gpu, MT, 8),
    SUBGROUP: 1,
    MT,
    NT: 8,
    H: hidden,
    LORA: (lora?.rank ?? 0) / 8,
  } satisfies Constants
  return { base, params, bank: lora ? [lora.a.buffer] : [], groups: [Math.ceil(rows / MT)] as [number] }
}
