/**
 * From hidden states to sampled tokens with their log-probabilities, on the GPU: last norm, logits, softmax statistics over the same slices
 * and in the same order as the trainer's head, penalties, the draw. What is read back is 8 bytes a token.
 */
import { rmsNorm } from '../autograd/ops/norm.ts'
import { Tape } from '../autograd/tape.ts'
import { Tensor } from '../autograd/tensor.ts'
import type { BufferRange, Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { finishLogprobs, pickLogits, softmaxRows } from '../kernels/head/head.ts'
import { linear } from '../kernels/matmul/matmul.ts'
import { applyPenalties, drawTokens, packSettings, settingsPerRow } from '../kernels/sampling/sampling.ts'
import type { Decoder } from '../model/decoder.ts'
import { roundRows } from './scheduler.ts'
import type { Sequence } from './sequence.ts'

/** Logits that are held at a time; a row has all of its vocabulary. */
const logitBytes = 64 * 2 ** 20
/** Parts of a buffer of 4-byte values begin at multiples of it, as bindings must. */
const alignment = 64

export interface Sampled {
  tokens: Uint32Array
  logprobs: Float32Array
}

/** A sequence that gets a token, and the row of the step that it is drawn from. */
interface Draw {
  sequence: Sequence
  row: number
}

export class Sampler {
  readonly #decoder: Decoder
  readonly #gpu: Gpu
  /** Rows of all buffers: those of the most sequences, rounded up. */
  readonly #rows: number
  /** Rows whose logits are made at a time: all, or a multiple of `alignment`. */
  readonly #chunkRows: number
  /** (rows) u32: which row of the step each draw takes. */
  readonly index: GpuBuffer
  /** (rows, hidden): the rows that `index` names, before the last norm. The step gathers them before it draws. */
  readonly hidden: GpuBuffer
  readonly #settings: GpuBuffer
  readonly #seeds: GpuBuffer
  readonly #inverse: GpuBuffer
  /** Tokens of all rows, then (from `#logprobsAt` on) their log-probabilities. */
  readonly results: GpuBuffer
  readonly #logprobsAt: number

  constructor(decoder: Decoder, maxSequences: number) {
    const { gpu, head, config } = decoder
    this.#decoder = decoder
    this.#gpu = gpu
    this.#rows = roundRows(maxSequences)
    const most = Math.floor(Math.min(logitBytes, gpu.facts.limits.maxBinding) / (head.weight.rows * 4))
    this.#chunkRows = Math.min(this.#rows, Math.max(alignment, Math.floor(most / alignment) * alignment))
    this.#logprobsAt = Math.ceil(this.#rows / alignment) * alignment
    const room = (words: number, label: string) => gpu.pool.acquire(words * 4, label)
    this.index = room(this.#rows, 'sampled rows')
    this.hidden = room(this.#rows * config.hiddenSize, 'sampled rows')
    this.#settings = room(this.#rows * settingsPerRow, 'sampling settings')
    this.#seeds = room(this.#rows * 2, 'sampling seeds')
    this.#inverse = room(this.#rows, 'inverse temperatures')
    this.results = room(this.#logprobsAt + this.#rows, 'sampled tokens')
  }

  release(): void {
    for (const buffer of [this.index, this.hidden, this.#settings, this.#seeds, this.#inverse, this.results]) buffer.release()
  }

  /** Writes what the next draw is made with; rows behind the last of `sampled` are marked as not in use. */
  write(sampled: Draw[]): void {
    const gpu = this.#gpu
    const rows = roundRows(sampled.length)
    const index = new Uint32Array(this.#rows)
    const seeds = new Uint32Array(rows * 2)
    const inverse = new Float32Array(rows)
    sampled.forEach(({ sequence, row }, i) => {
      const { temperature, seed } = sequence.sampling
      index[i] = row
      seeds.set([seed, sequence.drawn], i * 2)
      // The trainer multiplies by the same float32. A greedy token's log-probability is that at temperature 1.
      inverse[i] = temperature > 0 ? 1 / temperature : 1
    })
    const settings = packSettings(
      sampled.map(({ sequence }) => sequence.sampling),
      rows,
    )
    gpu.write(this.index, index)
    gpu.write(this.#settings, settings)
    gpu.write(this.#seeds, seeds)
    gpu.write(this.#inverse, inverse)
  }

  /**
   * Records the draw of a token for each of `rows` rows of `hidden`.
   * @param penalised the rows' sequences, where some have penalties: their lists are uploaded, so this is nothing for a plan
   */
  draw(rows: number, penalised?: Draw[]): void {
    const tape = new Tape(this.#gpu, false)
    const { config, norm } = this.#decoder
    const normed = rmsNorm(tape, new Tensor(this.hidden, rows, config.hiddenSize, false), norm)
    for (let first = 0; first < rows; first += this.#chunkRows) {
      const count = Math.min(this.#chunkRows, rows - first)
      this.#drawChunk(normed, first, count, penalised?.slice(first, first + count))
    }
    tape.done(normed)
  }

  #drawChunk(normed: Tensor, first: number, rows: number, penalised: Draw[] | undefined): void {
    const gpu = this.#gpu
    const { weight } = this.#decoder.head
    const vocabulary = weight.rows
    const part = (buffer: GpuBuffer, words: number, start = 0): BufferRange => {
      return { buffer, offset: (start + first * words) * 4, bytes: rows * words * 4 }
    }
    const logits = gpu.pool.acquire(rows * vocabulary * 4, 'logits')
    const [stats, entropy, lse] = [4, 1, 1].map((n) => gpu.pool.acquire(rows * n * 4, 'sampling'))
    const settings = part(this.#settings, settingsPerRow)
    const inverseTemperatures = part(this.#inverse, 1)
    const [drawn, logprobs] = [part(this.results, 1), part(this.results, 1, this.#logprobsAt)]
    linear(gpu, part(normed.buffer, normed.columns), rows, weight, logits)
    softmaxRows(gpu, { logits, stats, inverseTemperatures }, rows, vocabulary)
    const changed = penalised?.some(({ sequence }) => sequence.hasPenalties)
    const choices = changed ? this.#penalise(logits, settings, penalised!) : logits
    drawTokens(gpu, { logits: choices, settings, seeds: part(this.#seeds, 2), drawn }, rows, vocabulary)
    pickLogits(gpu, { logits, targets: drawn, inverseTemperatures, stats }, rows, vocabulary)
    finishLogprobs(gpu, { stats, logprobs, entropy, lse }, rows)
    for (const buffer of new Set([logits, choices, stats, entropy, lse])) buffer.release()
  }

  /** Penalties change what is drawn, not the log-probability: they go onto a copy of the logits. */
  #penalise(logits: GpuBuffer, settings: BufferRange, chunk: Draw[]): GpuBuffer {
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
    const penalised = gpu.pool.acquire(logits.bytes, 'penalised logits')
    gpu.copy(logits, 0, penalised, 0, rows * vocabulary * 4)
    const inputs = { logits: penalised, settings, start: lists[0], tokens: lists[1], counts: lists[2] }
    applyPenalties(gpu, inputs, rows, vocabulary)
    for (const list of lists) list.release()
    return penalised
  }

  /** Waits for the tokens of the last `draw`. @param stepRows size of the step, by which the length of the wait is learned */
  async read(count: number, stepRows: number): Promise<Sampled> {
    const at = this.#logprobsAt
    const range = { buffer: this.results, offset: 0, bytes: (at + count) * 4 }
    // By its number of rows, of which there are few: a row of a large step takes far less time than one of a small step.
    const data = await this.#gpu.read(range, `step of ${stepRows}`)
    return { tokens: new Uint32Array(data, 0, count), logprobs: new Float32Array(data, at * 4, count) }
  }
}
