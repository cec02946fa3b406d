/** Gates: SwiGLU and its variants. */
import * as kernels from '../../kernels/elementwise/elementwise.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'

/** y = silu(g) * u, or with `gate` gelu(g) * u or sigmoid(g) * u. All (rows, columns). */
export function siluGate(tape: Tape, g: Tensor, u: Tensor, gate?: kernels.Gate): Tensor {
  const { gpu } = tape
  const y = tape.tensor(g.rows, g.columns, 'silu gate', g.needsGrad || u.needsGrad)
  kernels.siluGate(gpu, g.buffer, u.buffer, y.buffer, g.count, g.columns, gate)
  return siluGateNode(tape, g, u, y, gate)
}

/** Adds the node for the output y of `siluGate`, which is already computed. */
export function siluGateNode(tape: Tape, g: Tensor, u: Tensor, y: Tensor, gate?: kernels.Gate): Tensor {
  const { gpu } = tape
  return tape.nodeRecomputed(y, [g, u], (dy, again) => {
    const dg = tape.tensor(g.rows, g.columns, 'd gate', false)
    const du = tape.tensor(u.rows, u.columns, 'd up', false)
    const buffers = { dy: dy.buffer, g: g.buffer, u: u.buffer, dg: dg.buffer, du: du.buffer }
    kernels.siluGateBackward(gpu, buffers, g.count, g.columns, gate, again)
    tape.giveGrad(g, dg)
    tape.giveGrad(u, du)
    tape.done(dg, du)
  })
}
