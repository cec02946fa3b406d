/**
 * Pages of the KV cache: reference counts, contents, and prefix caching. Host only: it knows no GPU.
 * - A page has the keys and values of `size` consecutive tokens of a sequence. They depend on all tokens before, so pages form trees (a
 *   radix tree): the path from a root to a page spells a text. Each namespace (adapter, policy version, salt) has a root of its own, and
 *   nothing is shared between them.
 * - Whoever uses a page holds it and all pages before it. A page that nobody holds stays cached until room is needed (least recently used
 *   goes first), so that the next request with the same beginning finds it.
 * - Full pages are shared by all sequences with their text. A page that is not full, or from which a text branches off halfway, is copied
 *   before it is written to.
 */

/** A page, as a node of the tree. */
export interface Page {
  /** Its rows of the cache are index * size .. (index + 1) * size - 1. */
  index: number
  /** Its tokens, those that are still to be computed included. */
  tokens: number[]
  /** How many of them are computed by a step that was recorded. */
  ready: number
  parent: Page | Root
  root: Root
  children: Page[]
  /** -1: it was removed, and its index belongs to another page. */
  holders: number
}

/** Where the texts of a namespace begin. */
export interface Root {
  name: string
  children: Page[]
  /** Its pages are not found any more: they are free as soon as nobody holds them. */
  dead: boolean
}

/** What is cached of a text: full pages, and perhaps one more whose first `common` tokens match. */
interface Match {
  pages: Page[]
  partial?: { page: Page; common: number }
}

export class PagePool {
  /** Tokens of a page. */
  readonly size: number
  /** Pages that are handed out; index `capacity` is one more, for rows that are padding. */
  readonly capacity: number
  readonly #free: number[]
  /** How many pages nobody holds; and those of them without children, least recently used first. */
  #cached = 0
  readonly #leaves = new Set<Page>()
  readonly #roots = new Map<string, Root>()

  constructor(capacity: number, size: number) {
    this.capacity = capacity
    this.size = size
    this.#free = Array.from({ length: capacity }, (_, i) => capacity - 1 - i)
  }

  /** Pages that somebody holds. */
  get held(): number {
    return this.capacity - this.available
  }

  /** Pages that can be handed out now. */
  get available(): number {
    return this.#free.length + this.#cached
  }

  root(name: string): Root {
    let root = this.#roots.get(name)
    if (!root) this.#roots.set(name, (root = { name, children: [], dead: false }))
    return root
  }

  /** Drops a root that was asked for and got no pages. */
  unused(root: Root): void {
    if (root.children.length === 0) this.#roots.delete(root.name)
  }

  /** The longest cached prefix of `ids`, of at most `limit` tokens. Holds nothing. */
  match(root: Root, ids: readonly number[], limit: number): Match {
    const { size } = this
    const pages: Page[] = []
    let node: Page | Root = root
    let at = 0
    while (true) {
      let partial: Match['partial']
      let next: Page | undefined
      for (const page of node.children) {
        const common = commonLength(page.tokens, ids, at, limit)
        if (common === size) {
          next = page
          break
        }
        // Without tokens that are only planned: the copy is made before the step that computes them.
        const there = Math.min(common, page.ready)
        if (there > 0 && there > (partial?.common ?? 0)) partial = { page, common: there }
      }
      if (!next) return { pages, partial }
      pages.push(next)
      at += size
      node = next
    }
  }

  /** A new page behind `parent`, which the caller holds as well; undefined where none is left. */
  take(parent: Page | Root): Page | undefined {
    const index = this.#free.pop() ?? this.#evict()
    if (index === undefined) return undefined
    const root = isPage(parent) ? parent.root : parent
    const page: Page = { index, tokens: [], ready: 0, parent, root, children: [], holders: 1 }
    parent.children.push(page)
    // It may have been the root's own last page that made room, with which the root was dropped.
    if (!isPage(parent) && !parent.dead) this.#roots.set(parent.name, parent)
    return page
  }

  hold(page: Page): void {
    if (page.holders++ > 0) return
    this.#cached--
    this.#leaves.delete(page)
  }

  /** Gives back the pages of a text, which are in order. */
  release(pages: readonly Page[]): void {
    for (let i = pages.length - 1; i >= 0; i--) this.#drop(pages[i])
  }

  /** From now on no request finds the pages of `root`. */
  retire(root: Root): void {
    if (root.dead) return
    root.dead = true
    this.#roots.delete(root.name)
    this.#clear(root)
  }

  /** Empties the cache, in all namespaces; pages that are held stay with their holders alone. */
  reset(): void {
    for (const root of this.#roots.values()) this.retire(root)
  }

  /** Retires the roots whose name is not accepted. */
  keep(accept: (name: string) => boolean): void {
    for (const root of this.#roots.values()) if (!accept(root.name)) this.retire(root)
  }

  #drop(page: Page): void {
    if (page.holders === 0) throw new Error(`page ${page.index} of the KV cache is given back twice`)
    if (--page.holders > 0) return
    this.#cached++
    // Cut to what is both computed and known: planned tokens may never have been computed, and drawn ones never read back.
    page.tokens.length = page.ready = Math.min(page.tokens.length, page.ready)
    if (page.tokens.length === 0 || page.root.dead) return this.#clear(page)
    if (page.children.length === 0) this.#leaves.add(page)
  }

  /** Frees a page and its descendants, as far as nobody holds them; children first. */
  #clear(from: Page | Root): void {
    const nodes: (Page | Root)[] = [from]
    for (const node of nodes) nodes.push(...node.children)
    for (const node of nodes.toReversed()) {
      if (isPage(node) && node.holders === 0 && node.children.length === 0) this.#free.push(this.#remove(node))
    }
  }

  #evict(): number | undefined {
    const [page] = this.#leaves
    return page && this.#remove(page)
  }

  /** Takes a page that nobody holds out of the tree. */
  #remove(page: Page): number {
    const { parent } = page
    this.#leaves.delete(page)
    this.#cached--
    page.holders = -1
    parent.children.splice(parent.children.indexOf(page), 1)
    if (isPage(parent)) {
      if (parent.holders === 0 && parent.children.length === 0) this.#leaves.add(parent)
    } else if (parent.children.length === 0 && this.#roots.get(parent.name) === parent) {
      this.#roots.delete(parent.name)
    }
    return page.index
  }
}

const isPage = (node: Page | Root): node is Page => 'index' in node

/** How many of `tokens`, from the first on, equal ids[at], ids[at + 1], ..., up to ids[limit - 1]. */
function commonLength(tokens: readonly number[], ids: readonly number[], at: number, limit: number): number {
  const most = Math.min(tokens.length, limit - at)
  let n = 0
  while (n < most && tokens[n] === ids[at + n]) n++
  return n
}
