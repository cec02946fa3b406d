/** Causal, packed, grouped-query attention: forward for training, prefill and decode, and its backward. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer, GpuTexture } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, times, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { dispatchFlat, lanes } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('forward.wgsl'),
  delta: file('delta.wgsl'),
  q: file('backward_q.wgsl'),
  kv: file('backward_kv.wgsl'),
}

export interface HeadShape {
  heads: number
  kvHeads: number
  headDim: number
}

/** Constants of a head shape. HG: query heads of one kv head that a workgroup takes together, at most 4, a divisor of the group. */
function constantsOf(gpu: Gpu, { heads, kvHeads, headDim }: HeadShape): Constants & { C: number; HG: number } {
  const base = lanes(gpu)
  const group = heads / kvHeads
  const HG = [4, 3, 2, 1].find((n) => group % n === 0)!
  const VEC4 = Number(headDim % 4 === 0)
  const DE = VEC4 ? headDim / 4 : headDim
  const ROLLED = Number(gpu.facts.software)
  return {
    LANES: base.LANES,
    SUBGROUP: base.SUBGROUP,
    ROLLED,
    VEC4,
    DE,
    C: Math.ceil(DE / base.LANES),
    HEADS: heads,
    KV_HEADS: kvHeads,
    GROUP: group,
    HG,
    EVEN: Number(DE % Number(base.LANES) === 0),
  }
}

/**
 * How many neighbouring rows a workgroup takes in training, so that one load serves them all: QR query rows, KR key rows. On CPU drivers loads are most
 * of the time, and past some 24 vectors of a lane the code outgrows its cache. No bit depends on it.
 */
function together(gpu: Gpu, { SUBGROUP, C, HG }: ReturnType<typeof constantsOf>): { QR: number; KR: number } {
  if (!gpu.facts.software || !SUBGROUP) return { QR: 1, KR: C > 4 ? 1 : 2 }
  const most = (vectors: number, each: number): number => [8, 4, 2, 1].find((n) => n * each <= vectors) ?? 1
  return { QR: most(24, HG * C), KR: most(16, C) }
}

type Operand = 'q' | 'k' | 'v' | 'dO'
/** Bytes of a staging texture at most, and the textures of a device by operand and shape. */
const maxStaged = 16 << 20
const stages = new WeakMap<Gpu, Map<string, GpuTexture>>()

/**
 * What attention reads again and again, copied to textures, which a CPU driver reads three times faster than buffers (see matmul/stage.ts); undefined where
 * that cannot be: another adapter, rows that are no multiple of 256 bytes, more than a texture takes.
 */
function staged<T extends Operand>(
  gpu: Gpu,
  t: Record<T, GpuBuffer>,
  rows: Count,
  { heads, kvHeads, headDim }: HeadShape,
): Record<T, GpuTexture> | undefined {
  const { software, subgroupSize, limits } = gpu.facts
  const height = Math.max(16, 2 ** Math.ceil(Math.log2(capacityOf(rows))))
  const widest = heads * headDim
  if (!software || subgroupSize !== 8 || headDim % 32 !== 0 || (kvHeads * headDim) % 64 !== 0 || widest % 64 !== 0)
    return undefined
  if (height > limits.maxTexture || widest / 4 > limits.maxTexture || height * widest * 4 > maxStaged) return undefined
  let own = stages.get(gpu)
  if (!own) stages.set(gpu, (own = new Map()))
  const found: Partial<Record<T, GpuTexture>> = {}
  for (const name of Object.keys(t) as T[]) {
    const columns = (name === 'k' || name === 'v' ? kvHeads : heads) * headDim
    const key = `${name},${columns},${height}`
    let texture = own.get(key)
    if (!texture) own.set(key, (texture = gpu.pool.texture(columns / 4, height, 'rgba32float', 'staged', { scratch: true })))
    gpu.copyToTexture(t[name], texture, { bytesPerRow: columns * 4, rows, texels: columns / 4 })
    found[name] = texture
  }
  return found as Record<T, GpuTexture>
}

const grid = (rows: Count, y: number): [Count, number, Count] => [map(rows, (n) => Math.min(n, 65535)), y, groupsOf(rows, 65535)]

/**
 * o and lse from q, k, v.
 * @param t q, o (rows, heads, D); k, v (key rows, kv heads, D): this batch's own rows or a cache; lse (rows, heads);
 *   info (rows) vec4u: prefix start, prefix length, own start, position (see attention/common.wgsl)
 * @param neighbours k and v are this batch's own rows, so that neighbouring rows mostly see the same keys and go together: faster, the same bits
 */
export function attention(
  gpu: Gpu,
  t: { q: GpuBuffer; k: GpuBuffer; v: GpuBuffer; info: GpuBuffer; o: GpuBuffer; lse: GpuBuffer },
  rows: Count,
  shape: HeadShape,
  neighbours = false,
): void {
  const constants = constantsOf(gpu, shape)
  const params = { rows, lanes: constants.LANES, elements: constants.DE, scale: 1 / Math.sqrt(shape.headDim) }
  const QR = neighbours ? together(gpu, constants).QR : 1
  const from = neighbours ? staged(gpu, { k: t.k, v: t.v }, rows, shape) : undefined
  const { k, v } = from ?? t
  const kernel = gpu.kernel(paths.forward, { ...constants, QR, TEX: Number(from !== undefined), UNROLL: from ? 2 : 1 })
  gpu.dispatch(kernel, [t.q, k, v, t.info, t.o, t.lse], params, grid(groupsOf(rows, QR), shape.heads / constants.HG))
}

/**
 * dq, dk, dv from dO; k and v are this batch's own rows.
 * @param t as in `attention`, with keyEnd (rows) u32: rows r .. keyEnd[r] - 1 see key row r; soft (rows, heads, 2) is scratch
 */
export function attentionBackward(
  gpu: Gpu,
  t: {
    q: GpuBuffer
    k: GpuBuffer
    v: GpuBuffer
    info: GpuBuffer
    keyEnd: GpuBuffer
    o: GpuBuffer
    lse: GpuBuffer
    dO: GpuBuffer
    soft: GpuBuffer
    dq: GpuBuffer
    dk: GpuBuffer
    dv: GpuBuffer
  },
  rows: Count,
  shape: HeadShape,
): void {
  const constants = constantsOf(gpu, shape)
  const params = { rows, lanes: constants.LANES, elements: constants.DE, scale: 1 / Math.sqrt(shape.headDim) }
  const count = times(rows, shape.heads)
  dispatchFlat(gpu, paths.delta, {}, [t.dO, t.o, t.lse, t.soft], { count, width: shape.headDim }, count)
  const { QR, KR } = together(gpu, constants)
  const textures = staged(gpu, { q: t.q, k: t.k, v: t.v, dO: t.dO }, rows, shape)
  const from = textures ?? t
  const [TEX, UNROLL] = textures ? [1, 2] : [0, 1]
  const q = gpu.kernel(paths.q, { ...constants, QR, TEX, UNROLL })
  gpu.dispatch(
    q,
    [from.q, from.k, from.v, t.info, from.dO, t.soft, t.dq],
    params,
    grid(groupsOf(rows, QR), shape.heads / constants.HG),
  )
  const { HG: _unused, ...shared } = constants
  const kv = gpu.kernel(paths.kv, { ...shared, KR, TEX, UNROLL })
  gpu.dispatch(
    kv,
    [from.q, from.k, from.v, t.keyEnd, from.dO, t.soft, t.dk, t.dv],
    params,
    grid(groupsOf(rows, KR), shape.kvHeads),
  )
}
