/** RMSNorm forward and backward, and the column sum that a bias's gradient is. */
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
 * Values of a row that a lane keeps in registers at most. On CPU drivers a load costs more than the arithmetic; on a GPU all loads of a row wait for memory
 * together, which a loop of them would do four by four.
 */
const mostHeld = (software: boolean): number => (software ? 16 : 32)

/** How the rows of a norm are taken: each loaded once where it is narrow, and several a workgroup where there are many. No bit depends on it. */
function shapeOf(gpu: Gpu, rows: Count, channels: number): { constants: Constants; groups: [Count, Count] } {
  const base = lanes(gpu)
  const { software } = gpu.facts
  const held = channels / base.LANES
  if ((software && !base.SUBGROUP) || !Number.isInteger(held) || held > mostHeld(software))
    return { constants: { ...base, HELD: 0 }, groups: perRow(rows) }
  const ROWS = rowsOfGroup(software, capacityOf(rows) * base.LANES, held)
  return { constants: { ...base, HELD: held, ROWS }, groups: perRow(groupsOf(rows, ROWS)) }
}

/** Rows of a workgroup: a GPU's are one subgroup, and begin one a nanosecond, so heads (512 bytes each) go by eight as soon as that leaves enough of them. */
function rowsOfGroup(software: boolean, invocations: number, held: number): number {
  if (software) return held > 4 ? 8 : 16
  return held <= 8 && invocations >= 2 * fullGpu ? 8 : 1
}

/** What turns heads by their token's position (rope): `heads` rows of a norm are a token's; info and table as of `rope`. */
export interface HeadTurn {
  info: GpuBuffer
  table: GpuBuffer
  heads: number
}

/** Whether norms turn heads of so many channels besides: lanes hold both values of each pair, and not too much is compiled. */
export function takesTurn(gpu: Gpu, channels: number): boolean {
  const { LANES, SUBGROUP } = lanes(gpu)
  const held = channels / LANES
  return held % 2 === 0 && held <= 8 && (!gpu.facts.software || SUBGROUP === 1)
}

/**
 * y = x * rstd * gain; x, y (rows, channels), rstd (rows).
 * @param more.turn y is turned, too, with the bits of `rope` (`takesTurn`) @param more.residual (rows, channels) is added; not with `turn`
 * @param more.half y is in f16, as matrix units read it (`takesHalf`); without the others
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
  // A CPU driver loads a vector of four in little more time than a value; what is written in f16 goes value by value.
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

/** Rows of which a workgroup of `rmsNormBackward` makes a sum of the gain's gradient: so few that a CPU driver's threads share what there is. */
const GAIN_ROWS = 64

/** Whether `rmsNormBackward` makes the gain's gradient, too: on CPU drivers, which have dy and x of narrow rows in registers then. */
export function takesGain(gpu: Gpu, channels: number): boolean {
  return gpu.facts.software && shapeOf(gpu, 1, channels).constants.HELD !== 0
}

/**
 * dx from dy; `skip` (rows, channels) is added.
 * @param t.dgain the gain's gradient is added to it (`takesGain`) @param turn dy is that of what was turned
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
 * Rows of which one invocation makes a sum; the sums are added up likewise. One running sum over all rows would keep a GPU waiting for one load after the other
 * (16k tokens have 262k rows of heads) and round as often. Parts begin at row 0: a sum's bits do not depend on the capacity of a plan.
 */
const PART = 256

/** Calls `fn` with where the sums of parts go, if there are several, and adds those up into `out` (channels). */
function inParts(
  gpu: Gpu,
  out: Binding,
  rows: Count,
  channels: number,
  fn: (to: Binding, parts: Count, PARTIAL: number) => void,
): void {
  if (capacityOf(rows) <= PART)
    return fn(
      out,
      map(rows, (n) => Math.min(n, 1)),
      0,
    )
  const parts = groupsOf(rows, PART)
  addParts(gpu, out, parts, channels, (sums) => fn(sums, parts, 1))
}

/** out (columns) += the sums over parts of what `fn` makes, (parts, columns). */
export function addParts(gpu: Gpu, out: Binding, parts: Count, columns: number, fn: (sums: GpuBuffer) => void): void {
  const sums = gpu.pool.acquire(capacityOf(parts) * columns * 4, 'sums of parts')
  fn(sums)
  addColumnSums(gpu, sums, out, parts, columns)
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
export function addColumnSums(gpu: Gpu, x: GpuBuffer, out: Binding, rows: Count, columns: number): void {
  inParts(gpu, out, rows, columns, (to, parts, PARTIAL) =>
    dispatchFlat(gpu, paths.columns, { PART, PARTIAL }, [x, to], { rows, columns }, times(parts, columns)),
  )
}

/** gain = 1 + weight, (channels) both. */
export function gainFromOne(gpu: Gpu, weight: Binding, gain: Binding, channels: number): void {
  dispatchFlat(gpu, paths.fromOne, {}, [weight, gain], { count: channels }, channels)
}
