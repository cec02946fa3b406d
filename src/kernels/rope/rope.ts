/** Rotary position embedding. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { groupsOf, times, type Count } from '../../gpu/size.ts'
import { kvConstants, type CacheData } from '../common/kv-texture.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'

const path = fileURLToPath(new URL('rope.wgsl', import.meta.url))
const cachePath = fileURLToPath(new URL('rope_cache.wgsl', import.meta.url))
const normPath = fileURLToPath(new URL('norm_rope_cache.wgsl', import.meta.url))

/**
 * Rotates x (rows, heads * headDim) in place; `inverse` gives the backward pass. info (rows) vec4u, table (positions, rotaryDim / 2) of (cos, sin).
 * @param rotaryDim number of channels of a head that are rotated, the first ones
 */
export function rope(
  gpu: Gpu,
  x: GpuBuffer,
  info: GpuBuffer,
  table: GpuBuffer,
  rows: Count,
  heads: number,
  headDim: number,
  inverse = false,
  rotaryDim = headDim,
): void {
  const half = headDim / 2
  const { PARTIAL, turned, pairs } = partOf(half, rotaryDim / 2)
  const params = { rows, heads, half_dim: half, ...turned, sign: inverse ? -1 : 1 }
  dispatchFlat(gpu, path, { VEC4: Number(pairs > 1), PARTIAL }, [x, info, table], params, times(rows, (heads * half) / pairs))
}

/** The rotated ones among a head's `half` pairs, if not all are, and the pairs per element: 4 if the head allows it. */
function partOf(half: number, turned: number): { PARTIAL: number; turned: { turned?: number }; pairs: number } {
  const partial = turned < half
  const pairs = half % 4 === 0 && turned % 4 === 0 ? 4 : 1
  return { PARTIAL: Number(partial), turned: partial ? { turned } : {}, pairs }
}

interface IntoCacheBuffers {
  q: GpuBuffer
  k: GpuBuffer
  v: GpuBuffer
  slots: GpuBuffer
  table: GpuBuffer
  kCache: CacheData
  vCache: CacheData
}

/**
 * Rotates q in place, and writes rotated k, and v, to the cache rows given by `slots`.
 * @param t q (rows, heads * headDim), k, v (rows, kvHeads * headDim), caches (cache rows, kvHeads * headDim); slots (rows) vec2u: cache row,
 * position; table as in `rope`
 * @param f16 whether the caches hold f16, two values per word; headDim and rotaryDim must then be multiples of 8
 */
export function ropeIntoCache(
  gpu: Gpu,
  t: IntoCacheBuffers,
  rows: Count,
  shape: { heads: number; kvHeads: number; headDim: number },
  f16 = false,
  rotaryDim = shape.headDim,
): void {
  const half = shape.headDim / 2
  const { PARTIAL, turned, pairs } = partOf(half, rotaryDim / 2)
  const params = { rows, heads: shape.heads, kv_heads: shape.kvHeads, half_dim: half, ...turned }
  const bindings = [t.q, t.k, t.v, t.slots, t.table, t.kCache, t.vCache]
  const elements = ((shape.heads + 2 * shape.kvHeads) * half) / pairs
  const constants = { VEC4: Number(pairs > 1), F16: Number(f16), PARTIAL, ...kvConstants(t.kCache) }
  dispatchFlat(gpu, cachePath, constants, bindings, params, times(rows, elements))
}

/**
 * Limit of the values of a head that a lane keeps: loads and stores are unrolled for each value, and on CPU drivers they are most of what is
 * compiled.
 */
const mostHeld = 8

/** Whether `normRopeIntoCache` takes heads of this width: a lane must have both values of a pair, and the adapter must bind two gains too. */
export function takesNormRope(gpu: Gpu, headDim: number): boolean {
  const held = headDim / lanes(gpu).LANES
  return held % 2 === 0 && held <= mostHeld && gpu.facts.limits.maxStorageBuffers >= 9
}

/**
 * `ropeIntoCache` in float32 after RMSNorm over each head of q and of k, with the bits of these three one after the other. `norms`: of q and of k,
 * with gains (headDim).
 */
export function normRopeIntoCache(
  gpu: Gpu,
  t: IntoCacheBuffers,
  norms: { gain: Binding; eps: number }[],
  rows: Count,
  shape: { heads: number; kvHeads: number; headDim: number },
): void {
  const base = lanes(gpu)
  const PER_LANE = shape.headDim / base.LANES
  const ROWS = gpu.facts.software ? 16 : 1
  const [ofQ, ofK] = norms
  const bindings = [t.q, t.k, t.v, ofQ.gain, ofK.gain, t.slots, t.table, t.kCache, t.vCache]
  const params = { rows, heads: shape.heads, kv_heads: shape.kvHeads, eps_q: ofQ.eps, eps_k: ofK.eps }
  const groups = perRow(groupsOf(times(rows, shape.heads + 2 * shape.kvHeads), ROWS))
  const inTexture = kvConstants(t.kCache)
  gpu.dispatch(gpu.kernel(normPath, { ...base, PER_LANE, ROWS, ...inTexture }), bindings, params, groups)
}
