/** The two gates of a Gated DeltaNet (arXiv 2412.06464) for each token and head: the decay of the state, and the step size of its update. */
import { rangeOf } from '../../gpu/gpu.ts'
import * as kernels from '../../kernels/elementwise/elementwise.ts'
import { addColumnSums } from '../../kernels/norm/norm.ts'
import type { TrainedValues } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'

/** The logarithm of the decay, -exp(aLog) * softplus(a + dtBias): (rows, heads), from a (rows, heads), and aLog and dtBias (heads). */
export function deltaDecay(tape: Tape, a: Tensor, aLog: TrainedValues, dtBias: TrainedValues): Tensor {
  const { gpu } = tape
  const { rows, columns: heads, count } = a
  const y = tape.tensor(rows, heads, 'decay', a.needsGrad || !!aLog.trained || !!dtBias.trained)
  const read = { a: a.buffer, aLog: aLog.values, dtBias: dtBias.values }
  kernels.deltaDecay(gpu, { ...read, y: y.buffer }, count, heads)
  return tape.node(y, [a], (dy) => {
    const [da, dlog] = ['d step', 'd rate'].map((name) => tape.tensor(rows, heads, name, false))
    kernels.deltaDecayBackward(gpu, { ...read, dy: dy.buffer, da: da.buffer, dlog: dlog.buffer }, count, heads)
    for (const [sums, { trained }] of [[dlog, aLog] as const, [da, dtBias] as const])
      if (trained) addColumnSums(gpu, sums.buffer, rangeOf(trained.store.gradient(trained.parameter)), rows, heads)
    tape.giveGrad(a, da)
    tape.done(da, dlog)
  })
}

/** 1 / (1 + exp(-x)). */
export function sigmoid(tape: Tape, x: Tensor): Tensor {
  const { gpu } = tape
  const y = tape.tensor(x.rows, x.columns, 'sigmoid', x.needsGrad)
  kernels.sigmoid(gpu, x.buffer, y.buffer, x.count)
  return tape.node(y, [y], (dy) => {
    const dx = tape.tensor(x.rows, x.columns, 'd sigmoid', false)
    kernels.sigmoidBackward(gpu, dy.buffer, y.buffer, dx.buffer, x.count)
    tape.giveGrad(x, dx)
    tape.done(dx)
  })
}
