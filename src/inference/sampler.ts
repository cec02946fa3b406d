/**
 * From hidden states to sampled tokens with their log-probabilities, on the GPU: last norm, logits, softmax statistics over the same slices
 * and in the same order as the trainer's head, penalties, the draw. What is read back is 8 bytes a token.
 */
import { rmsNorm } from '../autograd/ops/norm.ts'
import { gather } from '../autograd/ops/rows.ts'
import type { Tape } from '../autograd/tape.ts'
import type { Tensor } from '../autograd/tensor.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { finishLogprobs, pickLogits, softmaxSlice, vocabularySlices } from '../kernels/head/head.ts'
import { linear } from '../kernels/matmul/matmul.ts'
import { applyPenalties, drawTokens, packSettings } from '../kernels/sampling/sampling.ts'
import type { Decoder } from '../model/decoder.ts'
import { roundRows } from './scheduler.ts'
import type { Sequence } from './sequence.ts'

/** Logits that are held at a time; a row has all of its vocabulary. */
const logitBytes = 64 * 2 ** 20

export interface Sampled {
  tokens: Uint32Array
  logprobs: Float32Array
}

type Scratch = Record<'logits' | 'penalised' | 'stats' | 'drawn' | 'logprobs' | 'entropy' | 'lse', GpuBuffer>

export class Sampler {
  readonly #decoder: Decoder
  readonly #gpu: Gpu
  readonly #maxSequences: number
  /** Rows whose logits are made at a time. */
  readonly #chunkRows: number
  readonly #index: GpuBuffer
  readonly #settings: GpuBuffer
  readonly #seeds: GpuBuffer
  readonly #inverse: GpuBuffer
  /** Tokens of all sampled rows, then their log-probabilities. */
  readonly #results: GpuBuffer

  constructor(decoder: Decoder, maxSequences: number) {
    const { gpu, head } = decoder
    this.#decoder = decoder
    this.#gpu = gpu
    this.#maxSequences = maxSequences
    const most = Math.floor(Math.min(logitBytes, gpu.facts.limits.maxBinding) / (head.weight.rows * 4))
    this.#chunkRows = Math.max(1, Math.min(most, maxSequences))
    const room = (words: number, label: string) => gpu.pool.acquire(words * 4, label)
    this.#index = room(roundRows(this.#chunkRows), 'sampled rows')
    this.#settings = room(this.#chunkRows * 8, 'sampling settings')
    this.#seeds = room(this.#chunkRows * 2, 'sampling seeds')
    this.#inverse = room(this.#chunkRows, 'inverse temperatures')
    this.#results = room(maxSequences * 2, 'sampled tokens')
  }

  release(): void {
    for (const buffer of [this.#index, this.#settings, this.#seeds, this.#inverse, this.#results]) buffer.release()
  }

  /** Records the draw of one token for each of `sampled`, from its row of `hidden` (before the last norm). */
  draw(tape: Tape, hidden: Tensor, sampled: { sequence: Sequence; row: number }[]): void {
    const { pool } = this.#gpu
    for (let first = 0; first < sampled.length; first += this.#chunkRows) {
      const chunk = sampled.slice(first, first + this.#chunkRows)
      const penalties = chunk.some(({ sequence }) => sequence.hasPenalties)
      const rows = Math.min(this.#chunkRows, roundRows(chunk.length))
      const vocabulary = this.#decoder.head.weight.rows
      const logits = pool.acquire(rows * vocabulary * 4, 'logits')
      const [stats, drawn, logprobs, entropy, lse] = [4, 1, 1, 1, 1].map((n) => pool.acquire(rows * n * 4, 'sampling'))
      const penalised = penalties ? pool.acquire(rows * vocabulary * 4, 'penalised logits') : logits
      const scratch: Scratch = { logits, penalised, stats, drawn, logprobs, entropy, lse }
      this.#drawChunk(tape, hidden, chunk, scratch)
      this.#gpu.copy(drawn, 0, this.#results, first * 4, chunk.length * 4)
      this.#gpu.copy(logprobs, 0, this.#results, (this.#maxSequences + first) * 4, chunk.length * 4)
      for (const buffer of new Set(Object.values(scratch))) buffer.release()
    }
  }

  #drawChunk(tape: Tape, hidden: Tensor, chunk: { sequence: Sequence; row: number }[], t: Scratch): void {
    const gpu = this.#gpu
    const { norm, head } = this.#decoder
    const vocabulary = head.weight.rows
    const rows = chunk.length
    this.#write(chunk)
    const scored = gather(tape, hidden, this.#index, roundRows(rows))
    const normed = rmsNorm(tape, scored, norm)
    linear(gpu, normed.buffer, rows, head.weight, t.logits)
    tape.done(scored, normed)
    for (const slice of vocabularySlices(vocabulary)) {
      const tensors = { logits: t.logits, stats: t.stats, inverseTemperatures: this.#inverse }
      softmaxSlice(gpu, tensors, { rows, stride: vocabulary, column: slice.row, slice, inverseTemperature: 1 })
    }
    if (t.penalised !== t.logits) this.#penalise(chunk, t)
    drawTokens(gpu, { logits: t.penalised, settings: this.#settings, seeds: this.#seeds, drawn: t.drawn }, rows, vocabulary)
    const picked = { logits: t.logits, targets: t.drawn, inverseTemperatures: this.#inverse, stats: t.stats }
    pickLogits(gpu, picked, rows, vocabulary)
    finishLogprobs(gpu, t, rows)
  }

  /** What changes from step to step goes into buffers that stay. */
  #write(chunk: { sequence: Sequence; row: number }[]): void {
    const sampling = chunk.map(({ sequence }) => sequence.sampling)
    const index = new Uint32Array(roundRows(chunk.length))
    chunk.forEach(({ row }, i) => (index[i] = row))
    this.#gpu.write(this.#index, index)
    this.#gpu.write(this.#settings, packSettings(sampling))
    this.#gpu.write(this.#seeds, Uint32Array.from(chunk.flatMap(({ sequence: s }) => [s.sampling.seed, s.ids.length])))
    // The trainer multiplies by the same float32. A greedy token's log-probability is that at temperature 1.
    this.#gpu.write(
      this.#inverse,
      Float32Array.from(sampling, ({ temperature }) => (temperature > 0 ? 1 / temperature : 1)),
    )
  }

  /** Penalties change what is drawn, not the log-probability: they go onto a copy of the logits. */
  #penalise(chunk: { sequence: Sequence; row: number }[], t: Scratch): void {
    const gpu = this.#gpu
    const rows = chunk.length
    const vocabulary = this.#decoder.head.weight.rows
    const start = new Uint32Array(rows + 1)
    const [tokens, counts]: [number[], number[]] = [[], []]
    chunk.forEach(({ sequence }, i) => {
      if (sequence.hasPenalties) {
        for (const [token, count] of sequence.counts) {
          tokens.push(token)
          counts.push(count)
        }
      }
      start[i + 1] = tokens.length
    })
    const lists = [start, Uint32Array.from(tokens), Uint32Array.from(counts)].map((list) => gpu.upload(list, 'penalties'))
    gpu.copy(t.logits, 0, t.penalised, 0, rows * vocabulary * 4)
    const inputs = { logits: t.penalised, settings: this.#settings, start: lists[0], tokens: lists[1], counts: lists[2] }
    applyPenalties(gpu, inputs, rows, vocabulary)
    for (const list of lists) list.release()
  }

  /** Waits for the tokens of the last `draw`, in its order. @param stepRows size of the step, by which the length of the wait is learned */
  async read(count: number, stepRows: number): Promise<Sampled> {
    const bytes = (this.#maxSequences + count) * 4
    const data = await this.#gpu.read({ buffer: this.#results, offset: 0, bytes }, { name: 'decode', work: stepRows })
    return { tokens: new Uint32Array(data, 0, count), logprobs: new Float32Array(data, this.#maxSequences * 4, count) }
  }
}
