/** RMSNorm forward and backward, and the column sum that a bias's gradient is. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { groupsOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { dispatchFlat, lanes, perRow } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('rms_norm.wgsl'),
  backward: file('rms_norm_backward.wgsl'),
  gain: file('rms_norm_gain.wgsl'),
  columns: file('column_sum.wgsl'),
}

/** Values of a row that a lane keeps in registers at most, on CPU drivers: a load costs them more than the arithmetic. */
const mostHeld = 16

/** How the rows of a norm are taken: on CPU drivers several a workgroup, each loaded once, where they are narrow. No bit depends on it. */
function shapeOf(gpu: Gpu, rows: Count, channels: number): { constants: Constants; groups: [Count, Count] } {
  const base = lanes(gpu)
  const held = channels / base.LANES
  if (!gpu.facts.software || !base.SUBGROUP || !Number.isInteger(held) || held > mostHeld)
    return { constants: { ...base, HELD: 0 }, groups: perRow(rows) }
  const ROWS = held > 4 ? 8 : 16
  return { constants: { ...base, HELD: held, ROWS }, groups: perRow(groupsOf(rows, ROWS)) }
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
  const { constants, groups } = shapeOf(gpu, rows, channels)
  gpu.dispatch(gpu.kernel(paths.forward, constants), [x, gain, y, rstd], { rows, channels, eps }, groups)
}

/** dx from dy; `skip` (rows, channels) is added. */
export function rmsNormBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; x: GpuBuffer; gain: Binding; rstd: GpuBuffer; dx: GpuBuffer; skip?: GpuBuffer },
  rows: Count,
  channels: number,
): void {
  const { constants, groups } = shapeOf(gpu, rows, channels)
  const kernel = gpu.kernel(paths.backward, { ...constants, SKIP: Number(!!t.skip) })
  gpu.dispatch(kernel, [t.dy, t.x, t.gain, t.rstd, t.dx, ...(t.skip ? [t.skip] : [])], { rows, channels }, groups)
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
  const WIDTH = gpu.facts.software ? 8 : 64
  const kernel = gpu.kernel(paths.gain, { WIDTH, TURN: 4 })
  gpu.dispatch(kernel, [dy, x, rstd, dgain], { rows, channels }, [Math.ceil(channels / WIDTH)])
}

/** out += column sums of x (rows, columns). */
export function addColumnSums(gpu: Gpu, x: GpuBuffer, out: Binding, rows: Count, columns: number): void {
  dispatchFlat(gpu, paths.columns, {}, [x, out], { rows, columns }, columns)
}
