/**
 * The output head: log-probability and entropy of given tokens without ever holding tokens x vocabulary.
 * Rows are walked in chunks and the vocabulary in slices; a chunk x slice of logits is the only scratch (8 MiB). Backward makes each slice
 * again and turns it into its gradient in place (after Liger's and CCE's idea, arXiv 2410.10989, 2411.09009).
 */
import type { BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { sliceRows, type Weight } from '../../kernels/common/weight.ts'
import { finishLogprobs, logitsBackward, softmaxSlice, vocabularySlices } from '../../kernels/head/head.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import type { Parameter, ParameterStore } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'

export interface Head {
  weight: Weight
  trained?: { store: ParameterStore; weight: Parameter }
}

/** Rows of a chunk: with slices of 4096 tokens the scratch is 8 MiB. */
const chunkRows = 512

export interface HeadOutput {
  /** (rows) each. `release` drops them. */
  logprobs: Tensor
  entropy: Tensor
  /** Gradient of the loss to the hidden rows, from dLoss/dlogprob (rows); adds the head's own gradient to its bank. */
  backward(coefficient: GpuBuffer): void
  release(): void
}

/**
 * Log-probabilities of `targets` and entropies, at `temperature`.
 * @param hidden (rows, K), after the last norm @param targets (rows) u32
 */
export function logprobHead(tape: Tape, hidden: Tensor, head: Head, targets: GpuBuffer, temperature: number): HeadOutput {
  const { gpu } = tape
  const { weight } = head
  const { rows } = hidden
  const [logprobs, entropy, lse] = ['logprobs', 'entropy', 'lse'].map((name) => tape.tensor(rows, 1, name, false))
  const slices = vocabularySlices(weight.rows)
  const inverseTemperature = 1 / temperature
  const scratch = () => tape.tensor(Math.min(chunkRows, rows), Math.min(sliceRows, weight.rows), 'logits', false)
  const chunks: { first: number; count: number; x: BufferRange }[] = []
  for (let first = 0; first < rows; first += chunkRows) {
    const count = Math.min(chunkRows, rows - first)
    chunks.push({
      first,
      count,
      x: { buffer: hidden.buffer, offset: first * hidden.columns * 4, bytes: count * hidden.columns * 4 },
    })
  }
  const logits = scratch()
  const stats = tape.tensor(Math.min(chunkRows, rows), 4, 'softmax statistics', false)
  for (const { first, count, x } of chunks) {
    for (const slice of slices) {
      matmul.linear(gpu, x, count, weight, logits.buffer, { slice })
      const tensors = {
        logits: logits.buffer,
        stats: stats.buffer,
        targets: { buffer: targets, offset: first * 4, bytes: count * 4 },
      }
      softmaxSlice(gpu, tensors, { rows: count, stride: slice.rows, column: 0, slice, inverseTemperature })
    }
    finishLogprobs(
      gpu,
      { stats: stats.buffer, logprobs: logprobs.buffer, entropy: entropy.buffer, lse: lse.buffer },
      count,
      first,
    )
  }
  tape.done(logits, stats)
  hidden.keep()
  return {
    logprobs,
    entropy,
    backward(coefficient) {
      const grads = scratch()
      const { grad } = tape.gradOf(hidden)
      for (const { first, count, x } of chunks) {
        const dx = { buffer: grad.buffer, offset: first * hidden.columns * 4, bytes: count * hidden.columns * 4 }
        for (const slice of slices) {
          matmul.linear(gpu, x, count, weight, grads.buffer, { slice })
          const t = { logits: grads.buffer, targets, lse: lse.buffer, coefficient }
          logitsBackward(gpu, t, { rows: count, firstRow: first, slice, inverseTemperature })
          matmul.linearBackwardInput(gpu, grads.buffer, count, weight, dx, { slice, accumulate: slice.row > 0 })
          if (head.trained) headGradient(tape, grads, x, count, slice, head.trained)
        }
      }
      tape.done(grads)
    },
    release() {
      tape.done(logprobs, entropy, lse, hidden)
    },
  }
}

/** Adds the gradient of vocabulary rows `slice` to the pieces of the bank that hold them. */
function headGradient(
  tape: Tape,
  dlogits: Tensor,
  x: BufferRange,
  rows: number,
  slice: { row: number; rows: number },
  trained: { store: ParameterStore; weight: Parameter },
): void {
  const { store, weight } = trained
  for (const piece of weight.pieces) {
    const from = Math.max(slice.row, piece.row)
    const to = Math.min(slice.row + slice.rows, piece.row + piece.rows)
    if (to <= from) continue
    const options = { row: from - piece.row, dyStride: slice.rows, dyColumn: from - slice.row }
    matmul.linearBackwardWeight(
      tape.gpu,
      dlogits.buffer,
      x,
      rows,
      to - from,
      weight.columns,
      store.gradient(weight, piece),
      options,
    )
  }
}
