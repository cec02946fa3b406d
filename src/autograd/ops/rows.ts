/** Embedding lookup and gathering of rows. Their gradients are sums over lists of rows, in a fixed order. */
import type { GpuBuffer } from '../../gpu/pool.ts'
import type { Count } from '../../gpu/size.ts'
import type { Weight } from '../../kernels/common/weight.ts'
import { embedding as embeddingKernel } from '../../kernels/embedding/embedding.ts'
import { addRowLists, gatherRows, splitHeads as splitKernel, type RowLists } from '../../kernels/rows/rows.ts'
import type { Parameter, ParameterStore } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'

/** The embedding matrix (vocabulary, hidden size), and where its gradient goes if it is trained. */
export interface Embedding {
  weight: Weight
  /** Factor for the embedded rows. Default: 1. */
  scale?: number
  trained?: { store: ParameterStore; weight: Parameter }
}

/** For each distinct token of a batch, the rows in which it occurs. */
export interface TokenLists extends RowLists {
  tokens: GpuBuffer
}

/** y[t] = scale * W[ids[t]]. `lists` are needed if the embedding is trained. */
export function embedding(tape: Tape, ids: GpuBuffer, rows: Count, table: Embedding, lists?: TokenLists): Tensor {
  const { gpu } = tape
  const { weight, trained, scale } = table
  const y = tape.tensor(rows, weight.columns, 'embedding', !!trained)
  embeddingKernel(gpu, ids, weight, y.buffer, rows, scale)
  return tape.node(y, [], (dy) => {
    for (const piece of trained!.weight.pieces) {
      const range = { firstRow: piece.row, limit: piece.row + piece.rows, scale }
      const out = trained!.store.gradient(trained!.weight, piece)
      addRowLists(gpu, dy.buffer, lists!, out, weight.columns, { accumulate: true, target: lists!.tokens, ...range })
    }
  })
}

/**
 * y[i] = x[index[i]].
 * @param lists for each row of x, the i that read it; needed for the backward pass
 */
export function gather(tape: Tape, x: Tensor, index: GpuBuffer, rows: Count, lists?: RowLists): Tensor {
  const { gpu } = tape
  const y = tape.tensor(rows, x.columns, 'gather', x.needsGrad)
  gatherRows(gpu, x.buffer, index, y.buffer, rows, x.columns)
  return tape.node(y, [], (dy) => {
    const dx = tape.tensor(x.rows, x.columns, 'd gather', false)
    addRowLists(gpu, dy.buffer, lists!, dx.buffer, x.columns)
    tape.giveGrad(x, dx)
    tape.done(dx)
  })
}

/** Splits each head of x (rows, heads * 2 * headDim) into its two halves, (rows, heads * headDim) each. */
export function splitHeads(tape: Tape, x: Tensor, headDim: number): [Tensor, Tensor] {
  const { gpu } = tape
  const shape = { heads: x.columns / (2 * headDim), headDim }
  const [a, b] = ['first halves', 'second halves'].map((name) => tape.tensor(x.rows, x.columns / 2, name, x.needsGrad))
  splitKernel(gpu, { x: x.buffer, a: a.buffer, b: b.buffer }, x.rows, shape)
  // The two halves have one joint backward pass. The gradient of b comes first.
  let db: Tensor | undefined
  tape.node(a, [], (da) => {
    if (!db) throw new Error('a half of a head has no gradient')
    const dx = tape.tensor(x.rows, x.columns, 'd heads', false)
    splitKernel(gpu, { x: dx.buffer, a: da.buffer, b: db.buffer }, x.rows, shape, true)
    tape.giveGrad(x, dx)
    tape.done(dx, db)
  })
  tape.node(b, [], (dy) => (db = dy.keep()))
  return [a, b]
}
