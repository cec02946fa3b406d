/** Converts a generation request to vLLM's form, and what comes back to the policy's tokens. */
import { UserError } from '../../common/errors.ts'
import type { GenerationRequest, PolicyVersion, SamplingParams } from '../../common/types.ts'
import type { Ending, Sequence } from '../sequence.ts'
import type { TokenChunk } from './api.ts'
import type { LogprobsMode } from './flags.ts'

/** How a request is sent to the server. */
interface Route {
  path: string
  /** Name of the model or adapter. */
  model: string
  /** Cache salt: keys and values cached under another salt are not used. */
  salt: string
  eosTokenIds: readonly number[]
}

/**
 * With LoRA, each version has its own adapter name, so any vLLM will do. Full weights need the endpoint that says which weights sampled which token.
 */
export const COMPLETIONS = '/v1/completions'
export const GENERATE = '/inference/v1/generate'

/** @throws UserError for options that only the embedded engine has: they would never reach the server */
export function checkServed({ adapter, constraint, logprobs = {} }: GenerationRequest): void {
  const asked = {
    'an adapter': adapter !== undefined,
    'a constraint': constraint !== undefined,
    'logprobs.mode': logprobs.mode !== undefined && logprobs.mode !== 'policy',
    'logprobs.top': logprobs.top !== undefined,
    'logprobs.prompt': logprobs.prompt !== undefined,
  }
  const found = Object.entries(asked).find(([, is]) => is)
  if (!found) return
  throw new UserError(
    `The request has ${found[0]}, which is not supported with vLLM. Leave it out, or sample with the embedded engine (backend = "embedded" under [inference]).`,
  )
}

/**
 * The body of a request. Every value that affects sampling is sent, neutral or not: a server that we did not start would fill in missing ones from
 * the model's generation_config.json. The end tokens are those of the trainer's files (in `stop_token_ids`).
 */
export function requestBody({ promptIds, sampling }: GenerationRequest, route: Route): object {
  const { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty } = sampling
  const { min_tokens = 0, ignore_eos, logit_bias, allowed_token_ids } = sampling
  const ends = [...(ignore_eos ? [] : route.eosTokenIds), ...sampling.stop_token_ids]
  const params = {
    temperature, top_p, top_k: Math.max(top_k, 0), min_p, repetition_penalty, presence_penalty, frequency_penalty,
    n: 1, seed: sampling.seed, max_tokens: sampling.max_tokens, min_tokens, ignore_eos: true,
    stop: sampling.stop, stop_token_ids: [...new Set(ends)], logit_bias, allowed_token_ids,
    include_stop_str_in_output: false, skip_special_tokens: false, logprobs: 0,
  } // prettier-ignore
  const common = { model: route.model, cache_salt: route.salt }
  if (route.path === GENERATE) return { ...common, token_ids: promptIds, sampling_params: params }
  return { ...common, ...params, prompt: promptIds, add_special_tokens: false, return_token_ids: true }
}

/**
 * Whether the server's log-probability of a completion's token is over the full vocabulary at the sampling temperature, as training needs.
 * @param at index of the token
 */
export function tellsLogprob(sampling: SamplingParams, mode: LogprobsMode, at: number): boolean {
  const { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty } = sampling
  const { min_tokens = 0, logit_bias = {}, allowed_token_ids } = sampling
  if (mode === 'raw_logprobs') return temperature === 1 || temperature === 0
  const filtered = temperature > 0 && (top_p < 1 || top_k > 0 || min_p > 0)
  const chosen = at < min_tokens || allowed_token_ids !== undefined || Object.keys(logit_bias).length > 0
  return !filtered && !chosen && repetition_penalty === 1 && presence_penalty === 0 && frequency_penalty === 0
}

/** How far above 0 the log-probability of a certain token may come out by rounding. */
const ROUNDING = 1e-3

/**
 * Adds the pieces of a streamed answer to a sequence, ends it by the embedded engine's rules, and finishes it.
 * @param version of the weights that answer now
 * @param known whether the server's log-probability of the token at an index is the policy's; otherwise NaN is stored, and the token is never trained
 * on
 * @throws Error if the answer is incomplete
 */
export async function takeStream(
  chunks: AsyncIterable<TokenChunk>,
  sequence: Sequence,
  { version, vocabulary, known }: { version: () => PolicyVersion; vocabulary: number; known: (at: number) => boolean },
): Promise<void> {
  let ending: Ending | undefined
  for await (const { choices } of chunks) {
    const choice = choices[0]
    if (!choice || sequence.ended) continue
    const ids = choice.token_ids ?? []
    const logprobs = choice.logprobs?.token_logprobs ?? choice.logprobs?.content?.map((c) => c.logprob) ?? []
    if (logprobs.length !== ids.length) {
      throw new Error(`vLLM sent ${ids.length} tokens with ${logprobs.length} log-probabilities; the request asked for one each`)
    }
    for (const [i, id] of ids.entries()) {
      const tells = known(sequence.ids.length)
      const logprob = logprobs[i]
      // On a GPU it would silently read another token's row, or zeros.
      if (!(Number.isInteger(id) && id >= 0 && id < vocabulary))
        throw new Error(
          `vLLM sent token ${id}, but the model only has tokens 0 to ${vocabulary - 1}: does it serve another model?`,
        )
      if (tells && !(Number.isFinite(logprob) && logprob! <= ROUNDING))
        throw new Error(`vLLM gave token ${id} the log-probability ${logprob}`)
      // vLLM may continue for another piece after a stop string that only our decoding of the ids finds.
      ending ??= sequence.push(id, tells ? logprob! : NaN, version())
    }
    for (const span of choice.weight_versions ?? []) {
      const made = Number(span.version)
      if (!Number.isInteger(made))
        throw new Error(`vLLM sampled with weights "${span.version}", which this run did not push: was it restarted?`)
      sequence.versions.fill(made, span.start, span.end)
    }
    if (choice.finish_reason) ending ??= endingOf(choice.finish_reason, choice.stop_reason, sequence)
    // Leaving the loop closes the stream, which also stops the server.
    if (ending) break
  }
  if (sequence.ended) return
  if (!ending) throw new Error('vLLM ended an answer without a reason')
  sequence.finish(ending)
}

/** The ending that the server reports, used when our own rules saw none: an end token that the model's files do not name. */
function endingOf(reason: string, stop: string | number | null | undefined, sequence: Sequence): Ending {
  if (reason === 'abort') throw new Error('vLLM aborted the request')
  // Such as 'error', a failure inside of vLLM that may pass: the tokens so far are no answer. /inference/v1/generate passes it on as it is.
  if (reason !== 'stop' && reason !== 'length') throw new Error(`vLLM ended the request with the reason "${reason}"`)
  if (reason === 'length') return { finishReason: 'length', stopCondition: 'max_tokens', text: sequence.text() }
  if (typeof stop === 'string') return { finishReason: 'stop', stopCondition: `stop: ${stop}`, text: sequence.text() }
  return { finishReason: 'stop', stopCondition: 'eos', text: sequence.text(-1) }
}
