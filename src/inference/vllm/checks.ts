/** Checks, by sending requests, that a server can do what a run needs. Each refusal says how to start the server. */
import { sentenceOf, UserError } from '../../common/errors.ts'
import { NEUTRAL } from '../../common/sampling.ts'
import { loraRankFlag } from '../../common/vllm-ranks.ts'
import { VllmError, type ModelCard, type VllmApi } from './api.ts'
import { adaptersInFlight, type LogprobsMode } from './flags.ts'
import { GENERATE } from './requests.ts'

/** What the run needs from a server. */
export interface Needs {
  /** The trainer's model folder or id. */
  model: string
  kind: 'lora' | 'full'
  maxLength: number
  maxAsyncLevel: number
  logprobsMode: LogprobsMode
}

/** What was found. */
export interface Found {
  /** Name and version of the server: vLLM, or dawn-rl's own server. */
  server: string
  /** Name of the base model in requests. */
  base: string
}

/**
 * Checks the version, model, length, log-probability mode, and for full weights the endpoints that a push uses.
 * @throws UserError for a server that this run can't sample from
 */
export async function checkServer(api: VllmApi, needs: Needs, tokens: readonly number[]): Promise<Found> {
  const version = await api.version().catch((error: unknown) => {
    if (error instanceof VllmError && error.passing) throw error
    refuseKey(error, api)
    throw new UserError(
      `${api.url} has no /version, so it is not vLLM, or its version is too old: ${sentenceOf((error as Error).message)} Start vLLM 0.32 or newer.`,
    )
  })
  // vLLM asks for the key below /v1 only, dawn-rl's server everywhere.
  const cards = await api.models().catch((error: unknown) => {
    refuseKey(error, api)
    throw error
  })
  const base = baseModel(cards, needs, api.url)
  // A push that was interrupted, because its run ended or its connection broke, left the server paused. Until it resumes, nothing is answered.
  if (needs.kind === 'full') await checkResume(api)
  await checkLogprobs(api, base.id, needs.logprobsMode, tokens)
  if (needs.kind === 'full') await checkFullWeights(api, base.id, tokens)
  return { server: `${base.owned_by === 'dawn-rl' ? 'dawn-rl' : 'vLLM'} ${version}`, base: base.id }
}

/** @throws UserError if the server wants another API key than the run sends */
function refuseKey(error: unknown, { url }: VllmApi): void {
  if (!(error instanceof VllmError && error.status === 401)) return
  throw new UserError(
    process.env.VLLM_API_KEY
      ? `${url} does not take the API key in VLLM_API_KEY. Set this environment variable to the key that the server was started with.`
      : `${url} needs an API key. Set the environment variable VLLM_API_KEY to the key that the server was started with.`,
  )
}

/** The base model to use: the one with our name, else the only one. */
function baseModel(cards: ModelCard[], { model, maxLength }: Needs, url: string): ModelCard {
  const bases = cards.filter((card) => card.parent === null || card.parent === undefined)
  const found = bases.find((card) => card.root === model || card.id === model) ?? (bases.length === 1 ? bases[0] : undefined)
  if (!found) {
    const names = bases.map((card) => card.id).join(', ') || 'none'
    throw new UserError(`${url} serves ${names}, but this run trains ${model}. Start vLLM with --model ${model}.`)
  }
  if (found.max_model_len !== undefined && found.max_model_len < maxLength) {
    throw new UserError(
      `${url} takes sequences of at most ${found.max_model_len} tokens, but max_seq_len is ${maxLength}. Start vLLM with --max-model-len ${maxLength}, or lower max_seq_len.`,
    )
  }
  return found
}

/** Samples a token with top_k 1: its log-probability is 0 if computed after the filters, else the model's. */
async function checkLogprobs(api: VllmApi, model: string, wanted: LogprobsMode, tokens: readonly number[]): Promise<void> {
  const body = {
    model, prompt: tokens.slice(0, 2), ...NEUTRAL, top_k: 1, max_tokens: 1, logprobs: 0, return_token_ids: true, cache_salt: 'check',
  } // prettier-ignore
  const answer = await api.complete(body, 300_000)
  const logprob = answer.choices[0]?.logprobs?.token_logprobs?.[0]
  if (typeof logprob !== 'number' || !answer.choices[0].token_ids) {
    throw new UserError(`${api.url} returns no token ids or no log-probabilities with its completions. Start vLLM 0.32 or newer.`)
  }
  const mode = logprob > 1e-6 ? 'logits' : logprob > -1e-6 ? 'processed_logprobs' : 'raw_logprobs'
  if (mode === wanted) return
  const why =
    wanted === 'processed_logprobs'
      ? 'the importance ratio needs log-probabilities at the sampling temperature'
      : 'top_k, top_p, min_p or a penalty is set, and the importance ratio needs log-probabilities over the full vocabulary'
  const words = {
    logits: 'logits instead of log-probabilities',
    processed_logprobs: 'processed_logprobs',
    raw_logprobs: 'raw_logprobs',
  }
  throw new UserError(`${api.url} reports ${words[mode]}, but ${why}. Start vLLM with --logprobs-mode ${wanted}.`)
}

/** Without dev mode, the routes for a push are missing. */
async function checkResume(api: VllmApi): Promise<void> {
  try {
    await api.resume()
  } catch (error) {
    if (!(error instanceof VllmError) || error.passing) throw error
    throw new UserError(
      `${api.url} has no /resume, so full weights can't be pushed into it. Start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, or train a LoRA adapter (use_lora = true).`,
    )
  }
}

/** Without the scale-out routes, no token says which weights sampled it. */
async function checkFullWeights(api: VllmApi, model: string, tokens: readonly number[]): Promise<void> {
  const params = { max_tokens: 1, temperature: 0, logprobs: 0 }
  const body = { model, token_ids: tokens.slice(0, 2), sampling_params: params, cache_salt: 'check' }
  let spans = false
  try {
    for await (const { choices } of api.stream(GENERATE, body, AbortSignal.timeout(300_000)))
      spans ||= !!choices[0]?.weight_versions
  } catch (error) {
    if (!(error instanceof VllmError) || error.passing) throw error
    throw new UserError(
      `${api.url} refuses ${GENERATE}, whose answers say which weights made which token. Start vLLM with --enable-scale-out. It said: ${error.message}`,
    )
  }
  if (!spans) {
    throw new UserError(`${api.url} does not say which weights made which token (weight_versions). Start vLLM 0.32 or newer.`)
  }
}

/** A UserError if the server (dawn-rl's own) was started without permission to open the run's weights; else the error itself. */
export function explainRefusal(error: unknown, api: VllmApi): unknown {
  if (!(error instanceof VllmError) || !error.message.includes('--adapter-root')) return error
  return new UserError(
    `${api.url} refuses to open the weights of this run (${error.message}). Start it with --adapter-root and output_dir.`,
  )
}

const refusedFor = (words: RegExp) => (error: unknown) =>
  error instanceof VllmError && error.status === 400 && words.test(error.message)
/** Whether an adapter was refused because it is already loaded. */
export const isThereAlready = refusedFor(/already been loaded/)
/** Whether dawn-rl's server has no free place for an adapter. vLLM instead drops the least recently used one. */
export const hasNoPlace = refusedFor(/no place for the adapter/)

/** A UserError if the server's settings prevent it from loading the adapter; else the error itself. */
export function explainLoadError(error: unknown, api: VllmApi, rank: number): unknown {
  if (!(error instanceof VllmError)) return error
  // vLLM's or dawn-rl's wording.
  if (/max_lora_rank|LoRA rank \d+ is greater|has rank \d+ .*is the largest/i.test(error.message)) {
    return new UserError(
      `The adapter has rank ${rank}, more than ${api.url} takes. Start vLLM with --max-lora-rank ${loraRankFlag(rank) ?? rank}, or lower lora_rank.`,
    )
  }
  const refused = explainRefusal(error, api)
  if (refused !== error) return refused
  if (hasNoPlace(error)) {
    return new UserError(
      `${api.url} has no place for this run's next adapter (${error.message}). POST {"lora_name": NAME} to its /v1/unload_lora_adapter to unload one that is not in use (a run that was killed leaves its adapters loaded), or start it with a larger --max-loras.`,
    )
  }
  if (error.status === 404 && /no adapter found|not found for/i.test(error.message)) {
    return new UserError(
      `${api.url} can't read the adapter's folder (${error.message}). It must share this machine's files: run it here, or mount output_dir there.`,
    )
  }
  if (error.status === 404 || error.status === 405 || /lora is not enabled|not enabled/i.test(error.message)) {
    return new UserError(
      `${api.url} does not load adapters at run time (${error.message}). Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment.`,
    )
  }
  return error
}

/**
 * Checks that enough adapters fit into one batch: one for each version in flight. The server reports its limit once an adapter has been used.
 * @throws UserError if it reports fewer
 */
export async function checkMaxLoras(api: VllmApi, maxAsyncLevel: number): Promise<void> {
  const line = (await api.metrics()).split('\n').find((l) => l.startsWith('vllm:lora_requests_info{'))
  const most = Number(line?.match(/max_lora="(\d+)"/)?.[1])
  const needed = adaptersInFlight(maxAsyncLevel)
  if (!(most < needed)) return
  throw new UserError(
    `${api.url} holds ${most} adapter${most === 1 ? '' : 's'} in a batch, but max_async_level = ${maxAsyncLevel} has ${needed} policy versions in flight: ` +
      `rollouts with the old version would wait for those with the new one. Start vLLM with --max-loras ${needed}.`,
  )
}
