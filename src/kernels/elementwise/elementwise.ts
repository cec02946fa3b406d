/** Elementwise kernels over buffers of `count` float32 values. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { map, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  gate: file('silu_gate.wgsl'),
  gateBackward: file('silu_gate_backward.wgsl'),
  add: file('add.wgsl'),
  dropout: file('dropout.wgsl'),
}

/**
 * Elements of four values where `count` is made of them: CPU drivers store them in less than twice the time of one, and a GPU has four times the bytes on
 * their way with the same number of invocations.
 * @param width `count` is a multiple of it
 */
function elements(count: Count, width: number): { VEC4: number; count: Count } {
  return width % 4 === 0 ? { VEC4: 1, count: map(count, (n) => n / 4) } : { VEC4: 0, count }
}

/** What a gate is: silu(g), or GELU in its form with tanh. */
export type Gate = 'silu' | 'gelu'

/** y = silu(g) * u, or gelu(g) * u. @param width `values` is a multiple of it */
export function siluGate(
  gpu: Gpu,
  g: GpuBuffer,
  u: GpuBuffer,
  y: GpuBuffer,
  values: Count,
  width = 1,
  gate: Gate = 'silu',
): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.gate, { VEC4, GELU: Number(gate === 'gelu') }, [g, u, y], { count }, count)
}

/** dg and du of y = silu(g) * u, or gelu(g) * u. @param width `values` is a multiple of it */
export function siluGateBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; g: GpuBuffer; u: GpuBuffer; dg: GpuBuffer; du: GpuBuffer },
  values: Count,
  width = 1,
  gate: Gate = 'silu',
): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.gateBackward, { VEC4, GELU: Number(gate === 'gelu') }, [t.dy, t.g, t.u, t.dg, t.du], { count }, count)
}

/** y = a + b. @param width `values` is a multiple of it */
export function add(gpu: Gpu, a: GpuBuffer, b: GpuBuffer, y: GpuBuffer, values: Count, width = 1): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.add, { VEC4 }, [a, b, y], { count }, count)
}

/** y = x with a share `rate` of values zeroed and the rest scaled up; the same seed zeroes the same values. @param width `values` is a multiple of it */
export function dropout(gpu: Gpu, x: GpuBuffer, y: GpuBuffer, values: Count, rate: number, seed: Count, width = 1): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.dropout, { VEC4 }, [x, y], { count, seed, rate }, count)
}
