/** Gated DeltaNet (arXiv 2412.06464), as Qwen3.5 has it in the place of attention in most layers. */
import { causalConv } from '../../autograd/ops/causal-conv.ts'
import { deltaDecay, sigmoid } from '../../autograd/ops/delta-gates.ts'
import { deltaRule } from '../../autograd/ops/delta-rule.ts'
import type { RowLayout } from '../../autograd/ops/attention.ts'
import { siluGate } from '../../autograd/ops/elementwise.ts'
import type { Projection } from '../../autograd/ops/linear.ts'
import { linears, type LinearsArguments } from '../../autograd/ops/linears.ts'
import { rmsNorm, type Norm } from '../../autograd/ops/norm.ts'
import type { TrainedValues } from '../../autograd/parameters.ts'
import type { Tape } from '../../autograd/tape.ts'
import type { Tensor } from '../../autograd/tensor.ts'
import type { stateOf } from './layer-cache.ts'
import { deltaWidths } from './shapes.ts'
import type { Qwen35Config } from '../types.ts'

/** The weights of a layer's Gated DeltaNet. */
export interface DeltaPart {
  kind: 'delta'
  /** q, k and v, side by side; what the output is gated with; of the step size beta and of the decay, a value a head. */
  qkv: Projection
  z: Projection
  b: Projection
  a: Projection
  out: Projection
  /** Convolution weights of each channel of q, k and v over its last tokens, the newest last. */
  conv: TrainedValues
  aLog: TrainedValues
  dtBias: TrainedValues
  /** What makes q and k of length 1 (q divided by the root of its channels besides): norms whose gain is a constant. */
  qUnit: Norm
  kUnit: Norm
  /** Norm of each head of the delta rule's output. */
  norm: Norm
}

/** The input of the layer's last projection: (rows, value heads * value channels). */
export function deltaMixed(
  tape: Tape,
  shape: Qwen35Config,
  part: DeltaPart,
  x: Tensor,
  layout: RowLayout,
  cache: ReturnType<typeof stateOf> | undefined,
  options: LinearsArguments,
): Tensor {
  const { keyHeads, valueHeads: heads, keyDim, valueDim } = shape
  const [qkv, z, b, a] = linears(tape, x, [part.qkv, part.z, part.b, part.a], options)
  const [q, k, v] = causalConv(tape, qkv, deltaWidths(shape), part.conv, layout, shape.taps, cache)
  const [qUnit, kUnit] = [rmsNorm(tape, q, part.qUnit), rmsNorm(tape, k, part.kUnit)]
  const [decay, beta] = [deltaDecay(tape, a, part.aLog, part.dtBias), sigmoid(tape, b)]
  tape.done(qkv, q, k, a, b)
  const states = cache?.states && { runs: cache.runs, states: cache.states }
  const read = deltaRule(tape, { q: qUnit, k: kUnit, v, decay, beta }, layout, { keyHeads, heads, keyDim, valueDim }, states)
  tape.done(qUnit, kUnit, v, decay, beta)
  const normed = rmsNorm(tape, read, part.norm)
  const gated = siluGate(tape, z, normed)
  tape.done(read, normed, z)
  return gated
}
