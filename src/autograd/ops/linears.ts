/**
 * Projections of one input at once: q, k, v, and SwiGLU's gate and up. On a tape that keeps nothing, and where the adapter gains by it, LoRA's first product,
 * the projections and SwiGLU's gate are a dispatch each, or two; the bits are those of one by one.
 */
import type { BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { loraDown, stackedDown, takesLoraDown, type StackLayout } from '../../kernels/lora/lora.ts'
import { linearGated, linearGroup, takesGroup, type GroupMember } from '../../kernels/matmul/group.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { siluGate } from './elementwise.ts'
import { linear, type LinearArguments, type Projection } from './linear.ts'

/** The adapters of projections of one input, one below the other: A_i (rank, K) and B_i (N_i, rank) of each, in one buffer. */
export interface StackedLora extends StackLayout {
  rank: number
  a: BufferRange[]
  b: BufferRange[]
  /** `perProjection` of each projection, by place. */
  scales: BufferRange
  perProjection: number
}

/** Rows that run with different adapters: in place of the projections' own. */
export interface RowAdapters {
  /** (rows) u32: each row's place in the stacks. */
  places: GpuBuffer
  /** Of projections of one input; undefined where no adapter changes them. */
  of(projections: Projection[]): StackedLora | undefined
}

export interface LinearsArguments extends LinearArguments {
  /** Only on a tape that keeps nothing. */
  adapters?: RowAdapters
}

/**
 * The outputs of several projections of one input, as of `linear`. With `adapters`, each row has the bits of a pass over projections with its own adapter alone:
 * B is summed over the whole rank, in order, and what is another's adds 0.
 */
export function linears(tape: Tape, x: Tensor, projections: Projection[], options: LinearsArguments = {}): Tensor[] {
  if (!atOnce(tape, x, projections, options)) return projections.map((projection) => linear(tape, x, projection, options))
  const lora = downs(tape, x, projections, options.adapters)
  const ys = projections.map(({ name, weight }) => tape.tensor(x.rows, weight.rows, name, false))
  const members = membersOf(projections, options.adapters)
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
export function swiGlu(tape: Tape, x: Tensor, gate: Projection, up: Projection, options: LinearsArguments = {}): Tensor {
  const pair = [gate, up]
  const members = membersOf(pair, options.adapters)
  const even = gate.weight.rows === up.weight.rows
  if (even && !options.residual && atOnce(tape, x, pair, options) && takesGroup(tape.gpu, members)) {
    const lora = downs(tape, x, pair, options.adapters)
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

/** Whether the tape keeps nothing, and either no projection has an adapter or `loraDown` takes those of all; always with adapters of rows. */
function atOnce(tape: Tape, x: Tensor, projections: Projection[], options: LinearsArguments): boolean {
  const loras = projections.flatMap(({ lora }) => lora ?? [])
  if (options.adapters) {
    if (tape.recording) throw new Error('rows of different adapters have no gradients')
    return true
  }
  if (tape.recording) return false
  if (loras.length === 0) return true
  const drops = options.dropoutSeed !== undefined && loras.some((lora) => lora.dropout > 0)
  const alike = loras.length === projections.length && loras.every((lora) => lora.rank === loras[0].rank)
  const matrices = loras.map(({ store, a }) => store.value(a))
  return !drops && alike && takesLoraDown(tape.gpu, x.columns, matrices)
}

function membersOf(projections: Projection[], adapters: RowAdapters | undefined): GroupMember[] {
  const stack = adapters?.of(projections)
  const ownB = ({ lora }: Projection) => (adapters ? undefined : lora?.store.value(lora.b))
  return projections.map((projection, i) => {
    const { weight, bias } = projection
    return { weight, bias, b: stack ? stack.b[i] : ownB(projection) }
  })
}

/** LoRA's first product for all of them; nothing where they have no adapter. */
function downs(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
  adapters: RowAdapters | undefined,
): { rank: number; xa: GpuBuffer[]; tensors: Tensor[] } | undefined {
  const { gpu } = tape
  const room = (rank: number) => {
    const tensors = projections.map(({ name }) => tape.tensor(x.rows, rank, `${name} A`, false))
    return { rank, tensors, xa: tensors.map(({ buffer }) => buffer) }
  }
  if (adapters) {
    const stack = adapters.of(projections)
    if (!stack) return undefined
    const made = room(stack.rank)
    const parts = stack.a.map((a, i) => ({ a, out: made.xa[i] }))
    stackedDown(gpu, x.buffer, x.rows, x.columns, stack.rank, parts, { ...stack, places: adapters.places })
    return made
  }
  const loras = projections.flatMap(({ lora }) => lora ?? [])
  if (loras.length === 0) return undefined
  const made = room(loras[0].rank)
  const parts = loras.map(({ store, a, scale }, i) => ({ a: store.value(a), scale, out: made.xa[i] }))
  loraDown(gpu, x.buffer, x.rows, x.columns, made.rank, parts)
  return made
}
