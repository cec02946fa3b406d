/** What the tiers of the matmul are handed. */
import type { Binding, BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { WeightBlocks, WeightSlice } from '../common/weight.ts'

/** Part of a weight in one storage slice: rows `row` .. of the whole weight, `column` .. of the activations' N columns, of `width` in all. */
export interface Part {
  slice: WeightSlice
  row: number
  rows: number
  column: number
  width: number
  /** Of the whole weight, where they are read in place of the slice: on the register tile. */
  blocks?: WeightBlocks
}

/** `extra`: the bindings that `flags` (LORA, BIAS, RESIDUAL, ACCUMULATE) name, in that order. */
export interface Extras {
  alpha: number
  rank: number
  flags: Record<string, number>
  extra: Binding[]
  /** What is multiplied in f16, where a kernel before has left it: matrix units take it so. */
  half?: GpuBuffer
}

/** The buffer of a slice. @throws Error where it lies in a texture: only the kernels for CPU drivers read those */
export function bufferOf(slice: WeightSlice): GpuBuffer | BufferRange {
  if (slice.texture) throw new Error('the kernels of GPUs read weights from buffers')
  return slice.storage as GpuBuffer | BufferRange
}
