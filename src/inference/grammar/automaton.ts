/**
 * Runs a network of rules (`network.ts`) over bytes. A state is the set of all places in the network that the text so far may have reached, each with
 * its stack of return places. Equal states are one object, and a state's successor for a byte is computed once. So a state's mask, once computed,
 * serves all requests with the grammar.
 */
import { UserError } from '../../common/errors.ts'
import type { Network } from './network.ts'
import type { TokenTrie } from './token-trie.ts'

/** The return places of the open rules, innermost first; equal stacks are one object. */
interface Stack {
  id: number
  back: number
  below: Stack | null
  /** Stacks with one more place on top, by place. */
  above: Map<number, Stack>
}

interface Place {
  node: number
  stack: Stack | null
}

export interface State {
  /** Places that wait for a byte. */
  places: Place[]
  /** Whether the text may end here. */
  accepting: boolean
  /** The successor for each byte: null if the grammar does not allow the byte, undefined if not computed yet. */
  next: (State | null | undefined)[]
  mask?: Uint32Array
}

/** If states, stacks and masks take more bytes than this, they are dropped and computed again when needed. */
const MOST_BYTES = 96_000_000
/** Measured bytes of each kind of object. */
const BYTES = { node: 400, state: 2300, place: 60, stack: 250 }
/** Maximum places in a state: an ambiguous grammar can double them with every bracket. */
const MOST_PLACES = 20_000
/** Maximum places visited for one mask: about a second's work. */
const MOST_WORK = 20_000_000

/** The automaton of one grammar; caches its states and masks. */
export class Automaton {
  readonly start: State
  readonly #network: Network
  readonly #trie: TokenTrie
  readonly #states = new Map<string, State>()
  readonly #bottom = new Map<number, Stack>()
  #stackIds = 0
  /** Bytes of the present states, stacks and masks. */
  #known = 0
  /** For each node: 0 if not known yet, 1 if it does nothing but end its rule, 2 if it does more. */
  #tail: Uint8Array
  /** Places visited for the mask that is being computed. */
  #work = 0

  constructor(network: Network, trie: TokenTrie) {
    this.#network = network
    this.#trie = trie
    this.#tail = new Uint8Array(network.bytes.length)
    this.start = this.#stateOf([{ node: network.start, stack: null }])
  }

  /** Approximate bytes in memory. */
  get bytes(): number {
    return BYTES.node * this.#network.bytes.length + this.#known
  }

  /** The state after a byte; null if the grammar does not allow it. */
  step(state: State, byte: number): State | null {
    const known = state.next[byte]
    if (known !== undefined) return known
    const places: Place[] = []
    this.#work += state.places.length
    for (const { node, stack } of state.places) {
      const edges = this.#network.bytes[node]
      for (let i = 0; i < edges.length; i += 3)
        if (byte >= edges[i] && byte <= edges[i + 1]) places.push({ node: edges[i + 2], stack })
    }
    return (state.next[byte] = places.length === 0 ? null : this.#stateOf(places))
  }

  /**
   * The mask of the tokens whose bytes may follow, without words beyond the last token.
   * @throws UserError if computing it takes too much work
   */
  maskOf(state: State): Uint32Array {
    if (state.mask) return state.mask
    const { words, byteAt, depthAt, endAt, tokenAt, tokens } = this.#trie
    const mask = new Uint32Array(words)
    this.#work = 0
    const path: State[] = [state]
    const count = byteAt.length
    for (let i = 0; i < count;) {
      const depth = depthAt[i]
      const from = path[depth - 1]
      const to = from.next[byteAt[i]]
      const next = to === undefined ? this.step(from, byteAt[i]) : to
      if (next === null) {
        i = endAt[i]
        continue
      }
      path[depth] = next
      for (let t = tokenAt[i]; t < tokenAt[i + 1]; t++) mask[tokens[t] >> 5] |= 1 << (tokens[t] & 31)
      i++
    }
    this.#known += mask.byteLength
    return (state.mask = mask)
  }

  /** The state of all places that can be reached from `from` without a byte. */
  #stateOf(from: Place[]): State {
    const { free, calls, bytes, ends } = this.#network
    const seen = new Set<number>()
    const waiting: Place[] = []
    const todo = from
    let accepting = false
    const nodes = bytes.length
    for (let place = todo.pop(); place; place = todo.pop()) {
      const { node, stack } = place
      const key = (stack?.id ?? 0) * nodes + node
      if (seen.has(key)) continue
      seen.add(key)
      if (seen.size > MOST_PLACES || ++this.#work > MOST_WORK)
        throw new UserError(
          'The grammar is too ambiguous: a text can match it in too many ways at once. Make its alternatives differ, or lower its bounds.',
        )
      if (ends.has(node)) {
        if (stack) todo.push({ node: stack.back, stack: stack.below })
        else accepting = true
      }
      if (bytes[node].length > 0) waiting.push(place)
      for (const next of free[node]) todo.push({ node: next, stack })
      for (const { start, back } of calls[node]) {
        // A tail call returns to the caller's return place, so right recursion does not grow the stack.
        todo.push({ node: start, stack: this.#endsAt(back) ? stack : this.#push(stack, back) })
      }
    }
    const key = `${waiting
      .map(({ node, stack }) => (stack?.id ?? 0) * nodes + node)
      .sort((a, b) => a - b)
      .join()}${accepting ? '!' : ''}`
    let state = this.#states.get(key)
    if (!state) {
      if (this.#known > MOST_BYTES) this.#forget()
      this.#known += BYTES.state + BYTES.place * waiting.length
      state = { places: waiting, accepting, next: Array.from({ length: 256 }) }
      this.#states.set(key, state)
    }
    return state
  }

  /**
   * Drops all states, stacks and masks. States in use stay valid, and their successors are computed again. The first state stays, without successors.
   */
  #forget(): void {
    for (const { next } of [this.start, ...this.#states.values()]) next.fill(undefined)
    this.#states.clear()
    this.#known = this.start.mask?.byteLength ?? 0
    this.#bottom.clear()
    for (const { stack } of this.start.places) for (let here = stack; here; here = here.below) here.above.clear()
  }

  #endsAt(node: number): boolean {
    this.#tail[node] ||= this.#returnsAtOnce(node) ? 1 : 2
    return this.#tail[node] === 1
  }

  /** Whether a node does nothing but end its rule. */
  #returnsAtOnce(node: number): boolean {
    const { free, calls, bytes, ends } = this.#network
    for (let here = node; ; here = free[here][0]) {
      if (calls[here].length > 0 || bytes[here].length > 0) return false
      if (ends.has(here)) return true
      if (free[here].length !== 1) return false
    }
  }

  #push(below: Stack | null, back: number): Stack {
    const above = below?.above ?? this.#bottom
    let stack = above.get(back)
    if (!stack) {
      stack = { id: ++this.#stackIds, back, below, above: new Map() }
      above.set(back, stack)
      this.#known += BYTES.stack
    }
    return stack
  }
}
