/** Log-probabilities in the form of each route. Values below -9999 become -9999, as in vLLM: JSON has no infinity. */
import type { PromptLogprob, SampledToken } from '../../common/types.ts'
import { decodeStream, type StreamDecoder, type Tokenizer } from '../../model/tokenizer/tokenizer.ts'

const floor = (logprob: number) => Math.max(logprob, -9999)

/** Spells tokens as text. */
export class Spelling {
  readonly #tokenizer: Tokenizer
  readonly #asIds: boolean

  /** @param asIds write `token_id:5` instead of the text */
  constructor(tokenizer: Tokenizer, asIds: boolean) {
    this.#tokenizer = tokenizer
    this.#asIds = asIds
  }

  text(id: number): string {
    return this.#tokenizer.decode([id])
  }

  word(id: number): string {
    return this.#asIds ? `token_id:${id}` : this.text(id)
  }

  /** An entry of a chat completion. */
  entry(id: number, logprob: number): { token: string; logprob: number; bytes: number[] | null } {
    const word = this.word(id)
    const bytes = this.#tokenizer.tokenBytes(id) ?? Buffer.from(this.text(id))
    return { token: word, logprob: floor(logprob), bytes: [...bytes] }
  }
}

/** choices[].logprobs.content of /v1/chat/completions. */
export function chatLogprobs(tokens: readonly SampledToken[], top: number, spelling: Spelling) {
  return {
    content: tokens.map((token) => ({
      ...spelling.entry(token.id, token.logprob),
      top_logprobs: (token.top?.ids ?? []).slice(0, top).map((id, k) => spelling.entry(id, token.top!.logprobs[k])),
    })),
    refusal: null,
  }
}

/** A token for choices[].logprobs of /v1/completions. Its logprob is null if unknown, as for the first token of a prompt. */
export interface CompletionToken {
  id: number
  logprob: number | null
  top?: { ids: number[]; logprobs: number[] }
}

/** Number of characters in a text as Python counts them, by code points: an emoji is one. */
export const lengthOf = (text: string): number => {
  let length = 0
  for (const _ of text) length++
  return length
}

/** Offsets of a text's tokens. All tokens of one character have the character's offset; a token that is not shown has the offset of the next one. */
export class Offsets {
  readonly #decoder: StreamDecoder
  readonly #textOf: (ids: readonly number[]) => string
  /** End of the complete characters. */
  #end: number
  /** Tokens after that, whose character is still incomplete. */
  #open: number[] = []

  /** @param begin offset of the first token; a negative number is the number of initial characters that are not shown */
  constructor(tokenizer: Tokenizer, skipSpecialTokens: boolean, begin = 0) {
    this.#decoder = decodeStream(tokenizer, { skipSpecialTokens })
    this.#textOf = (ids) => tokenizer.decode(ids, { skipSpecialTokens })
    this.#end = begin
  }

  next(id: number): number {
    // The first of these tokens may also have begun with a space, before the character that this token continues.
    const begin = this.#end + lengthOf(this.#textOf(this.#open).replace(/\ufffd+$/u, ''))
    const piece = this.#decoder.push(id)
    this.#end += lengthOf(piece)
    // Earlier bytes that never became a character are shown with this token, but are not part of it.
    const own = this.#textOf([id])
    if (piece !== '') this.#open = []
    else if (own !== '') this.#open.push(id)
    return Math.max(0, piece.endsWith(own) ? this.#end - lengthOf(own) : begin)
  }
}

/** choices[].logprobs of /v1/completions. top_logprobs include the sampled token. */
export function completionLogprobs(
  tokens: readonly CompletionToken[],
  top: number,
  spelling: Spelling,
  offsetOf: (id: number, index: number) => number,
) {
  const out = {
    text_offset: [] as number[],
    token_logprobs: [] as (number | null)[],
    tokens: [] as string[],
    top_logprobs: [] as (ReadonlyMap<string, number> | null)[],
  }
  for (const [i, { id, logprob, top: likely }] of tokens.entries()) {
    out.text_offset.push(offsetOf(id, i))
    out.token_logprobs.push(logprob === null ? null : floor(logprob))
    out.tokens.push(spelling.word(id))
    out.top_logprobs.push(logprob === null ? null : byWord(id, logprob, likely, top, spelling))
  }
  return out
}

function byWord(
  id: number,
  logprob: number,
  likely: CompletionToken['top'],
  top: number,
  spelling: Spelling,
): ReadonlyMap<string, number> {
  const words = new Map<string, number>([[spelling.word(id), floor(logprob)]])
  likely?.ids.slice(0, top).forEach((other, k) => {
    // If two tokens have the same spelling, the sampled one is kept, else the more likely one.
    const word = spelling.word(other)
    if (!words.has(word)) words.set(word, floor(likely.logprobs[k]))
  })
  return words
}

/** choices[].logprobs of /inference/v1/generate: by token id, in the forms of both old and new versions of vLLM. */
export function generateLogprobs(tokens: readonly SampledToken[], top: number) {
  const entry = (id: number, logprob: number, rank: number | null) => ({
    token: `token_id:${id}`,
    token_id: id,
    logprob: floor(logprob),
    rank,
    bytes: null,
  })
  return {
    content: tokens.map((token) => ({
      ...entry(token.id, token.logprob, token.top?.rank ?? null),
      top_logprobs: (token.top?.ids ?? []).slice(0, top).map((id, k) => entry(id, token.top!.logprobs[k], k + 1)),
    })),
  }
}

/** prompt_logprobs of all routes: for each token a map by id, with the token itself first and then the most likely ones; null for the first token. */
export function promptLogprobs(ids: readonly number[], found: readonly (PromptLogprob | null)[], spelling: Spelling) {
  return found.map((one, i) => {
    if (!one) return null
    const entry = (id: number, logprob: number, rank: number) => ({
      logprob: floor(logprob),
      rank,
      decoded_token: spelling.text(id),
    })
    const map = new Map([[ids[i], entry(ids[i], one.logprob, one.rank)]])
    one.ids.forEach((id, k) => {
      if (id !== ids[i]) map.set(id, entry(id, one.logprobs[k], k + 1))
    })
    return map
  })
}

/** A range of output tokens [start, end) that one version of the weights sampled. */
export function weightVersions(versions: readonly number[], names: ReadonlyMap<number, string>) {
  const spans: { version: string; start: number; end: number }[] = []
  versions.forEach((version, i) => {
    const name = names.get(version) ?? String(version)
    const last = spans.at(-1)
    if (last?.version === name) last.end = i + 1
    else spans.push({ version: name, start: i, end: i + 1 })
  })
  return spans
}
