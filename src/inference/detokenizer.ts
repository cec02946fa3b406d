/** Decodes a completion while it is streamed. Only text that can no longer change is returned, so nothing ever has to be taken back. */
import { decodeStream } from '../model/tokenizer/tokenizer.ts'
import type { StreamDecoder, Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { earliest } from './stop-watch.ts'

export interface DetokenizerOptions {
  /** Strings that end the text; empty ones are ignored. */
  stop?: readonly string[]
  /** Whether the stop string that ended the text stays in it. Default false. */
  includeStop?: boolean
  /** As vLLM's `skip_special_tokens`. Default true. */
  skipSpecialTokens?: boolean
}

/**
 * Takes a completion's ids one at a time and returns the text that is certain. The bytes of an unfinished character, and text that may be the
 * beginning of a stop string, are held back. All pieces together, including that of `flush`, are `tokenizer.decode` of the ids up to the first stop
 * string. That is the stop string completed first; if one token completes several, the one that begins first.
 */
export class Detokenizer {
  readonly #decoder: StreamDecoder
  readonly #stop: readonly string[]
  readonly #includeStop: boolean
  /** Decoded text that was not returned yet. */
  #held = ''
  #stopped: string | null = null

  constructor(tokenizer: Tokenizer, options: DetokenizerOptions = {}) {
    const { stop = [], includeStop = false, skipSpecialTokens = true } = options
    this.#decoder = decodeStream(tokenizer, { skipSpecialTokens })
    this.#stop = stop.filter((word) => word.length > 0)
    this.#includeStop = includeStop
  }

  /** The stop string that ended the text, or null. */
  get stopped(): string | null {
    return this.#stopped
  }

  /** Takes an id. Returns the text that is now certain; '' if there is none, and always after a stop string. */
  push(id: number): string {
    return this.#stopped === null ? this.#take(this.#decoder.push(id), false) : ''
  }

  /** The text that was held back; to be called after the last id. */
  flush(): string {
    return this.#stopped === null ? this.#take(this.#decoder.flush(), true) : ''
  }

  #take(piece: string, last: boolean): string {
    const text = this.#held + piece
    const found = earliest(text, this.#stop, 0)
    if (found) {
      this.#stopped = found.stop
      return text.slice(0, found.at + (this.#includeStop ? found.stop.length : 0))
    }
    const certain = last ? text.length : text.length - mayBegin(text, this.#stop)
    this.#held = text.slice(certain)
    return text.slice(0, certain)
  }
}

/** Length of the longest suffix of `text` that is the beginning of one of `words`. */
export function mayBegin(text: string, words: readonly string[]): number {
  let longest = 0
  for (const word of words) {
    for (let length = word.length - 1; length > longest; length--) {
      if (text.endsWith(word.slice(0, length))) longest = length
    }
  }
  return longest
}
