/** Checks a request before it is queued, so that a mistake is reported to its author and no step fails for everyone. */
import { UserError } from '../common/errors.ts'
import { FLOAT32_RANGE, isFloat32 } from '../common/float32.ts'
import type { GenerationRequest } from '../common/types.ts'
import { mostTop } from '../kernels/sampling/sampling.ts'

interface RequestLimits {
  maxLength: number
  cacheRows: number
  vocabulary: number
}

/** Checks a request against the engine's limits. @throws UserError that names the mistake and the limit */
export function checkRequest(request: GenerationRequest, limits: RequestLimits): void {
  const { promptIds, sampling } = request
  const { maxLength, cacheRows, vocabulary } = limits
  const { max_tokens } = sampling
  if (promptIds.length === 0) throw new UserError('The prompt has no tokens; generation needs at least one.')
  if (!Number.isInteger(max_tokens) || max_tokens < 1) throw new UserError(`max_tokens is ${max_tokens}; it must be 1 or more.`)
  const wanted = promptIds.length + max_tokens
  if (wanted > maxLength) {
    throw new UserError(
      `The prompt has ${promptIds.length} tokens and max_tokens is ${max_tokens}: together ${wanted}, but a sequence may have at most ${maxLength}. ` +
        'Shorten the prompt, lower max_tokens, or raise max_seq_len.',
    )
  }
  if (wanted > cacheRows) {
    throw new UserError(
      `The prompt has ${promptIds.length} tokens and max_tokens is ${max_tokens}: together ${wanted}, but the KV cache has room for only ${cacheRows}.`,
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
    if (Number.isFinite(value) && !isFloat32(value))
      throw new UserError(
        `${name} is ${value}, which float32, the GPU's numbers, cannot hold. Use a number from ${FLOAT32_RANGE}.`,
      )
    if (Number.isFinite(value) && value >= low && value <= high) continue
    throw new UserError(`${name} is ${value}; it must be ${rangeWords(low, high)}.`)
  }
  checkChoice(request, vocabulary)
  checkLogprobs(request)
}

/** Checks what restricts the tokens that can be drawn, and what ends the completion. */
function checkChoice({ sampling, constraint, onToken }: GenerationRequest, vocabulary: number): void {
  const { top_k, seed, max_tokens, min_tokens = 0, ignore_eos = false, logit_bias = {}, allowed_token_ids, stop } = sampling
  if (!Number.isInteger(top_k)) throw new UserError(`top_k is ${top_k}; it must be a whole number.`)
  if (!Number.isInteger(seed)) throw new UserError(`seed is ${seed}; it must be a whole number.`)
  if (!Number.isInteger(min_tokens) || min_tokens < 0 || min_tokens > max_tokens) {
    throw new UserError(`min_tokens is ${min_tokens}; it must be a whole number from 0 to max_tokens, which is ${max_tokens}.`)
  }
  if (typeof ignore_eos !== 'boolean') throw new UserError(`ignore_eos is ${String(ignore_eos)}; it must be true or false.`)
  if (!Array.isArray(stop) || stop.some((text) => typeof text !== 'string'))
    throw new UserError('stop must be a list of strings.')
  checkIds('stop_token_ids', sampling.stop_token_ids, vocabulary)
  checkIds('logit_bias', Object.keys(logit_bias).map(Number), vocabulary)
  for (const [id, value] of Object.entries(logit_bias)) {
    if (!Number.isFinite(value)) throw new UserError(`logit_bias of token ${id} is ${value}; it must be a finite number.`)
  }
  if (allowed_token_ids) {
    if (allowed_token_ids.length === 0) throw new UserError('allowed_token_ids is empty; it must name a token, or be left out.')
    checkIds('allowed_token_ids', allowed_token_ids, vocabulary)
  }
  if (constraint && (typeof constraint.fill !== 'function' || typeof constraint.accept !== 'function')) {
    throw new UserError('constraint must have the methods fill and accept.')
  }
  if (onToken !== undefined && typeof onToken !== 'function') throw new UserError('onToken must be a function.')
}

function checkIds(name: string, ids: readonly number[], vocabulary: number): void {
  const wrong = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabulary)
  if (wrong !== undefined)
    throw new UserError(`${name} names token ${wrong}, which is not one of the model's ${vocabulary} tokens.`)
}

const modes: unknown[] = ['policy', 'raw', 'processed']

function checkLogprobs({ logprobs = {} }: GenerationRequest): void {
  const { mode = 'policy', top = 0, prompt = 0 } = logprobs
  if (!modes.includes(mode)) throw new UserError(`logprobs.mode is ${mode}; it must be one of ${modes.join(', ')}.`)
  for (const [name, count] of Object.entries({ top, prompt })) {
    if (Number.isInteger(count) && count >= 0 && count <= mostTop) continue
    throw new UserError(`logprobs.${name} is ${count}; it must be a whole number from 0 to ${mostTop}.`)
  }
}

function rangeWords(low: number, high: number): string {
  if (low === Number.MIN_VALUE) return 'more than 0'
  if (low === -Infinity) return 'a finite number'
  return high === Infinity ? `${low} or more` : `between ${low} and ${high}`
}
