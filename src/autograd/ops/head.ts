/**
 * The output head: log-probabilities and entropies of target tokens, without a tokens x vocabulary matrix of logits.
 * Rows are processed in chunks, and the only scratch is one chunk's logits, at most 48 MiB for any number of tokens. If the loss is computed on the
 * GPU, a chunk's logits are replaced by their gradient at once (an idea of Liger Kernel, arXiv 2410.10989). A loss on the host gets the
 * log-probabilities first, and `backward` computes each chunk's logits again.
 */
import type { BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, within, type Count } from '../../gpu/size.ts'
import type { Weight } from '../../kernels/common/weight.ts'
import { logitsBackward, scoreRows, statisticsWords } from '../../kernels/head/head.ts'
import * as matmul from '../../kernels/matmul/matmul.ts'
import type { Parameter, ParameterStore } from '../parameters.ts'
import type { Tape } from '../tape.ts'
import type { Tensor } from '../tensor.ts'
import { weightBackward } from './linear.ts'

/** The output matrix (vocabulary, K), and where its gradient goes if it is trained. */
export interface Head {
  weight: Weight
  /** Logits are multiplied by it (Granite), before the temperature. Default: 1. */
  scale?: number
  trained?: { store: ParameterStore; weight: Parameter }
}

const scratchBytes = 48 * 2 ** 20

/** Rows in a chunk: a multiple of 64, so that a chunk's part of a per-token buffer can be bound by itself. */
export function headChunkRows(vocabulary: number): number {
  return Math.min(512, Math.max(64, Math.floor(scratchBytes / (vocabulary * 4) / 64) * 64))
}

/** Scored tokens first .. first + count - 1. */
interface HeadChunk {
  first: number
  count: Count
}

/**
 * Records a kernel that computes dLoss/dlogprob of a chunk's tokens from their `logprobs`. Returns the buffer that holds it, for all scored tokens.
 */
export type ChunkLoss = (chunk: HeadChunk, logprobs: GpuBuffer) => GpuBuffer

export interface HeadOutput {
  /** (rows, 1) each. `release` drops both. */
  logprobs: Tensor
  entropy: Tensor
  /** For a loss that was not known in the forward pass: computes the gradient of the hidden rows from dLoss/dlogprob (rows). */
  backward(coefficient: GpuBuffer): void
  release(): void
}

/**
 * Computes log-probabilities of `targets`, and entropies over the vocabulary in nats, at `temperature`.
 * @param hidden (rows, K), after the last norm @param targets (rows) u32
 * @param loss if given, the gradients of `hidden` and of a trained head are computed in the same pass
 * @param entropyWeight if given, this times each token's entropy is subtracted from the loss
 */
export function logprobHead(
  tape: Tape,
  hidden: Tensor,
  head: Head,
  targets: GpuBuffer,
  temperature: number,
  loss?: ChunkLoss,
  entropyWeight?: Count,
): HeadOutput {
  const { gpu } = tape
  const { weight, scale } = head
  const { rows } = hidden
  const [logprobs, entropy, lse] = ['logprobs', 'entropy', 'lse'].map((name) => tape.tensor(rows, 1, name, false))
  const inverseTemperature = 1 / temperature
  const most = capacityOf(rows)
  const chunkRows = Math.min(headChunkRows(weight.rows), most)
  const stride = strideOf(gpu, head)
  // The output is as wide as the slice of the weight that is asked for (`stride`), even if the weight has fewer rows.
  const wide = { slice: { row: 0, rows: stride } }
  const made = { ...wide, alpha: scale }
  const logits = tape.tensor(chunkRows, stride, 'logits', false)
  const stats = tape.tensor(chunkRows, statisticsWords(gpu, weight.rows), 'softmax statistics', false)
  const rowsOf = (t: Tensor, { first, count }: HeadChunk): BufferRange => {
    return { buffer: t.buffer, offset: first * t.columns * 4, bytes: capacityOf(count) * t.columns * 4 }
  }
  const chunks: HeadChunk[] = []
  for (let first = 0; first < most; first += chunkRows) chunks.push({ first, count: within(rows, first, chunkRows) })
  const backward = (chunk: HeadChunk, dlogits: Tensor, coefficient: GpuBuffer) => {
    const { first, count } = chunk
    const t = { logits: dlogits.buffer, targets, lse: lse.buffer, coefficient }
    const at = { rows: count, firstRow: first, slice: { row: 0, rows: weight.rows }, stride, inverseTemperature, scale }
    logitsBackward(gpu, t, at, entropyWeight === undefined ? undefined : { weight: entropyWeight, entropy: entropy.buffer })
    const { grad } = tape.gradOf(hidden)
    matmul.linearBackwardInput(gpu, dlogits.buffer, count, weight, rowsOf(grad, chunk), wide)
    if (head.trained) weightBackward(tape, rowsOf(hidden, chunk), count, dlogits, head.trained)
  }
  for (const chunk of chunks) {
    gpu.cut()
    const { first, count } = chunk
    matmul.linear(gpu, rowsOf(hidden, chunk), count, weight, logits.buffer, made)
    const t = {
      logits: logits.buffer,
      targets: { buffer: targets, offset: first * 4, bytes: capacityOf(count) * 4 },
      stats: stats.buffer,
      logprobs: logprobs.buffer,
      entropy: entropy.buffer,
      lse: lse.buffer,
    }
    scoreRows(gpu, t, { rows: count, vocabulary: weight.rows, stride, first, inverseTemperature })
    if (loss) backward(chunk, logits, loss(chunk, logprobs.buffer))
  }
  tape.done(logits, stats)
  hidden.keep()
  return {
    logprobs,
    entropy,
    backward(coefficient) {
      const again = tape.tensor(chunkRows, stride, 'logits', false)
      for (const chunk of chunks) {
        gpu.cut()
        matmul.linear(gpu, rowsOf(hidden, chunk), chunk.count, weight, again.buffer, made)
        backward(chunk, again, coefficient)
      }
      tape.done(again)
    },
    release() {
      tape.done(logprobs, entropy, lse, hidden)
    },
  }
}

/**
 * Columns in a row of logits. For a trained head, CPU drivers need a multiple of 64, as the operands of dW are then staged (kernels/matmul/stage.ts).
 */
function strideOf(gpu: Gpu, { weight, trained }: Head): number {
  return gpu.facts.software && trained ? Math.ceil(weight.rows / 64) * 64 : weight.rows
}
