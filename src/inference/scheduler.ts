/**
 * Decides which sequences run, which pages of the KV cache they use, and which rows the next step computes. Runs on the host only.
 * - First come, first served: a waiting request that does not fit holds back those behind it, so none starves.
 * - A step decodes one token of every sequence whose prompt is computed, and prefills as many prompt tokens of others as fit.
 * - A request gets the pages for its prompt when it is admitted, and another page whenever its last one is full. If no page is left, the sequence
 *   that was admitted last is preempted: it releases its pages but keeps its tokens, waits ahead of all others, and recomputes those tokens later.
 *   The sequence that was admitted first is never preempted by others, so every request finishes.
 * - Prefix caching: tokens whose keys and values were computed with the same version of the same weights are not computed again (pages.ts). Requests
 *   with the same prompt that wait at the same time share one prefill, including its last token.
 */
import type { PolicyVersion } from '../common/types.ts'
import { fromDrawn } from '../kernels/embedding/embedding.ts'
import { PagePool, type Page, type Root } from './pages.ts'
import type { Sequence } from './sequence.ts'
import type { Sharing } from '../kernels/attention/shared.ts'
import { roundRows, StepBuilder, type StepRows } from './step-rows.ts'

/** A prompt that is being computed (after a preemption: prompt and output so far), for all requests that start from it. */
interface Prefill {
  ids: readonly number[]
  pages: Page[]
  /** Index of the adapter with which it is computed. */
  adapter: number
  /** Number of tokens whose keys and values are in the cache, or will be after the recorded step. */
  computed: number
  /** Requests that draw their next token from the last row. */
  starting: Sequence[]
  /** The request that wants the log-probabilities of its prompt, if this is its prefill. */
  scored: Sequence | undefined
  /** Slot of the recurrent state after these tokens. The first request to start takes it over; the others get copies. */
  slot: number
  /** Whether a request has taken over `slot`. */
  taken: boolean
}

export interface SchedulerOptions {
  maxSequences: number
  maxPrefillRows: number
  /** The most tokens in a sequence. */
  maxLength: number
  /** Number of pages that can be handed out. Padding is written to one more, with index `pages`. */
  pages: number
  pageSize: number
  /** Whether a new request may reuse pages of requests that have ended. */
  prefixCaching: boolean
  /** Whether pages computed with an older version of the weights may be reused with a newer one. */
  acrossVersions: boolean
}

export class Scheduler {
  readonly waiting = new Set<Sequence>()
  /** In order of admission. */
  readonly running = new Set<Sequence>()
  readonly pool: PagePool
  /** Prompt tokens of admitted requests, those that they need not compute, and the number of preemptions. */
  readonly counts = { queried: 0, shared: 0, preemptions: 0 }
  readonly #options: SchedulerOptions
  /** Keyed by namespace, adapter and prompt if later requests may join, otherwise by a unique symbol. */
  readonly #prefills = new Map<unknown, Prefill>()
  /** Cache rows to copy before the next step, and the pages that are held until then because rows are copied from them. */
  #copies: { from: Page; to: Page; count: number }[] = []
  #sources: Page[] = []
  /**
   * Free slots of recurrent states (step-rows.ts), and the number of slots ever used. Models with such states have no prefix caching, so every
   * running sequence has a slot, or waits for a prefill that has one: there are never more slots than maxSequences.
   */
  readonly #slots: number[] = []
  #slotCount = 0
  /** Slots to copy before the next step: from, to, and so on. */
  #stateCopies: number[] = []

  constructor(options: SchedulerOptions) {
    this.#options = options
    this.pool = new PagePool(options.pages, options.pageSize)
  }

  /**
   * The most rows that a step can have. Above 32 it is a multiple of 32: the kernels of the largest step are compiled first, and if its tiles had
   * fewer rows they would not be the kernels that prompts of 32 tokens or more need.
   */
  get maxRows(): number {
    const rows = this.#options.maxSequences + this.#options.maxPrefillRows
    return roundRows(rows > 32 ? 32 * Math.ceil(rows / 32) : rows)
  }

  /** The most entries in `pages` of a step: those of all running sequences and as many prefills. */
  get maxTable(): number {
    const { maxSequences, maxLength } = this.#options
    return 1 + 2 * maxSequences * Math.ceil(maxLength / this.pool.size)
  }

  /** Removes a sequence, wherever it is, and releases its pages. */
  remove(sequence: Sequence): void {
    this.waiting.delete(sequence)
    if (this.running.delete(sequence)) this.#leave(sequence)
    // Prefills that were kept because other sequences share their pages (see #leave) may now serve none, also if the last one was preempted.
    if (this.running.size === 0) for (const key of this.#prefills.keys()) this.#end(key)
  }

  /** Called when an adapter gets a new version: pages computed with older versions are no longer reused, unless `acrossVersions`. */
  forget(adapter: string | null | undefined, version: PolicyVersion): void {
    if (this.#options.acrossVersions) return
    this.pool.keep((name) => {
      const [owner, at] = JSON.parse(name) as [ReturnType<typeof ownerOf>, PolicyVersion, string | null]
      return owner !== ownerOf(adapter) || at === version
    })
  }

  /**
   * Moves waiting sequences to the running ones while there is room.
   * @param versionOf the version, within its adapter, of the weights with which a sequence runs
   * @param begunOnly admit only sequences that were preempted
   */
  admit(versionOf: (sequence: Sequence) => PolicyVersion, begunOnly = false): void {
    for (const sequence of this.waiting) {
      if (begunOnly && !sequence.begun) continue
      // Tokens that were drawn before the preemption may not have been read back yet.
      if (this.running.size >= this.#options.maxSequences || sequence.pending > 0) return
      if (!this.#place(sequence, versionOf(sequence))) return
      this.waiting.delete(sequence)
      this.running.add(sequence)
    }
  }

  #place(sequence: Sequence, version: PolicyVersion): boolean {
    const { acrossVersions, prefixCaching } = this.#options
    const owner = ownerOf(sequence.adapter)
    const name = JSON.stringify([owner, acrossVersions ? 0 : version, sequence.cacheSalt ?? null])
    const again = sequence.ids.length > 0
    const scored = sequence.wantsPrompt
    // The adapter's index is part of the key, since an adapter reloaded under the same name is a different one. Nobody may join a prefill of output
    // tokens, or one that also scores its prompt (the joining request might need rows that are already computed).
    const key = again || scored ? Symbol(name) : `${name} ${sequence.adapterIndex} ${sequence.promptKey}`
    const ids = again ? [...sequence.promptIds, ...sequence.ids] : sequence.promptIds
    const joined = this.#prefills.get(key)
    if (joined) {
      if (this.pool.available === 0) return false
      joined.starting.push(sequence)
      sequence.prefillKey = key
      this.#count(sequence, ids.length)
      return true
    }
    const root = this.pool.root(name)
    const found = this.#find(root, ids, prefixCaching && !scored)
    if (!found) {
      this.pool.unused(root)
      return false
    }
    this.#prefills.set(key, {
      ids,
      ...found,
      adapter: sequence.adapterIndex,
      starting: [sequence],
      scored: scored ? sequence : undefined,
      slot: this.#takeSlot(),
      taken: false,
    })
    sequence.prefillKey = key
    this.#count(sequence, found.computed)
    return true
  }

  /** Counts each sequence once, however often it is preempted. */
  #count(sequence: Sequence, cached: number): void {
    if (sequence.cachedTokens !== undefined) return
    sequence.cachedTokens = cached
    this.counts.queried += sequence.promptIds.length
    this.counts.shared += cached
  }

  /** Holds pages for all of `ids`, including those that are cached. Undefined if they do not fit. */
  #find(root: Root, ids: readonly number[], search: boolean): { pages: Page[]; computed: number } | undefined {
    const { pool } = this
    const { size } = pool
    // The last token is always computed, since the first draw needs its hidden state.
    const { pages, partial: near } = search ? pool.match(root, ids, ids.length - 1) : { pages: [], partial: undefined }
    const cached = pages.filter(({ holders }) => holders === 0).length
    // One page stays free for running sequences.
    const room = pool.available - cached - (Math.ceil(ids.length / size) - pages.length) - Number(this.running.size > 0)
    if (room < 0) return undefined
    const goesOn = near && near.page.holders === 0 && near.page.tokens.length === near.common && near.page.children.length === 0
    // A cached page must be held while rows are copied from it. That takes one more page, which a pool with room for only this sequence lacks.
    const partial = near && (goesOn || near.page.holders > 0 || room > 0) ? near : undefined
    for (const page of pages) pool.hold(page)
    const all = [...pages]
    let computed = pages.length * size
    if (partial) {
      const { page, common } = partial
      const first = all.length * size
      if (goesOn) {
        // Nobody else holds the page, and this text continues all of its tokens, so it is filled in place without a copy.
        pool.hold(page)
        page.tokens = ids.slice(first, first + size)
        all.push(page)
      } else {
        this.#lend(page)
        all.push(this.#fill(pool.take(all.at(-1) ?? root)!, ids, first))
        this.#copy(page, all.at(-1)!, common)
      }
      computed += common
    }
    while (all.length * size < ids.length) all.push(this.#fill(pool.take(all.at(-1) ?? root)!, ids, all.length * size))
    return { pages: all, computed }
  }

  #fill(page: Page, ids: readonly number[], first: number): Page {
    page.tokens = ids.slice(first, first + this.pool.size)
    return page
  }

  /** Holds a page, from which rows are copied, until the next step is assembled. */
  #lend(page: Page): void {
    this.pool.hold(page)
    this.#sources.push(page)
  }

  #copy(from: Page, to: Page, count: number): void {
    to.ready = count
    this.#copies.push({ from, to, count })
  }

  /** Returns the rows of the next step; undefined if there are none. @param sharing how rows with a common prefix read its keys together */
  next(sharing?: Sharing): StepRows | undefined {
    const step = new StepBuilder(this.pool, sharing)
    for (const sequence of this.running) {
      if (sequence.prefillKey !== undefined || sequence.drawn >= sequence.sampling.max_tokens) continue
      const slot = this.#slotOf(sequence)
      if (slot === undefined) continue
      const { ids, pending, place } = sequence
      const id = pending > 0 ? fromDrawn + place : ids.at(-1)!
      const row = step.put(id, sequence.pages, sequence.computed - 1, slot, sequence.adapterIndex)
      step.run(sequence.stateSlot!, 1, true)
      step.sampled.push({ sequence, row })
    }
    // States that the last step computed are copied before this step; those that this step computes are copied before the next one.
    const stateCopies = this.#stateCopies.splice(0)
    let left = this.#options.maxPrefillRows
    for (const [key, prefill] of this.#prefills) {
      // maxSequences does not limit prefills for which no request waits any more. The first prefill always fits.
      if (left === 0 || step.entries + prefill.pages.length > this.maxTable) break
      const count = Math.min(left, prefill.ids.length - prefill.computed)
      left -= count
      this.#compute(step, prefill, count)
      if (prefill.computed === prefill.ids.length) this.#end(key)
    }
    for (const page of this.#sources.splice(0)) this.pool.release([page])
    // A page that was given to a sequence and taken away since the last step is no longer a target.
    const copies = this.#copies.splice(0).filter(({ to }) => to.holders >= 0)
    const { maxSequences, maxPrefillRows } = this.#options
    return step.finish(copies, maxPrefillRows - left, stateCopies, maxSequences)
  }

  #compute(step: StepBuilder, prefill: Prefill, count: number): void {
    const { ids, pages, adapter, scored, starting } = prefill
    const { size } = this.pool
    let last = 0
    for (let i = prefill.computed; i < prefill.computed + count; i++) {
      const page = pages[Math.floor(i / size)]
      last = step.put(ids[i], pages, i, page.index * size + (i % size), adapter, true)
      page.ready = Math.max(page.ready, (i % size) + 1)
      if (scored && i + 1 < scored.promptIds.length) {
        step.sampled.push({ sequence: scored, row: last, target: ids[i + 1], position: i + 1 })
      }
    }
    step.run(prefill.slot, count, prefill.computed > 0)
    prefill.computed += count
    if (prefill.computed < ids.length) return
    for (const [i, sequence] of starting.splice(0).entries()) {
      sequence.stateSlot = this.#stateFor(prefill, i === 0)
      for (const page of pages) this.pool.hold(page)
      sequence.pages = [...pages]
      sequence.computed = sequence.synced = ids.length
      sequence.prefillKey = undefined
      step.sampled.push({ sequence, row: last })
    }
  }

  #takeSlot(): number {
    return this.#slots.pop() ?? this.#slotCount++
  }

  /** The state slot of a sequence that starts: the prefill's own for the first one, a copy of it for each other. */
  #stateFor(prefill: Prefill, first: boolean): number {
    if (first) {
      prefill.taken = true
      return prefill.slot
    }
    const slot = this.#takeSlot()
    this.#stateCopies.push(prefill.slot, slot)
    return slot
  }

  /**
   * Returns the cache row for a sequence's next token. If no page is left, preempts the sequences admitted last; undefined if that includes this one.
   */
  #slotOf(sequence: Sequence): number | undefined {
    while (true) {
      const page = this.#writable(sequence)
      if (page) {
        const at = sequence.computed++ % this.pool.size
        page.ready = at + 1
        return page.index * this.pool.size + at
      }
      const last = [...this.running].at(-1)!
      this.#preempt(last)
      if (last === sequence) return undefined
    }
  }

  /** The page for a sequence's next token, held by it alone: a shared last page is copied first. Undefined if no page is left. */
  #writable(sequence: Sequence): Page | undefined {
    const { pool } = this
    const { pages, computed } = sequence
    const at = computed % pool.size
    const last = pages.at(-1)!
    if (at > 0 && last.holders === 1) return last
    const page = pool.take(at === 0 ? last : last.parent)
    if (!page) return undefined
    if (at === 0) {
      pages.push(page)
      return page
    }
    page.tokens = last.tokens.slice(0, at)
    this.#lend(last)
    this.#copy(last, page, at)
    pool.release([last])
    pages[pages.length - 1] = page
    return page
  }

  /** Makes a sequence release its pages and wait ahead of all others. */
  #preempt(sequence: Sequence): void {
    this.counts.preemptions++
    this.running.delete(sequence)
    this.#leave(sequence)
    const others = [...this.waiting]
    this.waiting.clear()
    for (const one of [sequence, ...others]) this.waiting.add(one)
  }

  #leave(sequence: Sequence): void {
    const { prefillKey } = sequence
    if (prefillKey === undefined) {
      this.#note(sequence)
      this.pool.release(sequence.pages)
      sequence.pages = []
      this.#slots.push(sequence.stateSlot!)
      sequence.stateSlot = undefined
      return
    }
    sequence.prefillKey = undefined
    const prefill = this.#prefills.get(prefillKey)!
    prefill.starting.splice(prefill.starting.indexOf(sequence), 1)
    if (prefill.scored === sequence) prefill.scored = undefined
    // Another prefill may rely on pages (of a common prefix) that this one has yet to compute. It then continues without a request.
    const own = prefill.pages.slice(Math.floor(prefill.computed / this.pool.size))
    const needed = own.some((page) => page.ready < page.tokens.length && page.holders > 1)
    if (prefill.starting.length === 0 && !needed) this.#end(prefillKey)
  }

  #end(key: unknown): void {
    const { pages, slot, taken } = this.#prefills.get(key)!
    this.pool.release(pages)
    if (!taken) this.#slots.push(slot)
    this.#prefills.delete(key)
  }

  /** Adds to a sequence's pages the ids of its drawn tokens, as far as they are read back. The prompt's ids are there already. */
  #note(sequence: Sequence): void {
    const { promptIds, ids, pages, computed } = sequence
    const known = Math.min(computed, promptIds.length + ids.length)
    for (let at = sequence.synced; at < known; at++)
      pages[Math.floor(at / this.pool.size)].tokens.push(ids[at - promptIds.length])
  }
}

/** An adapter as part of a namespace's name: true means the policy, false no adapter. */
const ownerOf = (adapter: string | null | undefined): string | boolean => adapter ?? adapter === undefined
