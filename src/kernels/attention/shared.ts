/**
 * Rows of decode whose texts have a common prefix (the rollouts of a group, requests with one system prompt) go through its keys together, which are loaded once for all of them, not once for
 * each (Hydragen, arXiv 2402.05099). A block has up to LANES (row, query head) pairs of one kv head. row_lanes.wgsl (SHARED) sums over the keys of the prefix, and forward.wgsl (RESUME)
 * goes on from there with each row's own keys, in the same order, so no bit depends on it. On CPU drivers whose cache lies in textures.
 */
import type { GpuBuffer } from '../../gpu/pool.ts'

/** `lanes`: most pairs of a block, and what numbers of shared keys are a multiple of. `group`: query heads of a kv head. */
export interface Sharing {
  lanes: number
  group: number
}

/** What `blocksOf` gives: room for `count` blocks, of which the used ones come first. */
export interface SharedRows {
  blocks: GpuBuffer
  count: number
}

/** Rows with a common prefix, its first entry of the page tables, and how many keys it has. */
export interface SharedBeginning {
  table: number
  keys: number
  rows: readonly number[]
}

/** Fewest rows that gain by going together: a block costs not quite what two rows cost alone (bench/LOG.md, "Shared prompts in decode"). */
export const fewestShared = 3

/** Most blocks of a step of so many rows: full ones, and for each prefix one that is not. */
export const mostBlocks = (rows: number, { lanes, group }: Sharing): number =>
  Math.floor(rows / fewestShared) + Math.floor((rows * group) / lanes)

/** Words of the blocks of a step of so many rows. */
export const blockWords = (rows: number, sharing: Sharing): number => 4 * (mostBlocks(rows, sharing) + Math.ceil(rows / 4))

/** The blocks of a step: (table, keys, first pair, pairs) of each, then the numbers of the rows. Pair i is query head i % group, of each kv head, of row i / group of that list. */
export function blocksOf(beginnings: readonly SharedBeginning[], rows: number, sharing: Sharing): Uint32Array {
  const words = new Uint32Array(blockWords(rows, sharing))
  const { lanes, group } = sharing
  let [block, at] = [0, 4 * mostBlocks(rows, sharing)]
  const firstRow = at
  for (const { table, keys, rows } of beginnings) {
    const pairs = rows.length * group
    for (let first = 0; first < pairs; first += lanes) {
      words.set([table, keys, (at - firstRow) * group + first, Math.min(lanes, pairs - first)], 4 * block++)
    }
    words.set(rows, at)
    at += rows.length
  }
  return words
}
