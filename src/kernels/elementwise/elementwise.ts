/** Elementwise kernels over buffers of `count` float32 values. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  gate: file('silu_gate.wgsl'),
  gateBackward: file('silu_gate_backward.wgsl'),
  add: file('add.wgsl'),
  dropout: file('dropout.wgsl'),
}

/** y = silu(g) * u. */
export function siluGate(gpu: Gpu, g: GpuBuffer, u: GpuBuffer, y: GpuBuffer, count: Count): void {
  dispatchFlat(gpu, paths.gate, {}, [g, u, y], { count }, count)
}

/** dg and du of y = silu(g) * u. */
export function siluGateBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; g: GpuBuffer; u: GpuBuffer; dg: GpuBuffer; du: GpuBuffer },
  count: Count,
): void {
  dispatchFlat(gpu, paths.gateBackward, {}, [t.dy, t.g, t.u, t.dg, t.du], { count }, count)
}

/** y = a + b. */
export function add(gpu: Gpu, a: GpuBuffer, b: GpuBuffer, y: GpuBuffer, count: Count): void {
  dispatchFlat(gpu, paths.add, {}, [a, b, y], { count }, count)
}

/** y = x with a share `rate` of values zeroed and the rest scaled up; the same seed zeroes the same values. */
export function dropout(gpu: Gpu, x: GpuBuffer, y: GpuBuffer, count: Count, rate: number, seed: Count): void {
  dispatchFlat(gpu, paths.dropout, {}, [x, y], { count, seed, rate }, count)
}
