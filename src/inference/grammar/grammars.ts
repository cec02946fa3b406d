/**
 * Constrained answers: a format is written as EBNF (`formats.ts`), EBNF is compiled to a network of rules over bytes (`network.ts`), and the network
 * is run to get masks over the vocabulary (`automaton.ts`). Nothing is computed before the first constraint.
 */
import { UserError } from '../../common/errors.ts'
import type { Tokenizer } from '../../model/tokenizer/tokenizer.ts'
import { Automaton } from './automaton.ts'
import type { State } from './automaton.ts'
import { readEbnf } from './ebnf.ts'
import { formatGrammar } from './formats.ts'
import { buildNetwork } from './network.ts'
import { buildTrie } from './token-trie.ts'
import type { TokenTrie } from './token-trie.ts'
import type { ConstraintOptions, GrammarConstraint, GrammarFormat, Grammars } from './types.ts'

/** Maximum bytes of cached grammars, including their states and masks. */
const MOST_BYTES = 256_000_000

/**
 * Creates grammars over a tokenizer's vocabulary.
 * @param eosTokenIds tokens that may be drawn only when a grammar is complete
 * @param vocabSize rows of the model's output; rows without a token of the tokenizer are never allowed, nor are special tokens
 */
export function createGrammars(tokenizer: Tokenizer, eosTokenIds: readonly number[], vocabSize: number): Grammars {
  return new CachedGrammars(tokenizer, eosTokenIds, vocabSize)
}

interface Vocabulary {
  trie: TokenTrie
  eos: readonly number[]
  bytesOf(id: number): Uint8Array | null
}

class CachedGrammars implements Grammars {
  readonly #tokenizer: Tokenizer
  readonly #size: number
  readonly #eos: readonly number[]
  #vocabulary: Vocabulary | undefined
  readonly #automata = new Map<string, Automaton>()

  constructor(tokenizer: Tokenizer, eosTokenIds: readonly number[], vocabSize: number) {
    this.#tokenizer = tokenizer
    this.#size = vocabSize
    this.#eos = [...new Set(eosTokenIds)].filter((id) => id >= 0 && id < vocabSize)
  }

  // Asynchronous, so that a grammar could be compiled on another thread one day.
  // oxlint-disable-next-line require-await
  async constraint(format: GrammarFormat, options: ConstraintOptions = {}): Promise<GrammarConstraint> {
    const { field = 'response_format', afterToken } = options
    if (this.#eos.length === 0)
      throw new UserError(`${field}: the model has no end-of-sequence token, so a constrained answer could not end.`)
    try {
      this.#vocabulary ??= this.#read()
      const automaton = this.#automatonOf(format, this.#vocabulary)
      // The first mask is computed here, so that a grammar that takes too much work is refused before the request runs.
      automaton.maskOf(automaton.start)
      const inner = new Matching(automaton, this.#vocabulary)
      return afterToken === undefined ? inner : new Later(inner, afterToken, this.#anyToken())
    } catch (error) {
      throw error instanceof UserError ? new UserError(`${field}: ${error.message}`) : error
    }
  }

  close(): void {
    this.#automata.clear()
    this.#vocabulary = undefined
  }

  #automatonOf(format: GrammarFormat, { trie }: Vocabulary): Automaton {
    const key = JSON.stringify(format)
    const automaton = this.#automata.get(key) ?? new Automaton(buildNetwork(readEbnf(formatGrammar(format))), trie)
    this.#automata.delete(key)
    // Grammars grow while they are used. The least recently used are dropped first; the requested one stays, whatever its size.
    let bytes = automaton.bytes
    for (const [other, { bytes: its }] of [...this.#automata].toReversed())
      if ((bytes += its + 2 * other.length) > MOST_BYTES) this.#automata.delete(other)
    this.#automata.set(key, automaton)
    return automaton
  }

  /** Special tokens, end-of-sequence tokens and rows without a token get no bytes, so no grammar draws them. */
  #read(): Vocabulary {
    const eos = new Set(this.#eos)
    const bytesOf = (id: number) => (eos.has(id) || this.#tokenizer.isSpecial(id) ? null : this.#tokenizer.tokenBytes(id))
    return { trie: buildTrie(this.#size, bytesOf), eos: this.#eos, bytesOf }
  }

  #anyToken(): Uint32Array {
    const mask = new Uint32Array(Math.ceil(this.#size / 32))
    for (let id = 0; id < this.#size; id++) if (this.#tokenizer.idToToken(id) !== null) allow(mask, id)
    return mask
  }
}

const allow = (mask: Uint32Array, id: number) => void (mask[id >> 5] |= 1 << (id & 31))

class Matching implements GrammarConstraint {
  readonly #automaton: Automaton
  readonly #vocabulary: Vocabulary
  /** null after the end. */
  #state: State | null

  constructor(automaton: Automaton, vocabulary: Vocabulary) {
    this.#automaton = automaton
    this.#vocabulary = vocabulary
    this.#state = automaton.start
  }

  get complete(): boolean {
    return this.#state === null || this.#automaton.maskOf(this.#state).every((word) => word === 0)
  }

  fill(mask: Uint32Array): void {
    const { trie, eos } = this.#vocabulary
    if (mask.length < trie.words) throw new Error(`The mask has ${mask.length} words; ${trie.words} are needed.`)
    mask.fill(0)
    const state = this.#state
    if (state) mask.set(this.#automaton.maskOf(state))
    // A user's grammar may reach a dead end. The answer then ends, and the request does not fail.
    if (!state || state.accepting || this.complete) for (const id of eos) allow(mask, id)
  }

  accept(token: number): void {
    let state = this.#state
    if (state === null) return
    if (this.#vocabulary.eos.includes(token)) {
      if (!state.accepting && !this.complete)
        throw new Error(`Token ${token} ends the answer, and the grammar does not allow that here.`)
      this.#state = null
      return
    }
    const bytes = this.#vocabulary.bytesOf(token)
    for (const byte of bytes ?? []) state &&= this.#automaton.step(state, byte)
    if (!state || !bytes?.length) throw new Error(`Token ${token} is not one that the grammar allows here.`)
    this.#state = state
  }
}

/** Allows everything until a given token has been taken, then applies a constraint. */
class Later implements GrammarConstraint {
  readonly #inner: GrammarConstraint
  readonly #token: number
  readonly #any: Uint32Array
  #begun = false

  constructor(inner: GrammarConstraint, token: number, any: Uint32Array) {
    this.#inner = inner
    this.#token = token
    this.#any = any
  }

  get complete(): boolean {
    return this.#begun && this.#inner.complete
  }

  fill(mask: Uint32Array): void {
    if (this.#begun) return this.#inner.fill(mask)
    mask.fill(0)
    mask.set(this.#any)
  }

  accept(token: number): void {
    if (this.#begun) this.#inner.accept(token)
    else this.#begun = token === this.#token
  }
}
