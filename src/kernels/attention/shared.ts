/**
 * Decode with a shared prefix. Rows whose texts have a common prefix (the rollouts of a group, requests with one system prompt) go through its keys
 * together, so that these are loaded once for all rows and not once for each (Hydragen, arXiv 2402.05099). A block has up to LANES (row, query head)
 * pairs of one kv head. row_lanes.wgsl (SHARED) sums over the keys of the prefix, and forward.wgsl (RESUME) continues from there with each row's own
 * keys, in the same order, so no bit depends on it. Used on CPU drivers whose cache lies in textures.
 */
import type { GpuBuffer } from '../../gpu/pool.ts'

export interface Sharing {
  /** The most pairs of a block; numbers of shared keys are multiples of it. */
  lanes: number
  /** Query heads per kv head. */
  group: number
  /** Shortest shared prefix, in keys. */
  fewestKeys: number
}

type BlockSize = Pick<Sharing, 'lanes' | 'group'>

/** The result of `blocksOf` in a buffer with room for `count` blocks, of which the used ones come first. */
export interface SharedRows {
  blocks: GpuBuffer
  count: number
}

/** Rows with a common prefix, the prefix's first entry in the page tables, and its number of keys. */
export interface SharedBeginning {
  table: number
  keys: number
  rows: readonly number[]
}

/** Fewest rows that gain from going together: a block costs not quite what two rows cost alone (bench/LOG.md, "Shared prompts in decode"). */
export const fewestShared = 3

/** The most blocks that a step of this many rows can have: full ones, and for each prefix one that is not full. */
export const mostBlocks = (rows: number, { lanes, group }: BlockSize): number =>
  Math.floor(rows / fewestShared) + Math.floor((rows * group) / lanes)

/** Size in 32-bit words of the blocks of a step of this many rows. */
export const blockWords = (rows: number, sharing: BlockSize): number => 4 * (mostBlocks(rows, sharing) + Math.ceil(rows / 4))

/**
 * The blocks of a step: (table, keys, first pair, pairs) of each, then a list of row numbers. Pair i is query head i % group, of each kv head, of row
 * i / group of that list.
 */
export function blocksOf(beginnings: readonly SharedBeginning[], rows: number, sharing: BlockSize): Uint32Array {
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
