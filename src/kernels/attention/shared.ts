/**
 * Rows of one token each whose texts have the same beginning (the rollouts of a group, requests with one system prompt) go through its keys together: these are loaded once for
 * all of them, not once for each (Hydragen, arXiv 2402.05099). A block has up to LANES pairs of a row and one of the query heads that a key's head serves. row_lanes.wgsl (SHARED) sums
 * over the keys that they share, and forward.wgsl (RESUME) goes on from there with each row's own, in the same order, so no bit depends on it. On CPU drivers whose cache lies in textures.
 */
import type { GpuBuffer } from '../../gpu/pool.ts'

/** How rows are put into blocks: pairs of a block at most, which is also what the number of shared keys is a multiple of, and query heads for each head of keys. */
export interface Sharing {
  lanes: number
  group: number
}

/** As `blocksOf` gives them: `count` places for blocks, of which those that are used come first. */
export interface SharedRows {
  blocks: GpuBuffer
  count: number
}

/** Rows of a common beginning, where its pages begin, and how many keys it has. */
export interface SharedBeginning {
  table: number
  keys: number
  rows: readonly number[]
}

/** Rows that gain by going together: a block costs what not quite two take alone (bench/LOG.md, "Shared prompts in decode"). */
export const fewestShared = 3

/** Blocks of a step of so many rows at most: a last one that is not full for each beginning. */
export const mostBlocks = (rows: number, { lanes, group }: Sharing): number =>
  Math.floor(rows / fewestShared) + Math.floor((rows * group) / lanes)

/** u32 of the blocks of a step of so many rows. */
export const blockWords = (rows: number, sharing: Sharing): number => 4 * (mostBlocks(rows, sharing) + Math.ceil(rows / 4))

/** The blocks of a step: first (table, keys, first pair, pairs) of each, then the rows, whose pairs are numbered in this order, all heads of a row after each other. */
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
