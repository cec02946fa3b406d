/** The text of a completion, token by token, up to the stop string. Text is returned once it cannot change any more. */
import type { Tokenizer } from '../../model/tokenizer/tokenizer.ts'
import { Detokenizer } from '../detokenizer.ts'

export interface TextRules {
  skipSpecialTokens: boolean
  /** Stop strings and stop tokens. */
  stop: readonly string[]
  stopTokens: ReadonlySet<number>
  /** Whether the stop string stays in the text. */
  includeStop: boolean
  /** Number of tokens after which stop strings count. */
  minTokens: number
}

/** The pieces that `push` and `flush` return make up the text. */
export class OutputText {
  readonly #detokenizer: Detokenizer
  readonly #rules: TextRules
  /** Only the engine decides which stop string counted; text is held back while it may be part of one. */
  readonly #late: boolean
  #held = ''
  /** Number of characters that were returned. */
  #given = 0

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

  /** The rest, after the last token. @param end the stop string that ended the text, and the engine's text before it */
  flush(end: { stop: string; text: string } | undefined): string {
    const rest = this.#detokenizer.flush()
    if (!this.#late) return rest
    if (!end) return this.#held + rest
    return (end.text + (this.#rules.includeStop ? end.stop : '')).slice(this.#given)
  }

  #hold(piece: string): string {
    const reach = Math.max(...this.#rules.stop.map((word) => word.length)) - 1
    this.#held += piece
    let certain = Math.max(0, this.#held.length - piece.length - reach)
    // Never ends in the middle of a surrogate pair: clients in other languages can't join the halves again.
    if (/[\ud800-\udbff]/.test(this.#held.charAt(certain - 1))) certain--
    const given = this.#held.slice(0, certain)
    this.#held = this.#held.slice(certain)
    this.#given += certain
    return given
  }
}
