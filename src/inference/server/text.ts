/** The text of a completion as it comes, token by token: what is certain of it, up to what ended it. */
import type { Tokenizer } from '../../model/tokenizer.ts'
import { Detokenizer } from '../detokenizer.ts'

export interface TextRules {
  skipSpecialTokens: boolean
  /** Strings that end it, and tokens that do. */
  stop: readonly string[]
  stopTokens: ReadonlySet<number>
  /** What ended it stays in the text. */
  includeStop: boolean
  /** No stop string is looked for before so many tokens. */
  minTokens: number
}

/** The pieces that `push` and `flush` give, joined, are the text. */
export class OutputText {
  readonly #detokenizer: Detokenizer
  readonly #rules: TextRules
  /** The engine alone says which stop string counted: text is given out once it can't be part of one. */
  readonly #late: boolean
  #held = ''
  /** Characters of `#held` that the last token added. */
  #fresh = 0

  constructor(tokenizer: Tokenizer, rules: TextRules) {
    const { stop, includeStop, skipSpecialTokens } = rules
    this.#late = rules.minTokens > 0 && stop.length > 0
    this.#detokenizer = new Detokenizer(tokenizer, { stop: this.#late ? [] : stop, includeStop, skipSpecialTokens })
    this.#rules = rules
  }

  push(id: number): string {
    const { stopTokens, includeStop } = this.#rules
    if (stopTokens.has(id) && !includeStop) return ''
    const piece = this.#detokenizer.push(id)
    return this.#late ? this.#hold(piece) : piece
  }

  /** The rest, when the last token was pushed. @param stopped the stop string that ended it */
  flush(stopped: string | undefined): string {
    const rest = this.#detokenizer.flush()
    if (!this.#late) return rest
    const text = this.#held + rest
    this.#held = ''
    if (stopped === undefined) return text
    // It ends in what the last token added.
    const before = text.length - rest.length - this.#fresh
    const at = text.indexOf(stopped, Math.max(0, before - stopped.length + 1))
    return at < 0 ? text : text.slice(0, at + (this.#rules.includeStop ? stopped.length : 0))
  }

  #hold(piece: string): string {
    const reach = Math.max(...this.#rules.stop.map((word) => word.length)) - 1
    this.#held += piece
    this.#fresh = piece.length
    let certain = Math.max(0, this.#held.length - piece.length - reach)
    // Half of a character would be no text: other languages can't join it with its other half again.
    if (/[\ud800-\udbff]/.test(this.#held.charAt(certain - 1))) certain--
    const given = this.#held.slice(0, certain)
    this.#held = this.#held.slice(certain)
    return given
  }
}
