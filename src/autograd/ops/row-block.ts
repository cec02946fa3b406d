/** A layer in two dispatches beside attention, where its kernels take it (kernels/row-block): on a tape that keeps nothing. */
import type { Gate } from '../../kernels/elementwise/elementwise.ts'
import { mlpBlock, qkvBlock, rowBlocks, type BlockProjection } from '../../kernels/row-block/row-block.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import type { Projection } from './linear.ts'
import type { IntoCache } from './into-cache.ts'
import type { LinearsArguments } from './linears.ts'
import type { Norm } from './norm.ts'

/** A layer without biases, and without norms over what o and down give or a factor of it. */
export interface BlockLayer {
  inputNorm: Norm
  q: Projection
  k: Projection
  v: Projection
  /** Of the heads of q, of k, where they have norms. */
  headNorms?: [Norm, Norm]
  o: Projection
  postNorm: Norm
  gate: Projection
  up: Projection
  down: Projection
  activation: Gate
}

/**
 * Rows of a block for `qkvInBlocks` and `mlpInBlocks`; undefined where they do not take such a layer. They take it with its own adapter or none, keys and values of float32, all
 * channels of heads turned.
 */
export function blocksOf(
  tape: Tape,
  x: Tensor,
  layer: BlockLayer,
  into: IntoCache,
  options: LinearsArguments,
): number | undefined {
  const { headDim, rotaryDim = headDim, f16, kCache } = into
  if (tape.recording || options.adapters || options.dropoutSeed !== undefined || f16 || rotaryDim < headDim) return undefined
  const { q, k, v, o, gate, up, down } = layer
  const groups = [[q, k, v], [o], [gate, up], [down]].map((group) => group.map(blockProjection))
  return typeof x.rows === 'number' ? rowBlocks(tape.gpu, x.rows, groups, { headDim, cache: kCache }) : undefined
}

/** q of x's norm, normalised by heads and turned; k, likewise, and v go into the cache. */
export function qkvInBlocks(tape: Tape, x: Tensor, layer: BlockLayer, into: IntoCache, height: number): Tensor {
  const projections = [layer.q, layer.k, layer.v]
  const [q, k, v] = projections.map(({ name, weight }) => tape.tensor(x.rows, weight.rows, name, false))
  qkvBlock(tape.gpu, x.rows as number, {
    ...into,
    height,
    x: x.buffer,
    norm: layer.inputNorm,
    projections: projections.map(blockProjection),
    norms: layer.headNorms,
    q: q.buffer,
    between: [k.buffer, v.buffer],
  })
  tape.done(k, v)
  return q
}

/** The layer's output: m + down(act(gate(n)) * up(n)) with m = x + o(attended), n = norm of m. */
export function mlpInBlocks(tape: Tape, attended: Tensor, x: Tensor, layer: BlockLayer, height: number): Tensor {
  const { o, gate, up, down } = layer
  const y = tape.tensor(x.rows, x.columns, down.name, false)
  const gated = tape.tensor(x.rows, gate.weight.rows, 'silu gate', false)
  mlpBlock(tape.gpu, x.rows as number, {
    height,
    attended: attended.buffer,
    residual: x.buffer,
    norm: layer.postNorm,
    projections: [o, gate, up, down].map(blockProjection),
    gate: layer.activation,
    y: y.buffer,
    gated: gated.buffer,
  })
  tape.done(gated)
  return y
}

function blockProjection({ weight, lora }: Projection): BlockProjection {
  if (!lora) return { weight }
  const { store, a, b, rank, scale } = lora
  return { weight, lora: { a: store.value(a), b: store.value(b), rank, scale } }
}
