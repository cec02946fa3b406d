/** Log-probabilities in the words of each route. Below -9999 they are -9999, as in vLLM: JSON has no infinity. */
import type { PromptLogprob, SampledToken } from '../../common/types.ts'
import type { Tokenizer } from '../../model/tokenizer.ts'

const floor = (logprob: number) => Math.max(logprob, -9999)

/** How tokens are spelled. */
export class Spelling {
  readonly #tokenizer: Tokenizer
  readonly #asIds: boolean

  /** @param asIds `token_id:5` in place of the text */
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

/** A token for choices[].logprobs of /v1/completions; logprob null: unknown, as the first of a prompt. */
export interface CompletionToken {
  id: number
  logprob: number | null
  top?: { ids: number[]; logprobs: number[] }
}

/** choices[].logprobs of /v1/completions. `offset`: characters of the text before. top_logprobs have the token itself too. */
export function completionLogprobs(tokens: readonly CompletionToken[], top: number, spelling: Spelling, offset: number) {
  const out = {
    text_offset: [] as number[],
    token_logprobs: [] as (number | null)[],
    tokens: [] as string[],
    top_logprobs: [] as (Record<string, number> | null)[],
  }
  let at = offset
  for (const { id, logprob, top: likely } of tokens) {
    out.text_offset.push(at)
    at += spelling.text(id).length
    out.token_logprobs.push(logprob === null ? null : floor(logprob))
    out.tokens.push(spelling.word(id))
    out.top_logprobs.push(logprob === null ? null : byWord(id, logprob, likely, top, spelling))
  }
  return { logprobs: out, end: at }
}

function byWord(
  id: number,
  logprob: number,
  likely: CompletionToken['top'],
  top: number,
  spelling: Spelling,
): Record<string, number> {
  const words = new Map<string, number>([[spelling.word(id), floor(logprob)]])
  likely?.ids.slice(0, top).forEach((other, k) => {
    // Two tokens may be spelled alike; the more likely one stands, and the sampled one always.
    const word = spelling.word(other)
    if (!words.has(word)) words.set(word, floor(likely.logprobs[k]))
  })
  return Object.fromEntries(words)
}

/** choices[].logprobs of /inference/v1/generate: by ids, in the words of old and new versions of vLLM. */
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

/** prompt_logprobs of all routes: a map by token id for each token, null for the first. */
export function promptLogprobs(ids: readonly number[], found: readonly (PromptLogprob | null)[], spelling: Spelling) {
  return found.map((one, i) => {
    if (!one) return null
    const entry = (id: number, logprob: number, rank: number) => ({
      logprob: floor(logprob),
      rank,
      decoded_token: spelling.text(id),
    })
    const map: Record<string, { logprob: number; rank: number; decoded_token: string }> = {}
    one.ids.forEach((id, k) => (map[id] = entry(id, one.logprobs[k], k + 1)))
    map[ids[i]] = entry(ids[i], one.logprob, one.rank)
    return map
  })
}

/** Contiguous output tokens [start, end) that one version of the weights made. */
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
