/** Linear layers: frozen, with LoRA (arXiv 2106.09685), or fully trained. */
import { hashSeed } from '../../common/random.ts'
import type { Binding, BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { map, type Count } from '../../gpu/size.ts'
import { weightView, type Weight } from '../../kernels/common/weight.ts'
import { dropout } from '../../kernels/elementwise/elementwise.ts'
import { takesThinForward } from '../../kernels/lora/thin.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import { takesHalf } from '../../kernels/matmul/units.ts'
import { addColumnSums } from '../../kernels/norm/norm.ts'
import type { Parameter, ParameterStore } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'

/** A low-rank adapter of one projection: y += scale * B A x. A is (rank, K), B is (N, rank); the rank is padded with zeros to a multiple of 8. */
export interface Lora {
  store: ParameterStore
  a: Parameter
  b: Parameter
  rank: number
  scale: number
  dropout: number
}

/** A projection: weight (N, K), an optional bias (N), and which of its parameters are trained. */
export interface Projection {
  /** Module path in Hugging Face's model, for example model.layers.0.self_attn.q_proj. */
  name: string
  /** Where files hold it as rows of a larger matrix of this name: the first of them. */
  firstRow?: number
  weight: Weight
  bias?: GpuBuffer | BufferRange
  lora?: Lora
  /** If the projection is fully trained: where its gradients go. */
  trained?: { store: ParameterStore; weight: Parameter; bias?: Parameter }
}

export interface LinearArguments {
  /** Added to the output; (rows, N). */
  residual?: Tensor
  /** Factor of the product, including LoRA's part and the bias, applied before the residual is added. Default: 1. */
  scale?: number
  /** Seed of LoRA's dropout for this micro-batch. Default: no dropout. */
  dropoutSeed?: Count
  /** Whether the output is that of a checkpointed layer, whose values need not be computed when the layer runs again. */
  last?: boolean
}

/** y = scale * (x Wᵀ (+ LoRA) (+ bias)) (+ residual). x (rows, K), y (rows, N). */
export function linear(tape: Tape, x: Tensor, projection: Projection, options: LinearArguments = {}): Tensor {
  const { gpu } = tape
  const { weight, lora, bias } = projection
  const { residual, scale } = options
  const y = linearOutput(tape, x, projection, residual)
  const product = (how: Parameters<typeof matmul.linear>[5]): void => {
    if (!options.last || !tape.recomputing) matmul.linear(gpu, x.buffer, x.rows, weight, y.buffer, how)
  }
  if (!lora) {
    product({ alpha: scale, bias, residual: residual?.buffer, half: x.half ? x.buffer : undefined })
    return linearNode(tape, { x, y }, projection, options)
  }
  const input = droppedOut(tape, x, lora, options.dropoutSeed)
  const xa = tape.tensor(x.rows, lora.rank, `${projection.name} A`, false)
  const half = firstProduct(tape, x, input, weight, lora, xa)
  const lowRank = { x: xa.buffer, matrix: lora.store.value(lora.b), rank: lora.rank }
  const added = { alpha: scale, bias, residual: residual?.buffer, lora: lowRank }
  product({ ...added, half: half?.buffer })
  if (half) tape.done(half)
  linearNode(tape, { x, y, down: { input, xa: xa.buffer, held: xa } }, projection, options)
  tape.done(xa)
  if (input !== x) tape.done(input)
  return y
}

/** Computes xa = scale * input Aᵀ. On GPUs, also writes x in f16 if the projection runs on matrix units that read it so; that copy is returned. */
function firstProduct(tape: Tape, x: Tensor, input: Tensor, weight: Weight, lora: Lora, xa: Tensor): Tensor | undefined {
  const { gpu } = tape
  const a = weightView('lora_A', lora.store.value(lora.a), lora.rank, weight.columns)
  const leaves = input === x && takesHalf(gpu, weight) && takesThinForward(gpu, a)
  const half = leaves ? roomInHalf(tape, x) : undefined
  matmul.linear(gpu, input.buffer, x.rows, a, xa.buffer, { alpha: lora.scale, leaves: half?.buffer })
  return half
}

/** A tensor for (rows, columns) values in f16. */
export function roomInHalf(tape: Tape, { rows, columns }: { rows: Count; columns: number }): Tensor {
  const made = tape.tensor(rows, columns / 2, 'activations in f16', false)
  made.half = true
  return made
}

/** A tensor for the output of a projection. */
export function linearOutput(tape: Tape, x: Tensor, { name, weight, lora, trained }: Projection, residual?: Tensor): Tensor {
  return tape.tensor(x.rows, weight.rows, name, x.needsGrad || !!residual?.needsGrad || !!lora || !!trained)
}

/** What LoRA's backward pass reads: the input of A (after dropout), and their product `xa` (rows, rank), which is stored in the tensor `held`. */
interface Down {
  input: Tensor
  xa: Binding
  held: Tensor
}

/** Adds the node for a projection's output, which is already computed. `down` is needed if there is an adapter. */
export function linearNode(
  tape: Tape,
  { x, y, down }: { x: Tensor; y: Tensor; down?: Down },
  { weight, lora, trained }: Projection,
  { residual, dropoutSeed, scale }: LinearArguments,
): Tensor {
  const read = lora && down ? [down.input, down.held] : trained ? [x] : []
  // What is recomputed in the backward pass need not be kept.
  const kept = read.filter((t) => !t.whenRecomputed)
  return tape.node(y, kept, (dy) => {
    if (lora && down) loraBackward(tape, { x, input: down.input, xa: down.xa, dy }, weight, lora, dropoutSeed, scale)
    else {
      if (trained) tape.withValues(x, [dy], (values) => trainedBackward(tape, values, dy, trained, scale))
      inputBackward(tape, x, dy, weight, scale)
    }
    if (residual) tape.giveGrad(residual, dy)
  })
}

/** x itself, or x with LoRA's dropout. Dropout also applies on a tape that does not record, as in the first run of a checkpointed layer. */
function droppedOut(tape: Tape, x: Tensor, lora: Lora, seed: Count | undefined): Tensor {
  if (lora.dropout === 0 || seed === undefined) return x
  const dropped = tape.tensor(x.rows, x.columns, 'dropout', false)
  dropout(tape.gpu, x.buffer, dropped.buffer, x.count, lora.dropout, seedOf(lora, seed), x.columns)
  return dropped
}

/** A different seed for each projection: by its name, since adapters in different banks may lie at the same offset. */
function seedOf({ a }: Lora, seed: Count): Count {
  const own = hashSeed(a.name)
  return map(seed, (n) => (n + own) >>> 0)
}

function loraBackward(
  tape: Tape,
  t: { x: Tensor; input: Tensor; xa: Binding; dy: Tensor },
  weight: Weight,
  lora: Lora,
  seed: Count | undefined,
  alpha?: number,
): void {
  const { gpu } = tape
  const { store, a, b, rank } = lora
  const [rows, n, k] = [t.x.rows, weight.rows, weight.columns]
  // Without `alpha`, which the products that read it have: dx multiplies dxa A and dy W by it at once.
  const dxa = tape.tensor(rows, rank, 'd lora A', false)
  matmul.linearBackwardInput(gpu, t.dy.buffer, rows, weightView('lora_B', store.value(b), n, rank), dxa.buffer, {
    alpha: lora.scale,
  })
  matmul.linearBackwardWeight(gpu, t.dy.buffer, t.xa, rows, n, rank, store.gradient(b), { alpha })
  tape.withValues(t.input, [dxa], ({ buffer }) =>
    matmul.linearBackwardWeight(gpu, dxa.buffer, buffer, rows, rank, k, store.gradient(a), { alpha }),
  )
  if (t.x.needsGrad) {
    const { grad, accumulate } = tape.gradOf(t.x)
    if (t.input === t.x) {
      const lowRank = { x: dxa.buffer, matrix: store.value(a), rank }
      matmul.linearBackwardInput(gpu, t.dy.buffer, rows, weight, grad.buffer, { alpha, accumulate, lora: lowRank })
    } else {
      matmul.linearBackwardInput(gpu, t.dy.buffer, rows, weight, grad.buffer, { alpha, accumulate })
      const [through, masked] = [tape.tensor(rows, k, 'd dropout', false), tape.tensor(rows, k, 'd dropout', false)]
      matmul.linearBackwardInput(gpu, dxa.buffer, rows, weightView('lora_A', store.value(a), rank, k), through.buffer, { alpha })
      dropout(gpu, through.buffer, masked.buffer, through.count, lora.dropout, seedOf(lora, seed!), k)
      tape.giveGrad(t.x, masked)
      tape.done(through, masked)
    }
  }
  tape.done(dxa)
}

function inputBackward(tape: Tape, x: Tensor, dy: Tensor, weight: Weight, alpha?: number): void {
  if (!x.needsGrad) return
  const { grad, accumulate } = tape.gradOf(x)
  matmul.linearBackwardInput(tape.gpu, dy.buffer, x.rows, weight, grad.buffer, { alpha, accumulate })
}

function trainedBackward(tape: Tape, x: Tensor, dy: Tensor, trained: NonNullable<Projection['trained']>, alpha?: number): void {
  const { store, bias } = trained
  weightBackward(tape, x.buffer, x.rows, dy, trained, alpha)
  if (bias) addColumnSums(tape.gpu, dy.buffer, store.gradient(bias), dy.rows, dy.columns, alpha)
}

/** Adds alpha * dyᵀ x over `rows` rows to the pieces of the bank that hold a weight's gradient. */
export function weightBackward(
  { gpu }: Tape,
  x: Binding,
  rows: Count,
  dy: Tensor,
  { store, weight }: { store: ParameterStore; weight: Parameter },
  alpha?: number,
): void {
  for (const piece of weight.pieces) {
    const part = { alpha, dyStride: dy.columns, dyColumn: piece.row }
    const gradient = store.gradient(weight, piece)
    matmul.linearBackwardWeight(gpu, dy.buffer, x, rows, piece.rows, weight.columns, gradient, part)
  }
}
