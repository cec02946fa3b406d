/** The rows of one engine step, and the builder that assembles them. Host only. */
import { blocksOf, type Sharing } from '../kernels/attention/shared.ts'
import type { Page, PagePool } from './pages.ts'
import type { Draw } from './sampler.ts'
import { sharedBeginnings, type SingleRow } from './shared-keys.ts'

/** Adapter indices of rows: 0 for the policy's own adapter, 1 for no adapter, and 2 onwards for named adapters. */
export const placeOfPolicy = 0
export const placeOfNone = 1
export const firstNamed = 2

/** The rows of one step, as `decoderHidden` takes them. Arrays have an entry for each of `rows`, including padding. */
export interface StepRows {
  /** Padded to one of a few sizes (`roundRows`), so that plans, buffers and bind groups are reused. */
  rows: number
  /** Token ids; `fromDrawn` + i stands for draw i of the previous step, not read back yet. */
  ids: Uint32Array
  /**
   * Four words per row: where its pages begin in `pages`, 1 for a row of a prompt, the number of keys that it shares, and its position; see
   * kernels/attention/common.wgsl.
   */
  info: Uint32Array
  /** For each row: the cache row that its keys and values are written to, and its position. */
  slots: Uint32Array
  /** Page tables of all sequences, concatenated; entry 0 is the page that padding writes to. */
  pages: Uint32Array
  /** Rows that share a prefix, whose keys are read once for all of them (`blocksOf`). */
  blocks: Uint32Array | undefined
  /** Index of each row's adapter, and whether any row uses another adapter than the policy's. */
  adapters: Uint32Array
  mixed: boolean
  /** Pairs (from, to) of cache rows to copy before the step. */
  copies: Uint32Array
  /**
   * Four words per row: its sequence's state slot, the sequence's first row in this step, its number of rows, and 1 if they continue from the slot's
   * state.
   */
  runs: Uint32Array
  /** Pairs (from, to) of state slots to copy before the step. */
  stateCopies: Uint32Array
  /** Rows for which a token is drawn or scored. */
  sampled: Draw[]
  prefillRows: number
}

/**
 * Number of rows that a step is padded to: 1, 2, multiples of 4 up to 32, of 8 up to 64, of 16 up to 256, coarser beyond. Matmul kernels round up
 * likewise.
 */
export function roundRows(rows: number): number {
  if (rows <= 2) return rows
  const octave = Math.floor(Math.log2(rows - 1))
  const step = Math.max(4, 2 ** (octave - (rows > 128 ? 3 : 2)))
  return Math.ceil(rows / step) * step
}

/** The next smaller size of a step; 0 below 1. */
export function below(rows: number): number {
  let smaller = rows - 1
  while (smaller > 0 && roundRows(smaller) > smaller) smaller--
  return smaller
}

/** Assembles the rows of a step. */
export class StepBuilder {
  readonly sampled: Draw[] = []
  readonly #size: number
  readonly #spare: number
  readonly #ids: number[] = []
  readonly #info: number[] = []
  readonly #slots: number[] = []
  readonly #adapters: number[] = []
  readonly #runs: number[] = []
  /** The first entry is the spare page. */
  readonly #table: number[]
  readonly #begins = new Map<Page[], number>()
  readonly #singles: SingleRow[] = []
  readonly #sharing: Sharing | undefined

  /** @param sharing how rows with a common prefix read its keys together, if the adapter gains from it */
  constructor(pool: PagePool, sharing?: Sharing) {
    this.#sharing = sharing
    this.#size = pool.size
    this.#spare = pool.capacity
    this.#table = [this.#spare]
  }

  /** Number of entries in `pages` so far. */
  get entries(): number {
    return this.#table.length
  }

  /** Adds a row and returns its index. */
  put(id: number, pages: Page[], position: number, slot: number, adapter: number, prompt = false): number {
    let begin = this.#begins.get(pages)
    if (begin === undefined) {
      begin = this.#table.length
      for (const { index } of pages) this.#table.push(index)
      this.#begins.set(pages, begin)
    }
    this.#info.push(begin, Number(prompt), 0, position)
    this.#slots.push(slot, position)
    this.#adapters.push(adapter)
    const row = this.#ids.push(id) - 1
    if (!prompt) this.#singles.push({ row, pages, begin })
    return row
  }

  /**
   * Notes that the last `count` rows belong to one sequence, whose recurrent state is in `slot`.
   * @param goesOn whether they continue from that state or begin a new one
   */
  run(slot: number, count: number, goesOn: boolean): void {
    const first = this.#ids.length - count
    for (let i = 0; i < count; i++) this.#runs.push(slot, first, count, Number(goesOn))
  }

  /**
   * Pads the rows and builds the step.
   * @param stateCopies pairs of state slots to copy, from and to
   * @param spareSlot the slot that padding rows write to
   */
  finish(
    copied: { from: Page; to: Page; count: number }[],
    prefillRows: number,
    stateCopies: number[],
    spareSlot: number,
  ): StepRows | undefined {
    const used = this.#ids.length
    if (used === 0) return undefined
    const rows = roundRows(used)
    const fit = (values: number[], each = 1): Uint32Array => {
      const array = new Uint32Array(rows * each)
      array.set(values)
      return array
    }
    const size = this.#size
    const sharing = prefillRows === 0 ? this.#sharing : undefined
    const beginnings = sharing ? sharedBeginnings(this.#singles, size, sharing) : []
    for (const shared of beginnings) for (const row of shared.rows) this.#info[4 * row + 2] = shared.keys
    const copies = copied.flatMap(({ from, to, count }) =>
      Array.from({ length: count }, (_, i) => [from.index * size + i, to.index * size + i]).flat(),
    )
    // Padding: token 0 at position 0, all written to the spare page, so all rows write the same bits.
    const slots = fit(this.#slots, 2)
    const runs = fit(this.#runs, 4)
    for (let row = used; row < rows; row++) {
      slots[2 * row] = this.#spare * size
      runs.set([spareSlot, row, 1, 0], 4 * row)
    }
    return {
      rows,
      ids: fit(this.#ids),
      info: fit(this.#info, 4),
      slots,
      pages: Uint32Array.from(this.#table),
      blocks: sharing && beginnings.length > 0 ? blocksOf(beginnings, rows, sharing) : undefined,
      adapters: fit(this.#adapters),
      mixed: this.#adapters.some((place) => place !== placeOfPolicy),
      copies: Uint32Array.from(copies),
      runs,
      stateCopies: Uint32Array.from(stateCopies),
      sampled: this.sampled,
      prefillRows,
    }
  }
}
