/** A packed micro-batch on the GPU, and the forward pass from it to log-probabilities. */
import { logprobHead, type ChunkLoss, type HeadOutput } from '../autograd/ops/head.ts'
import { rmsNorm } from '../autograd/ops/norm.ts'
import { gather } from '../autograd/ops/rows.ts'
import type { Tape } from '../autograd/tape.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { capacityOf, type Count } from '../gpu/size.ts'
import type { RowLists } from '../kernels/rows/rows.ts'
import { decoderHidden, type Checkpointing, type Decoder, type RowBatch } from '../model/decoder/decoder.ts'
import { listsByKey, type listsByToken, type PackedBatch } from '../model/decoder/packed.ts'

/** Sizes of a batch: numbers, or open counts in a plan. */
export interface BatchCounts {
  rows: Count
  scored: Count
  /** Distinct tokens among the rows. Needed if the embedding is trained. */
  tokens?: Count
}

/** Buffers for a packed batch. Values beyond its counts are never read. */
export interface DeviceBatch {
  rows: RowBatch
  /** Scored tokens: how many, the hidden row that predicts each, and their ids. */
  count: Count
  hiddenRow: GpuBuffer
  targets: GpuBuffer
  /** For each row, the scored tokens that it predicts. */
  scoredByRow: RowLists
  release(): void
}

/** Allocates buffers for `counts`. */
export function makeBatch(gpu: Gpu, counts: BatchCounts, dropoutSeed?: Count): DeviceBatch {
  const buffers: GpuBuffer[] = []
  const room = (values: number, label: string): GpuBuffer => {
    const buffer = gpu.pool.acquire(values * 4, label)
    buffers.push(buffer)
    return buffer
  }
  const { tokens } = counts
  const [most, scored] = [capacityOf(counts.rows), capacityOf(counts.scored)]
  const rows: RowBatch = {
    rows: counts.rows,
    ids: room(most, 'token ids'),
    info: room(most * 4, 'row info'),
    keyEnd: room(most, 'key ends'),
    positions: 1,
    dropoutSeed,
    tokenLists:
      tokens === undefined
        ? undefined
        : {
            tokens: room(capacityOf(tokens), 'distinct tokens'),
            start: room(capacityOf(tokens) + 1, 'token starts'),
            source: room(most, 'token rows'),
            outs: tokens,
          },
  }
  return {
    rows,
    count: counts.scored,
    hiddenRow: room(scored, 'hidden rows'),
    targets: room(scored, 'targets'),
    scoredByRow: { start: room(most + 1, 'row starts'), source: room(scored, 'row sources'), outs: counts.rows },
    release: () => buffers.forEach((b) => b.release()),
  }
}

/** Writes a packed batch, which must fit, to its buffers. `byToken` is needed if the embedding is trained. */
export function writeBatch(gpu: Gpu, batch: DeviceBatch, packed: PackedBatch, byToken?: ReturnType<typeof listsByToken>): void {
  const { rows, scoredByRow } = batch
  const byRow = listsByKey(packed.hiddenRow, packed.rows)
  gpu.write(rows.ids, packed.ids)
  gpu.write(rows.info, packed.info)
  gpu.write(rows.keyEnd!, packed.keyEnd)
  gpu.write(batch.hiddenRow, packed.hiddenRow)
  gpu.write(batch.targets, packed.targets)
  gpu.write(scoredByRow.start, byRow.start)
  gpu.write(scoredByRow.source, byRow.source.subarray(0, packed.targets.length))
  if (byToken && rows.tokenLists) {
    gpu.write(rows.tokenLists.tokens, byToken.tokens)
    gpu.write(rows.tokenLists.start, byToken.start)
    gpu.write(rows.tokenLists.source, byToken.source.subarray(0, packed.rows))
  }
  rows.positions = positionsOf(packed)
}

/** The number of positions of a batch: its largest position plus 1. */
export function positionsOf(packed: PackedBatch): number {
  let positions = 1
  for (let r = 0; r < packed.rows; r++) positions = Math.max(positions, packed.info[4 * r + 3] + 1)
  return positions
}

/**
 * Log-probabilities and entropies of a batch's scored tokens at `temperature`. Only the rows that predict them go through the last norm and the head.
 */
export function forwardLogprobs(
  tape: Tape,
  decoder: Decoder,
  batch: DeviceBatch,
  options: { temperature: number; checkpointing: Checkpointing; chunkLoss?: ChunkLoss; entropyWeight?: Count },
): HeadOutput {
  const hidden = decoderHidden(tape, decoder, batch.rows, { checkpointing: options.checkpointing })
  const scored = gather(tape, hidden, batch.hiddenRow, batch.count, batch.scoredByRow)
  tape.done(hidden)
  const normed = rmsNorm(tape, scored, decoder.norm)
  tape.done(scored)
  const { temperature, chunkLoss, entropyWeight } = options
  const out = logprobHead(tape, normed, decoder.head, batch.targets, temperature, chunkLoss, entropyWeight)
  tape.done(normed)
  return out
}
