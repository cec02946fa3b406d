/**
 * Finds the rows of a step that share a prefix, whose keys attention then reads once for all of these rows (kernels/attention/shared.ts). Host only.
 */
import { fewestShared, type SharedBeginning, type Sharing } from '../kernels/attention/shared.ts'
import type { Page } from './pages.ts'

/** A row of a sequence that computes one token, and where its pages begin among the step's. */
export interface SingleRow {
  row: number
  pages: readonly Page[]
  begin: number
}

/**
 * The prefixes that are shared by enough rows. Rows are grouped by the last of their pages that enough sequences hold: a page's content depends on
 * all tokens before it, so equal pages mean equal prefixes.
 * @param size tokens per page
 */
export function sharedBeginnings(rows: readonly SingleRow[], size: number, { lanes, fewestKeys }: Sharing): SharedBeginning[] {
  const groups = Map.groupBy(rows, ({ pages }) => pages[heldByEnough(pages) - 1] as Page | undefined)
  return [...groups].flatMap(([page, group]) => {
    if (!page || group.length < fewestShared) return []
    const [{ begin, pages }] = group
    // Each of these pages is full, and every row attends to all of it: the page that a row writes its own token to is held by its sequence alone.
    const seen = (pages.indexOf(page) + 1) * size
    const keys = seen - (seen % lanes)
    return keys < fewestKeys ? [] : [{ table: begin, keys, rows: group.map(({ row }) => row) }]
  })
}

/** How many of a sequence's pages are held by enough sequences. A binary search, because whoever holds a page holds all pages before it. */
function heldByEnough(pages: readonly Page[]): number {
  let [low, high] = [0, pages.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (pages[middle].holders >= fewestShared) low = middle + 1
    else high = middle
  }
  return low
}
