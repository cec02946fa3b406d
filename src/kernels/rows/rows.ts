/** Moves rows: gather, and the ordered sum that is the gradient of a gather. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { GpuTexture, type GpuBuffer } from '../../gpu/pool.ts'
import { times, type Count } from '../../gpu/size.ts'
import { kvConstants, type CacheData } from '../common/kv-texture.ts'
import { dispatchFlat } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  gather: file('gather.wgsl'),
  add: file('scatter_add.wgsl'),
  copy: file('copy_rows.wgsl'),
  texels: file('copy_texels.wgsl'),
  split: file('split_heads.wgsl'),
}

/** Elements of a row, of four values each if its width allows it. */
function elementsOf(width: number): { VEC4: number; elements: number } {
  return width % 4 === 0 ? { VEC4: 1, elements: width / 4 } : { VEC4: 0, elements: width }
}

/** out[i] = x[index[i]]; rows of `width` values. */
export function gatherRows(gpu: Gpu, x: Binding, index: GpuBuffer, out: Binding, rows: Count, width: number): void {
  const { VEC4, elements } = elementsOf(width)
  dispatchFlat(gpu, paths.gather, { VEC4 }, [x, index, out], { rows, width: elements }, times(rows, elements))
}

/** A list of source rows for each output row, in compressed form: sources of output o are source[start[o] .. start[o+1]). */
export interface RowLists {
  start: GpuBuffer
  source: GpuBuffer
  outs: Count
}

/**
 * out[o] (+)= sum of the rows of x that `lists` gives for o, in their order, times `scale`.
 * @param target writes output o to row target[o], if that lies in [firstRow, limit)
 */
export function addRowLists(
  gpu: Gpu,
  x: GpuBuffer,
  lists: RowLists,
  out: Binding,
  width: number,
  options: { accumulate?: boolean; target?: GpuBuffer; firstRow?: number; limit?: number; scale?: number } = {},
): void {
  const { accumulate = false, target, firstRow = 0, limit = 0xffffffff, scale = 1 } = options
  const { VEC4, elements } = elementsOf(width)
  const constants = { TARGET: Number(!!target), ACCUMULATE: Number(accumulate), SCALE: Number(scale !== 1), VEC4 }
  const bindings = [x, lists.start, lists.source, out, ...(target ? [target] : [])]
  dispatchFlat(
    gpu,
    paths.add,
    constants,
    bindings,
    { outs: lists.outs, width: elements, first_row: firstRow, limit, scale },
    times(lists.outs, elements),
  )
}

/** Copies rows of `words` 4-byte words within one or two buffers: pairs (count) vec2u of source and destination. No row is both. */
export function copyRows(gpu: Gpu, [a, ...b]: [GpuBuffer, GpuBuffer?], pairs: GpuBuffer, count: number, words: number): void {
  const both = b.filter((buffer) => buffer !== undefined)
  dispatchFlat(gpu, paths.copy, { BOTH: both.length }, [a, pairs, ...both], { count, width: words }, count * words)
}

/**
 * `copyRows` for the keys and the values of a cache: both in buffers, or both in textures from `kvTextures`.
 * @param between needed for textures: intermediate room for rows of both, 8 * words bytes per pair; with room for fewer pairs than there are, they
 * are copied in several steps
 */
export function copyCacheRows(
  gpu: Gpu,
  { k, v }: { k: CacheData; v: CacheData },
  pairs: GpuBuffer,
  count: number,
  words: number,
  between?: GpuBuffer,
): void {
  if (!(k instanceof GpuTexture) && !(v instanceof GpuTexture)) return copyRows(gpu, [k, v], pairs, count, words)
  if (!between) throw new Error('rows of a cache in textures are copied by way of a buffer')
  const most = Math.floor(between.bytes / (8 * words))
  for (let first = 0; first < count; first += most) {
    const some = Math.min(most, count - first)
    for (const OUT of [0, 1]) {
      const constants = { OUT, ...kvConstants(k) }
      dispatchFlat(gpu, paths.texels, constants, [k, v, pairs, between], { first, count: some }, (some * words) / 4)
    }
  }
}

/**
 * Splits x (rows, heads * 2 * headDim) into a and b (rows, heads * headDim), the first and second half of each head; with `join` the other way round.
 */
export function splitHeads(
  gpu: Gpu,
  { x, a, b }: { x: GpuBuffer; a: GpuBuffer; b: GpuBuffer },
  rows: Count,
  { heads, headDim }: { heads: number; headDim: number },
  join = false,
): void {
  const { VEC4, elements } = elementsOf(headDim)
  const count = times(rows, heads * elements)
  dispatchFlat(gpu, paths.split, { VEC4, JOIN: Number(join) }, [x, a, b], { count, width: elements }, count)
}
