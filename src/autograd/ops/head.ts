/**
 * The output head: log-probability and entropy of given tokens without ever holding tokens x vocabulary.
 * Rows are walked in chunks; a chunk's logits are the only scratch, at most 48 MiB however many tokens there are. Where the loss is known
 * on the GPU, a chunk's logits turn into their gradient in place right away (after Liger's idea, arXiv 2410.10989); a loss that runs on the
 * host gets its log-probabilities first, and backward makes each chunk's logits again.
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

export interface Head {
  weight: Weight
  /** Logits are multiplied by it (Granite), before the temperature. Default: 1. */
  scale?: number
  trained?: { store: ParameterStore; weight: Parameter }
}

const scratchBytes = 48 * 2 ** 20

/** Rows of a chunk: a multiple of 64, so that a chunk's part of a per-token buffer can be bound by itself. */
export function headChunkRows(vocabulary: number): number {
  return Math.min(512, Math.max(64, Math.floor(scratchBytes / (vocabulary * 4) / 64) * 64))
}

/** Scored tokens first .. first + count. */
interface HeadChunk {
  first: number
  count: Count
}

/** Fills `coefficient` (dLoss/dlogprob) of a chunk's tokens from their `logprobs`, by recording a kernel. */
export type ChunkLoss = (chunk: HeadChunk, logprobs: GpuBuffer) => GpuBuffer

export interface HeadOutput {
  /** (rows) each. `release` drops them. */
  logprobs: Tensor
  entropy: Tensor
  /** For a loss that was not known in the forward pass: gradient to the hidden rows from dLoss/dlogprob (rows). */
  backward(coefficient: GpuBuffer): void
  release(): void
}

/**
 * Log-probabilities of `targets` and entropies, at `temperature`.
 * @param hidden (rows, K), after the last norm @param targets (rows) u32
 * @param loss where given, the gradients of `hidden` and of a trained head are made in the same pass
 * @param entropyWeight where given, the loss has so much of each token's entropy taken from it
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
  // y is as wide as a slice of the weight that was asked for, however many rows of it there are.
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

/** Columns of a row of logits. For a trained head CPU drivers want a multiple of 64: dW's operands are staged then (kernels/matmul/stage.ts). */
function strideOf(gpu: Gpu, { weight, trained }: Head): number {
  return gpu.facts.software && trained ? Math.ceil(weight.rows / 64) * 64 : weight.rows
}
