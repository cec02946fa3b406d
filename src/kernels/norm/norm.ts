/** RMSNorm, forward and backward, and the column sum that gives a bias's gradient. */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, times, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { dispatchFlat, fullGpu, lanes, perRow } from '../common/lanes.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('rms_norm.wgsl'),
  backward: file('rms_norm_backward.wgsl'),
  gain: file('rms_norm_gain.wgsl'),
  columns: file('column_sum.wgsl'),
  fromOne: file('gain_from_one.wgsl'),
}

/**
 * Limit of the values of a row that a lane keeps in registers. On CPU drivers a load costs more than the arithmetic. On a GPU, all loads of a row
 * then wait for memory at the same time; in a loop, only four would.
 */
const mostHeld = (software: boolean): number => (software ? 16 : 32)

/**
 * How a norm goes through its rows: each is loaded only once if it is narrow, and a workgroup takes several if there are many. No bit depends on it.
 */
function shapeOf(gpu: Gpu, rows: Count, channels: number): { constants: Constants; groups: [Count, Count] } {
  const base = lanes(gpu)
  const { software } = gpu.facts
  const held = channels / base.LANES
  if ((software && !base.SUBGROUP) || !Number.isInteger(held) || held > mostHeld(software))
    return { constants: { ...base, HELD: 0 }, groups: perRow(rows) }
  const ROWS = rowsOfGroup(software, capacityOf(rows) * base.LANES, held)
  return { constants: { ...base, HELD: held, ROWS }, groups: perRow(groupsOf(rows, ROWS)) }
}

/**
 * Rows per workgroup. On a GPU it is one subgroup, and one starts per nanosecond, so heads (512 bytes each) are taken eight at a time if that leaves
 * enough workgroups.
 */
function rowsOfGroup(software: boolean, invocations: number, held: number): number {
  if (software) return held > 4 ? 8 : 16
  return held <= 8 && invocations >= 2 * fullGpu ? 8 : 1
}

/** Rotates heads by their token's position (rope): `heads` rows of a norm belong to one token; info and table as for `rope`. */
export interface HeadTurn {
  info: GpuBuffer
  table: GpuBuffer
  heads: number
}

/** Whether norms can also rotate heads of this many channels: a lane must hold both values of each pair, and the code must not become too large. */
export function takesTurn(gpu: Gpu, channels: number): boolean {
  const { LANES, SUBGROUP } = lanes(gpu)
  const held = channels / LANES
  return held % 2 === 0 && held <= 8 && (!gpu.facts.software || SUBGROUP === 1)
}

/**
 * y = x * rstd * gain; x, y (rows, channels), rstd (rows).
 * @param more.turn y is also rotated, with the bits of `rope` (`takesTurn`) @param more.residual (rows, channels) is added; not with `turn`
 * @param more.half y is written in f16, as matrix units read it (`takesHalf`); not with the others
 */
export function rmsNorm(
  gpu: Gpu,
  x: GpuBuffer,
  gain: Binding,
  y: GpuBuffer,
  rstd: GpuBuffer,
  rows: Count,
  channels: number,
  eps: number,
  { turn, residual, half }: { turn?: HeadTurn; residual?: GpuBuffer; half?: boolean } = {},
): void {
  const { constants, groups } = shapeOf(gpu, rows, channels)
  // A CPU driver loads a vector of four in little more time than one value; f16 output is written value by value.
  const VEC4 = Number(gpu.facts.software && !half && constants.HELD === 0 && channels % 4 === 0)
  const kernel = gpu.kernel(paths.forward, {
    ...constants,
    TURN: Number(!!turn),
    ADD: Number(!!residual),
    VEC4,
    ...(half && { F16: 1 }),
  })
  const bindings = [
    x,
    gain,
    y,
    rstd,
    ...(turn ? [turn.info, turn.table] : []),
    ...(residual ? [residual] : []),
    ...(VEC4 ? [x] : []),
  ]
  gpu.dispatch(kernel, bindings, { rows, channels, eps, heads: turn?.heads ?? 1 }, groups)
}

/** Rows over which a workgroup of `rmsNormBackward` sums the gain's gradient: so few that all threads of a CPU driver get some. */
const GAIN_ROWS = 64

/** Whether `rmsNormBackward` can also compute the gain's gradient: on CPU drivers, if rows are narrow, as dy and x are then in registers. */
export function takesGain(gpu: Gpu, channels: number): boolean {
  return gpu.facts.software && shapeOf(gpu, 1, channels).constants.HELD !== 0
}

/**
 * Computes dx from dy; `skip` (rows, channels) is added.
 * @param t.dgain the gain's gradient is added to it (`takesGain`) @param turn dy is the gradient of the rotated output
 */
export function rmsNormBackward(
  gpu: Gpu,
  t: { dy: GpuBuffer; x: GpuBuffer; gain: Binding; rstd: GpuBuffer; dx: GpuBuffer; skip?: GpuBuffer; dgain?: Binding },
  rows: Count,
  channels: number,
  turn?: HeadTurn,
): void {
  const { constants, groups } = shapeOf(gpu, rows, channels)
  const flags = { SKIP: Number(!!t.skip), TURN: Number(!!turn), GAIN: Number(!!t.dgain) }
  const bindings = [t.dy, t.x, t.gain, t.rstd, t.dx, ...(t.skip ? [t.skip] : []), ...(turn ? [turn.info, turn.table] : [])]
  const params = { rows, channels, heads: turn?.heads ?? 1 }
  if (!t.dgain) return gpu.dispatch(gpu.kernel(paths.backward, { ...constants, ...flags }), bindings, params, groups)
  const parts = groupsOf(rows, GAIN_ROWS)
  const kernel = gpu.kernel(paths.backward, { ...constants, ...flags, ROWS: GAIN_ROWS })
  addParts(gpu, t.dgain, parts, channels, (sums) => gpu.dispatch(kernel, [...bindings, sums], params, perRow(parts)))
}

/**
 * Rows that one invocation sums; these sums are then added up likewise. With one sum over all rows, a GPU would wait for one load after the other
 * (16k tokens have 262k rows of heads), and round as often. Parts begin at row 0, so bits do not depend on the capacity of a plan.
 */
const PART = 256

/** Calls `fn` with the output for the sums of parts. If there are several parts, their sums are then added to `out` (channels). */
function inParts(
  gpu: Gpu,
  out: Binding,
  rows: Count,
  channels: number,
  fn: (to: Binding, parts: Count, PARTIAL: number) => void,
  scale = 1,
): void {
  if (capacityOf(rows) <= PART)
    return fn(
      out,
      map(rows, (n) => Math.min(n, 1)),
      0,
    )
  const parts = groupsOf(rows, PART)
  addParts(gpu, out, parts, channels, (sums) => fn(sums, parts, 1), scale)
}

/** out (columns) += scale * the sum over parts of the partial sums (parts, columns) that `fn` computes. */
export function addParts(gpu: Gpu, out: Binding, parts: Count, columns: number, fn: (sums: GpuBuffer) => void, scale = 1): void {
  const sums = gpu.pool.acquire(capacityOf(parts) * columns * 4, 'sums of parts')
  fn(sums)
  addColumnSums(gpu, sums, out, parts, columns, scale)
  sums.release()
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
  const VEC4 = Number(gpu.facts.software && channels % 4 === 0)
  inParts(gpu, dgain, rows, channels, (to, parts, PARTIAL) => {
    const kernel = gpu.kernel(paths.gain, { WIDTH, TURN: 4, PART, PARTIAL, VEC4 })
    const [across, deep] = perRow(parts)
    const groups = Math.ceil(channels / (VEC4 ? 4 * WIDTH : WIDTH))
    gpu.dispatch(kernel, [dy, x, rstd, to], { rows, channels }, [across, groups, deep])
  })
}

/** out += column sums of x (rows, columns). */
export function addColumnSums(gpu: Gpu, x: GpuBuffer, out: Binding, rows: Count, columns: number, scale = 1): void {
  const sums = (to: Binding, parts: Count, PARTIAL: number): void =>
    dispatchFlat(gpu, paths.columns, { PART, PARTIAL }, [x, to], { rows, columns, scale }, times(parts, columns))
  inParts(gpu, out, rows, columns, sums, scale)
}

/** gain = 1 + weight, (channels) both. */
export function gainFromOne(gpu: Gpu, weight: Binding, gain: Binding, channels: number): void {
  dispatchFlat(gpu, paths.fromOne, {}, [weight, gain], { count: channels }, channels)
}
