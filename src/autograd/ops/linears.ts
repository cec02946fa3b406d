/**
 * Several projections of one input: q, k and v, or SwiGLU's gate and up. Where that is faster, LoRA's first products (x Aᵀ), the projections and
 * SwiGLU's gate take one dispatch each, or one dispatch for two of these. The outputs are bit-identical to those of separate projections. When
 * gradients are recorded, GPUs run SwiGLU's gate as a separate kernel; on CPU drivers the joint kernel keeps the two factors for the backward pass.
 */
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Gate } from '../../kernels/elementwise/elementwise.ts'
import { loraDown, stackedDown, takesDownNorm, takesLoraDown, type StackLayout } from '../../kernels/lora/lora.ts'
import { takesThin } from '../../kernels/lora/thin.ts'
import { downRanges, downStride, groupDown, takesDown, takesThinDown } from '../../kernels/matmul/group-tile.ts'
import { groupTier, linearGated, linearGroup, takesNorm, takesRotary } from '../../kernels/matmul/group.ts'
import type { GroupLora, GroupMember, GroupRotary, GroupTier, InputNorm } from '../../kernels/matmul/group.ts'
import { jointBackwardInput, jointBackwardWeight, takesJoint } from '../../kernels/matmul/joint.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import { takesHalf } from '../../kernels/matmul/units.ts'
import { addColumnSums } from '../../kernels/norm/norm.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { siluGate, siluGateNode } from './elementwise.ts'
import { turnIntoCache, type IntoCache } from './into-cache.ts'
import { linear, linearNode, linearOutput, roomInHalf, type LinearArguments, type Projection } from './linear.ts'
import { rmsNorm, rmsNormInHalf, type Norm } from './norm.ts'

/** Several adapters of the projections of one input, stacked along the rank in one buffer: A_i (rank, K) and B_i (N_i, rank) of each projection. */
export interface StackedLora extends StackLayout {
  rank: number
  a: BufferRange[]
  b: BufferRange[]
  /** For each projection, the scales of all adapters by index: `perProjection` values. */
  scales: BufferRange
  perProjection: number
}

/** An adapter for each row (inference/adapter-bank.ts), instead of the projections' own. */
export interface RowAdapters {
  /** (rows) u32: the index of each row's adapter in the stacks. */
  places: GpuBuffer
  /** The stack for the projections of one input; undefined if no adapter changes them. */
  of(projections: Projection[]): StackedLora | undefined
}

export interface LinearsArguments extends LinearArguments {
  /** Only on a tape that does not record. */
  adapters?: RowAdapters
  /** If given, whole rows of the input are normalised first. */
  norm?: Norm
}

/**
 * The outputs of several projections of one input, as `linear` computes them. With `adapters`, each row has the same bits as with only its own
 * adapter: sums over the stack's rank run in order, and the parts of other adapters add 0.
 */
export function linears(tape: Tape, x: Tensor, projections: Projection[], options: LinearsArguments): Tensor[] {
  return projected(tape, x, projections, options, arranged(tape, x, projections, options, false))
}

function projected(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
  options: LinearsArguments,
  how: Arrangement,
  rotary?: GroupRotary,
): Tensor[] {
  const { gpu } = tape
  const { input, members, tier } = how
  if (!how.atOnce) {
    const each = projections.map((projection) => linear(tape, input, projection, options))
    if (input !== x) tape.done(input)
    return each
  }
  const lora = downs(tape, how, projections, options.adapters)
  const ys = projections.map((projection) => linearOutput(tape, input, projection))
  if (tier) {
    const outputs = ys.map(({ buffer }) => buffer)
    linearGroup(gpu, input.buffer, x.rows, members, outputs, lora, { norm: how.norm, half: halfOf(how, lora), rotary })
  } else {
    members.forEach(({ weight, bias, b }, i) => {
      const lowRank = lora && { x: lora.xa[i], matrix: b!, rank: lora.rank }
      const { scale: alpha, residual } = options
      const added = { alpha, bias, residual: residual?.buffer, lora: lowRank, half: halfOf(how, lora) }
      matmul.linear(gpu, input.buffer, x.rows, weight, ys[i].buffer, added)
    })
  }
  nodesOf(tape, input, projections, ys, lora)
  letGo(tape, x, how, lora)
  return ys
}

/** Adds a node for each projection of one input. */
function nodesOf(tape: Tape, input: Tensor, projections: Projection[], ys: Tensor[], lora: Downs | undefined): void {
  if (goesBackTogether(tape, projections, ys, lora)) return jointNode(tape, input, projections, ys)
  projections.forEach((projection, i) => {
    const down = lora && { input, xa: lora.xa[i], held: lora.held[i] }
    linearNode(tape, { x: input, y: ys[i], down }, projection, {})
  })
}

/** Whether the projections share a backward pass (`jointNode`): all or none fully trained, no adapter, and every output needs a gradient. */
function goesBackTogether(tape: Tape, projections: Projection[], ys: Tensor[], lora: GroupLora | undefined): boolean {
  if (lora || !tape.recording || !ys.every(({ needsGrad }) => needsGrad)) return false
  const trained = projections.filter((projection) => projection.trained)
  if (trained.some((projection) => projection.trained!.weight.pieces.length > 1)) return false
  const alike = trained.length === 0 || trained.length === projections.length
  return (
    alike &&
    takesJoint(
      tape.gpu,
      projections.map(({ weight }) => weight),
    )
  )
}

/**
 * Adds a node for each projection. The first projection's node is the last to be reached in the backward pass, when all gradients are there, and does
 * the work for all.
 */
function jointNode(tape: Tape, input: Tensor, projections: Projection[], ys: Tensor[]): void {
  const { gpu } = tape
  const trained = projections.flatMap((projection) => projection.trained ?? [])
  const weights = projections.map(({ weight }) => weight)
  const given: Tensor[] = []
  const back = (): void => {
    const gradients = { dys: given.map(({ buffer }) => buffer), rows: input.rows, weights }
    if (trained.length > 0) {
      const dws = trained.map(({ store, weight }) => store.gradient(weight))
      tape.withValues(input, given, ({ buffer }) => jointBackwardWeight(gpu, gradients, buffer, dws))
      trained.forEach(({ store, bias }, i) => {
        if (bias) addColumnSums(gpu, given[i].buffer, store.gradient(bias), input.rows, weights[i].rows)
      })
    }
    if (input.needsGrad) {
      const { grad, accumulate } = tape.gradOf(input)
      jointBackwardInput(gpu, gradients, grad.buffer, accumulate)
    }
    tape.done(...given)
  }
  ys.forEach((y, i) => {
    // An input that is recomputed in the backward pass need not be kept.
    tape.node(y, trained.length > 0 && !input.whenRecomputed ? [input] : [], (dy) => {
      given[i] = dy.keep()
      if (i === 0) back()
    })
  })
}

/** How to rotate q and k: positions in `info` (`RowLayout`), and a `table` of (cos, sin). */
interface Turning {
  info: GpuBuffer
  table: GpuBuffer
  headDim: number
  /** Channels of a head that are turned; where these are not all, the projections' kernel turns none. */
  rotaryDim?: number
}

/**
 * The outputs of the projections q, k and v, as `linears` computes them. `turned`: whether their kernel has already rotated q and k (`takesRotary`),
 * with the same bits as `rope` afterwards.
 */
export function linearsTurned(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
  { info, table, headDim, rotaryDim = headDim }: Turning,
  options: LinearsArguments,
): { outputs: Tensor[]; turned: boolean } {
  const how = arranged(tape, x, projections, options, false, rotaryDim === headDim ? headDim : undefined)
  const rotary: GroupRotary = { places: info, perRow: 2, table, headDim }
  return { outputs: projected(tape, x, projections, options, how, how.turns ? rotary : undefined), turned: how.turns }
}

/**
 * Projects q, k and v, rotates q and k by position, writes k and v to the cache, and returns q. One dispatch if the projections' kernel rotates
 * (`takesRotary`), otherwise one more, with the same bits.
 */
export function linearsIntoCache(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
  into: IntoCache,
  options: LinearsArguments,
): Tensor {
  const { gpu } = tape
  const { slots, table, headDim, rotaryDim = headDim, kCache, vCache, f16 } = into
  const turns = !f16 && rotaryDim === headDim
  const how = arranged(tape, x, projections, options, false, turns ? headDim : undefined)
  const { input, members } = how
  if (!how.turns) {
    const [q, k, v] = projected(tape, x, projections, options, how)
    turnIntoCache(tape, { q, k, v }, into)
    tape.done(k, v)
    return q
  }
  const lora = downs(tape, how, projections, options.adapters)
  const q = linearOutput(tape, input, projections[0])
  const outputs = [q.buffer, kCache, vCache]
  linearGroup(gpu, input.buffer, x.rows, members, outputs, lora, {
    norm: how.norm,
    half: halfOf(how, lora),
    rotary: { places: slots, perRow: 1, table, headDim },
  })
  letGo(tape, x, how, lora)
  return q
}

/**
 * silu(gate(x)) * up(x), or gelu with `activation`: (rows, N).
 * @param half whether the output may be in f16 (`readsHalf`); it is if its kernel supports it
 */
export function swiGlu(
  tape: Tape,
  x: Tensor,
  gate: Projection,
  up: Projection,
  options: LinearsArguments,
  activation?: Gate,
  half = false,
): Tensor {
  const pair = [gate, up]
  const how = arranged(tape, x, pair, options, true)
  const { input } = how
  if (how.tier) {
    const lora = downs(tape, how, pair, options.adapters)
    // Outputs that the backward pass reads; not needed if the tape does not record.
    const [g, u] = tape.recording ? pair.map((projection) => linearOutput(tape, input, projection)) : []
    const narrow = half && how.tier === 'units'
    const columns = gate.weight.rows
    const needsGrad = !!g?.needsGrad || !!u?.needsGrad
    const y = narrow ? roomInHalf(tape, { rows: x.rows, columns }) : tape.tensor(x.rows, columns, 'silu gate', needsGrad)
    const kept = g && u && [g.buffer, u.buffer]
    const more = { norm: how.norm, half: halfOf(how, lora), gate: activation, kept, narrow }
    linearGated(tape.gpu, input.buffer, x.rows, how.members, y.buffer, lora, more)
    if (g && u) {
      nodesOf(tape, input, pair, [g, u], lora)
      siluGateNode(tape, g, u, y, activation)
      tape.done(g, u)
    }
    letGo(tape, x, how, lora)
    return y
  }
  const [g, u] = linears(tape, input, pair, { ...options, norm: undefined })
  if (input !== x) tape.done(input)
  const y = siluGate(tape, g, u, activation)
  tape.done(g, u)
  return y
}

/**
 * Whether a projection's input may be written in f16 (`Tensor.half`): on matrix units, in a pass without gradients, and without an adapter (LoRA's
 * first product needs float32, and writes the f16 copy itself).
 */
export const readsHalf = (tape: Tape, projection: Projection, adapters?: RowAdapters): boolean =>
  !tape.recording && !(adapters ? adapters.of([projection]) : projection.lora) && takesHalf(tape.gpu, projection.weight)

/** How the projections of one input run. */
interface Arrangement {
  /** The input that they multiply: x or its norm; in f16 if only matrix units read it. */
  input: Tensor
  /** Set if the projections' kernel normalises; `input` is then x. */
  norm?: InputNorm
  /** Set if the kernel of LoRA's first products normalises x and writes `input`. */
  downNorm?: InputNorm & { x: Tensor }
  members: GroupMember[]
  /** The kind of kernel that computes all of them in one dispatch; undefined: one after another. */
  tier?: GroupTier
  /** Whether that kernel also rotates q and k. */
  turns: boolean
  /** Whether LoRA's first products are computed for all projections together, rather than by `linear` for each. */
  atOnce: boolean
}

/** @param headDim head size of q and k, if the kernel may rotate them */
function arranged(
  tape: Tape,
  x: Tensor,
  projections: Projection[],
  options: LinearsArguments,
  gated: boolean,
  headDim?: number,
): Arrangement {
  const { gpu } = tape
  const { adapters, norm } = options
  if (adapters && tape.recording) throw new Error('rows of different adapters have no gradients')
  const members = membersOf(projections, adapters)
  const stack = adapters?.of(projections)
  const own = adapters ? [] : projections.flatMap(({ lora }) => lora ?? [])
  const firsts = stack ? stack.a : own.map(({ store, a }) => store.value(a))
  const down = firsts.length > 0 ? downOf(gpu, x.columns, firsts) : 'none'
  const drops = options.dropoutSeed !== undefined && own.some((lora) => lora.dropout > 0)
  const alike = own.length === 0 || (own.length === projections.length && own.every((lora) => lora.rank === own[0].rank))
  const any = options.residual || options.scale !== undefined || drops || !alike ? undefined : groupTier(gpu, members, gated)
  // Only the joint kernel of CPU drivers keeps both factors of the gate for the backward pass.
  const found = tape.recording && gated && any !== 'cpu' ? undefined : any
  const even = !gated || projections[0].weight.rows === projections[1].weight.rows
  // The joint kernel and that of LoRA's first products must both be for CPU drivers or both for GPUs.
  const goes = even && (down === 'none' || down === (found === 'cpu' ? 'cpu' : 'gpu'))
  const tier = goes ? found : undefined
  const others = !tape.recording && !drops && alike && (down === 'none' || down === 'cpu')
  const atOnce = !!adapters || !!tier || others
  const turns = !!tier && headDim !== undefined && takesRotary(gpu, tier, members, headDim)
  if (!norm) return { input: x, members, tier, turns, atOnce }
  // The kernel may normalise only if nothing else needs the normalised input: gradients would keep it, and LoRA reads it.
  if (tier && !tape.recording && down === 'none' && takesNorm(gpu, tier, members, x.rows, { gated, rotary: turns })) {
    return { input: x, norm: { gain: norm.gain, eps: norm.eps }, members, tier, turns, atOnce }
  }
  if (tier === 'units' && !tape.recording && down === 'none' && members.every(({ weight }) => takesHalf(gpu, weight))) {
    return { input: rmsNormInHalf(tape, x, norm), members, tier, turns, atOnce }
  }
  // Without a joint kernel, SwiGLU's two products are arranged again as plain projections of the norm, which must exist by then.
  const first = down === 'cpu' ? tier || !gated : tier && down === 'gpu' && takesThinDown(gpu, x.columns, firsts)
  if (atOnce && !tape.recording && !adapters && first && takesDownNorm(gpu, x.rows, own[0].rank)) {
    const input = tape.tensor(x.rows, x.columns, norm.name, false)
    return { input, downNorm: { x, gain: norm.gain, eps: norm.eps }, members, tier, turns, atOnce }
  }
  return { input: rmsNorm(tape, x, norm), members, tier, turns, atOnce }
}

/** Which kind of kernel computes LoRA's first products in one dispatch; undefined if none does. */
function downOf(gpu: Gpu, k: number, matrices: BufferRange[]): 'cpu' | 'gpu' | undefined {
  return takesLoraDown(gpu, k, matrices) ? 'cpu' : takesDown(gpu, k, matrices) ? 'gpu' : undefined
}

function membersOf(projections: Projection[], adapters: RowAdapters | undefined): GroupMember[] {
  const stack = adapters?.of(projections)
  const ownB = ({ lora }: Projection) => (adapters ? undefined : lora?.store.value(lora.b))
  return projections.map((projection, i) => {
    const { weight, bias } = projection
    return { weight, bias, b: stack ? stack.b[i] : ownB(projection) }
  })
}

/** LoRA's first products. `held`: the tensor in which each is stored, possibly one for all. `room`: tensors to drop after the projections. */
interface Downs extends GroupLora {
  /** The input in f16, if the kernel of the first products has written it for the projections. */
  half?: GpuBuffer
  held: Tensor[]
  room: Tensor[]
}

/** Drops what the projections of x needed. */
function letGo(tape: Tape, x: Tensor, { input }: Arrangement, lora: Downs | undefined): void {
  tape.done(...(lora?.room ?? []), ...(input === x ? [] : [input]))
}

/** The input in f16 for matrix units, if there is one. */
const halfOf = ({ input }: Arrangement, lora: Downs | undefined): GpuBuffer | undefined =>
  input.half ? input.buffer : lora?.half

/** Computes LoRA's first products of all projections; undefined if there is no adapter. */
function downs(
  tape: Tape,
  { input, downNorm, members, tier }: Arrangement,
  projections: Projection[],
  adapters: RowAdapters | undefined,
): Downs | undefined {
  const { gpu } = tape
  const { rows, columns: k } = input
  const stack = adapters?.of(projections)
  const loras = adapters ? [] : projections.flatMap(({ lora }) => lora ?? [])
  if (!stack && loras.length === 0) return undefined
  const rank = stack?.rank ?? loras[0].rank
  const stacked = stack && { ...stack, places: adapters!.places }
  const parts = stack ? stack.a.map((a) => ({ a, scale: 1 })) : loras.map(({ store, a, scale }) => ({ a: store.value(a), scale }))
  const matrices = parts.map(({ a }) => a)
  const onGpu = tier === 'tile' || tier === 'units'
  // The kernel reads x anyway, and can also write it in f16 for projections on matrix units.
  const leaves = onGpu ? takesThinDown(gpu, k, matrices) : !!stacked && takesThin(gpu, k)
  const half = leaves && members.every(({ weight }) => takesHalf(gpu, weight)) ? roomInHalf(tape, input) : undefined
  const more = half ? [half] : []
  const norm = downNorm && { gain: downNorm.gain, eps: downNorm.eps, out: input.buffer }
  const from = (downNorm?.x ?? input).buffer
  if (onGpu) {
    const all = tape.tensor(1, parts.length * downStride(rows, rank), 'lora A', false)
    groupDown(gpu, from, rows, { k, rank, parts }, all.buffer, { stacked, norm, half: half?.buffer })
    const xa = downRanges(all.buffer, rows, rank, parts.length)
    return { rank, xa, half: half?.buffer, held: parts.map(() => all), room: [all, ...more] }
  }
  const tensors = projections.map(({ name }) => tape.tensor(rows, rank, `${name} A`, false))
  const xa = tensors.map(({ buffer }) => buffer)
  const outs = parts.map((part, i) => ({ ...part, out: xa[i] }))
  if (stacked) stackedDown(gpu, from, rows, k, rank, outs, stacked, half?.buffer)
  else loraDown(gpu, from, rows, k, rank, outs, { norm })
  return { rank, xa, half: half?.buffer, held: tensors, room: [...tensors, ...more] }
}
