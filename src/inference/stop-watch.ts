/** Finds stop strings in a completion as its tokens arrive, decoding only the last few tokens each time. */
import { settledIds } from '../model/tokenizer/settled.ts'

/** Converts tokens to text: a tokenizer's `decode`. */
export type Decode = (ids: readonly number[], options?: { skipSpecialTokens?: boolean }) => string

/**
 * Maintains the text of a completion, token by token. While the last bytes are an incomplete character, the text ends with U+FFFD. The last few
 * tokens are then decoded again together with the next one. They are preceded by some of the tokens before them, because some decoders treat the
 * first token of a list specially.
 */
export class StopWatch {
  readonly #decode: Decode
  readonly #stop: string[]
  /** Characters at the end of the text that may be the beginning of a stop string. */
  readonly #reach: number
  /** Text that is final; the ids of the last few tokens; and how many of these already have their text in `#text`. */
  #text = ''
  #ids: number[] = []
  #settled = 0
  #settledText = ''
  /** The text of the ids that are not settled. */
  #open = ''
  /** Length of the text that arrived while stop strings did not count: a stop string must end after it. */
  #skipped = 0

  constructor(decode: Decode, stop: string[]) {
    this.#decode = decode
    this.#stop = stop.filter((s) => s.length > 0)
    this.#reach = Math.max(0, ...this.#stop.map((s) => s.length - 1))
  }

  /**
   * Takes the next token.
   * @param look if false, stop strings that this token completes do not count, now or later
   * @returns the stop string that this token completed, and the text before it
   */
  push(id: number, look = true): { stop: string; text: string } | undefined {
    if (this.#stop.length === 0) return undefined
    this.#ids.push(id)
    const tail = this.#decode(this.#ids)
    const fresh = tail.slice(this.#settledText.length)
    const from = Math.max(0, this.#text.length - this.#reach)
    const found = look && earliest(this.#text.slice(from) + fresh, this.#stop, this.#skipped - from)
    if (found) return { stop: found.stop, text: (this.#text + fresh).slice(0, from + found.at) }
    // A special token that is skipped. Beside '' alone, this also excludes a space at the beginning, which some decoders leave out.
    if (fresh === this.#open && this.#decode([id, id]) === '') {
      this.#ids.pop()
      return undefined
    }
    this.#open = fresh
    const all = { count: this.#ids.length, text: tail }
    const settled = tail.endsWith('\ufffd') ? settledIds(this.#ids, this.#settled, tail, this.#decode) : all
    if (settled && tail.length > this.#settledText.length) {
      this.#text += settled.text.slice(this.#settledText.length)
      this.#open = tail.slice(settled.text.length)
      this.#ids = this.#ids.slice(this.#settled)
      this.#settled = settled.count - this.#settled
      this.#settledText = this.#decode(this.#ids.slice(0, this.#settled))
    }
    // The U+FFFD at the end may still become a character, unless they are settled.
    if (!look) this.#skipped = this.#text.length + this.#open.replace(/\ufffd+$/, '').length
    return undefined
  }
}

/** The first stop string in a text, among those that end after `after`. */
export function earliest(text: string, stops: readonly string[], after: number): { stop: string; at: number } | undefined {
  let best: { stop: string; at: number } | undefined
  for (const stop of stops) {
    const at = text.indexOf(stop, Math.max(0, after - stop.length + 1))
    if (at >= 0 && (!best || at < best.at)) best = { stop, at }
  }
  return best
}
