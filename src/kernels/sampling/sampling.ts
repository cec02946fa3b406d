/** Draws tokens from logits on the GPU: masks, biases and penalties, filters, a seeded draw, and the most likely tokens. */
import { fileURLToPath } from 'node:url'
import type { SamplingParams, TopLogprobs } from '../../common/types.ts'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { lanes } from '../common/lanes.ts'
import { sliceRows } from '../common/weight.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  adjust: file('adjust.wgsl'),
  draw: file('draw.wgsl'),
  part: file('draw_part.wgsl'),
  join: file('draw_join.wgsl'),
  tops: file('tops.wgsl'),
}

/** The part of a request's sampling parameters that the kernels read for a draw. */
export type DrawSettings = Pick<
  SamplingParams,
  'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty' | 'presence_penalty' | 'frequency_penalty'
>

/** Numbers in a row's settings: two vec4f. */
export const settingsPerRow = 8

/** The most tokens per row that `topTokens` gives, and the words that it writes for a row: rank, ids, log-probabilities. */
export const mostTop = 20
export const topWords = 1 + 2 * mostTop

/** Marks a listed token that is neither in the prompt nor in the output, a row without a mask, and a place for which no token is left. */
export const none = 0xffffffff

/**
 * The settings of rows as the kernels read them.
 * @param length number of rows; those after the rows of `settings` are marked as not in use
 * @param given rows whose token is given in their seeds, so that none is drawn
 */
export function packSettings(
  rows: DrawSettings[],
  length = rows.length,
  given: (row: number) => boolean = () => false,
): Float32Array {
  const packed = new Float32Array(length * settingsPerRow)
  rows.forEach((s, r) => {
    const penalties = [s.frequency_penalty, s.presence_penalty]
    const use = given(r) ? 2 : 1
    const all = [s.temperature, s.top_p, s.min_p, s.repetition_penalty, ...penalties, Math.max(0, s.top_k), use]
    packed.set(all, r * settingsPerRow)
  })
  return packed
}

/**
 * Changes of a row's logits: its mask, and (token, count, bias) once for each token concerned. A count is `none` if the token is neither in the
 * prompt nor in the output.
 */
export interface RowChanges {
  mask?: Uint32Array
  entries: Iterable<[token: number, count: number, bias: number]>
}

/** The lists of rows as `adjustLogits` takes them (adjust.wgsl). */
export function packChanges(rows: RowChanges[]): {
  start: Uint32Array
  entries: Uint32Array
  maskAt: Uint32Array
  masks: Uint32Array
} {
  const start = new Uint32Array(rows.length + 1)
  const maskAt = new Uint32Array(rows.length).fill(none)
  const [entries, masks]: [number[], Uint32Array[]] = [[], []]
  const bits = new Uint32Array(1)
  const bias = new Float32Array(bits.buffer)
  let words = 0
  rows.forEach((row, r) => {
    for (const [token, count, added] of row.entries) {
      bias[0] = added
      entries.push(token, count, bits[0], 0)
    }
    start[r + 1] = entries.length / 4
    if (!row.mask) return
    maskAt[r] = words
    words += row.mask.length
    masks.push(row.mask)
  })
  const all = new Uint32Array(Math.max(1, words))
  masks.reduce((at, mask) => (all.set(mask, at), at + mask.length), 0)
  return { start, entries: entries.length > 0 ? Uint32Array.from(entries) : new Uint32Array(4), maskAt, masks: all }
}

/** Applies masks, biases and penalties to logits (rows, vocabulary), in place; the lists come from `packChanges`. */
export function adjustLogits(
  gpu: Gpu,
  t: { logits: Binding; settings: Binding; start: Binding; entries: Binding; maskAt: Binding; masks: Binding },
  rows: number,
  vocabulary: number,
): void {
  const bindings = [t.logits, t.settings, t.start, t.entries, t.maskAt, t.masks]
  const parts = gpu.facts.software ? 1 : Math.ceil(vocabulary / sliceRows)
  gpu.dispatch(gpu.kernel(paths.adjust), bindings, { rows, vocabulary, parts }, [rows, parts])
}

type DrawBindings = Record<'logits' | 'settings' | 'seeds' | 'drawn', Binding>

/** What draw.wgsl does after it has found the smallest code that a row keeps. */
type Ending = 'DRAW' | 'MASK' | 'FIND'

function draw(gpu: Gpu, t: DrawBindings, rows: number, vocabulary: number, ending: Ending): void {
  const { software } = gpu.facts
  const flags = { DRAW: 0, MASK: 0, FIND: 0, [ending]: 1, AHEAD: software ? 1 : 4 }
  const kernel = gpu.kernel(paths.draw, { ...lanes(gpu, true), ...flags })
  gpu.dispatch(kernel, [t.logits, t.settings, t.seeds, t.drawn], { rows, vocabulary }, [rows])
}

/** drawn[r] = a token for row r (0 for rows that are not in use); seeds (rows) vec2u: seed and position, or the given token. */
export function drawTokens(gpu: Gpu, t: DrawBindings, rows: number, vocabulary: number): void {
  if (gpu.facts.software) return draw(gpu, t, rows, vocabulary, 'DRAW')
  const slices = Math.ceil(vocabulary / sliceRows)
  const least = gpu.pool.acquire(rows * 4, 'least of draws')
  const best = gpu.pool.acquire(rows * slices * 8, 'best of slices')
  draw(gpu, { ...t, drawn: least }, rows, vocabulary, 'FIND')
  const part = gpu.kernel(paths.part, { ...lanes(gpu, true), SLICE: sliceRows })
  gpu.dispatch(part, [t.logits, t.settings, t.seeds, least, best], { rows, vocabulary, slices }, [rows, slices])
  gpu.dispatch(gpu.kernel(paths.join, lanes(gpu)), [best, t.settings, t.seeds, t.drawn], { rows, slices }, [rows])
  for (const buffer of [least, best]) buffer.release()
}

/** Leaves in `logits` what `drawTokens` would draw from: logits / temperature, and -3e38 for dropped tokens. */
export function maskLogits(gpu: Gpu, t: DrawBindings, rows: number, vocabulary: number): void {
  draw(gpu, t, rows, vocabulary, 'MASK')
}

/**
 * Writes the most likely tokens of rows, and the rank of `targets`, to `records` (rows, topWords); see tops.wgsl and `readTop`.
 * @param t wanted (rows): 0: nothing for this row, else 1 + number of tokens. Rows whose inverse temperature is 0 are skipped
 */
export function topTokens(
  gpu: Gpu,
  t: { logits: Binding; inverseTemperatures: Binding; stats: Binding; targets: Binding; wanted: Binding; records: Binding },
  rows: number,
  vocabulary: number,
): void {
  const kernel = gpu.kernel(paths.tops, { ...lanes(gpu, true), MOST: mostTop })
  const bindings = [t.logits, t.inverseTemperatures, t.stats, t.targets, t.wanted, t.records]
  gpu.dispatch(kernel, bindings, { rows, vocabulary }, [rows])
}

/** Reads what `topTokens` wrote for a row, if `count` tokens were wanted: fewer if the rest were dropped. */
export function readTop(records: Uint32Array, row: number, count: number): TopLogprobs {
  const words = records.subarray(row * topWords, (row + 1) * topWords)
  const ids = [...words.subarray(1, 1 + count)].filter((id) => id !== none)
  const at = words.byteOffset + (1 + mostTop) * 4
  return { ids, logprobs: [...new Float32Array(words.buffer, at, ids.length)], rank: words[0] }
}
