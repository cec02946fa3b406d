/** What is kept between passes: keys and values, and the recurrent states of layers that have some. */
import type { PagedCache } from '../../kernels/attention/attention.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { CacheData } from '../../kernels/common/kv-texture.ts'
import { deltaWidths } from './shapes.ts'
import type { ModelConfig } from '../types.ts'

/** Keys and values of one layer that outlive a pass: (cache rows, kv heads * D) each, float32 or f16; on CPU drivers float32 in textures (kernels/common/kv-texture.ts). */
export interface LayerCache {
  k: CacheData
  v: CacheData
}

/** What a layer without keys keeps of each sequence, by slots: the last inputs of its convolution, and a Gated DeltaNet its state. */
export interface LayerState {
  inputs: GpuBuffer
  states?: GpuBuffer
}

/** Where a pass puts its keys and values, and finds those of earlier passes: row i goes to cache row slots[i].x; `layout` and `paged` name cache rows. */
export interface CacheArguments {
  layers: (LayerCache | LayerState)[]
  /** (rows) vec4u, for layers with a state: see DeltaCache (kernels/delta-rule). */
  runs?: GpuBuffer
  /** (rows) vec2u: cache row and position. */
  slots: GpuBuffer
  /** Without it `layout` names the cache's rows themselves, which are float32. */
  paged?: PagedCache
}

/** What the layer `index` keeps of each sequence. */
export function stateOf({ layers, runs, index }: CacheArguments & { index: number }): LayerState & { runs: GpuBuffer } {
  return { runs: runs!, ...(layers[index] as LayerState) }
}

/** Float32 values of what a layer without keys keeps of one sequence; none in models without such layers. */
export function stateWords({ qwen35, shortConv, hiddenSize }: ModelConfig): { inputs: number; states: number } {
  if (shortConv) return { inputs: (shortConv.taps - 1) * hiddenSize, states: 0 }
  if (!qwen35) return { inputs: 0, states: 0 }
  const { taps, valueHeads, keyDim, valueDim } = qwen35
  const channels = deltaWidths(qwen35).reduce((a, b) => a + b, 0)
  return { inputs: (taps - 1) * channels, states: valueHeads * keyDim * valueDim }
}
