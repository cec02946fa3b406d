/** Rotary position embedding. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { dispatchFlat } from '../common/lanes.ts'

const path = fileURLToPath(new URL('rope.wgsl', import.meta.url))

/** Rotates x (rows, heads * headDim) in place; `inverse` is the backward pass. info (rows) vec4u, table (positions, headDim / 2) of (cos, sin). */
export function rope(
  gpu: Gpu,
  x: GpuBuffer,
  info: GpuBuffer,
  table: GpuBuffer,
  rows: number,
  heads: number,
  headDim: number,
  inverse = false,
): void {
  const half = headDim / 2
  const params = { rows, heads, half_dim: half, sign: inverse ? -1 : 1 }
  dispatchFlat(gpu, path, {}, [x, info, table], params, rows * heads * half)
}
