/**
 * Depthwise causal convolution (each channel separately): with SiLU, as it comes before the delta rule (src/kernels/delta-rule), or gated on both
 * sides (LFM2).
 */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { groupsOf, times, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'
import { addParts } from '../norm/norm.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('forward.wgsl'),
  input: file('input_gradient.wgsl'),
  weight: file('weight_gradient.wgsl'),
  keep: file('keep_inputs.wgsl'),
}

/** Where a pass finds the inputs that precede its own, and leaves its last ones. */
export interface ConvCache {
  /**
   * (rows) vec4u: slot of the row's sequence, its first row in the pass, its number of rows in the pass, 1 if they continue from the slot's inputs.
   * The rows of a sequence are contiguous.
   */
  runs: GpuBuffer
  /** (slots, taps - 1, channels), oldest first. */
  inputs: GpuBuffer
}

export interface ConvShape {
  /** A multiple of 4, as are the first channel and the width of a range. */
  channels: number
  /** Number of inputs from which an output is computed. */
  taps: number
  /** x and dx are (rows, 3 channels): B, C and the values of all channels. y is C times the convolution of B times the values, without SiLU. */
  gated?: boolean
}

const kindOf = ({ gated = false }: ConvShape): { GATED: number } => ({ GATED: Number(gated) })
const tapsOf = (shape: ConvShape): { TAPS: number; FOUR: number; GATED: number } => ({
  TAPS: shape.taps,
  FOUR: Number(shape.taps === 4),
  ...kindOf(shape),
})

/** The channels of the output: `width` of them, from `first` on. */
export interface ChannelRange {
  first: number
  width: number
}

const foursOf = (channels: number, { first, width }: ChannelRange): ChannelRange & { channels: number } => ({
  channels: channels / 4,
  first: first / 4,
  width: width / 4,
})

/**
 * Computes y (rows, width) from x (rows, channels) and weight (channels, taps).
 * @param from `info` as of attention, if the sequences lie whole in the pass, or a cache
 */
export function causalConv(
  gpu: Gpu,
  { x, weight, y }: { x: GpuBuffer; weight: Binding; y: GpuBuffer },
  from: { info: GpuBuffer } | ConvCache,
  rows: Count,
  shape: ConvShape,
  range: ChannelRange,
): void {
  const cached = 'runs' in from
  const bindings = [x, weight, y, ...(cached ? [from.runs, from.inputs] : [from.info])]
  const constants = { ...tapsOf(shape), CACHE: Number(cached), BACKWARD: 0 }
  const fours = foursOf(shape.channels, range)
  dispatchFlat(gpu, paths.forward, constants, bindings, { rows, ...fours }, times(rows, fours.width))
}

/**
 * The gradient of the convolution's output, dz (rows, channels), for the channels of dy (rows, width). @param t.dx if gated: receives C's gradient
 */
export function causalConvGate(
  gpu: Gpu,
  t: { x: GpuBuffer; weight: Binding; dy: GpuBuffer; dz: GpuBuffer; info: GpuBuffer; dx?: GpuBuffer },
  rows: Count,
  shape: ConvShape,
  range: ChannelRange,
): void {
  const constants = { ...tapsOf(shape), CACHE: 0, BACKWARD: 1 }
  const bindings = [t.x, t.weight, t.dy, t.dz, t.info, ...(t.dx ? [t.dx] : [])]
  const fours = foursOf(shape.channels, range)
  dispatchFlat(gpu, paths.forward, constants, bindings, { rows, ...fours }, times(rows, fours.width))
}

/**
 * dx (rows, channels) from dz; if gated, all of dx except C's part. @param t.keyEnd (rows) u32: a row's sequence ends before it @param t.x if gated
 */
export function causalConvInput(
  gpu: Gpu,
  t: { dz: GpuBuffer; weight: Binding; keyEnd: GpuBuffer; dx: GpuBuffer; x?: GpuBuffer },
  rows: Count,
  shape: ConvShape,
): void {
  const bindings = [t.dz, t.weight, t.keyEnd, t.dx, ...(t.x ? [t.x] : [])]
  const fours = shape.channels / 4
  dispatchFlat(gpu, paths.input, tapsOf(shape), bindings, { rows, channels: fours }, times(rows, fours))
}

/** Rows that one invocation sums; these partial sums are added up in order. */
const PART = 256

/** dweight (channels, taps) += the weight's gradient from dz. */
export function causalConvWeight(
  gpu: Gpu,
  t: { x: GpuBuffer; dz: GpuBuffer; info: GpuBuffer; dweight: Binding },
  rows: Count,
  shape: ConvShape,
): void {
  const { channels, taps } = shape
  const parts = groupsOf(rows, PART)
  const constants = { TAPS: taps, PART, ...kindOf(shape) }
  addParts(gpu, t.dweight, parts, channels * taps, (sums) =>
    dispatchFlat(gpu, paths.weight, constants, [t.x, t.dz, t.info, sums], { rows, channels }, times(parts, channels * taps)),
  )
}

/** Leaves the last values that a pass convolves in the cache. To be called after `causalConv`. */
export function keepInputs(gpu: Gpu, x: GpuBuffer, { runs, inputs }: ConvCache, rows: Count, shape: ConvShape): void {
  const fours = shape.channels / 4
  dispatchFlat(
    gpu,
    paths.keep,
    { TAPS: shape.taps, ...kindOf(shape) },
    [x, runs, inputs],
    { rows, channels: fours },
    times(rows, fours),
  )
}
