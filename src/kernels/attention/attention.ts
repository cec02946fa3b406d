/** Causal grouped-query attention over packed sequences: the forward pass for training, prefill and decode, and the backward pass. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { GpuTexture, type GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, times, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { kvConstants, type CacheData } from '../common/kv-texture.ts'
import { cpuLanes, dispatchFlat, lanes } from '../common/lanes.ts'
import { runInLanes } from './row-lanes.ts'
import type { SharedRows } from './shared.ts'
import { grid, runTile, scaleOf, tileOf, workgroups } from './tile.ts'
import { unitsBackward, unitsOf, type UnitShape } from './units.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('forward.wgsl'),
  combine: file('combine.wgsl'),
  delta: file('delta.wgsl'),
  places: file('key_places.wgsl'),
  q: file('backward_q.wgsl'),
  kv: file('backward_kv.wgsl'),
}

export interface HeadShape {
  heads: number
  kvHeads: number
  headDim: number
  /** Factor of the scores. Default: 1 / sqrt(headDim). */
  scale?: number
  /** Number of tokens that a row sees: the last ones, itself included. Default: all tokens up to itself. */
  window?: number
}

/** HG: query heads of one kv head that a workgroup takes together; at most 4, and a divisor of the group. */
type HeadConstants = Constants & { LANES: number; DE: number; C: number; HG: number; WIDE: number }

function constantsOf(gpu: Gpu, { heads, kvHeads, headDim, window = 0 }: HeadShape): HeadConstants {
  const base = lanes(gpu)
  const group = heads / kvHeads
  const HG = [4, 3, 2, 1].find((n) => group % n === 0)!
  const VEC4 = Number(headDim % 4 === 0)
  const DE = VEC4 ? headDim / 4 : headDim
  const ROLLED = Number(gpu.facts.software)
  return {
    LANES: base.LANES,
    SUBGROUP: base.SUBGROUP,
    WIDE: base.WIDE,
    ROLLED,
    VEC4,
    DE,
    C: Math.ceil(DE / base.LANES),
    HEADS: heads,
    KV_HEADS: kvHeads,
    GROUP: group,
    HG,
    WINDOW: window,
    EVEN: Number(DE % base.LANES === 0),
    // On GPUs, the tile kernels for many rows add up weights in a tree of their own.
    TREE: Number(!gpu.facts.software && base.SUBGROUP === 1),
  }
}

/**
 * Neighbouring rows that a workgroup takes together in training, sharing each load: QR query rows, KR key rows. On CPU drivers most of the time goes
 * into loads, and with more than some 24 vectors per lane the unrolled code outgrows the instruction cache. No bit depends on it.
 */
function together(gpu: Gpu, { SUBGROUP, C, HG }: HeadConstants): { QR: number; KR: number } {
  if (!gpu.facts.software || !SUBGROUP) return { QR: 1, KR: C > 4 ? 1 : 2 }
  return { QR: most(24, HG * C), KR: most(16, C) }
}
/** The largest of 8, 4, 2 and 1 for which that many rows of `each` vectors have at most `vectors` in all; at least 1. */
const most = (vectors: number, each: number): number => [8, 4, 2, 1].find((n) => n * each <= vectors) ?? 1
/**
 * PACKED of forward.wgsl: number of vectors of LANES that hold one scalar for each row and head of a workgroup, since on CPU drivers a scalar costs
 * as much as a vector. 0: scalars are not packed.
 */
const packed = (gpu: Gpu, { SUBGROUP, HG, LANES }: HeadConstants, QR: number): number =>
  gpu.facts.software && SUBGROUP ? Math.ceil((QR * HG) / LANES) : 0
/**
 * Whether the kernels with one row or key per lane (row-lanes.ts) take these heads, once their operands are staged in textures: on CPU drivers with
 * subgroups.
 */
const takesRowLanes = ({ facts }: Gpu, { SUBGROUP, VEC4 }: Constants): boolean => facts.software && SUBGROUP === 1 && VEC4 === 1
/**
 * Loads that a GPU's subgroup has in flight in forward.wgsl: AHEAD vectors of a key, UNROLL rows of V. GPUs hide memory latency with many subgroups,
 * and decoding has few. No bit depends on it.
 */
function ahead(gpu: Gpu, { LANES, SUBGROUP, DE, C }: HeadConstants): { AHEAD: number; UNROLL: number } | undefined {
  if (gpu.facts.software || !SUBGROUP) return undefined
  const AHEAD = [32, 16, 8, 4, 2, 1].find((n) => DE % n === 0 && LANES % n === 0)!
  // A row of V is C vectors (counted as at most 8). 32 vectors are 128 registers, which a subgroup can have if it is alone on its processor.
  return { AHEAD, UNROLL: [32, 16, 8, 4].find((n) => n * Math.min(C, 8) <= 32 && n <= LANES)! }
}

/**
 * Keys of a split. In every pass a split has softmax sums of its own, which are then merged into those before it. A multiple of a tile's keys and of
 * a page's.
 */
const SPLIT = 256
/** Number of workgroups that keeps a GPU busy. With fewer, each split of a row's keys gets a workgroup of its own. */
const enough = 512

/**
 * How many splits of a row's keys in a cache get workgroups of their own (split-K), at most. 1: one workgroup goes through all of a row's keys. No
 * bit depends on it.
 */
export function decodeSplits(gpu: Gpu, rows: Count, shape: HeadShape, paged: PagedCache): number {
  // A CPU has few threads, and prompts have many rows.
  if (paged.splits === undefined && (gpu.facts.software || paged.prompts)) return 1
  const many = capacityOf(rows) * shape.heads
  const splits = Math.ceil(paged.longest / SPLIT)
  // The partial outputs of all splits are one binding.
  if (many * splits * shape.headDim * 4 > gpu.facts.limits.maxBinding) return 1
  return (paged.splits ?? many / constantsOf(gpu, shape).HG < enough) ? splits : 1
}

/**
 * Limit of a staging texture in bytes: a few hundredths of the activations of as many rows. Reading from buffers instead, attention takes 1.1 to 1.3
 * times as long with 8 lanes, and many times as long with 16, where shuffles of loaded values are loops (lanes.wgsl).
 */
const maxStaged = 256 << 20
/** The textures of a device, by operand and shape. */
const stages = new WeakMap<Gpu, Map<string, GpuTexture>>()

type Stage = (role: 'q' | 'k' | 'v' | 'dO', data: GpuBuffer) => GpuTexture

/**
 * Copies operands that are read repeatedly to textures, which a CPU driver reads three times as fast as buffers (see matmul/stage.ts). Undefined if
 * that is impossible: another adapter, rows that are no multiple of 256 bytes, or more than a texture holds.
 */
function stageOf(gpu: Gpu, rows: Count, { heads, kvHeads, headDim }: HeadShape): Stage | undefined {
  const { limits } = gpu.facts
  const height = Math.max(16, 2 ** Math.ceil(Math.log2(capacityOf(rows))))
  const widest = heads * headDim
  if (cpuLanes(gpu).LANES === 0 || headDim % 32 !== 0 || (kvHeads * headDim) % 64 !== 0 || widest % 64 !== 0) return undefined
  if (height > limits.maxTexture || widest / 4 > limits.maxTexture || height * widest * 4 > maxStaged) return undefined
  const own = stages.get(gpu) ?? new Map<string, GpuTexture>()
  stages.set(gpu, own)
  return (role, data) => {
    const columns = (role === 'k' || role === 'v' ? kvHeads : heads) * headDim
    const key = `${role},${columns},${height}`
    const known = own.get(key)
    const texture = known && !known.released ? known : gpu.pool.staging(columns / 4, height)
    own.set(key, texture)
    gpu.copyToTexture(data, texture, { bytesPerRow: columns * 4, rows, texels: columns / 4 })
    return texture
  }
}

/** A paged KV cache. */
export interface PagedCache {
  /** The page tables, u32. */
  pages: GpuBuffer
  size: number
  f16: boolean
  /** Whether the batch has rows of prompts, marked in `info`. Neighbouring ones see the same keys and share a workgroup. */
  prompts: boolean
  /** The largest number of keys that a row sees. */
  longest: number
  /** Whether splits of a row's keys get workgroups of their own. Default: on GPUs, if there are few rows. */
  splits?: boolean
  /** Rows with a common prefix, which go through its keys together first; `info` says how many keys that are (common.wgsl). */
  shared?: SharedRows
}

interface ForwardBuffers {
  q: GpuBuffer
  k: CacheData
  v: CacheData
  info: GpuBuffer
  o: GpuBuffer
  lse: GpuBuffer
  parts?: GpuBuffer
  stats?: GpuBuffer
}

/**
 * Computes o and lse from q, k, v.
 * @param t q, o (rows, heads, D); k, v (key rows, kv heads, D): this batch's own rows, or a cache, in which `paged` locates them; lse (rows, heads);
 *   scratch, if `decodeSplits` is above 1: parts (rows, heads, splits, D) and stats (rows, heads, splits, 2);
 *   info (rows) vec4u: prefix start, prefix length, own start, position; or with pages: first entry, 1 for a prompt's row, shared keys, position (see
 *     attention/common.wgsl)
 * @param options.neighbours k and v are this batch's own rows, so neighbouring rows mostly see the same keys and are computed together: faster, with
 * the same bits
 * @param options.half o is written in f16, as products on matrix units read it (`takesHalf`): only over a cache, in a batch without rows of prompts
 */
export function attention(
  gpu: Gpu,
  t: ForwardBuffers,
  rows: Count,
  shape: HeadShape,
  options: { neighbours?: boolean; paged?: PagedCache; half?: boolean } = {},
): void {
  const { neighbours = false, paged, half } = options
  const O = half ? { O_F16: 1 } : undefined
  const constants = constantsOf(gpu, shape)
  const params = { rows, lanes: constants.LANES, elements: constants.DE, splits: 1, scale: scaleOf(shape) }
  const stage = neighbours ? stageOf(gpu, rows, shape) : undefined
  const staged = (role: 'k' | 'v', data: CacheData): CacheData =>
    stage && !(data instanceof GpuTexture) ? stage(role, data) : data
  const [k, v] = [staged('k', t.k), staged('v', t.v)]
  const TEX = Number(k instanceof GpuTexture)
  const inLanes = TEX && takesRowLanes(gpu, constants)
  const byRows = (cached: Constants): void =>
    runInLanes(gpu, 'forward', { ...constants, ...cached, TEX, SPLIT }, bindings, params, shape)
  // Unrolled where shuffles are loops (16 lanes, lanes.wgsl) and loads are little code because they read textures.
  const WRITTEN = TEX * constants.WIDE
  const bindings = [t.q, k, v, t.info, t.o, t.lse, ...(paged ? [paged.pages] : [])]
  const run = (QR: number, cached: Constants, ...state: GpuBuffer[]): void => {
    // Two rows of V per iteration, but one where each has a broadcast for several query rows. GPUs have an UNROLL of their own (`ahead`).
    const UNROLL = QR === 1 && gpu.facts.software ? 2 : 1
    // A single row shares keys at most with the next one in a prompt, and by then they are evicted from the cache. So the heads of a row, whose keys
    // lie side by side, follow each other.
    const alone = QR === 1 && 'KV_FOLD' in cached ? { HEADS_FIRST: 1, TOUCH: cached.TILED } : undefined
    const { SPREAD, groups } = workgroups(gpu, rows, QR, shape.heads / constants.HG)
    const kernel = gpu.kernel(paths.forward, {
      ...constants,
      ...cached,
      SPREAD,
      QR,
      PACKED: packed(gpu, constants, QR),
      TEX,
      UNROLL,
      SPLIT,
      WRITTEN,
      ...alone,
      ...O,
      ...ahead(gpu, constants),
    })
    const [across, heads, turns] = groups
    gpu.dispatch(kernel, [...bindings, ...state], params, alone ? [heads, across, turns] : [across, heads, turns])
  }
  const { QR } = together(gpu, constants)
  const tile = neighbours || paged?.prompts ? tileOf(gpu, 'forward', shape) : undefined
  if (!paged && tile) return runTile(gpu, 'forward', tile, { SPLIT }, bindings, rows, shape)
  if (!paged) return neighbours && inLanes ? byRows({}) : run(neighbours ? QR : 1, {})
  const inTexture = kvConstants(t.k)
  const cached = { PAGES: paged.size, F16: Number(paged.f16), TILED: Number(paged.size % constants.LANES === 0), ...inTexture }
  const splits = t.parts && t.stats ? decodeSplits(gpu, rows, shape, paged) : 1
  if (splits > 1) return bySplits(gpu, { ...t, pages: paged.pages }, { ...params, splits }, { ...constants, ...cached, TEX }, O)
  if (paged.shared && inLanes && !shape.window) {
    const { DE, LANES } = constants
    const state = gpu.pool.acquire(capacityOf(rows) * shape.heads * (2 * DE + LANES) * 16, 'attention of shared keys')
    const { blocks, count } = paged.shared
    const ofBlocks = { ...params, rows: count }
    runInLanes(
      gpu,
      'forward',
      { ...constants, ...cached, TEX, SPLIT, SHARED: 1 },
      [t.q, k, v, blocks, state, paged.pages],
      ofBlocks,
      shape,
    )
    run(1, { ...cached, RESUME: 1 }, state)
    return state.release()
  }
  if (!paged.prompts || (QR === 1 && !tile && !inLanes)) return run(1, cached)
  run(1, { ...cached, PART: 1 })
  if (tile) runTile(gpu, 'forward', tile, { ...cached, PART: 2, SPLIT }, bindings, rows, shape)
  else if (inLanes) byRows({ ...cached, PART: 2 })
  else run(QR, { ...cached, PART: 2 })
}

/** `attention` over a cache, with a workgroup for each split of a row's keys (`decodeSplits`). @param written constants for how o is written */
function bySplits(
  gpu: Gpu,
  t: ForwardBuffers & { pages: GpuBuffer },
  params: { rows: Count; splits: number } & Record<string, Count>,
  constants: HeadConstants,
  written: Constants | undefined,
): void {
  const { rows, splits } = params
  const { DE, HEADS, HG, LANES, VEC4, WINDOW } = constants
  const alone = { QR: 1, PACKED: packed(gpu, constants, 1), UNROLL: 1, SPLIT, SPLITS: 1, ...ahead(gpu, constants) }
  const forward = gpu.kernel(paths.forward, { ...constants, ...alone })
  const bound = [t.q, t.k, t.v, t.info, t.parts!, t.stats!, t.pages]
  gpu.dispatch(forward, bound, params, grid(rows, (HEADS / HG) * splits))
  const combine = gpu.kernel(paths.combine, { DE, HEADS, LANES, VEC4, SPLIT, WINDOW, ...written })
  gpu.dispatch(combine, [t.parts!, t.stats!, t.info, t.o, t.lse], { rows, splits }, [rows, HEADS])
}

/**
 * Operands of the backward kernels. `ends`: for each key row, which rows see it (key_ends.wgsl); in layers with a window also its position
 * (key_places.wgsl). `soft`: as delta.wgsl writes it.
 */
export interface BackwardBuffers {
  q: GpuBuffer
  k: GpuBuffer
  v: GpuBuffer
  info: GpuBuffer
  ends: GpuBuffer
  dO: GpuBuffer
  soft: GpuBuffer
  dq: GpuBuffer
  dk: GpuBuffer
  dv: GpuBuffer
}

/**
 * Computes dq, dk and dv from dO; k and v are this batch's own rows.
 * @param t as in `attention`, with keyEnd (rows) u32: rows r .. keyEnd[r] - 1 see key row r; soft (rows, heads, 2) is scratch
 * @param chosen a shape for the kernels on matrix units other than the adapter's, to measure and test it
 */
export function attentionBackward(
  gpu: Gpu,
  t: Omit<BackwardBuffers, 'ends'> & { keyEnd: GpuBuffer; o: GpuBuffer; lse: GpuBuffer },
  rows: Count,
  shape: HeadShape,
  chosen?: UnitShape,
): void {
  const { VEC4, DE, WINDOW } = constantsOf(gpu, shape)
  const count = times(rows, shape.heads)
  dispatchFlat(gpu, paths.delta, { VEC4 }, [t.dO, t.o, t.lse, t.soft], { count, width: DE }, count)
  if (!WINDOW) return gradients(gpu, { ...t, ends: t.keyEnd }, rows, shape, chosen)
  const places = gpu.pool.acquire(capacityOf(rows) * 8, 'key places')
  dispatchFlat(gpu, paths.places, { WINDOW }, [t.info, t.keyEnd, places], { rows }, rows)
  gradients(gpu, { ...t, ends: places }, rows, shape, chosen)
  places.release()
}

function gradients(gpu: Gpu, t: BackwardBuffers, rows: Count, shape: HeadShape, chosen: UnitShape | undefined): void {
  const [unitsQ, unitsKv] = [unitsOf(gpu, 'q', shape, chosen), unitsOf(gpu, 'kv', shape, chosen)]
  if (unitsQ && unitsKv) return unitsBackward(gpu, t, rows, shape, { q: unitsQ, kv: unitsKv })
  const bindingsOf = ({ q, k, v, dO }: Record<'q' | 'k' | 'v' | 'dO', Binding>) => ({
    q: [q, k, v, t.info, dO, t.soft, t.dq],
    kv: [q, k, v, t.ends, dO, t.soft, t.dk, t.dv],
  })
  const bindings = bindingsOf(t)
  const [tileQ, tileKv] = [tileOf(gpu, 'q', shape), tileOf(gpu, 'kv', shape)]
  if (tileQ && tileKv) {
    runTile(gpu, 'q', tileQ, {}, bindings.q, rows, shape)
    runTile(gpu, 'kv', tileKv, {}, bindings.kv, rows, shape)
    return
  }
  const constants = constantsOf(gpu, shape)
  const params = { rows, lanes: constants.LANES, elements: constants.DE, scale: scaleOf(shape) }
  const stage = takesRowLanes(gpu, constants) ? stageOf(gpu, rows, shape) : undefined
  if (stage) {
    const staged = bindingsOf({ q: stage('q', t.q), k: stage('k', t.k), v: stage('v', t.v), dO: stage('dO', t.dO) })
    runInLanes(gpu, 'q', { ...constants, TEX: 1 }, staged.q, params, shape)
    runInLanes(gpu, 'kv', { ...constants, TEX: 1 }, staged.kv, params, shape)
    return
  }
  const { QR, KR } = together(gpu, constants)
  const forQ = workgroups(gpu, rows, QR, shape.heads / constants.HG)
  gpu.dispatch(gpu.kernel(paths.q, { ...constants, SPREAD: forQ.SPREAD, QR }), bindings.q, params, forQ.groups)
  const { HG: _unused, ...shared } = constants
  const forKv = workgroups(gpu, rows, KR, shape.kvHeads)
  gpu.dispatch(gpu.kernel(paths.kv, { ...shared, SPREAD: forKv.SPREAD, KR }), bindings.kv, params, forKv.groups)
}
