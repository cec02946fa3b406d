/** Which models' kernels gain by a software driver's vectors of 512 bits: `Gpu.open` is told before it loads the driver (gpu/vector-width.ts). */
import type { ModelConfig } from '../types.ts'

export interface WideVectorWork {
  /** Whether there is a backward pass, or a forward pass that must have the bits of one. */
  trains: boolean
  matrixUnits?: boolean
  kvCacheDtype?: 'f32' | 'f16' | 'auto'
}

/**
 * Whether work with these models is faster with vectors of 512 bits where the CPU gains by them (gpu/vector-width.ts). All of them share the process, and so its width.
 *
 * Heads of 64 and 128 channels are 16 and 32 vectors of 4, which 16 lanes share evenly: training gains 15 to 25%. Others lose in attention what products gain, or far more:
 * with 32 channels half of the lanes idle, with 80 a training step took 6 to 9 times as long, and with 256 training lost a quarter while decoding gained
 * (bench/LOG.md, "Vectors of 512 bits"). The scans of Gated DeltaNets have been written for 8 lanes, a cache of f16 lies in buffers, of which attention would have to exchange values
 * between 16 lanes, and matrix units have lanes of their own.
 */
export function gainsByWideVectors(
  models: readonly Pick<ModelConfig, 'headDim' | 'qwen35'>[],
  { trains, matrixUnits = false, kvCacheDtype = 'f32' }: WideVectorWork,
): boolean {
  const sizes = trains ? [64, 128] : [64, 128, 256]
  return !matrixUnits && kvCacheDtype !== 'f16' && models.every(({ headDim, qwen35 }) => !qwen35 && sizes.includes(headDim))
}
