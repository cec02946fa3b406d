/** Writes keys and values to a KV cache, in passes without gradients. */
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { CacheData } from '../../kernels/common/kv-texture.ts'
import { normRopeIntoCache, ropeIntoCache, takesNormRope } from '../../kernels/rope/rope.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { rmsNorm, type Norm } from './norm.ts'

/**
 * Where a pass without gradients writes its keys and values. `slots` (rows) vec2u: cache row and position. The caches are (cache rows, kv heads *
 * headDim), float32 or f16.
 */
export interface IntoCache {
  slots: GpuBuffer
  table: GpuBuffer
  headDim: number
  /** Channels of a head that are rotated. Default: all. */
  rotaryDim?: number
  kCache: CacheData
  vCache: CacheData
  f16: boolean
}

/** Rotates q in place, and writes the rotated k and v to the cache. */
export function turnIntoCache(tape: Tape, { q, k, v }: { q: Tensor; k: Tensor; v: Tensor }, into: IntoCache): void {
  const { headDim, rotaryDim, f16 } = into
  const shape = { heads: q.columns / headDim, kvHeads: k.columns / headDim, headDim }
  ropeIntoCache(tape.gpu, { ...into, q: q.buffer, k: k.buffer, v: v.buffer }, q.rows, shape, f16, rotaryDim)
}

/**
 * Normalises the heads or whole rows of q and k, then does what `turnIntoCache` does. In one dispatch if heads and cache permit. Drops its inputs.
 * @returns q
 */
export function normIntoCache(tape: Tape, [q, k, v]: Tensor[], [ofQ, ofK]: [Norm, Norm], into: IntoCache): Tensor {
  const { headDim, rotaryDim = headDim, f16 } = into
  const ofHeads = [ofQ, ofK].every(({ channels }) => channels === headDim)
  if (!ofHeads || f16 || rotaryDim < headDim || tape.recording || !takesNormRope(tape.gpu, headDim)) {
    const [qn, kn] = [rmsNorm(tape, q, ofQ), rmsNorm(tape, k, ofK)]
    turnIntoCache(tape, { q: qn, k: kn, v }, into)
    tape.done(q, k, kn, v)
    return qn
  }
  const shape = { heads: q.columns / headDim, kvHeads: k.columns / headDim, headDim }
  normRopeIntoCache(tape.gpu, { ...into, q: q.buffer, k: k.buffer, v: v.buffer }, [ofQ, ofK], q.rows, shape)
  tape.done(k, v)
  return q
}
