/** Gated short convolution, as LFM2 has it in the place of attention in most layers (transformers' Lfm2ShortConv). */
import type { RowLayout } from '../../autograd/ops/attention.ts'
import { gatedConv } from '../../autograd/ops/causal-conv.ts'
import type { Projection } from '../../autograd/ops/linear.ts'
import { linears, type LinearsArguments } from '../../autograd/ops/linears.ts'
import type { TrainedValues } from '../../autograd/parameters.ts'
import type { Tape } from '../../autograd/tape.ts'
import type { Tensor } from '../../autograd/tensor.ts'
import type { stateOf } from './layer-cache.ts'
import type { ShortConvConfig } from '../types.ts'

/** The weights of a layer's gated convolution. */
export interface ConvPart {
  kind: 'conv'
  /** B, C and x, side by side. */
  gates: Projection
  out: Projection
  /** Convolution weights of each channel over its last tokens, the newest last. */
  conv: TrainedValues
}

/** The input of the layer's last projection: (rows, hidden). */
export function convMixed(
  tape: Tape,
  { taps }: ShortConvConfig,
  part: ConvPart,
  x: Tensor,
  layout: RowLayout,
  cache: ReturnType<typeof stateOf> | undefined,
  options: LinearsArguments,
): Tensor {
  const [gates] = linears(tape, x, [part.gates], options)
  const y = gatedConv(tape, gates, part.conv, layout, taps, cache)
  tape.done(gates)
  return y
}
