/** Causal convolution of each channel by itself: with SiLU, as it stands before the delta rule (src/kernels/delta-rule), or gated on both sides (LFM2). */
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

/** Where a pass finds the inputs before its own, and leaves its last ones. */
export interface ConvCache {
  /** (rows) vec4u: slot of the row's sequence, its first row in the pass, how many it has, 1 where they go on from the slot's. A sequence's rows stand together. */
  runs: GpuBuffer
  /** (slots, taps - 1, channels), oldest first. */
  inputs: GpuBuffer
}

export interface ConvShape {
  /** A multiple of 4, as are the first one and the width of a range. */
  channels: number
  /** Inputs that an output is made of. */
  taps: number
  /** x is (rows, 3 channels), and so is dx: B, C and the values of all channels; y is C times the convolution of B times the values, without SiLU. */
  gated?: boolean
}

const kindOf = ({ gated = false }: ConvShape): { GATED: number } => ({ GATED: Number(gated) })
const tapsOf = (shape: ConvShape): { TAPS: number; FOUR: number; GATED: number } => ({
  TAPS: shape.taps,
  FOUR: Number(shape.taps === 4),
  ...kindOf(shape),
})

/** The channels that an output has: `width` from `first` on. */
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
 * y (rows, width) of x (rows, channels), weight (channels, taps).
 * @param from `info` as of attention, of a pass whose sequences are whole, or a cache
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

/** The gradient of the convolution's output, dz (rows, channels), of the channels that dy (rows, width) has. @param t.dx where it is gated: gets C's gradient */
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

/** dx (rows, channels) of dz; where it is gated all of dx but C's part. @param t.keyEnd (rows) u32: a row's sequence ends before it @param t.x where it is gated */
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

/** Rows whose sum one invocation makes; the sums are added up in order. */
const PART = 256

/** dweight (channels, taps) += that of dz. */
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

/** Leaves the last values that a pass convolves in the cache; after `causalConv`. */
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
