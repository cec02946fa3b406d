/**
 * KV caches in textures, for CPU drivers. Attention over a cache is mostly loads, and such a driver reads a storage texture in half the time of a
 * buffer (bench/LOG.md). A page is a row of the texture, or part of one if there are more pages than a texture may have rows. Within a page the rows
 * of a head follow each other, so that a workgroup reads one contiguous piece of memory.
 */
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { GpuTexture, type GpuBuffer } from '../../gpu/pool.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { cpuLanes } from './lanes.ts'

/** Keys or values of a cache, in a buffer or in a texture from `kvTextures`. */
export type CacheData = GpuBuffer | GpuTexture

/** How the values of a cache lie in its texture: constants for kv_place.wgsl. */
const layouts = new WeakMap<GpuTexture, Constants>()

/**
 * Makes `count` textures of zeros for pages of `pageSize` rows, each of `kvHeads` heads of float32 values. Undefined if the cache belongs in buffers:
 * on a GPU, for heads that are not whole texels, and for rows that are too wide.
 * @param shape.rotaryDim number of values of a head that are rotated; kernels write halves of them, in texels
 */
export function kvTextures(
  gpu: Gpu,
  count: number,
  { pages, pageSize }: { pages: number; pageSize: number },
  { kvHeads, headDim, rotaryDim }: { kvHeads: number; headDim: number; rotaryDim: number },
  label: string,
): GpuTexture[] | undefined {
  const { limits } = gpu.facts
  if (cpuLanes(gpu).LANES === 0 || headDim % 8 !== 0 || rotaryDim % 8 !== 0) return undefined
  const KV_HEAD = headDim / 4
  const KV_WIDTH = kvHeads * KV_HEAD
  const KV_FOLD = 2 ** Math.max(0, Math.ceil(Math.log2(pages / limits.maxTexture)))
  const columns = KV_FOLD * pageSize * KV_WIDTH
  if (columns > limits.maxTexture) return undefined
  const height = Math.ceil(pages / KV_FOLD)
  const textures = Array.from({ length: count }, () => gpu.pool.texture(columns, height, 'rgba32float', label))
  for (const texture of textures) layouts.set(texture, { KV_FOLD, KV_PAGE: pageSize, KV_HEAD, KV_WIDTH })
  // Left to the first use, Dawn would clear each through a buffer of its size, all existing at once.
  const bytesPerRow = Math.ceil((columns * 16) / 256) * 256
  const zeros = gpu.pool.acquire(bytesPerRow * height, 'zeros', { exact: true })
  for (const texture of textures) gpu.copyToTexture(zeros, texture, { bytesPerRow, rows: height, texels: columns })
  gpu.flush()
  zeros.release()
  return textures
}

/** The constants of a cache for kernels that read or write it; none for a buffer. */
export const kvConstants = (cache: Binding): Constants => (cache instanceof GpuTexture && layouts.get(cache)) || {}
