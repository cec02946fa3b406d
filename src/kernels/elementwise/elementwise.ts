/** Elementwise kernels over buffers of `count` float32 values. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { map, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  gate: file('silu_gate.wgsl'),
  gateBackward: file('silu_gate_backward.wgsl'),
  add: file('add.wgsl'),
  dropout: file('dropout.wgsl'),
  decay: file('delta_decay.wgsl'),
  sigmoid: file('sigmoid.wgsl'),
}

/**
 * Elements of four values if `width` is a multiple of 4: CPU drivers store four values in less than twice the time of one, and a GPU has four times
 * the bytes in flight with the same number of invocations.
 * @param width `count` is a multiple of it
 */
function elements(count: Count, width: number): { VEC4: number; count: Count } {
  return width % 4 === 0 ? { VEC4: 1, count: map(count, (n) => n / 4) } : { VEC4: 0, count }
}

/** The function of a gate: silu(g), GELU (tanh form), or for attention sigmoid(g). */
export type Gate = 'silu' | 'gelu' | 'sigmoid'

const gateConstants = (gate: Gate) => ({ GELU: Number(gate === 'gelu'), SIGMOID: Number(gate === 'sigmoid') })

/** y = silu(g) * u, or another gate's. @param width `values` is a multiple of it */
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
  dispatchFlat(gpu, paths.gate, { VEC4, ...gateConstants(gate) }, [g, u, y], { count }, count)
}

/**
 * dg and du of y = silu(g) * u, or another gate's.
 * @param width `values` is a multiple of it
 * @param again y is recomputed, and overwrites dy
 */
export function siluGateBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; g: GpuBuffer; u: GpuBuffer; dg: GpuBuffer; du: GpuBuffer },
  values: Count,
  width = 1,
  gate: Gate = 'silu',
  again = false,
): void {
  const { VEC4, count } = elements(values, width)
  const constants = { VEC4, AGAIN: Number(again), ...gateConstants(gate) }
  dispatchFlat(gpu, paths.gateBackward, constants, [t.dy, t.g, t.u, t.dg, t.du], { count }, count)
}

/** y = a + b. @param width `values` is a multiple of it */
export function add(gpu: Gpu, a: GpuBuffer, b: GpuBuffer, y: GpuBuffer, values: Count, width = 1): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.add, { VEC4 }, [a, b, y], { count }, count)
}

/** y = -exp(aLog) * softplus(a + dtBias), the logarithm of a state's decay; a, y (rows, heads), aLog, dtBias (heads). */
export function deltaDecay(
  gpu: Gpu,
  t: { a: GpuBuffer; aLog: Binding; dtBias: Binding; y: GpuBuffer },
  count: Count,
  heads: number,
): void {
  dispatchFlat(gpu, paths.decay, { BACKWARD: 0 }, [t.a, t.aLog, t.dtBias, t.y], { count, heads }, count)
}

/** da, and dlog = dy * y. Their sums over rows are the gradients of dtBias and of aLog. */
export function deltaDecayBackward(
  gpu: Gpu,
  t: { a: GpuBuffer; aLog: Binding; dtBias: Binding; dy: GpuBuffer; da: GpuBuffer; dlog: GpuBuffer },
  count: Count,
  heads: number,
): void {
  dispatchFlat(gpu, paths.decay, { BACKWARD: 1 }, [t.a, t.aLog, t.dtBias, t.dy, t.da, t.dlog], { count, heads }, count)
}

/** y = 1 / (1 + exp(-x)). */
export function sigmoid(gpu: Gpu, x: GpuBuffer, y: GpuBuffer, count: Count): void {
  dispatchFlat(gpu, paths.sigmoid, { BACKWARD: 0 }, [x, y], { count }, count)
}

/** dx of y = sigmoid(x). */
export function sigmoidBackward(gpu: Gpu, dy: GpuBuffer, y: GpuBuffer, dx: GpuBuffer, count: Count): void {
  dispatchFlat(gpu, paths.sigmoid, { BACKWARD: 1 }, [dy, y, dx], { count }, count)
}

/**
 * y = x with a fraction `rate` of its values zeroed and the rest scaled up; the same seed zeroes the same values. @param width `values` is a multiple
 * of it
 */
export function dropout(gpu: Gpu, x: GpuBuffer, y: GpuBuffer, values: Count, rate: number, seed: Count, width = 1): void {
  const { VEC4, count } = elements(values, width)
  dispatchFlat(gpu, paths.dropout, { VEC4 }, [x, y], { count, seed, rate }, count)
}
