/** Checks a request before it is queued, so that a mistake is told to the one who made it and no step fails for all. */
import { UserError } from '../common/errors.ts'
import type { GenerationRequest } from '../common/types.ts'

export interface RequestLimits {
  maxLength: number
  cacheRows: number
  vocabulary: number
}

/** @throws UserError for a request that can never run, naming what is too large and the limit. */
export function checkRequest({ promptIds, sampling }: GenerationRequest, limits: RequestLimits): void {
  const { maxLength, cacheRows, vocabulary } = limits
  const { max_tokens } = sampling
  if (promptIds.length === 0) throw new UserError('The prompt has no tokens; generation needs at least one.')
  if (!Number.isInteger(max_tokens) || max_tokens < 1) throw new UserError(`max_tokens is ${max_tokens}; it must be 1 or more.`)
  const wanted = promptIds.length + max_tokens
  if (wanted > maxLength) {
    throw new UserError(
      `The prompt has ${promptIds.length} tokens and max_tokens is ${max_tokens}: together ${wanted}, and a sequence may have ${maxLength}. ` +
        'Shorten the prompt, lower max_tokens, or raise max_seq_len.',
    )
  }
  if (wanted > cacheRows) {
    throw new UserError(
      `The prompt has ${promptIds.length} tokens and max_tokens is ${max_tokens}: together ${wanted}, and the KV cache has room for ${cacheRows}.`,
    )
  }
  const wrong = promptIds.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabulary)
  if (wrong !== undefined) throw new UserError(`Token ${wrong} of the prompt is not one of the model's ${vocabulary} tokens.`)
  const ranges: [string, number, number, number][] = [
    ['temperature', sampling.temperature, 0, Infinity],
    ['top_p', sampling.top_p, 0, 1],
    ['min_p', sampling.min_p, 0, 1],
    ['top_k', sampling.top_k, -1, Infinity],
    ['repetition_penalty', sampling.repetition_penalty, Number.MIN_VALUE, Infinity],
    ['presence_penalty', sampling.presence_penalty, -Infinity, Infinity],
    ['frequency_penalty', sampling.frequency_penalty, -Infinity, Infinity],
  ]
  for (const [name, value, low, high] of ranges) {
    if (Number.isFinite(value) && value >= low && value <= high) continue
    throw new UserError(`${name} is ${value}; it must be ${rangeWords(low, high)}.`)
  }
}

function rangeWords(low: number, high: number): string {
  if (low === Number.MIN_VALUE) return 'more than 0'
  if (low === -Infinity) return 'a finite number'
  return high === Infinity ? `${low} or more` : `between ${low} and ${high}`
}
