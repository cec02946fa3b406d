/** What is kept between passes: keys and values, and the recurrent states of layers that have some. */
import type { PagedCache } from '../kernels/attention/attention.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import type { CacheData } from '../kernels/common/kv-texture.ts'
import { deltaWidths } from './shapes.ts'
import type { Qwen35Config } from './types.ts'

/** Keys and values of one layer that outlive a pass: (cache rows, kv heads * D) each, float32 or f16; on CPU drivers float32 in textures (kernels/common/kv-texture.ts). */
export interface LayerCache {
  k: CacheData
  v: CacheData
}

/** What a Gated DeltaNet keeps of each sequence, by slots: the last inputs of its convolution, and its state. */
export interface DeltaState {
  inputs: GpuBuffer
  states: GpuBuffer
}

/** Where a pass puts its keys and values, and finds those of earlier passes: row i goes to cache row slots[i].x; `layout` and `paged` name cache rows. */
export interface CacheArguments {
  layers: (LayerCache | DeltaState)[]
  /** (rows) vec4u, for layers with a state: see DeltaCache (kernels/delta-rule). */
  runs?: GpuBuffer
  /** (rows) vec2u: cache row and position. */
  slots: GpuBuffer
  /** Without it `layout` names the cache's rows themselves, which are float32. */
  paged?: PagedCache
}

/** What the layer `index` keeps of each sequence. */
export function stateOf({ layers, runs, index }: CacheArguments & { index: number }): DeltaState & { runs: GpuBuffer } {
  return { runs: runs!, ...(layers[index] as DeltaState) }
}

/** Float32 values of what a Gated DeltaNet keeps of one sequence. */
export function stateWords(shape: Qwen35Config): { inputs: number; states: number } {
  const { taps, valueHeads, keyDim, valueDim } = shape
  const channels = deltaWidths(shape).reduce((a, b) => a + b, 0)
  return { inputs: (taps - 1) * channels, states: valueHeads * keyDim * valueDim }
}
