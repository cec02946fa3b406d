/**
 * Constrained answers: formats become EBNF (`formats.ts`), xgrammar makes masks of them. Nothing is loaded before the first constraint.
 */
import { UserError, messageOf } from '../../common/errors.ts'
import type { Tokenizer } from '../../model/tokenizer.ts'
import { formatGrammar } from './formats.ts'
import type { ConstraintOptions, GrammarConstraint, GrammarFormat, Grammars } from './types.ts'
import type { CompiledHandle, MatcherHandle, TokenizerHandle, XGrammar } from './xgrammar.ts'

/** Compiled grammars that are kept. */
const CACHED = 32

interface Loaded {
  library: XGrammar
  tokenizer: TokenizerHandle
}

/**
 * Grammars over a tokenizer's vocabulary.
 * @param eosTokenIds what may be drawn when a grammar is complete, and then only
 * @param vocabSize rows of the model's output; those without a token of the tokenizer are never allowed, nor are special tokens
 */
export function createGrammars(tokenizer: Tokenizer, eosTokenIds: readonly number[], vocabSize: number): Grammars {
  return new CachedGrammars(tokenizer, eosTokenIds, vocabSize)
}

class CachedGrammars implements Grammars {
  readonly #tokenizer: Tokenizer
  readonly #vocabulary: Vocabulary
  #loaded: Promise<Loaded> | undefined
  /** An instance that grammars are read in first: a wrong one takes its instance down, and the constraints that live there. */
  #trial: Promise<XGrammar> | undefined
  readonly #compiled = new Map<string, Promise<CompiledHandle>>()
  #libraryOf = new WeakMap<CompiledHandle, XGrammar>()

  constructor(tokenizer: Tokenizer, eosTokenIds: readonly number[], vocabSize: number) {
    this.#tokenizer = tokenizer
    const eos = [...new Set(eosTokenIds)].filter((id) => id >= 0 && id < vocabSize)
    this.#vocabulary = { size: vocabSize, words: Math.ceil(vocabSize / 32), eos }
  }

  async constraint(format: GrammarFormat, options: ConstraintOptions = {}): Promise<GrammarConstraint> {
    const { field = 'response_format', afterToken } = options
    if (this.#vocabulary.eos.length === 0)
      throw new UserError(`${field}: the model has no end-of-sequence token, so a constrained answer could not end.`)
    try {
      const compiled = await this.#compiledOf(format)
      const library = this.#libraryOf.get(compiled)!
      const inner = new Matching(library, library.matcher(compiled), this.#vocabulary)
      return afterToken === undefined ? inner : new Later(inner, afterToken, this.#anyToken())
    } catch (error) {
      throw error instanceof UserError ? new UserError(`${field}: ${error.message}`) : error
    }
  }

  close(): void {
    for (const compiled of this.#compiled.values()) void compiled.then((handle) => handle.delete()).catch(() => {})
    this.#compiled.clear()
    const loaded = this.#loaded
    this.#loaded = this.#trial = undefined
    void loaded?.then(({ tokenizer }) => tokenizer.delete()).catch(() => {})
  }

  #compiledOf(format: GrammarFormat): Promise<CompiledHandle> {
    const key = JSON.stringify(format)
    const known = this.#compiled.get(key)
    this.#compiled.delete(key)
    const compiled = known ?? this.#compile(formatGrammar(format))
    this.#compiled.set(key, compiled)
    compiled.catch(() => {
      if (this.#compiled.get(key) === compiled) this.#compiled.delete(key)
    })
    if (this.#compiled.size > CACHED) {
      const [oldest, handle] = this.#compiled.entries().next().value!
      this.#compiled.delete(oldest)
      // Matchers that use it hold it themselves.
      void handle.then((old) => old.delete()).catch(() => {})
    }
    return compiled
  }

  async #compile(ebnf: string): Promise<CompiledHandle> {
    const { XGrammar } = await import('./xgrammar.ts')
    this.#trial ??= XGrammar.open()
    try {
      ;(await this.#trial).parse(ebnf).delete()
    } catch (error) {
      this.#trial = undefined
      throw new UserError(`the grammar cannot be read: ${messageOf(error)}`)
    }
    this.#loaded ??= this.#load()
    const { library, tokenizer } = await this.#loaded
    try {
      const compiled = library.compile(ebnf, tokenizer)
      this.#libraryOf.set(compiled, library)
      return compiled
    } catch (error) {
      this.#loaded = undefined
      throw new UserError(`the grammar cannot be compiled: ${messageOf(error)}`)
    }
  }

  async #load(): Promise<Loaded> {
    const { XGrammar } = await import('./xgrammar.ts')
    const library = await XGrammar.open()
    const vocabulary: Uint8Array[] = []
    for (let id = 0; id < this.#vocabulary.size; id++) vocabulary.push(this.#bytesOf(id))
    return { library, tokenizer: library.tokenizer(vocabulary, this.#vocabulary.eos) }
  }

  /** Nothing for a token that no grammar may draw: special ones, and rows without a token. */
  #bytesOf(id: number): Uint8Array {
    return this.#tokenizer.isSpecial(id) ? new Uint8Array() : (this.#tokenizer.tokenBytes(id) ?? new Uint8Array())
  }

  #anyToken(): Uint32Array {
    const mask = new Uint32Array(this.#vocabulary.words)
    for (let id = 0; id < this.#vocabulary.size; id++) if (this.#tokenizer.idToToken(id) !== null) allow(mask, id)
    return mask
  }
}

interface Vocabulary {
  size: number
  /** Words of a mask. */
  words: number
  eos: readonly number[]
}

const allow = (mask: Uint32Array, id: number) => void (mask[id >> 5] |= 1 << (id & 31))

/** Matchers whose constraint was forgotten without `release`. */
const forgotten = new FinalizationRegistry<MatcherHandle>((matcher) => matcher.delete())

class Matching implements GrammarConstraint {
  readonly #library: XGrammar
  readonly #matcher: MatcherHandle
  readonly #vocabulary: Vocabulary
  #ended = false
  #released = false

  constructor(library: XGrammar, matcher: MatcherHandle, vocabulary: Vocabulary) {
    this.#library = library
    this.#matcher = matcher
    this.#vocabulary = vocabulary
    forgotten.register(this, matcher, this)
  }

  get complete(): boolean {
    if (this.#ended) return true
    const mask = new Uint32Array(this.#vocabulary.words)
    this.fill(mask)
    for (const id of this.#vocabulary.eos) mask[id >> 5] &= ~(1 << (id & 31))
    return mask.every((word) => word === 0)
  }

  fill(mask: Uint32Array): void {
    const { size, words, eos } = this.#vocabulary
    if (mask.length < words) throw new Error(`The mask has ${mask.length} words; ${words} are needed for ${size} tokens.`)
    mask.fill(0, words)
    if (!this.#ended) {
      this.#library.fill(this.#matcher, size, mask.subarray(0, words))
      // The library leaves bits after the last token as they come.
      if (size % 32 !== 0) mask[words - 1] &= 2 ** (size % 32) - 1
      // A grammar of the user's own may have no way on: the answer then ends, instead of the request failing.
      this.#ended = mask.subarray(0, words).every((word) => word === 0)
    }
    if (this.#ended) {
      mask.fill(0, 0, words)
      for (const id of eos) allow(mask, id)
    }
  }

  accept(token: number): void {
    if (this.#ended) return
    if (!this.#matcher.AcceptToken(token, false)) throw new Error(`Token ${token} is not one that the grammar allows here.`)
    this.#ended = this.#matcher.IsTerminated()
  }

  release(): void {
    if (this.#released) return
    this.#released = true
    forgotten.unregister(this)
    this.#matcher.delete()
  }
}

/** Anything until a token was taken, then a constraint. */
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

  release(): void {
    this.#inner.release()
  }
}
