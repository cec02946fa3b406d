/**
 * The scheduler against a cache that is only written down: for each row, which text its keys and values stand for and under which version they were computed.
 * Requests with few different tokens, so that pages are shared, copied, lost and found again all the time.
 */
import { describe, expect, it } from 'vitest'
import { mostBlocks } from '../../src/kernels/attention/shared.ts'
import { Random } from '../../src/common/random.ts'
import type { GenerationRequest, GenerationResult } from '../../src/common/types.ts'
import type { HeldAdapter } from '../../src/inference/adapters.ts'
import { fromDrawn } from '../../src/kernels/embedding/embedding.ts'
import { PagePool, type Page, type Root } from '../../src/inference/pages.ts'
import { Scheduler, type SchedulerOptions } from '../../src/inference/scheduler.ts'
import type { StepRows } from '../../src/inference/step-rows.ts'
import { Sequence } from '../../src/inference/sequence.ts'
import { seed, seedWords } from '../seed.ts'
import { sampling } from './helpers.ts'

/** What stands in a row of the cache: the text up to its token, and the oldest version that any of it was computed with. */
interface Entry {
  text: string
  version: number
}

const sharing = { lanes: 4, group: 3, fewestKeys: 8 }

class Simulation {
  readonly scheduler: Scheduler
  readonly random: Random
  readonly size: number
  readonly cache: (Entry | undefined)[] = []
  /** The text that each slot's recurrent state stands for. Models that have one search no prefixes. */
  readonly states: string[] = []
  readonly #options: SchedulerOptions
  readonly admitted = new Map<Sequence, number>()
  readonly results = new Map<Sequence, GenerationResult>()
  version = 0
  steps = 0
  /** A step whose draws have not landed, at most one, as in an engine that runs ahead; and its draws, by place. */
  flight: StepRows | undefined
  drawn: number[] = []

  constructor(random: Random, options: Partial<SchedulerOptions>) {
    this.random = random
    const cache = { pages: 14, pageSize: 4, prefixCaching: true, acrossVersions: false }
    const defaults = { maxSequences: 6, maxPrefillRows: 9, maxLength: 64, ...cache }
    this.#options = { ...defaults, ...options }
    this.scheduler = new Scheduler(this.#options)
    this.size = this.scheduler.pool.size
  }

  submit(
    promptIds: number[],
    maxTokens: number,
    { cacheSalt, adapter, logprobs }: Partial<GenerationRequest> = {},
    weights?: HeldAdapter,
  ): Sequence {
    const sequence: Sequence = new Sequence(
      { promptIds, sampling: sampling({ max_tokens: maxTokens }), cacheSalt, adapter, logprobs },
      { eosTokenIds: new Set(), decode: (ids) => ids.join(' ') },
      { resolve: (result) => this.results.set(sequence, result), reject: () => {}, abort: () => {} },
      weights,
    )
    this.scheduler.waiting.add(sequence)
    return sequence
  }

  abort(sequence: Sequence): void {
    this.scheduler.remove(sequence)
    sequence.abort()
  }

  publish(): void {
    this.scheduler.forget(undefined, ++this.version)
  }

  /** One step; false where there was nothing to do. */
  step(): boolean {
    const { scheduler } = this
    const before = new Set(scheduler.running)
    scheduler.admit(() => this.version)
    expect(scheduler.running.size).toBeLessThanOrEqual(this.#options.maxSequences)
    for (const sequence of scheduler.running) if (!before.has(sequence)) this.admitted.set(sequence, this.version)
    const step = scheduler.next(sharing)
    if (!step) {
      this.land()
      return false
    }
    this.steps++
    this.#copy(step.copies)
    this.#compute(step)
    for (const [place, { sequence, target }] of step.sampled.entries()) {
      if (target !== undefined) continue
      sequence.pending++
      sequence.place = place
    }
    this.land()
    this.flight = step
    this.drawn = step.sampled.map(() => 1 + this.random.int(3))
    return true
  }

  /** The draws of the step before arrive. */
  land(): void {
    const { flight } = this
    this.flight = undefined
    for (const [place, { sequence, target, position }] of flight?.sampled.entries() ?? []) {
      if (target !== undefined) {
        if (!sequence.ended) sequence.takePrompt(position!, -1, { ids: [], logprobs: [], rank: 1 })
        continue
      }
      sequence.pending--
      if (sequence.ended) continue
      const ending = sequence.push(this.drawn[place], 0, this.version)
      if (!ending) continue
      this.scheduler.remove(sequence)
      sequence.finish(ending)
    }
    this.drawn = []
  }

  #copy(copies: Uint32Array): void {
    const [from, to] = [0, 1].map((n) => [...copies].filter((_, i) => i % 2 === n))
    expect(new Set([...from, ...to]).size, 'no row is written twice, or both read and written').toBe(
      new Set(from).size + to.length,
    )
    const entries = from.map((row) => this.cache[row])
    to.forEach((row, i) => (this.cache[row] = entries[i]))
  }

  /** Copies states, and returns a function that computes a row's state and compares it with the text that the row should see. */
  #copiedStates({ stateCopies, runs, ids }: StepRows): ((row: number, text: string) => void) | undefined {
    if (this.#options.prefixCaching) return undefined
    const froms = Array.from({ length: stateCopies.length / 2 }, (_, i) => this.states[stateCopies[2 * i]])
    froms.forEach((text, i) => (this.states[stateCopies[2 * i + 1]] = text))
    return (row, text) => {
      const [slot, first, , goesOn] = runs.subarray(4 * row, 4 * row + 4)
      expect(slot).toBeLessThan(this.#options.maxSequences)
      const id = ids[row] >= fromDrawn ? this.drawn[ids[row] - fromDrawn] : ids[row]
      this.states[slot] = `${row === first && !goesOn ? '' : this.states[slot]} ${id}`
      expect(this.states[slot]).toBe(text)
    }
  }

  /** Rows that go through common keys together have these in the same pages, and see all of them. */
  #expectShared({ blocks, info, pages, rows, prefillRows }: StepRows): void {
    const shared = Array.from({ length: rows }, (_, row) => info[4 * row + 2])
    if (!blocks) return expect(Math.max(...shared)).toBe(0)
    expect(prefillRows).toBe(0)
    const places = mostBlocks(rows, sharing)
    const pairs: number[] = []
    for (let block = 0; block < places; block++) {
      const [table, keys, first, count] = blocks.subarray(4 * block, 4 * block + 4)
      const its = Array.from({ length: count }, (_, i) => blocks[4 * places + Math.floor((first + i) / sharing.group)])
      for (const row of its) {
        const own = info[4 * row]
        const of = keys / this.size
        expect(pages.subarray(own, own + of)).toEqual(pages.subarray(table, table + of))
        expect([shared[row], keys % sharing.lanes, info[4 * row + 3] + 1 >= keys]).toEqual([keys, 0, true])
      }
      pairs.push(...its)
    }
    const rowsOfPairs = shared.flatMap((keys, row) => (keys > 0 ? Array<number>(sharing.group).fill(row) : []))
    expect(pairs.toSorted((a, b) => a - b)).toEqual(rowsOfPairs)
  }

  #compute(step: StepRows): void {
    this.#expectShared(step)
    const row = (table: number, j: number) => step.pages[table + Math.floor(j / this.size)] * this.size + (j % this.size)
    const written = new Set<number>()
    const states = this.#copiedStates(step)
    for (let i = 0; i < step.rows; i++) {
      const [table, , , position] = step.info.subarray(4 * i, 4 * i + 4)
      const [slot, at] = step.slots.subarray(2 * i, 2 * i + 2)
      expect([slot, at]).toEqual([row(table, position), position])
      if (slot >= this.scheduler.pool.capacity * this.size) continue
      expect(written.has(slot), 'two rows of a step go to the same place').toBe(false)
      written.add(slot)
      const id = step.ids[i] >= fromDrawn ? this.drawn[step.ids[i] - fromDrawn] : step.ids[i]
      const last = position > 0 ? this.cache[row(table, position - 1)]! : { text: '', version: Infinity }
      this.cache[slot] = { text: `${last.text} ${id}`, version: Math.min(last.version, this.version) }
      if (states) states(i, this.cache[slot].text)
    }
    for (const { sequence, row: at, target, position: scored } of step.sampled) {
      const [table, , , position] = step.info.subarray(4 * at, 4 * at + 4)
      const entry = this.cache[row(table, position)]!
      const onTheWay = sequence.pending > 0 ? [this.drawn[sequence.place]] : []
      const known = [...sequence.promptIds, ...sequence.ids, ...onTheWay].slice(0, position + 1)
      const words = entry.text.trim().split(' ')
      expect(position + 1).toBe(target === undefined ? sequence.promptIds.length + sequence.drawn : scored)
      expect(words).toEqual(known.map(String))
      for (let j = 0; j <= position; j++) expect(this.cache[row(table, j)]!.text).toBe(` ${words.slice(0, j + 1).join(' ')}`)
      if (!this.#options.acrossVersions) expect(entry.version).toBeGreaterThanOrEqual(this.admitted.get(sequence)!)
    }
  }
}

describe(`the scheduler, ${seedWords}`, () => {
  it.each([
    { words: 'many requests in few pages', options: {} },
    { words: 'pages of one token', options: { pageSize: 1, pages: 40 } },
    { words: 'room for one sequence alone', options: { pages: 5 } },
    { words: 'no prefix caching', options: { prefixCaching: false } },
    { words: 'room for what is cached', options: { pages: 60 } },
  ])('gives every row the text it should see: $words', ({ options }) => {
    const random = new Random(seed)
    const simulation = new Simulation(random, options)
    const { scheduler } = simulation
    const most = Math.min(20, scheduler.pool.capacity * simulation.size)
    const all: Sequence[] = []
    for (let round = 0; round < 600; round++) {
      const dice = random.int(10)
      if (dice < 3 && all.length < 250) {
        // Some go on from where an earlier text, perhaps a running one's, is at some place.
        const other = all.length > 0 && random.int(2) > 0 ? all[all.length - 1 - random.int(Math.min(8, all.length))] : undefined
        const text = other ? [...other.promptIds, ...other.ids] : []
        const more = Array.from({ length: 1 + random.int(other ? 3 : most - 6) }, () => 1 + random.int(2))
        const prompt = [...text.slice(0, random.int(text.length + 1)), ...more].slice(0, most - 6)
        const group = random.int(3) === 0 ? 1 + random.int(4) : 1
        for (let i = 0; i < group; i++)
          all.push(
            simulation.submit(prompt, 1 + random.int(6), {
              cacheSalt: random.int(4) === 0 ? 'salt' : undefined,
              logprobs: random.int(6) === 0 ? { prompt: 0 } : undefined,
            }),
          )
      } else if (dice === 3 && all.length > 0) {
        const sequence = all[random.int(all.length)]
        if (!sequence.ended) simulation.abort(sequence)
      } else if (dice === 4 && random.int(4) === 0) simulation.publish()
      else if (dice === 5) simulation.land()
      else simulation.step()
      expect(scheduler.pool.held + scheduler.pool.available).toBe(scheduler.pool.capacity)
    }
    let left = 5000
    while (scheduler.running.size + scheduler.waiting.size > 0 && left-- > 0) simulation.step()
    expect(all.filter((s) => !s.ended)).toEqual([])
    for (const [{ promptIds }, { promptLogprobs, finishReason }] of simulation.results)
      if (promptLogprobs && finishReason !== 'abort')
        expect(promptLogprobs.map((known) => known !== null)).toEqual(promptIds.map((_, i) => i > 0))
    expect(scheduler.pool.held, 'after all of them no page is held').toBe(0)
    if (options.pages === 5 || !('pages' in options)) expect(scheduler.counts.preemptions).toBeGreaterThan(0)
    if (!('prefixCaching' in options)) expect(scheduler.counts.shared).toBeGreaterThan(0)
    scheduler.pool.reset()
    expect(scheduler.pool.available).toBe(scheduler.pool.capacity)
  })

  it('computes a prompt once for all that have it, and what follows a known beginning', () => {
    const simulation = new Simulation(new Random(1), { pages: 40, maxPrefillRows: 64 })
    const { scheduler } = simulation
    const prompt = Array.from({ length: 10 }, (_, i) => i + 1)
    const group = [1, 2, 3, 4].map(() => simulation.submit(prompt, 3))
    scheduler.admit(() => 0)
    const first = scheduler.next()!
    expect(first.prefillRows).toBe(10)
    expect(first.sampled.map(({ row }) => row)).toEqual([9, 9, 9, 9])
    for (const sequence of group) simulation.abort(sequence)
    // Two full pages and half of a third; the last token of a prompt is computed in any case.
    const again = simulation.submit(prompt, 3)
    const longer = simulation.submit([...prompt, 77, 78], 3)
    scheduler.admit(() => 0)
    const second = scheduler.next()!
    expect(second.prefillRows).toBe(1 + 2)
    expect([again.cachedTokens, longer.cachedTokens]).toEqual([9, 10])
    for (const sequence of [again, longer]) simulation.abort(sequence)
    scheduler.forget(undefined, 1)
    const later = simulation.submit(prompt, 3)
    scheduler.admit(() => 1)
    expect(scheduler.next()!.prefillRows).toBe(10)
    expect(later.cachedTokens).toBe(0)
  })

  it('puts rows together that have keys in common, each with those of its own group', () => {
    const simulation = new Simulation(new Random(1), { pages: 60, maxSequences: 16, maxPrefillRows: 96 })
    const { scheduler } = simulation
    const prompt = Array.from({ length: 18 }, (_, i) => i + 1)
    // Four rollouts of one prompt, three of one that begins as it does, two of another, one that begins as the first ones; three with just two tiles, and
    // three with less.
    const prompts = [
      prompt,
      [...prompt.slice(0, 9), 90, 91, 92, 93, 94, 95, 96],
      prompt.map((id) => 100 + id),
      [1, 2, 3, 4, 5, 99],
      prompt.slice(0, 8).map((id) => 200 + id),
      prompt.slice(0, 7).map((id) => 300 + id),
    ]
    for (const [i, count] of [4, 3, 2, 1, 3, 3].entries()) {
      for (let n = 0; n < count; n++) simulation.submit(prompts[i], 6)
    }
    scheduler.admit(() => 0)
    expect(scheduler.next(sharing)!.blocks).toBeUndefined()
    scheduler.running.forEach((sequence) => sequence.pending === 0 && sequence.push(5, 0, 0))
    scheduler.admit(() => 0)
    const { blocks, rows, info } = scheduler.next(sharing)!
    const places = mostBlocks(rows, sharing)
    const [byKeys, of] = [new Map<number, number>(), blocks!.subarray(0, 4 * places)]
    for (let at = 0; at < of.length; at += 4)
      if (of[at + 3] > 0) byKeys.set(of[at + 1], (byKeys.get(of[at + 1]) ?? 0) + of[at + 3])
    // 16 keys of the first four rows, three heads each; 16 of the next three; 8 of the three with two tiles.
    const heads = (count: number) => 3 * count
    expect(byKeys).toEqual(new Map([[16, heads(4 + 3)], [8, heads(3)]])) // prettier-ignore
    expect(Array.from({ length: rows }, (_, row) => info[4 * row + 2]).filter((keys) => keys > 0)).toHaveLength(10)
  })

  it('goes through the beginning of all where each goes on with too few', () => {
    const simulation = new Simulation(new Random(1), { pages: 60, maxPrefillRows: 96 })
    const begin = Array.from({ length: 8 }, (_, i) => i + 1)
    for (const own of [20, 20, 30, 30, 40, 40]) simulation.submit([...begin, ...Array<number>(9).fill(own)], 3)
    for (let i = 0; i < 2; i++) simulation.step()
    const { info, rows } = simulation.flight!
    const shared = Array.from({ length: rows }, (_, row) => info[4 * row + 2])
    expect(shared.filter((keys) => keys > 0)).toEqual(Array<number>(6).fill(8))
  })

  it('finds the answer, too, where a conversation goes on: all but its last token, which was never computed', () => {
    const simulation = new Simulation(new Random(7), {})
    const first = simulation.submit([1, 2, 3], 7)
    while (!first.ended) simulation.step()
    const next = simulation.submit([...first.promptIds, ...first.ids, 9], 1)
    while (!next.ended) simulation.step()
    expect(next.cachedTokens).toBe(3 + 7 - 1)
  })

  it('leaves its page to a sequence that runs: who begins as its prompt does gets a copy', () => {
    const simulation = new Simulation(new Random(7), {})
    const running = simulation.submit([1, 1, 1], 6)
    // Its first page is full now, and of what it drew nothing is written into the page's text yet.
    for (let i = 0; i < 2; i++) simulation.step()
    const other = simulation.submit([1, 1, 1, 9, 9], 1)
    while (!running.ended || !other.ended) simulation.step()
    expect(other.cachedTokens).toBe(3)
  })

  it('lets in who has begun alone, where no others may', () => {
    const simulation = new Simulation(new Random(7), {})
    const { scheduler } = simulation
    const [first, begun] = [simulation.submit([1, 2], 3), simulation.submit([3, 4], 3)]
    // As after a preemption before its first token.
    begun.cachedTokens = 0
    scheduler.admit(() => 0, true)
    expect([...scheduler.running]).toEqual([begun])
    scheduler.admit(() => 0)
    expect([...scheduler.running]).toEqual([begun, first])
  })

  it.each([false, true])(
    'forgets what an older version of one adapter computed, unless it may be used on: %s',
    (acrossVersions) => {
      const simulation = new Simulation(new Random(7), { acrossVersions, pages: 40 })
      const prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
      const cached = (adapter?: string): number => {
        const sequence = simulation.submit(prompt, 1, { adapter })
        while (!sequence.ended) simulation.step()
        return sequence.cachedTokens!
      }
      expect([cached(), cached('a'), cached(), cached('a')]).toEqual([0, 0, 8, 8])
      simulation.scheduler.forget(undefined, 1)
      // Asked for at the version that both were computed with.
      expect([cached(), cached('a')]).toEqual([acrossVersions ? 8 : 0, 8])
      simulation.scheduler.forget(undefined, 0)
      expect(cached()).toBe(8)
      simulation.publish()
      expect(cached()).toBe(acrossVersions ? 8 : 0)
    },
  )

  it('finds nothing that was computed under another salt', () => {
    const simulation = new Simulation(new Random(7), { pages: 40 })
    const cached = (cacheSalt?: string): number => {
      const sequence = simulation.submit([1, 2, 3, 4, 5, 6, 7, 8, 9], 1, { cacheSalt })
      while (!sequence.ended) simulation.step()
      return sequence.cachedTokens!
    }
    expect([cached(), cached('a'), cached('b'), cached(), cached('a'), cached('b')]).toEqual([0, 0, 0, 8, 8, 8])
  })

  it('goes on with what others are only about to compute, in the same step', () => {
    const simulation = new Simulation(new Random(1), { pages: 40, maxPrefillRows: 64 })
    const { scheduler } = simulation
    const [a, b] = [simulation.submit([1, 2, 3, 4, 5], 2), simulation.submit([1, 2, 3, 4, 9, 9], 2)]
    scheduler.admit(() => 0)
    // b's first page is a's; a goes before it is computed, and it is computed all the same.
    simulation.abort(a)
    const step = scheduler.next()!
    expect(step.prefillRows).toBe(5 + 2)
    expect(b.cachedTokens).toBe(4)
  })

  it('goes on with a page that others rely on where its request leaves in the middle of it, and with no other', () => {
    const simulation = new Simulation(new Random(1), { pages: 40, maxPrefillRows: 2 })
    const first = simulation.submit([1, 2, 3, 4, 5, 6, 7, 8, 9], 2)
    simulation.step()
    const other = simulation.submit([1, 2, 3, 4, 9, 9], 1)
    simulation.scheduler.admit(() => 0)
    simulation.admitted.set(other, 0)
    simulation.abort(first)
    while (!other.ended) simulation.step()
    expect(other.cachedTokens).toBe(4)
    // A long prompt that nobody waits for any more, and nobody relies on, is not computed while others run.
    const running = simulation.submit([8], 9)
    while (running.drawn === 0) simulation.step()
    const left = simulation.submit(Array<number>(40).fill(7), 1)
    simulation.step()
    expect(simulation.flight!.prefillRows).toBe(2)
    simulation.abort(left)
    simulation.step()
    expect(simulation.flight!.prefillRows).toBe(0)
  })

  it('admits what fills the whole pool, whatever is in the cache of it', () => {
    // After others that leave: pages that go on where the next one does, and pages that it leaves halfway, which would have to be copied.
    for (const [first, others] of [
      [[1, 2, 3, 4, 5, 6, 7, 8, 9, 1], []],
      [[1, 2, 3, 4, 5, 6, 7, 7], []],
      [[1, 2, 3, 4, 5, 6, 7, 8, 9], [[1, 2, 3, 4, 5, 6, 8]]],
      [[1, 2, 3], [[1, 2, 2, 2, 2, 2, 2, 2]]],
    ] as const) {
      const simulation = new Simulation(new Random(1), { pages: 3, maxPrefillRows: 64 })
      const { scheduler } = simulation
      const end = (sequence: Sequence): void => {
        for (let i = 0; i < 20 && !sequence.ended; i++) simulation.step()
        expect(sequence.ended).toBe(true)
        simulation.land()
      }
      for (const prompt of [first, ...others]) end(simulation.submit([...prompt], 1))
      end(simulation.submit([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 1], 1))
      expect(scheduler.pool.held).toBe(0)
    }
  })

  it('counts the tokens of a prompt once, however often the request is put back or finds no room', () => {
    const simulation = new Simulation(new Random(1), { pages: 6, maxPrefillRows: 2 })
    const { scheduler } = simulation
    const long = Array.from({ length: 13 }, (_, i) => i + 1)
    const submitted = [simulation.submit([50, 51, 52], 9), simulation.submit(long, 2)]
    for (let i = 0; i < 4; i++) simulation.step()
    // Of one text with the second, which is still being computed, while the first takes what is left.
    submitted.push(simulation.submit(long, 2), simulation.submit(long, 2))
    for (let i = 0; i < 90 && scheduler.running.size + scheduler.waiting.size > 0; i++) simulation.step()
    expect(scheduler.counts.preemptions).toBeGreaterThan(0)
    expect(scheduler.counts.queried).toBe(3 + 3 * 13)
    expect(scheduler.counts.shared).toBe(submitted.reduce((sum, { cachedTokens }) => sum + cachedTokens!, 0))
  })

  it('takes pages from the sequence that came last, which goes on when there is room', () => {
    const simulation = new Simulation(new Random(1), { pages: 4, maxPrefillRows: 64 })
    const { scheduler } = simulation
    const [first, second] = [simulation.submit([1, 1, 1, 1, 1], 11), simulation.submit([2, 2, 2], 8)]
    // It needs all pages, so it waits from the beginning on.
    const third = simulation.submit(Array<number>(14).fill(3), 1)
    while (scheduler.counts.preemptions === 0) simulation.step()
    // Who lost its pages goes before all that wait.
    expect([...scheduler.waiting]).toEqual([second, third])
    for (let i = 0; i < 60 && scheduler.running.size + scheduler.waiting.size > 0; i++) simulation.step()
    expect([first, second, third].map(({ ids }) => ids.length)).toEqual([11, 8, 1])
  })

  it('waits with a sequence that lost its pages until what it drew has been read back, and with all behind it', () => {
    const simulation = new Simulation(new Random(1), { pages: 4, maxPrefillRows: 64 })
    const { scheduler } = simulation
    const [first, second] = [simulation.submit([1, 1, 1, 1, 1], 11), simulation.submit([2, 2, 2], 8)]
    while (scheduler.counts.preemptions === 0) simulation.step()
    simulation.abort(first)
    simulation.submit([3], 1)
    second.pending = 1
    scheduler.admit(() => 0)
    expect([...scheduler.running]).toEqual([])
    second.pending = 0
    scheduler.admit(() => 0)
    expect([...scheduler.running][0]).toBe(second)
  })

  it('hands out no page that is still to be copied from, though the last to hold it loses it in the same step', () => {
    const simulation = new Simulation(new Random(1), { pages: 5, maxPrefillRows: 64 })
    // Two groups of two, both with a page in common that is not full. The first copies its own into the last page there is; the second has no page then,
    // and takes those of the fourth, which shares the first one's.
    const prompts = [1, 2, 2, 1].map((id) => Array<number>(5).fill(id))
    const submitted = prompts.map((prompt) => simulation.submit(prompt, 3))
    for (let i = 0; i < 2; i++) simulation.step()
    expect(simulation.flight!.copies).toHaveLength(2)
    expect(simulation.scheduler.counts.preemptions).toBe(2)
    for (let i = 0; i < 60 && submitted.some(({ ended }) => !ended); i++) simulation.step()
    expect(submitted.map(({ ids }) => ids.length)).toEqual([3, 3, 3, 3])
  })

  it('scores the whole of a prompt whose request lost its pages while others had begun on them', () => {
    const simulation = new Simulation(new Random(1), { maxSequences: 8, maxLength: 128, pages: 10, pageSize: 8 })
    const { scheduler } = simulation
    for (const [id, tokens] of [[9, 7], [8, 20], [7, 20]]) simulation.submit([id, id, id], tokens) // prettier-ignore
    for (let i = 0; i < 5; i++) simulation.step()
    const prompt = Array.from({ length: 40 }, (_, i) => 100 + i)
    const scored = simulation.submit(prompt, 1, { logprobs: { prompt: 0 } })
    simulation.step()
    simulation.submit([...prompt.slice(0, 9), 1, 2], 1)
    for (let i = 0; i < 60 && scheduler.running.size + scheduler.waiting.size > 0; i++) simulation.step()
    expect(scheduler.counts.preemptions).toBeGreaterThan(0)
    expect(simulation.results.get(scored)!.promptLogprobs!.filter((known) => known === null)).toHaveLength(1)
  })

  it('holds no page for prefills that nobody waits for, once nobody is left', () => {
    const simulation = new Simulation(new Random(1), { maxPrefillRows: 1, pages: 16, pageSize: 1 })
    const { scheduler } = simulation
    const first = simulation.submit([9], 12)
    simulation.step()
    const others = [2, 3].map((last) => {
      const other = simulation.submit([1, 2, 3, 4, 5, 6, 7, 8, 1, last], 1)
      simulation.step()
      return other
    })
    simulation.abort(others[0])
    // The first one takes its own pages back, as the last of those that run.
    for (let i = 0; i < 12 && scheduler.running.size > 0; i++) simulation.step()
    expect(scheduler.running.size).toBe(0)
    for (const sequence of [first, others[1]]) simulation.abort(sequence)
    expect(scheduler.pool.held).toBe(0)
  })

  it('keeps the page table of a step within its buffer, however many prefills are left by those who asked for them', () => {
    const [maxLength, pageSize] = [256, 1]
    const options = { maxSequences: 2, maxPrefillRows: 8, maxLength, pageSize, pages: 4 * maxLength }
    const simulation = new Simulation(new Random(1), options)
    const { scheduler } = simulation
    const common = Array.from({ length: 216 }, (_, i) => i + 10)
    let [longest, left] = [0, 40]
    let [before, last]: (Sequence | undefined)[] = [undefined, simulation.submit(common, 1)]
    for (let i = 0; i < 2000 && scheduler.running.size + scheduler.waiting.size > 0; i++) {
      simulation.step()
      longest = Math.max(longest, simulation.flight?.pages.length ?? 0)
      // Each begins on what the one before it computes, which then is not asked for any more.
      if (left === 0 || last!.prefillKey === undefined) continue
      const next = simulation.submit([...common, 1, left--], 1)
      if (before) simulation.abort(before)
      ;[before, last] = [last, next]
    }
    expect(left).toBeLessThan(20)
    expect(longest).toBeLessThanOrEqual(scheduler.maxTable)
    expect(scheduler.pool.held).toBe(0)
  })

  it('joins no prefill of another adapter that had the name', () => {
    const simulation = new Simulation(new Random(1), { maxPrefillRows: 2, acrossVersions: true })
    const at = (place: number): HeldAdapter => ({ place, version: () => 0, space: () => 0, release: () => {} })
    const prompt = [1, 2, 3, 4, 5, 6]
    const [one, two] = [3, 4].map((place) => simulation.submit(prompt, 1, { adapter: 'a' }, at(place)))
    simulation.scheduler.admit(() => 0)
    expect(one.prefillKey).not.toBe(two.prefillKey)
  })
})

it('finds the pages of a text for which the only page of its namespace made room', () => {
  const pool = new PagePool(1, 4)
  for (const id of [1, 2]) {
    const root = pool.root('policy')
    expect(pool.match(root, [id, 3], 1).partial).toBeUndefined()
    const page = pool.take(root)!
    page.tokens = [id]
    page.ready = 1
    pool.release([page])
  }
  expect(pool.match(pool.root('policy'), [2, 3], 1).partial?.common).toBe(1)
  // And an update of the weights still ends them.
  pool.keep(() => false)
  expect(pool.match(pool.root('policy'), [2, 3], 1).partial).toBeUndefined()
})

it('pages of another version are free as soon as nobody holds them, and do not crowd out what may still be found', () => {
  const pool = new PagePool(2, 1)
  const page = (name: string, token: number) => {
    const one = pool.take(pool.root(name))!
    one.tokens = [token]
    one.ready = 1
    return one
  }
  const current = page('new', 7)
  const old = page('old', 7)
  pool.keep((name) => name === 'new')
  pool.release([current])
  pool.release([old])
  // Once more would be of somebody else's page.
  expect(() => pool.release([current])).toThrow(`page ${current.index} of the KV cache is given back twice`)
  expect(pool.take(pool.root('new'))!.index).toBe(old.index)
  expect(pool.match(pool.root('new'), [7, 8], 1).pages).toEqual([current])
})

it('what was computed before the cache was emptied stays apart from what comes after it under the same name', () => {
  const pool = new PagePool(4, 1)
  const fill = (page: Page, token: number): Page => Object.assign(page, { tokens: [token], ready: 1 })
  const before = pool.root('policy')
  const held = fill(pool.take(before)!, 7)
  pool.reset()
  // Its holder goes on with a copy of it.
  const copy = fill(pool.take(before)!, 7)
  expect(pool.match(pool.root('policy'), [7, 8], 1).pages).toEqual([])
  const after = fill(pool.take(pool.root('policy'))!, 9)
  pool.release([after])
  for (const page of [held, copy]) pool.release([page])
  expect(pool.match(pool.root('policy'), [9, 8], 1).pages).toEqual([after])
})

it('what can no longer be found is the first to go, with all that follows it, and leaves no name behind', () => {
  const pool = new PagePool(3, 1)
  const fill = (parent: Page | Root, token: number): Page => Object.assign(pool.take(parent)!, { tokens: [token], ready: 1 })
  const current = fill(pool.root('new'), 7)
  pool.release([current])
  const first = fill(pool.root('old'), 7)
  pool.release([first, fill(first, 8)])
  pool.keep((name) => name === 'new')
  for (const token of [1, 2]) fill(pool.root('other'), token)
  expect(pool.match(pool.root('new'), [7, 8], 1).pages).toEqual([current])
  // The only page of a namespace makes room, and another one gets none.
  fill(pool.root('other'), 3)
  const none = pool.root('none')
  expect(pool.take(none)).toBeUndefined()
  pool.unused(none)
  const names: string[] = []
  pool.keep((name) => names.push(name) > 0)
  expect(names).toEqual(['other'])
})
