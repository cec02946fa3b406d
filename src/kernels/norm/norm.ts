/** RMSNorm forward and backward, and the column sum that a bias's gradient is. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('rms_norm.wgsl'),
  backward: file('rms_norm_backward.wgsl'),
  gain: file('rms_norm_gain.wgsl'),
  columns: file('column_sum.wgsl'),
}

/** y = x * rstd * gain; x, y (rows, channels), rstd (rows). */
export function rmsNorm(
  gpu: Gpu,
  x: GpuBuffer,
  gain: Binding,
  y: GpuBuffer,
  rstd: GpuBuffer,
  rows: Count,
  channels: number,
  eps: number,
): void {
  gpu.dispatch(gpu.kernel(paths.forward, lanes(gpu)), [x, gain, y, rstd], { rows, channels, eps }, perRow(rows))
}

/** dx from dy; `skip` (rows, channels) is added. */
export function rmsNormBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; x: GpuBuffer; gain: Binding; rstd: GpuBuffer; dx: GpuBuffer; skip?: GpuBuffer },
  rows: Count,
  channels: number,
): void {
  const kernel = gpu.kernel(paths.backward, { ...lanes(gpu), SKIP: Number(!!t.skip) })
  gpu.dispatch(kernel, [t.dy, t.x, t.gain, t.rstd, t.dx, ...(t.skip ? [t.skip] : [])], { rows, channels }, perRow(rows))
}

/** dgain += sum over rows of dy * x * rstd. */
export function rmsNormGain(
  gpu: Gpu,
  dy: GpuBuffer,
  x: GpuBuffer,
  rstd: GpuBuffer,
  dgain: Binding,
  rows: Count,
  channels: number,
): void {
  dispatchFlat(gpu, paths.gain, {}, [dy, x, rstd, dgain], { rows, channels }, channels)
}

/** out += column sums of x (rows, columns). */
export function addColumnSums(gpu: Gpu, x: GpuBuffer, out: Binding, rows: Count, columns: number): void {
  dispatchFlat(gpu, paths.columns, {}, [x, out], { rows, columns }, columns)
}
