/** LoRA's first product, x Aᵀ, for several projections of one input at once. */
import { fileURLToPath } from 'node:url'
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, type Count } from '../../gpu/size.ts'
import { takesCpu } from '../matmul/cpu.ts'

const path = fileURLToPath(new URL('down_cpu.wgsl', import.meta.url))

/** One projection: A (rank, K) in a bank, its scale, and where scale * x Aᵀ goes, (rows, rank). */
export interface LoraDown {
  a: BufferRange
  scale: number
  out: GpuBuffer
}

/** Most projections that one dispatch takes. */
export const maxGroup = 3

/** Whether `loraDown` takes these: on CPU drivers, where the A lie in one bank. Elsewhere each is a matmul of its own. */
export function takesLoraDown(gpu: Gpu, k: number, projections: BufferRange[]): boolean {
  const [{ buffer }] = projections
  return takesCpu(gpu, k) && projections.length <= maxGroup && projections.every((a) => a.buffer === buffer)
}

/** out = scale * x Aᵀ for each projection, with the bits of `linear`. x (rows, k); rank a multiple of 8. */
export function loraDown(gpu: Gpu, x: GpuBuffer, rows: Count, k: number, rank: number, projections: LoraDown[]): void {
  // High, so that the matrices are loaded for many rows; and a dispatch of one workgroup needs no second thread of the driver, which would wake too late.
  const MT = [4, 8, 16].find((height) => capacityOf(rows) <= height) ?? 32
  const params: Record<string, Count> = { rows, k, rank }
  for (let g = 0; g < maxGroup; g++) {
    params[`a_${g}`] = (projections[g]?.a.offset ?? 0) / 4
    params[`scale_${g}`] = projections[g]?.scale ?? 0
  }
  const bindings = [x, projections[0].a.buffer, ...projections.map(({ out }) => out)]
  gpu.dispatch(gpu.kernel(path, { GROUP: projections.length, MT }), bindings, params, [groupsOf(rows, MT), rank / 8])
}
