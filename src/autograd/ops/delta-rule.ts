/** The gated delta rule (arXiv 2412.06464) over a packed batch. */
import * as kernels from '../../kernels/delta-rule/delta-rule.ts'
import type { DeltaCache, DeltaShape } from '../../kernels/delta-rule/delta-rule.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import type { RowLayout } from './attention.ts'

/** The vectors of each token's heads (kernels/delta-rule). */
interface DeltaTensors {
  /** (rows, key heads * key channels), already normalised. */
  q: Tensor
  k: Tensor
  /** (rows, heads * value channels) */
  v: Tensor
  /** (rows, heads): the logarithm of the decay, and the step size. */
  decay: Tensor
  beta: Tensor
}

/**
 * The output of the delta rule, (rows, heads * value channels): each token reads the state that the tokens up to and including it have written.
 * @param layout must be of whole sequences, without shared prompts @param cache states of earlier passes, in a pass without gradients
 */
export function deltaRule(tape: Tape, x: DeltaTensors, layout: RowLayout, shape: DeltaShape, cache?: DeltaCache): Tensor {
  const { gpu } = tape
  const { q, k, v, decay, beta } = x
  const { rows } = q
  const inputs = { q: q.buffer, k: k.buffer, v: v.buffer, decay: decay.buffer, beta: beta.buffer }
  const needsGrad = Object.values(x).some((tensor: Tensor) => tensor.needsGrad)
  const o = tape.tensor(rows, v.columns, 'delta rule', needsGrad)
  const kept = o.needsGrad ? tape.tensor(rows, v.columns, 'delta rule misses', false) : undefined
  const whole = { keyEnd: layout.keyEnd! }
  kernels.deltaRule(gpu, { ...inputs, o: o.buffer, u: kept?.buffer }, cache ?? whole, rows, shape)
  if (!kept) return o
  tape.node(o, [q, k, v, decay, beta, kept], (dO) => {
    const { heads, keyDim } = shape
    const given = [q, k, v, decay, beta].map((t) => tape.tensor(rows, t.columns, 'd delta rule', false))
    const scratch = [v.columns, v.columns, heads * keyDim, heads * keyDim, heads * keyDim, heads].map((columns) =>
      tape.tensor(rows, columns, 'd states', false),
    )
    const [dq, dk, dv, dDecay, dBeta] = given.map(({ buffer }) => buffer)
    const [dd, moved, ofQ, read, written, flow] = scratch.map(({ buffer }) => buffer)
    const made = { dq, dk, dv, dDecay, dBeta, dd, moved, ofQ, read, written, flow }
    kernels.deltaRuleBackward(gpu, { ...inputs, ...whole, ...made, u: kept.buffer, dO: dO.buffer }, rows, shape)
    for (const [i, tensor] of [q, k, v, decay, beta].entries()) tape.giveGrad(tensor, given[i])
    tape.done(...given, ...scratch)
  })
  tape.done(kept)
  return o
}
