/**
 * A grammar as a network of nodes over bytes: edges that take a byte, edges that take nothing, and edges that call another rule and continue after
 * it. Characters are split into their UTF-8 bytes, so that tokens may end in the middle of a character and only valid UTF-8 is accepted.
 */
import { UserError } from '../../common/errors.ts'
import type { Expression, Range } from './ebnf.ts'

/** A call of a rule. */
export interface Call {
  /** The rule's first node. */
  start: number
  /** The node at which to continue when the rule has ended. */
  back: number
}

export interface Network {
  start: number
  /** Per node: triples [from, to, next], concatenated; a byte in from .. to leads to `next`. */
  bytes: number[][]
  /** Per node: the nodes that it leads to without a byte. */
  free: number[][]
  calls: Call[][]
  /** The nodes at which a rule ends. */
  ends: Set<number>
}

const MOST_NODES = 200_000

/**
 * Builds the network of a grammar's rules.
 * @throws UserError for an undefined rule, a left-recursive rule, or a grammar that is too large
 */
export function buildNetwork(rules: ReadonlyMap<string, Expression>): Network {
  return new Builder(rules).build()
}

class Builder {
  readonly #rules: ReadonlyMap<string, Expression>
  readonly #starts = new Map<string, number>()
  readonly #network: Network = { start: 0, bytes: [], free: [], calls: [], ends: new Set() }

  constructor(rules: ReadonlyMap<string, Expression>) {
    this.#rules = rules
  }

  build(): Network {
    for (const name of this.#rules.keys()) this.#starts.set(name, this.#node())
    for (const [name, body] of this.#rules) {
      const end = this.#node()
      this.#network.ends.add(end)
      this.#lay(body, this.#starts.get(name)!, end)
    }
    this.#network.start = this.#starts.get('root')!
    this.#refuseLeftRecursion()
    return this.#network
  }

  #node(): number {
    const { bytes, free, calls } = this.#network
    if (bytes.length >= MOST_NODES) throw new UserError('The resulting grammar is too large. Lower its bounds or split it.')
    bytes.push([])
    free.push([])
    return calls.push([]) - 1
  }

  /** Adds an expression's edges between two nodes. */
  #lay(expression: Expression, from: number, to: number): void {
    const { bytes, free, calls } = this.#network
    switch (expression.kind) {
      case 'text': {
        let here = from
        const all = Buffer.from(expression.text)
        all.forEach((byte, i) => {
          const next = i === all.length - 1 ? to : this.#node()
          bytes[here].push(byte, byte, next)
          here = next
        })
        if (all.length === 0) free[from].push(to)
        return
      }
      case 'class':
        for (const range of expression.ranges) this.#characters(range, from, to)
        return
      case 'rule': {
        const start = this.#starts.get(expression.name)
        if (start === undefined) throw new UserError(`The grammar: the rule "${expression.name}" is not defined.`)
        calls[from].push({ start, back: to })
        return
      }
      case 'either':
        for (const part of expression.parts) this.#lay(part, from, to)
        return
      case 'sequence': {
        let here = from
        expression.parts.forEach((part, i) => {
          const next = i === expression.parts.length - 1 ? to : this.#node()
          this.#lay(part, here, next)
          here = next
        })
        if (expression.parts.length === 0) free[from].push(to)
        return
      }
      default:
        this.#repeat(expression.part, expression.least, expression.most, from, to)
    }
  }

  #repeat(part: Expression, least: number, most: number, from: number, to: number): void {
    const { free, calls, ends } = this.#network
    const copies = Math.max(least, most === Infinity ? 0 : most)
    let shared: number | undefined
    if (copies > 4 && part.kind !== 'rule') {
      // Added once, as a separate rule.
      shared = this.#node()
      const end = this.#node()
      ends.add(end)
      this.#starts.set(`repetition ${shared}`, shared)
      this.#lay(part, shared, end)
    }
    const step = (here: number) => {
      const next = this.#node()
      if (shared === undefined) this.#lay(part, here, next)
      else calls[here].push({ start: shared, back: next })
      return next
    }
    // A separate node, because edges may lead back to it.
    let here = this.#node()
    free[from].push(here)
    for (let i = 0; i < least; i++) here = step(here)
    if (most === Infinity) {
      const loop = this.#node()
      free[here].push(loop)
      this.#lay(part, loop, loop)
      free[loop].push(to)
      return
    }
    for (let i = least; i < most; i++) {
      free[here].push(to)
      here = step(here)
    }
    free[here].push(to)
  }

  /** Adds the UTF-8 bytes of a range of code points, without surrogates. */
  #characters([from, to]: Range, start: number, end: number): void {
    const parts: Range[] = [
      [0, 0x7f],
      [0x80, 0x7ff],
      [0x800, 0xd7ff],
      [0xe000, 0xffff],
      [0x10000, 0x10ffff],
    ]
    for (const [low, high] of parts) {
      const [a, b] = [Math.max(from, low), Math.min(to, high)]
      if (a <= b) this.#between(utf8(a), utf8(b), start, end)
    }
  }

  /** Adds all byte sequences from `low` to `high`, which have equal lengths. */
  #between(low: number[], high: number[], start: number, end: number): void {
    const { bytes } = this.#network
    const [a, b] = [low[0], high[0]]
    if (low.length === 1) {
      bytes[start].push(a, b, end)
      return
    }
    const [lowRest, highRest] = [low.slice(1), high.slice(1)]
    const least = lowRest.map(() => 0x80)
    const most = lowRest.map(() => 0xbf)
    const part = (from: number, to: number, restLow: number[], restHigh: number[]) => {
      const next = this.#node()
      bytes[start].push(from, to, next)
      this.#between(restLow, restHigh, next, end)
    }
    if (a === b) return part(a, b, lowRest, highRest)
    const whole = lowRest.every((byte) => byte === 0x80) ? a : a + 1
    const last = highRest.every((byte) => byte === 0xbf) ? b : b - 1
    if (whole > a) part(a, a, lowRest, most)
    if (whole <= last) part(whole, last, least, most)
    if (last < b) part(b, b, least, highRest)
  }

  /** Refuses left recursion: a rule that can reach itself without taking a byte would be called endlessly. */
  #refuseLeftRecursion(): void {
    const { free, calls, ends } = this.#network
    const empty = this.#rulesThatMayBeEmpty()
    /** For each rule, by its first node: the rules that it may call before its first byte. */
    const reached = new Map<number, Set<number>>()
    for (const start of this.#starts.values()) {
      const called = new Set<number>()
      const seen = new Set([start])
      for (const node of seen) {
        if (ends.has(node)) continue
        for (const next of free[node]) seen.add(next)
        for (const call of calls[node]) {
          called.add(call.start)
          if (empty.has(call.start)) seen.add(call.back)
        }
      }
      reached.set(start, called)
    }
    // A rule that is reached again while the rules it calls are being visited is left-recursive.
    const state = new Map<number, 'open' | 'done'>()
    for (const root of this.#starts.values()) {
      const path: { start: number; calls: Iterator<number> }[] = []
      const open = (start: number) => {
        state.set(start, 'open')
        path.push({ start, calls: reached.get(start)!.values() })
      }
      if (!state.has(root)) open(root)
      for (let here = path.at(-1); here; here = path.at(-1)) {
        const { value, done } = here.calls.next()
        if (done) {
          state.set(here.start, 'done')
          path.pop()
        } else if (!state.has(value)) open(value)
        else if (state.get(value) === 'open') {
          const name = [...this.#starts].find(([, start]) => start === value)![0]
          throw new UserError(`The grammar: the rule "${name}" begins with itself. Write the repetition with * or +.`)
        }
      }
    }
  }

  /**
   * The rules that match the empty text. Each node is visited once for each rule that reaches it, so rules that depend on each other take no longer
   * than others.
   */
  #rulesThatMayBeEmpty(): Set<number> {
    const { free, calls, ends, bytes } = this.#network
    const empty = new Set<number>()
    /** For each rule, the nodes after its calls (and the calling rules), to be visited once the rule turns out to match the empty text. */
    const behind = new Map<number, [rule: number, node: number][]>()
    const seen = new Set<number>()
    const todo = Array.from(this.#starts.values(), (start): [rule: number, node: number] => [start, start])
    for (let place = todo.pop(); place; place = todo.pop()) {
      const [rule, node] = place
      const key = rule * bytes.length + node
      if (empty.has(rule) || seen.has(key)) continue
      seen.add(key)
      if (ends.has(node)) {
        empty.add(rule)
        for (const waiting of behind.get(rule) ?? []) todo.push(waiting)
        behind.delete(rule)
        continue
      }
      for (const next of free[node]) todo.push([rule, next])
      for (const { start, back } of calls[node]) {
        if (empty.has(start)) todo.push([rule, back])
        else if (behind.get(start)?.push([rule, back]) === undefined) behind.set(start, [[rule, back]])
      }
    }
    return empty
  }
}

const utf8 = (point: number): number[] => [...Buffer.from(String.fromCodePoint(point))]
