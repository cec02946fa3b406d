/**
 * Pages of the KV cache: who holds them, what stands in them, and which can be taken again. Host only: it knows no GPU.
 * - A page has the keys and values of `size` tokens in a row of one sequence. A page's content depends on all tokens before it, so pages form trees: a path from
 *   a root is a text. There is a root for each namespace (adapter, policy version, salt): pages of one are nothing to another.
 * - Whoever uses a page holds it, and all pages before it. A page that nobody holds stays as it is until room is needed, least recently used first, so that the
 *   next request with the same beginning finds it.
 * - A full page is shared by all that have its text. One that is not full, or that another text leaves halfway, is copied before it is written to.
 */

/** A page, as a node of the tree. */
export interface Page {
  /** Its rows of the cache are index * size .. (index + 1) * size - 1. */
  index: number
  /** Tokens whose keys and values it has, or will have when the steps that are planned have run. */
  tokens: number[]
  /** Of these, those whose computation is recorded. */
  ready: number
  parent: Page | Root
  root: Root
  children: Page[]
  /** Below 0: its place has been taken for another page. */
  holders: number
}

/** Where the texts of a namespace begin. */
export interface Root {
  name: string
  children: Page[]
  /** Its pages are not found any more: they are free as soon as nobody holds them. */
  dead: boolean
}

/** What a text has in the cache: full pages, and a page whose first `common` tokens go on with it. */
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
  /** Pages that nobody holds, and those of them without children, least recently used first. */
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

  /** To be called with a root that was asked for and not used. */
  unused(root: Root): void {
    if (root.children.length === 0) this.#roots.delete(root.name)
  }

  /** The longest beginning of `ids` that is there, of at most `limit` tokens. Holds nothing. */
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
        // It is copied before the step that computes what is only planned.
        const there = Math.min(common, page.ready)
        if (there > 0 && there > (partial?.common ?? 0)) partial = { page, common: there }
      }
      if (!next) return { pages, partial }
      pages.push(next)
      at += size
      node = next
    }
  }

  /** A new page behind `parent`, held by the caller; undefined where none is left. */
  take(parent: Page | Root): Page | undefined {
    const index = this.#free.pop() ?? this.#evict()
    if (index === undefined) return undefined
    const root = isPage(parent) ? parent.root : parent
    const page: Page = { index, tokens: [], ready: 0, parent, root, children: [], holders: 1 }
    parent.children.push(page)
    if (isPage(parent)) this.#leaves.delete(parent)
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

  /** From now on nobody finds the texts of `root`. */
  retire(root: Root): void {
    if (root.dead) return
    root.dead = true
    this.#roots.delete(root.name)
    this.#clear(root)
  }

  /** Forgets what nobody holds, in all namespaces; what is held is not found any more. */
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
    // What was planned and never computed is not there, and what was computed for tokens that nobody ever learned is of no use.
    page.tokens.length = page.ready = Math.min(page.tokens.length, page.ready)
    if (page.tokens.length === 0 || page.root.dead) return this.#clear(page)
    if (page.children.length === 0) this.#leaves.add(page)
  }

  /** Frees a page and what follows it, as far as nobody holds them; last ones first. */
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

/** How many of `tokens` are ids[at], ids[at + 1], ... below `limit`. */
function commonLength(tokens: readonly number[], ids: readonly number[], at: number, limit: number): number {
  const most = Math.min(tokens.length, limit - at)
  let n = 0
  while (n < most && tokens[n] === ids[at + n]) n++
  return n
}
