/** A transformer layer in two dispatches besides attention, where the kernels support it (kernels/row-block). Only on a tape that does not record. */
import type { Gate } from '../../kernels/elementwise/elementwise.ts'
import { mlpBlock, qkvBlock, rowBlocks, type BlockProjection } from '../../kernels/row-block/row-block.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import type { Projection } from './linear.ts'
import type { IntoCache } from './into-cache.ts'
import type { LinearsArguments } from './linears.ts'
import type { Norm } from './norm.ts'

/** A layer without biases, and without norms on the outputs of o and down, or a factor of them. */
export interface BlockLayer {
  inputNorm: Norm
  q: Projection
  k: Projection
  v: Projection
  /** Norms of the heads of q and of k, if there are any. */
  headNorms?: [Norm, Norm]
  o: Projection
  postNorm: Norm
  gate: Projection
  up: Projection
  down: Projection
  activation: Gate
}

/**
 * Rows in a block for `qkvInBlocks` and `mlpInBlocks`; undefined if they do not support the layer. They require the layer's own adapter or none,
 * float32 keys and values, and rotation of all channels of a head.
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

/** Computes q, k and v from the normalised x; normalises and rotates the heads of q and k; writes k and v to the cache. @returns q */
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

/** The layer's output m + down(act(gate(n)) * up(n)), with m = x + o(attended) and n = norm(m). */
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
