/** Which of a step's rows go through the keys of a common beginning together (kernels/attention/shared.ts). Host only. */
import { fewestShared, type SharedBeginning } from '../kernels/attention/shared.ts'
import type { Page } from './pages.ts'

/** A row of one token: where its pages begin among the step's, and its position. */
export interface SingleRow {
  row: number
  pages: readonly Page[]
  begin: number
  position: number
}

/** Tiles of keys from which on going together pays for what is written and read back. */
const fewestTiles = 2

/**
 * The beginnings that enough rows share: of those whose deepest page that others hold as well is the same. As a page's content depends on all before it, these have all until there in common.
 * @param size tokens of a page @param tile keys of a tile
 */
export function sharedBeginnings(rows: readonly SingleRow[], size: number, tile: number): SharedBeginning[] {
  const groups = Map.groupBy(rows, ({ pages }) => pages[heldByOthers(pages) - 1] as Page | undefined)
  return [...groups].flatMap(([page, group]) => {
    if (!page || group.length < fewestShared) return []
    const [{ begin, pages }] = group
    // None that a row does not see: the page may have more.
    const seen = Math.min((pages.indexOf(page) + 1) * size, ...group.map(({ position }) => position + 1))
    const keys = seen - (seen % tile)
    return keys < fewestTiles * tile ? [] : [{ table: begin, keys, rows: group.map(({ row }) => row) }]
  })
}

/** How many of the pages of a text, which are in order, somebody else holds as well: nobody holds a page without those before it. */
function heldByOthers(pages: readonly Page[]): number {
  let [low, high] = [0, pages.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (pages[middle].holders > 1) low = middle + 1
    else high = middle
  }
  return low
}
