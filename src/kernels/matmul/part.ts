/** What the matmul tiers receive. */
import type { Binding, BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { WeightBlocks, WeightSlice } from '../common/weight.ts'

/**
 * Part of a weight in one storage slice: from row `row` of the whole weight on, and from column `column` of the activations' `width` (N) columns on.
 */
export interface Part {
  slice: WeightSlice
  row: number
  rows: number
  column: number
  width: number
  /** The blocks of the whole weight, if they are read instead of the slice: only on the register tile. */
  blocks?: WeightBlocks
}

/** `extra`: the bindings that `flags` (LORA, BIAS, RESIDUAL, ACCUMULATE) name, in that order. */
export interface Extras {
  alpha: number
  rank: number
  flags: Record<string, number>
  extra: Binding[]
  /** The activations in f16, if an earlier kernel wrote them: matrix units read these. */
  half?: GpuBuffer
}

/** The buffer of a slice. @throws Error if it lies in a texture, which only kernels for CPU drivers read */
export function bufferOf(slice: WeightSlice): GpuBuffer | BufferRange {
  if (slice.texture) throw new Error('the kernels of GPUs read weights from buffers')
  return slice.storage as GpuBuffer | BufferRange
}
