/**
 * Pages of the KV cache: reference counts, contents and prefix caching. Runs on the host only.
 * - A page holds the keys and values of `size` consecutive tokens of a sequence. These depend on all tokens before, so pages form radix trees: the
 *   path from a root to a page spells a text. Each namespace (adapter, policy version, salt) has a root of its own, and namespaces share nothing.
 * - Whoever uses a page holds it and all pages before it. A page that nobody holds stays cached until its room is needed (the least recently used
 *   goes first), so that the next request with the same prefix finds it.
 * - Full pages are shared by all sequences with the same text. A page that is not full, or in the middle of which a text branches off, is copied
 *   before it is written to.
 */

/** A page, as a node of the tree. */
export interface Page {
  /** Its rows in the cache are index * size .. (index + 1) * size - 1. */
  index: number
  /** Its tokens, including those that are still to be computed. */
  tokens: number[]
  /** How many of them are computed by steps that are recorded. */
  ready: number
  parent: Page | Root
  root: Root
  children: Page[]
  /** -1: the page was removed, and its index belongs to another page. */
  holders: number
}

/** The start of all texts in a namespace. */
export interface Root {
  name: string
  children: Page[]
  /** Whether its pages can no longer be found. They become free as soon as nobody holds them. */
  dead: boolean
}

/** What is cached of a text: full pages, and possibly one more whose first `common` tokens match. */
interface Match {
  pages: Page[]
  partial?: { page: Page; common: number }
}

export class PagePool {
  /** Tokens in a page. */
  readonly size: number
  /** Number of pages that can be handed out. There is one more, with index `capacity`, for padding rows. */
  readonly capacity: number
  readonly #free: number[]
  /** Number of pages that nobody holds; and those of them without children, least recently used first. */
  #cached = 0
  readonly #leaves = new Set<Page>()
  readonly #roots = new Map<string, Root>()

  constructor(capacity: number, size: number) {
    this.capacity = capacity
    this.size = size
    this.#free = Array.from({ length: capacity }, (_, i) => capacity - 1 - i)
  }

  /** Number of pages that somebody holds. */
  get held(): number {
    return this.capacity - this.available
  }

  /** Number of pages that can be handed out now. */
  get available(): number {
    return this.#free.length + this.#cached
  }

  /** The root of a namespace, created on first use. */
  root(name: string): Root {
    let root = this.#roots.get(name)
    if (!root) this.#roots.set(name, (root = { name, children: [], dead: false }))
    return root
  }

  /** Drops a root that was requested but got no pages. */
  unused(root: Root): void {
    if (root.children.length === 0) this.#roots.delete(root.name)
  }

  /** Finds the longest cached prefix of `ids`, of at most `limit` tokens. Does not hold any pages. */
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
        // Tokens that are only planned do not count: the copy runs before the step that computes them.
        const there = Math.min(common, page.ready)
        if (there > 0 && there > (partial?.common ?? 0)) partial = { page, common: there }
      }
      if (!next) return { pages, partial }
      pages.push(next)
      at += size
      node = next
    }
  }

  /** Takes a new page after `parent`, which the caller must hold too; the caller holds the new page. Undefined if there is none left. */
  take(parent: Page | Root): Page | undefined {
    const index = this.#free.pop() ?? this.#evict()
    if (index === undefined) return undefined
    const root = isPage(parent) ? parent.root : parent
    const page: Page = { index, tokens: [], ready: 0, parent, root, children: [], holders: 1 }
    parent.children.push(page)
    // The page that made room may have been the root's last one, and the root was dropped with it.
    if (!isPage(parent) && !parent.dead) this.#roots.set(parent.name, parent)
    return page
  }

  /** Adds a holder to a page. */
  hold(page: Page): void {
    if (page.holders++ > 0) return
    this.#cached--
    this.#leaves.delete(page)
  }

  /** Releases the pages of a text, which are given in order. */
  release(pages: readonly Page[]): void {
    for (let i = pages.length - 1; i >= 0; i--) this.#drop(pages[i])
  }

  /** Makes the pages of `root` unfindable for requests. */
  retire(root: Root): void {
    if (root.dead) return
    root.dead = true
    this.#roots.delete(root.name)
    this.#clear(root)
  }

  /** Empties the cache in all namespaces. Pages that are held remain with their holders only. */
  reset(): void {
    for (const root of this.#roots.values()) this.retire(root)
  }

  /** Retires the roots whose names `accept` rejects. */
  keep(accept: (name: string) => boolean): void {
    for (const root of this.#roots.values()) if (!accept(root.name)) this.retire(root)
  }

  #drop(page: Page): void {
    if (page.holders === 0) throw new Error(`page ${page.index} of the KV cache is given back twice`)
    if (--page.holders > 0) return
    this.#cached++
    // Keep only tokens that are both computed and known: planned tokens may never have been computed, and drawn ones never read back.
    page.tokens.length = page.ready = Math.min(page.tokens.length, page.ready)
    if (page.tokens.length === 0 || page.root.dead) return this.#clear(page)
    if (page.children.length === 0) this.#leaves.add(page)
  }

  /** Frees a page and its descendants (children first), except those that somebody holds. */
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

  /** Removes a page that nobody holds from the tree. */
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

/** How many leading `tokens` equal ids[at], ids[at + 1], ..., at most up to ids[limit - 1]. */
function commonLength(tokens: readonly number[], ids: readonly number[], at: number, limit: number): number {
  const most = Math.min(tokens.length, limit - at)
  let n = 0
  while (n < most && tokens[n] === ids[at + n]) n++
  return n
}
