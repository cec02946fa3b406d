/** Attention as a layer has it: projections, norms of heads, rotary embedding, cache, gate. */
import { attention, attentionOverCache, rope, type RowLayout } from '../../autograd/ops/attention.ts'
import { siluGate } from '../../autograd/ops/elementwise.ts'
import { normIntoCache, type IntoCache } from '../../autograd/ops/into-cache.ts'
import type { Projection } from '../../autograd/ops/linear.ts'
import { linears, linearsIntoCache, linearsTurned, readsHalf, type LinearsArguments } from '../../autograd/ops/linears.ts'
import { rmsNormTurned, type Norm } from '../../autograd/ops/norm.ts'
import { splitHeads } from '../../autograd/ops/rows.ts'
import type { Tape } from '../../autograd/tape.ts'
import type { Tensor } from '../../autograd/tensor.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { HeadShape } from '../../kernels/attention/attention.ts'
import type { CacheArguments, LayerCache } from './layer-cache.ts'
import { rotaryDimOf } from './rope.ts'
import type { ModelConfig } from '../types.ts'

/** Attention of a layer. */
export interface AttentionPart {
  kind: 'attention'
  /** In Qwen3.5 it gives each head's q followed by its gate. */
  q: Projection
  k: Projection
  v: Projection
  o: Projection
  /** Norm of each head of q: Qwen3, Qwen3.5 and Gemma 3; of all heads together: OLMo 2. */
  qNorm?: Norm
  kNorm?: Norm
}

/** The output of attention, before its last projection. */
export function attended(
  tape: Tape,
  config: ModelConfig,
  part: AttentionPart,
  index: number,
  x: Tensor,
  layout: RowLayout,
  table: GpuBuffer,
  cache: (CacheArguments & { index: number }) | undefined,
  options: LinearsArguments,
): Tensor {
  const shape = headShape(config, index)
  const { q, gate, own } = cache
    ? intoCache(tape, config, part, x, table, cache, options)
    : turned(tape, config, part, x, layout, table, options)
  const out = own
    ? attention(tape, q, own.keys, own.values, layout, shape)
    : attentionOverCache(
        tape,
        q,
        layerCache(cache!),
        layout,
        shape,
        cache?.paged,
        !gate && readsHalf(tape, part.o, options.adapters),
      )
  tape.done(q, ...(own ? [own.keys, own.values] : []))
  if (!gate) return out
  const gated = siluGate(tape, gate, out, 'sigmoid')
  tape.done(gate, out)
  return gated
}

/** The heads of a layer. */
export function headShape(config: ModelConfig, layer: number): HeadShape {
  const { heads, kvHeads, headDim, slidingWindow, slidingLayers, attentionScale: scale } = config
  const window = !slidingLayers || slidingLayers.includes(layer) ? slidingWindow : undefined
  return { heads, kvHeads, headDim, window, ...(scale && { scale }) }
}

interface Attending {
  q: Tensor
  /** The batch's own keys and values, where they do not lie in a cache. */
  own?: { keys: Tensor; values: Tensor }
  /** The attention output is multiplied by the sigmoid of this. */
  gate?: Tensor
}

/** Splits the output of a projection that gives each head's q and its gate (Qwen3.5); for other models it is q. */
function splitGate(tape: Tape, q: Tensor, { qwen35, headDim }: ModelConfig): { q: Tensor; gate?: Tensor } {
  if (!qwen35) return { q }
  const [own, gate] = splitHeads(tape, q, headDim)
  tape.done(q)
  return { q: own, gate }
}

/** Turns q and k of the batch's own rows. */
function turned(
  tape: Tape,
  config: ModelConfig,
  layer: AttentionPart,
  x: Tensor,
  layout: RowLayout,
  table: GpuBuffer,
  options: LinearsArguments,
): Attending {
  const { heads, kvHeads, headDim } = config
  const rotaryDim = rotaryDimOf(config)
  const projections = [layer.q, layer.k, layer.v]
  if (layer.qNorm && layer.kNorm) {
    const [projected, k, values] = linears(tape, x, projections, options)
    const { q, gate } = splitGate(tape, projected, config)
    const keys = rmsNormTurned(tape, k, layer.kNorm, layout, table, headDim, rotaryDim)
    const attending = rmsNormTurned(tape, q, layer.qNorm, layout, table, headDim, rotaryDim)
    tape.done(q, k)
    return { q: attending, own: { keys, values }, gate }
  }
  const turning = { info: layout.info, table, headDim, rotaryDim }
  const { outputs, turned: done } = linearsTurned(tape, x, projections, turning, options)
  const [q, k, values] = outputs
  const keys = rope(tape, k, layout, table, kvHeads, headDim, done, rotaryDim)
  return { q: rope(tape, q, layout, table, heads, headDim, done, rotaryDim), own: { keys, values } }
}

export const layerCache = ({ layers, index }: CacheArguments & { index: number }) => layers[index] as LayerCache

/** Where a layer's keys and values go. */
export function intoCacheOf(config: ModelConfig, table: GpuBuffer, cache: CacheArguments & { index: number }): IntoCache {
  const { slots, paged } = cache
  const { k: kCache, v: vCache } = layerCache(cache)
  return { slots, table, headDim: config.headDim, rotaryDim: rotaryDimOf(config), kCache, vCache, f16: paged?.f16 ?? false }
}

/** Turns q and puts this pass's keys, turned, and values into the cache. */
function intoCache(
  tape: Tape,
  config: ModelConfig,
  layer: AttentionPart,
  x: Tensor,
  table: GpuBuffer,
  cache: CacheArguments & { index: number },
  options: LinearsArguments,
): Attending {
  const into = intoCacheOf(config, table, cache)
  const projections = [layer.q, layer.k, layer.v]
  if (!layer.qNorm || !layer.kNorm) return { q: linearsIntoCache(tape, x, projections, into, options) }
  const [projected, k, v] = linears(tape, x, projections, options)
  const { q, gate } = splitGate(tape, projected, config)
  return { q: normIntoCache(tape, [q, k, v], [layer.qNorm, layer.kNorm], into), gate }
}
