/** Turns a request's fields into the engine's parameters: defaults, limits, lengths. */
import { randomInt } from 'node:crypto'
import { NEUTRAL } from '../../common/sampling.ts'
import type { LogprobsRequest, SamplingParams } from '../../common/types.ts'
import { badRequest } from './errors.ts'
import type { SamplingDefaults, ServerParts } from './parts.ts'
import type { SamplingBody } from './schemas/common.ts'

/** All sampling parameters but max_tokens. `seed` is random if none was given. */
export function samplingOf(body: SamplingBody, defaults: SamplingDefaults = {}): Omit<SamplingParams, 'max_tokens'> {
  const { max_tokens: _, ...given } = defaults
  const value = <K extends keyof typeof NEUTRAL>(name: K): number =>
    body[name] ?? (given as Partial<Record<K, number>>)[name] ?? NEUTRAL[name]
  const stop = body.stop ?? []
  return {
    // A temperature this small counts as greedy, as in vLLM.
    temperature: value('temperature') < 1e-5 ? 0 : value('temperature'),
    top_p: Math.max(value('top_p'), 1e-6),
    top_k: value('top_k'),
    min_p: value('min_p'),
    repetition_penalty: value('repetition_penalty'),
    presence_penalty: value('presence_penalty'),
    frequency_penalty: value('frequency_penalty'),
    stop: typeof stop === 'string' ? [stop] : stop,
    stop_token_ids: body.stop_token_ids ?? [],
    seed: body.seed === undefined || body.seed === null ? randomInt(2 ** 32) : seedOf(body.seed),
    ...(body.min_tokens ? { min_tokens: body.min_tokens } : {}),
    ...(body.ignore_eos ? { ignore_eos: true } : {}),
    ...(body.logit_bias && Object.keys(body.logit_bias).length > 0
      ? { logit_bias: Object.fromEntries(Object.entries(body.logit_bias).map(([id, bias]) => [Number(id), bias])) }
      : {}),
    ...(body.allowed_token_ids ? { allowed_token_ids: body.allowed_token_ids } : {}),
  }
}

/** The engine's seeds have 32 bits. */
const seedOf = (seed: number): number => Number(BigInt.asUintN(32, BigInt(seed)))

/** The seed of the index-th completion of a request: seed + index, as in vLLM. */
export const nextSeed = (seed: number, index: number): number => (seed + index) >>> 0

/** Refuses n > 1 for greedy requests, whose completions would all be the same. */
export function completionsOf(body: SamplingBody, temperature: number): number {
  const n = body.n ?? 1
  if (n > 1 && temperature === 0) throw badRequest(`n: it must be 1 at temperature 0, but it is ${n}.`, 'n')
  return n
}

/** The context's length in vLLM's exact words: LiteLLM, Inspect and others search for them to recognise a full conversation. */
export const contextWords = (maxLength: number): string => `this model's maximum context length is ${maxLength} tokens`

/**
 * How many tokens may follow a prompt: the requested number, reduced to the room in the context.
 * @param given the request's max_tokens
 * @param otherwise the default
 * @throws HttpError with both counts if the prompt, or max_tokens alone, exceeds the context
 */
export function maxTokensOf(
  promptLength: number,
  given: number | null | undefined,
  otherwise: number,
  { maxLength, prompt, field = 'max_tokens' }: { maxLength: number; prompt: string; field?: string },
): number {
  const room = maxLength - promptLength
  if (room < 1) {
    throw badRequest(
      `${prompt}: the prompt has ${promptLength} tokens, but ${contextWords(maxLength)}, of which the answer needs at least one. Shorten the prompt.`,
      prompt,
    )
  }
  if (given !== undefined && given !== null && given > maxLength) {
    throw badRequest(
      `${field}: ${given} is too large: with the prompt's ${promptLength} tokens that makes ${promptLength + given}, but ${contextWords(maxLength)}.`,
      field,
    )
  }
  // As in vLLM: clients of a growing conversation request the same number of tokens each time, and the last answer ends with the context.
  return Math.min(given ?? otherwise, room)
}

/** The log-probabilities that the engine should return; undefined for none. */
export function logprobsOf(
  parts: ServerParts,
  wish: { top: number | undefined; prompt: number | null | undefined; field: string },
): LogprobsRequest | undefined {
  const { top, prompt, field } = wish
  const most = parts.maxLogprobs ?? 20
  const check = (name: string, value: number | null | undefined) => {
    if (value === undefined || value === null || (value >= 0 && value <= most)) return
    const words =
      value < 0
        ? 'this server does not return log-probabilities for the whole vocabulary'
        : `${value} is more than the ${most} that this server returns (--max-logprobs)`
    throw badRequest(`${name}: ${words}.`, name)
  }
  check(field, top)
  check('prompt_logprobs', prompt)
  const asksPrompt = prompt !== undefined && prompt !== null
  if (top === undefined && !asksPrompt) return undefined
  return { mode: parts.logprobsMode ?? 'raw', ...(top ? { top } : {}), ...(asksPrompt ? { prompt } : {}) }
}

/** truncate_prompt_tokens: keeps the last (or first) tokens of a prompt; -1 keeps as many as the context has. */
export function truncate(ids: number[], body: SamplingBody, maxLength: number): number[] {
  const { truncate_prompt_tokens: asked, truncation_side: side } = body
  if (asked === undefined || asked === null) return ids
  const keep = asked === -1 ? maxLength - 1 : asked
  if (keep < 1) throw badRequest('truncate_prompt_tokens: it must be at least 1, or -1.', 'truncate_prompt_tokens')
  if (keep >= maxLength) {
    throw badRequest(
      `truncate_prompt_tokens: ${keep} is too large: this model's context is ${maxLength} tokens.`,
      'truncate_prompt_tokens',
    )
  }
  if (ids.length <= keep) return ids
  return side === 'right' ? ids.slice(0, keep) : ids.slice(-keep)
}
