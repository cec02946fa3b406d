/** A packed micro-batch on the GPU, and the forward pass to its log-probabilities. */
import { logprobHead, type ChunkLoss, type HeadOutput } from '../autograd/ops/head.ts'
import { rmsNorm } from '../autograd/ops/norm.ts'
import { gather } from '../autograd/ops/rows.ts'
import type { Tape } from '../autograd/tape.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import type { RowLists } from '../kernels/rows/rows.ts'
import { decoderHidden, type Decoder, type RowBatch } from '../model/decoder.ts'
import { listsByKey, listsByToken, type PackedBatch } from '../model/packed.ts'

export interface DeviceBatch {
  rows: RowBatch
  /** Scored tokens, their hidden rows and targets. */
  count: number
  hiddenRow: GpuBuffer
  targets: GpuBuffer
  /** For each row, the scored tokens that it predicts. */
  scoredByRow: RowLists
  release(): void
}

/** Puts a packed batch on the GPU. `trainsEmbedding` adds the lists that an embedding's gradient needs. */
export function uploadBatch(
  gpu: Gpu,
  packed: PackedBatch,
  options: { trainsEmbedding: boolean; dropoutSeed?: number },
): DeviceBatch {
  const buffers: GpuBuffer[] = []
  const put = (data: Uint32Array, label: string): GpuBuffer => {
    const buffer = gpu.upload(data.length > 0 ? data : new Uint32Array(1), label)
    buffers.push(buffer)
    return buffer
  }
  const byRow = listsByKey(packed.hiddenRow, packed.rows)
  const byToken = options.trainsEmbedding ? listsByToken(packed.ids) : undefined
  let positions = 1
  for (let r = 0; r < packed.rows; r++) positions = Math.max(positions, packed.info[4 * r + 3] + 1)
  const rows: RowBatch = {
    rows: packed.rows,
    ids: put(packed.ids, 'token ids'),
    info: put(packed.info, 'row info'),
    keyEnd: put(packed.keyEnd, 'key ends'),
    positions,
    dropoutSeed: options.dropoutSeed,
    tokenLists: byToken && {
      tokens: put(byToken.tokens, 'distinct tokens'),
      start: put(byToken.start, 'token starts'),
      source: put(byToken.source, 'token rows'),
      outs: byToken.tokens.length,
    },
  }
  return {
    rows,
    count: packed.targets.length,
    hiddenRow: put(packed.hiddenRow, 'hidden rows'),
    targets: put(packed.targets, 'targets'),
    scoredByRow: { start: put(byRow.start, 'row starts'), source: put(byRow.source, 'row sources'), outs: packed.rows },
    release: () => buffers.forEach((b) => b.release()),
  }
}

/** Log-probabilities and entropies of the scored tokens of a batch at `temperature`. Only their rows pass the last norm and the head. */
export function forwardLogprobs(
  tape: Tape,
  decoder: Decoder,
  batch: DeviceBatch,
  options: { temperature: number; checkpointing: boolean; chunkLoss?: ChunkLoss },
): HeadOutput {
  const hidden = decoderHidden(tape, decoder, batch.rows, { checkpointing: options.checkpointing })
  const scored = gather(tape, hidden, batch.hiddenRow, batch.count, batch.scoredByRow)
  tape.done(hidden)
  const normed = rmsNorm(tape, scored, decoder.norm)
  tape.done(scored)
  const out = logprobHead(tape, normed, decoder.head, batch.targets, options.temperature, options.chunkLoss)
  tape.done(normed)
  return out
}
