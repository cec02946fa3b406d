/** Rotary position embedding (RoPE) and attention over a packed batch. */
import type { GpuBuffer } from '../../gpu/pool.ts'
import * as kernels from '../../kernels/attention/attention.ts'
import type { HeadShape, PagedCache } from '../../kernels/attention/attention.ts'
import type { CacheData } from '../../kernels/common/kv-texture.ts'
import { rope as ropeKernel } from '../../kernels/rope/rope.ts'
import { Tensor } from '../tensor.ts'
import type { Tape } from '../tape.ts'
import { roomInHalf } from './linear.ts'

/** Where each row of a packed batch finds its keys (see kernels/attention/common.wgsl). */
export interface RowLayout {
  /** (rows) vec4u: prefix start, prefix length, own start, position. */
  info: GpuBuffer
  /** (rows) u32: rows r .. keyEnd[r] - 1 attend to row r. Only the backward pass reads it. If set, k and v are this batch's own. */
  keyEnd?: GpuBuffer
}

/** How the rows of a paged cache are found (see kernels/attention/attention.ts). */
export type { PagedCache }

/**
 * Rotates x (rows, heads * headDim) by its rows' positions (RoPE, arXiv 2104.09864). In place: the output takes over the buffer of x, and the
 * backward pass needs only the angles. The caller must not use or drop x afterwards.
 * @param turned the kernel that computed x has already rotated it; only the backward pass is added
 * @param rotaryDim channels of a head that are rotated
 */
export function rope(
  tape: Tape,
  x: Tensor,
  layout: RowLayout,
  table: GpuBuffer,
  heads: number,
  headDim: number,
  turned = false,
  rotaryDim = headDim,
): Tensor {
  const { gpu } = tape
  if (!turned) ropeKernel(gpu, x.buffer, layout.info, table, x.rows, heads, headDim, false, rotaryDim)
  const y = new Tensor(x.buffer, x.rows, x.columns, x.needsGrad)
  if (!tape.recording || !x.needsGrad) return y
  // The buffer now belongs to y alone. x remains only to carry its gradient.
  return tape.node(y, [], (dy) => {
    const dx = tape.ownGrad(dy)
    ropeKernel(gpu, dx.buffer, layout.info, table, x.rows, heads, headDim, true, rotaryDim)
    tape.giveGrad(x, dx)
    tape.done(dx)
  })
}

/**
 * o = softmax(scale q kᵀ) v over the keys that `layout` or `paged` gives each row in a cache. For passes without gradients.
 * @param q (rows, heads * D) @param cache k, v (cache rows, kv heads * D) @param paged how the rows of the cache are found
 * @param half whether o may be in f16 (`readsHalf` of linears.ts); it is if its kernel supports it
 */
export function attentionOverCache(
  tape: Tape,
  q: Tensor,
  { k, v }: { k: CacheData; v: CacheData },
  { info }: RowLayout,
  shape: HeadShape,
  paged?: PagedCache,
  half = false,
): Tensor {
  const { gpu } = tape
  const { rows, columns } = q
  // The kernel for tiles of prompt rows supports float32 only.
  const narrow = half && !paged?.prompts
  const o = narrow ? roomInHalf(tape, { rows, columns }) : tape.tensor(rows, columns, 'attention', false)
  const lse = tape.tensor(rows, shape.heads, 'attention lse', false)
  const splits = paged ? kernels.decodeSplits(gpu, rows, shape, paged) : 1
  // For each split: partial sums, and (m, l), the maximum and the sum of exponentials.
  const widths = splits > 1 ? [shape.headDim, 2] : []
  const scratch = widths.map((n) => tape.tensor(rows, shape.heads * splits * n, 'attention splits', false))
  const [parts, stats] = scratch.map(({ buffer }) => buffer)
  const t = { q: q.buffer, k, v, info, o: o.buffer, lse: lse.buffer, parts, stats }
  kernels.attention(gpu, t, rows, shape, { paged, half: narrow })
  tape.done(lse, ...scratch)
  return o
}

/**
 * o = softmax(scale q kᵀ) v over the keys that `layout` gives each row.
 * @param q (rows, heads * D) @param k,v (rows, kv heads * D), this batch's own
 */
export function attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, layout: RowLayout, shape: HeadShape): Tensor {
  const { gpu } = tape
  const { rows } = q
  const [o, lse] = tape.once(() => {
    const [out, sums] = [tape.tensor(rows, q.columns, 'attention', false), tape.tensor(rows, shape.heads, 'attention lse', false)]
    const t = { q: q.buffer, k: k.buffer, v: v.buffer, info: layout.info, o: out.buffer, lse: sums.buffer }
    kernels.attention(gpu, t, rows, shape, { neighbours: layout.keyEnd !== undefined })
    return [out, sums]
  })
  o.needsGrad = tape.recording && (q.needsGrad || k.needsGrad || v.needsGrad)
  tape.node(o, [q, k, v, o, lse], (dy) => {
    const soft = tape.tensor(rows, shape.heads * 2, 'attention softmax', false)
    const [dq, dk, dv] = [q, k, v].map((t) => tape.tensor(rows, t.columns, 'd attention', false))
    const saved = {
      q: q.buffer,
      k: k.buffer,
      v: v.buffer,
      info: layout.info,
      keyEnd: layout.keyEnd!,
      o: o.buffer,
      lse: lse.buffer,
    }
    const gradients = { dO: dy.buffer, soft: soft.buffer, dq: dq.buffer, dk: dk.buffer, dv: dv.buffer }
    kernels.attentionBackward(gpu, { ...saved, ...gradients }, rows, shape)
    tape.giveGrad(q, dq)
    tape.giveGrad(k, dk)
    tape.giveGrad(v, dv)
    tape.done(soft, dq, dk, dv)
  })
  tape.done(lse)
  return o
}
