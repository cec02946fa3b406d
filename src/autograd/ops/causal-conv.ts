/** Depthwise causal convolution: followed by SiLU, or gated. */
import { rangeOf } from '../../gpu/gpu.ts'
import * as kernels from '../../kernels/causal-conv/causal-conv.ts'
import type { ConvCache } from '../../kernels/causal-conv/causal-conv.ts'
import type { TrainedValues } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import type { RowLayout } from './attention.ts'

/**
 * For each channel, silu of the weighted sum of its last `taps` inputs. Returns the channels as tensors of `widths` columns.
 * @param x (rows, channels) @param weight (channels, taps), that of the newest input last
 * @param layout must be of whole sequences, without shared prompts @param cache inputs of earlier passes, in a pass without gradients
 */
export function causalConv(
  tape: Tape,
  x: Tensor,
  widths: number[],
  weight: TrainedValues,
  layout: RowLayout,
  taps: number,
  cache?: ConvCache,
): Tensor[] {
  const { gpu } = tape
  const { rows, columns: channels } = x
  const shape = { channels, taps }
  const ranges = widths.map((width, i) => ({ first: widths.slice(0, i).reduce((a, b) => a + b, 0), width }))
  const outputs = ranges.map((range) => {
    const y = tape.tensor(rows, range.width, weight.name, x.needsGrad || !!weight.trained)
    kernels.causalConv(gpu, { x: x.buffer, weight: weight.values, y: y.buffer }, cache ?? layout, rows, shape, range)
    return y
  })
  if (cache) kernels.keepInputs(gpu, x.buffer, cache, rows, shape)
  // All channels share one backward pass, which runs at the first output's node: the last of them to be reached.
  const gradients: Tensor[] = []
  outputs.forEach((y, i) => {
    tape.node(y, [x], (dy) => {
      gradients[i] = dy.keep()
      if (i === 0) goBack(tape, x, weight, layout, shape, ranges, gradients)
    })
  })
  return outputs
}

/**
 * C * convolution of (B * x), each channel by itself: (rows, channels) of `gates` (rows, 3 channels), which has B, C and x side by side (LFM2).
 * @param weight (channels, taps), the newest input's last @param layout as of `causalConv` @param cache products B * x of earlier passes, in a pass without gradients
 */
export function gatedConv(
  tape: Tape,
  gates: Tensor,
  weight: TrainedValues,
  layout: RowLayout,
  taps: number,
  cache?: ConvCache,
): Tensor {
  const { gpu } = tape
  const { rows, columns, buffer } = gates
  const shape = { channels: columns / 3, taps, gated: true }
  const whole = { first: 0, width: shape.channels }
  const y = tape.tensor(rows, shape.channels, weight.name, gates.needsGrad || !!weight.trained)
  kernels.causalConv(gpu, { x: buffer, weight: weight.values, y: y.buffer }, cache ?? layout, rows, shape, whole)
  if (cache) kernels.keepInputs(gpu, buffer, cache, rows, shape)
  return tape.node(y, [gates], (dy) => goBack(tape, gates, weight, layout, shape, [whole], [dy.keep()]))
}

function goBack(
  tape: Tape,
  x: Tensor,
  { values, trained }: TrainedValues,
  { info, keyEnd }: RowLayout,
  shape: kernels.ConvShape,
  ranges: kernels.ChannelRange[],
  gradients: Tensor[],
): void {
  const { gpu } = tape
  const { rows, columns } = x
  const { gated } = shape
  const dz = tape.tensor(rows, shape.channels, 'd convolved', false)
  const makeDx = () => tape.tensor(rows, columns, 'd convolution', false)
  // C's gradient goes into it first.
  const ofGates = gated ? makeDx() : undefined
  ranges.forEach((range, i) => {
    if (!gradients[i]) throw new Error('an output of a convolution has no gradient')
    const t = { x: x.buffer, weight: values, dy: gradients[i].buffer, dz: dz.buffer, info, dx: ofGates?.buffer }
    kernels.causalConvGate(gpu, t, rows, shape, range)
    gradients[i].drop()
  })
  if (trained) {
    const dweight = rangeOf(trained.store.gradient(trained.parameter))
    kernels.causalConvWeight(gpu, { x: x.buffer, dz: dz.buffer, info, dweight }, rows, shape)
  }
  if (x.needsGrad) {
    const dx = ofGates ?? makeDx()
    const t = { dz: dz.buffer, weight: values, keyEnd: keyEnd!, dx: dx.buffer, x: gated ? x.buffer : undefined }
    kernels.causalConvInput(gpu, t, rows, shape)
    tape.giveGrad(x, dx)
    tape.done(dx)
  } else if (ofGates) tape.done(ofGates)
  tape.done(dz)
}
