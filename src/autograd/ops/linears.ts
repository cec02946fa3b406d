/**
 * Projections of one input at once: q, k, v, and SwiGLU's gate and up. On a tape that keeps nothing, and where the adapter gains by it, LoRA's first product,
 * the projections and SwiGLU's gate are a dispatch each, or two; the bits are those of one by one.
 */
import type { GpuBuffer } from '../../gpu/pool.ts'
import { loraDown, takesLoraDown } from '../../kernels/lora/lora.ts'
import { linearGated, linearGroup, takesGroup, type GroupMember } from '../../kernels/matmul/group.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { siluGate } from './elementwise.ts'
import { linear, type LinearArguments, type Projection } from './linear.ts'

/** The outputs of several projections of one input, as of `linear`. */
export function linears(tape: Tape, x: Tensor, projections: Projection[], options: LinearArguments = {}): Tensor[] {
  if (!atOnce(tape, x, projections, options)) return projections.map((projection) => linear(tape, x, projection, options))
  const lora = downs(tape, x, projections)
  const ys = projections.map(({ name, weight }) => tape.tensor(x.rows, weight.rows, name, false))
  const members = membersOf(projections)
  if (members.length === 3 && !options.residual && takesGroup(tape.gpu, members)) {
    const outputs = ys.map(({ buffer }) => buffer)
    linearGroup(tape.gpu, x.buffer, x.rows, members, outputs, lora)
  } else {
    members.forEach(({ weight, bias, b }, i) => {
      const lowRank = lora && { x: lora.xa[i], matrix: b!, rank: lora.rank }
      const added = { bias, residual: options.residual?.buffer, lora: lowRank }
      matmul.linear(tape.gpu, x.buffer, x.rows, weight, ys[i].buffer, added)
    })
  }
  tape.done(...(lora?.tensors ?? []))
  return ys
}

/** silu(gate(x)) * up(x): (rows, N). */
export function swiGlu(tape: Tape, x: Tensor, gate: Projection, up: Projection, options: LinearArguments = {}): Tensor {
  const pair = [gate, up]
  const members = membersOf(pair)
  const even = gate.weight.rows === up.weight.rows
  if (even && !options.residual && atOnce(tape, x, pair, options) && takesGroup(tape.gpu, members)) {
    const lora = downs(tape, x, pair)
    const y = tape.tensor(x.rows, gate.weight.rows, 'silu gate', false)
    linearGated(tape.gpu, x.buffer, x.rows, members, y.buffer, lora)
    tape.done(...(lora?.tensors ?? []))
    return y
  }
  const [g, u] = linears(tape, x, pair, options)
  const y = siluGate(tape, g, u)
  tape.done(g, u)
  return y
}

/** Whether the tape keeps nothing, and either no projection has an adapter or `loraDown` takes those of all. */
function atOnce(tape: Tape, x: Tensor, projections: Projection[], options: LinearArguments): boolean {
  const loras = projections.flatMap(({ lora }) => lora ?? [])
  if (tape.recording) return false
  if (loras.length === 0) return true
  const drops = options.dropoutSeed !== undefined && loras.some((lora) => lora.dropout > 0)
  const alike = loras.length === projections.length && loras.every((lora) => lora.rank === loras[0].rank)
  const matrices = loras.map(({ store, a }) => store.value(a))
  return !drops && alike && takesLoraDown(tape.gpu, x.columns, matrices)
}

function membersOf(projections: Projection[]): GroupMember[] {
  return projections.map(({ weight, bias, lora }) => ({ weight, bias, b: lora?.store.value(lora.b) }))
}

/** LoRA's first product for all of them; nothing where they have no adapter. */
function downs(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
): { rank: number; xa: GpuBuffer[]; tensors: Tensor[] } | undefined {
  const loras = projections.flatMap(({ lora }) => lora ?? [])
  if (loras.length === 0) return undefined
  const { rank } = loras[0]
  const tensors = loras.map(({ a }) => tape.tensor(x.rows, rank, a.name, false))
  const parts = loras.map(({ store, a, scale }, i) => ({ a: store.value(a), scale, out: tensors[i].buffer }))
  loraDown(tape.gpu, x.buffer, x.rows, x.columns, rank, parts)
  return { rank, xa: tensors.map(({ buffer }) => buffer), tensors }
}
