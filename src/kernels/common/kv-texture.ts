/**
 * KV caches in textures, for CPU drivers: attention over a cache is mostly loads, and such a driver reads a storage texture in half the time of a buffer
 * (bench/LOG.md). A page is a row of the texture, or several are where there are more pages than it may be high; in a page the rows of a head follow each other, so that what
 * a workgroup reads of it is one piece of memory.
 */
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { GpuTexture, type GpuBuffer } from '../../gpu/pool.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { cpuLanes } from './lanes.ts'

/** Keys or values of a cache: in a buffer, or in a texture as of `kvTextures`. */
export type CacheData = GpuBuffer | GpuTexture

/** How the values of a cache lie in its texture, for kv_place.wgsl. */
const layouts = new WeakMap<GpuTexture, Constants>()

/**
 * `count` textures of zeros for pages of `pageSize` rows of `kvHeads` heads of float32 values each; undefined where buffers are better (a GPU) or have to be: heads that
 * are no whole texels, or too wide rows.
 * @param shape.rotaryDim values of a head that are turned: kernels write halves of them, in texels
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
  // Left to the first use, Dawn clears each by way of a buffer of its size, all of which are there at once.
  const bytesPerRow = Math.ceil((columns * 16) / 256) * 256
  const zeros = gpu.pool.acquire(bytesPerRow * height, 'zeros', { exact: true })
  for (const texture of textures) gpu.copyToTexture(zeros, texture, { bytesPerRow, rows: height, texels: columns })
  gpu.flush()
  zeros.release()
  return textures
}

/** What kernels that read or write a cache are told of it: nothing of a buffer. */
export const kvConstants = (cache: Binding): Constants => (cache instanceof GpuTexture && layouts.get(cache)) || {}
