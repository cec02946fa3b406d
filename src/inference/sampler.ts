/**
 * From hidden states to sampled tokens with log-probabilities, on the GPU: last norm, logits, softmax statistics (over the same vocabulary slices in
 * the same order as in the trainer's head), and the draw. 8 bytes per token are read back.
 * - A plain draw is one plan. If a row needs more (masks, biases, penalties, the most likely tokens, or log-probabilities of the distribution that
 *   was drawn from), the step's draw is recorded for that step. Other rows keep their bits, since only a copy of the logits is modified.
 * - Log-probabilities come from one of two sources: the model's logits at the row's temperature ('policy', 'raw'), or the logits after everything
 *   that changes the draw ('processed'). An inverse temperature of 0 leaves a row out of a source.
 */
import { rmsNorm } from '../autograd/ops/norm.ts'
import { Tape } from '../autograd/tape.ts'
import { Tensor } from '../autograd/tensor.ts'
import type { TopLogprobs } from '../common/types.ts'
import type { Binding, BufferRange, Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { scoreRows, statisticsWords } from '../kernels/head/head.ts'
import { linear } from '../kernels/matmul/matmul.ts'
import {
  adjustLogits,
  drawTokens,
  maskLogits,
  none,
  packChanges,
  packSettings,
  readTop,
  settingsPerRow,
  topTokens,
  topWords,
  type RowChanges,
} from '../kernels/sampling/sampling.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { roundRows } from './step-rows.ts'
import type { Sequence } from './sequence.ts'

/** Bytes of logits held at a time. A row of logits covers the whole vocabulary. */
const logitBytes = 64 * 2 ** 20
/** Parts of a buffer of 4-byte values start at multiples of this many values, as bindings must. */
const alignment = 64

/** The results of a draw, for each of its rows. */
export interface Sampled {
  tokens: Uint32Array
  logprobs: Float32Array
  /** The most likely tokens of each row; undefined for rows that did not request them. */
  tops: (TopLogprobs | undefined)[]
}

/** A sequence for which a token is drawn, and the step's row from which it is drawn. */
export interface Draw {
  sequence: Sequence
  row: number
  /** If set, no token is drawn, but a token of the prompt is scored: its id, and its position. */
  target?: number
  position?: number
}

/** How many of the most likely tokens a row requests; 0: only the rank; undefined: neither. */
function topOf({ sequence: { logprobsRequest }, target }: Draw): number | undefined {
  return target === undefined ? logprobsRequest.top : logprobsRequest.prompt
}

/** Whether a row's token is drawn from modified logits (masks, biases, penalties). Never true for prompt tokens. */
function isChanged({ sequence, target }: Draw): boolean {
  return target === undefined && sequence.changesLogits
}

/**
 * Whether a row's log-probability is that of the processed distribution, after masks, biases, penalties and filters. If none of these applies, the
 * plain one is identical. Prompt tokens get the plain one.
 */
function isProcessed(draw: Draw): boolean {
  const { sampling, logprobsRequest } = draw.sequence
  if (draw.target !== undefined || logprobsRequest.mode !== 'processed') return false
  const { temperature, top_p, top_k, min_p } = sampling
  return isChanged(draw) || (temperature > 0 && (top_p < 1 || top_k > 0 || min_p > 0))
}

/** Whether a row needs more than the plain draw, so that the step's draw must be recorded anew. */
export function needsMore(draw: Draw): boolean {
  return topOf(draw) !== undefined || isChanged(draw) || isProcessed(draw)
}

/** Factor for the logits in a row's log-probability, the same float32 by which the trainer multiplies. Greedy tokens are scored at temperature 1. */
function inverseTemperature({ sequence: { sampling, logprobsRequest }, target }: Draw): number {
  const { mode = 'policy' } = logprobsRequest
  // A prompt token is not drawn, so settings of the draw do not apply to it.
  if (mode === 'raw' || (mode === 'processed' && target !== undefined)) return 1
  return sampling.temperature > 0 ? 1 / sampling.temperature : 1
}

export class Sampler {
  readonly #decoder: Decoder
  readonly #gpu: Gpu
  /** Rows of all buffers. */
  readonly #rows: number
  /** Rows whose logits are computed at a time: all, or a multiple of `alignment`. */
  readonly #chunkRows: number
  /** (rows) u32: the step's row for each draw. */
  readonly index: GpuBuffer
  /** (rows, hidden size): the rows named by `index`, before the last norm. The step gathers them before the draw. */
  readonly hidden: GpuBuffer
  readonly #settings: GpuBuffer
  readonly #seeds: GpuBuffer
  readonly #inverse: GpuBuffer
  /** The tokens of all rows, then (from `#logprobsAt`) their log-probabilities, then (from `#topsAt`) the output of `topTokens`. */
  readonly results: GpuBuffer
  readonly #logprobsAt: number
  readonly #topsAt: number
  /** For each row of the last `write`, how many of the most likely tokens it requests. */
  #wanted: Wanted = []
  /** Results of draws that are not read yet, one after another; and for each draw, where its part starts (in words) and what its rows requested. */
  readonly #held: GpuBuffer
  readonly #parts: { at: number; count: number; wanted: Wanted }[] = []

  /**
   * @param rows the most rows in a draw: tokens to draw and prompt tokens to score
   * @param block the most steps whose results can be held (`hold`); below 2, none can
   */
  constructor(decoder: Decoder, rows: number, block = 1) {
    const { gpu, head, config } = decoder
    this.#decoder = decoder
    this.#gpu = gpu
    this.#rows = roundRows(rows)
    const most = Math.floor(Math.min(logitBytes, gpu.facts.limits.maxBinding) / (head.weight.rows * 4))
    this.#chunkRows = Math.min(this.#rows, Math.max(alignment, Math.floor(most / alignment) * alignment))
    this.#logprobsAt = Math.ceil(this.#rows / alignment) * alignment
    const room = (words: number, label: string) => gpu.pool.acquire(words * 4, label)
    this.index = room(this.#rows, 'sampled rows')
    this.hidden = room(this.#rows * config.hiddenSize, 'sampled rows')
    this.#settings = room(this.#rows * settingsPerRow, 'sampling settings')
    this.#seeds = room(this.#rows * 2, 'sampling seeds')
    this.#inverse = room(this.#rows, 'inverse temperatures')
    this.#topsAt = 2 * this.#logprobsAt
    const words = this.#topsAt + this.#rows * topWords
    this.results = room(words, 'sampled tokens')
    this.#held =
      block > 1 ? room(block * Math.ceil(words / alignment) * alignment, 'sampled tokens of several steps') : this.results
  }

  release(): void {
    const { index, hidden, results } = this
    for (const buffer of new Set([index, hidden, this.#settings, this.#seeds, this.#inverse, results, this.#held]))
      buffer.release()
  }

  /** Writes the inputs of the next draw. Rows after the last of `sampled` are marked as unused. */
  write(sampled: Draw[]): void {
    const gpu = this.#gpu
    const rows = roundRows(sampled.length)
    const index = new Uint32Array(this.#rows)
    const seeds = new Uint32Array(rows * 2)
    const inverse = new Float32Array(rows)
    sampled.forEach((draw, i) => {
      const { sequence, target } = draw
      index[i] = draw.row
      seeds.set(target === undefined ? [sequence.sampling.seed, sequence.drawn] : [target, 0], i * 2)
      inverse[i] = isProcessed(draw) ? 0 : inverseTemperature(draw)
    })
    const settings = packSettings(
      sampled.map(({ sequence }) => sequence.sampling),
      rows,
      (i) => sampled[i].target !== undefined,
    )
    this.#wanted = sampled.map(topOf)
    gpu.write(this.index, index)
    gpu.write(this.#settings, settings)
    gpu.write(this.#seeds, seeds)
    gpu.write(this.#inverse, inverse)
  }

  /**
   * Records the draw of a token for each of `rows` rows of `hidden`.
   * @param draws the rows, if one of them `needsMore`. Their lists are uploaded, so this cannot be part of a plan.
   */
  draw(rows: number, draws?: Draw[]): void {
    // If memory runs out, requests fail, and later ones need the same memory.
    this.#gpu.pool.orNothing(() => this.#draw(rows, draws))
  }

  #draw(rows: number, draws?: Draw[]): void {
    const tape = new Tape(this.#gpu, false)
    const { config, norm } = this.#decoder
    const normed = rmsNorm(tape, new Tensor(this.hidden, rows, config.hiddenSize, false), norm)
    for (let first = 0; first < rows; first += this.#chunkRows) {
      const count = Math.min(this.#chunkRows, rows - first)
      this.#drawChunk(normed, first, count, draws?.slice(first, first + count) ?? [])
    }
    tape.done(normed)
  }

  #drawChunk(normed: Tensor, first: number, rows: number, draws: Draw[]): void {
    const gpu = this.#gpu
    const { weight, scale } = this.#decoder.head
    const vocabulary = weight.rows
    const part = (buffer: GpuBuffer, words: number, start = 0): BufferRange => {
      return { buffer, offset: (start + first * words) * 4, bytes: rows * words * 4 }
    }
    const logits = gpu.pool.acquire(rows * vocabulary * 4, 'logits')
    const words = [statisticsWords(gpu, vocabulary), 1, 1]
    const [stats, entropy, lse] = words.map((n) => gpu.pool.acquire(rows * n * 4, 'sampling'))
    const [settings, seeds] = [part(this.#settings, settingsPerRow), part(this.#seeds, 2)]
    const inverseTemperatures = part(this.#inverse, 1)
    const [drawn, logprobs] = [part(this.results, 1), part(this.results, 1, this.#logprobsAt)]
    linear(gpu, part(normed.buffer, normed.columns), rows, weight, logits, { alpha: scale })
    const [changes, isLeft] = [draws.some(isChanged), draws.some(isProcessed)]
    const choices = changes || isLeft ? this.#copy(logits, draws.length) : logits
    if (changes) this.#adjust(choices, settings, draws)
    drawTokens(gpu, { logits: choices, settings, seeds, drawn }, rows, vocabulary)
    const scored = { targets: drawn, stats, logprobs, entropy, lse }
    scoreRows(gpu, { logits, ...scored }, { rows, vocabulary, inverseTemperature: inverseTemperatures })
    const sources = [{ logits, inverseTemperatures: inverseTemperatures as Binding }]
    let left: GpuBuffer | undefined
    if (isLeft) {
      maskLogits(gpu, { logits: choices, settings, seeds, drawn }, rows, vocabulary)
      left = gpu.upload(
        Float32Array.from({ length: rows }, (_, i) => Number(i < draws.length && isProcessed(draws[i]))),
        'sampling',
      )
      sources.push({ logits: choices, inverseTemperatures: left })
      scoreRows(gpu, { logits: choices, ...scored }, { rows, vocabulary, inverseTemperature: left })
    }
    const tops = draws.map(topOf)
    if (tops.some((top) => top !== undefined)) {
      const wanted = gpu.upload(
        Uint32Array.from({ length: rows }, (_, i) => 1 + (tops[i] ?? -1)),
        'sampling',
      )
      const records = gpu.pool.acquire(rows * topWords * 4, 'most likely tokens')
      for (const source of sources) topTokens(gpu, { ...source, stats, targets: drawn, wanted, records }, rows, vocabulary)
      const { buffer, offset, bytes } = part(this.results, topWords, this.#topsAt)
      gpu.copy(records, 0, buffer, offset, bytes)
      for (const held of [wanted, records]) held.release()
    }
    for (const held of new Set([logits, choices, stats, entropy, lse])) held.release()
    left?.release()
  }

  /** Copies the first rows of the logits, to be modified and drawn from. */
  #copy(logits: GpuBuffer, rows: number): GpuBuffer {
    const copy = this.#gpu.pool.acquire(logits.bytes, 'changed logits')
    this.#gpu.copy(logits, 0, copy, 0, rows * this.#decoder.head.weight.rows * 4)
    return copy
  }

  /** Applies masks, biases and penalties in place. */
  #adjust(logits: GpuBuffer, settings: BufferRange, draws: Draw[]): void {
    const gpu = this.#gpu
    const lists = packChanges(draws.map((draw) => (isChanged(draw) ? changesOf(draw.sequence) : { entries: [] })))
    const [start, entries, maskAt, masks] = [lists.start, lists.entries, lists.maskAt, lists.masks].map((list) =>
      gpu.upload(list, 'changes of logits'),
    )
    adjustLogits(gpu, { logits, settings, start, entries, maskAt, masks }, draws.length, this.#decoder.head.weight.rows)
    for (const list of [start, entries, maskAt, masks]) list.release()
  }

  /** Waits for the tokens of the last `draw`. @param stepRows size of the step, used to predict the length of the wait */
  async read(count: number, stepRows: number): Promise<Sampled> {
    const wanted = this.#wanted
    const bytes = this.#words(count, wanted) * 4
    // Named by the step's number of rows (of which there are few), since the time per row differs between small and large steps.
    const data = await this.#gpu.read({ buffer: this.results, offset: 0, bytes }, `step of ${stepRows}`)
    return this.#sampled(data, 0, count, wanted)
  }

  /** Keeps the results of the last `draw` for `readHeld`. */
  hold(count: number): void {
    const wanted = this.#wanted
    const at = this.#heldWords
    this.#parts.push({ at, count, wanted })
    this.#gpu.copy(this.results, 0, this.#held, at * 4, this.#words(count, wanted) * 4)
  }

  /** Submits what is recorded and waits for the tokens of all held draws, in order. @param stepRows total rows of their steps */
  async readHeld(stepRows: number): Promise<Sampled[]> {
    const bytes = this.#heldWords * 4
    const parts = this.#parts.splice(0)
    const data = await this.#gpu.read({ buffer: this.#held, offset: 0, bytes }, `${parts.length} steps of ${stepRows}`)
    return parts.map(({ at, count, wanted }) => this.#sampled(data, at, count, wanted))
  }

  /** Where the next part starts. */
  get #heldWords(): number {
    const last = this.#parts.at(-1)
    return last ? last.at + Math.ceil(this.#words(last.count, last.wanted) / alignment) * alignment : 0
  }

  /** Size of the results of `count` rows, in words from the start of `results`. */
  #words(count: number, wanted: Wanted): number {
    return hasTops(wanted) ? this.#topsAt + count * topWords : this.#logprobsAt + count
  }

  /** @param at where the draw's part starts in `data`, in words */
  #sampled(data: ArrayBuffer, at: number, count: number, wanted: Wanted): Sampled {
    const logprobs = new Float32Array(data, (at + this.#logprobsAt) * 4, count)
    const tokens = new Uint32Array(data, at * 4, count)
    if (!hasTops(wanted)) return { tokens, logprobs, tops: [] }
    const records = new Uint32Array(data, (at + this.#topsAt) * 4, count * topWords)
    return { tokens, logprobs, tops: wanted.map((top, i) => (top === undefined ? undefined : readTop(records, i, top))) }
  }
}

/** For each row of a draw, how many of the most likely tokens it requested. */
type Wanted = readonly (number | undefined)[]

const hasTops = (wanted: Wanted): boolean => wanted.some((top) => top !== undefined)

/** How a sequence modifies the logits of its next token: mask, biases and penalties. */
function changesOf(sequence: Sequence): RowChanges {
  const { choice, drawn } = sequence
  const bias = choice?.bias ?? new Map<number, number>()
  const counts = sequence.hasPenalties ? sequence.counts : new Map<number, number>()
  const ids = [...new Set([...counts.keys(), ...bias.keys()])]
  return { mask: choice?.mask(drawn), entries: ids.map((id) => [id, counts.get(id) ?? none, bias.get(id) ?? 0]) }
}
