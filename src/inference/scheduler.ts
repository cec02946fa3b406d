/**
 * Who runs, where their keys and values lie, and which rows the next step computes. Host only: it knows no GPU.
 * - First come, first served: the first waiting request that finds no room holds back those behind it, so none starves.
 * - A request gets all the rows it can ever need when it is admitted: a running one never waits for another, so all end.
 * - A prompt is in the cache once for all running requests that have it and were admitted under the same version.
 */
import type { PolicyVersion } from '../common/types.ts'
import { fromDrawn } from '../kernels/embedding/embedding.ts'
import { RowAllocator } from './row-allocator.ts'
import type { Draw } from './sampler.ts'
import type { Prompt, Sequence } from './sequence.ts'

/** Rows of one step, as decoderHidden takes them; arrays are as long as `rows`, padding included. */
export interface StepRows {
  /** With padding, so that few sizes occur and buffers and bind groups are found again. */
  rows: number
  /** Tokens; `fromDrawn` and a place for one that the step before draws. */
  ids: Uint32Array
  /** prefix start, prefix length, own start, position; see kernels/attention/common.wgsl. */
  info: Uint32Array
  /** Cache row that each row's keys and values go to. */
  slots: Uint32Array
  /** Sequences that get a token, and the row that it is drawn from. */
  sampled: Draw[]
  prefillRows: number
}

/** Steps have this many rows: 1, 2, multiples of 4 up to 32, of 8 up to 64, of 16 up to 256, coarser beyond. Matmul kernels round up so themselves. */
export function roundRows(rows: number): number {
  if (rows <= 2) return rows
  const octave = Math.floor(Math.log2(rows - 1))
  const step = Math.max(4, 2 ** (octave - (rows > 128 ? 3 : 2)))
  return Math.ceil(rows / step) * step
}

export class Scheduler {
  readonly waiting = new Set<Sequence>()
  readonly running = new Set<Sequence>()
  readonly rows: RowAllocator
  /** Prompt tokens that were not computed again because another request had them. */
  sharedTokens = 0
  readonly #prompts = new Map<string, Prompt>()
  readonly #maxSequences: number
  readonly #maxPrefillRows: number

  /** @param cacheRows rows that are handed out; row number `cacheRows` is one more, which padding writes to */
  constructor(options: { maxSequences: number; maxPrefillRows: number; cacheRows: number }) {
    this.#maxSequences = options.maxSequences
    this.#maxPrefillRows = options.maxPrefillRows
    this.rows = new RowAllocator(options.cacheRows)
  }

  /** Most rows that a step can have. */
  get maxRows(): number {
    return roundRows(this.#maxSequences + this.#maxPrefillRows)
  }

  /** Takes a sequence out, wherever it is, and frees its rows. */
  remove(sequence: Sequence): void {
    this.waiting.delete(sequence)
    if (!this.running.delete(sequence)) return
    const prompt = sequence.prompt!
    sequence.prompt = undefined
    this.rows.release(sequence.ownStart, sequence.sampling.max_tokens)
    const at = prompt.starting.indexOf(sequence)
    if (at >= 0) prompt.starting.splice(at, 1)
    if (--prompt.references > 0) return
    this.rows.release(prompt.start, prompt.ids.length)
    this.#prompts.delete(prompt.key)
  }

  /** Moves waiting sequences to the running ones while there is room. */
  admit(version: PolicyVersion): void {
    for (const sequence of this.waiting) {
      if (this.running.size >= this.#maxSequences || !this.#place(sequence, version)) return
      this.waiting.delete(sequence)
      this.running.add(sequence)
    }
  }

  #place(sequence: Sequence, version: PolicyVersion): boolean {
    const key = `${version}:${sequence.promptKey}`
    const known = this.#prompts.get(key)
    const length = sequence.promptIds.length
    const start = known?.start ?? this.rows.allocate(length)
    if (start === undefined) return false
    const own = this.rows.allocate(sequence.sampling.max_tokens)
    if (own === undefined) {
      if (!known) this.rows.release(start, length)
      return false
    }
    const prompt = known ?? { key, ids: sequence.promptIds, start, computed: 0, references: 0, starting: [] }
    if (known) {
      // Where it is computed already, the hidden state of its last token is gone: that one row is computed again, to the same bits.
      this.sharedTokens += known.computed < length ? length : length - 1
      known.computed = Math.min(known.computed, length - 1)
    }
    this.#prompts.set(key, prompt)
    prompt.references++
    prompt.starting.push(sequence)
    sequence.prompt = prompt
    sequence.ownStart = own
    return true
  }

  /** Rows of the next step: one for each sequence that has begun, and prompt tokens of those that have not. Undefined where there are none. */
  next(): StepRows | undefined {
    const decoding = [...this.running].filter((s) => s.drawn > 0 && s.drawn < s.sampling.max_tokens)
    const parts: { prompt: Prompt; count: number }[] = []
    let left = this.#maxPrefillRows
    for (const prompt of this.#prompts.values()) {
      if (prompt.starting.length === 0 || left === 0) continue
      const count = Math.min(left, prompt.ids.length - prompt.computed)
      parts.push({ prompt, count })
      left -= count
    }
    const prefillRows = this.#maxPrefillRows - left
    const used = decoding.length + prefillRows
    if (used === 0) return undefined
    const rows = roundRows(used)
    const step: StepRows = {
      rows,
      ids: new Uint32Array(rows),
      info: new Uint32Array(rows * 4),
      slots: new Uint32Array(rows),
      sampled: [],
      prefillRows,
    }
    let row = 0
    const put = (id: number, info: number[], slot: number): number => {
      step.ids[row] = id
      step.info.set(info, row * 4)
      step.slots[row] = slot
      return row++
    }
    for (const sequence of decoding) {
      const { ids, ownStart, pending, place } = sequence
      const { start, ids: promptIds } = sequence.prompt!
      const at = sequence.drawn - 1
      const id = pending > 0 ? fromDrawn + place : ids.at(-1)!
      step.sampled.push({ sequence, row: put(id, [start, promptIds.length, ownStart, promptIds.length + at], ownStart + at) })
    }
    for (const { prompt, count } of parts) {
      let last = 0
      for (let i = prompt.computed; i < prompt.computed + count; i++) {
        last = put(prompt.ids[i], [prompt.start, 0, prompt.start, i], prompt.start + i)
      }
      prompt.computed += count
      if (prompt.computed < prompt.ids.length) continue
      for (const sequence of prompt.starting.splice(0)) step.sampled.push({ sequence, row: last })
    }
    // Padding: token 0 at position 0, all into the spare row, so all write the same bits.
    const spare = this.rows.capacity
    for (let pad = used; pad < rows; pad++) put(0, [spare, 0, spare, 0], spare)
    return step
  }
}
