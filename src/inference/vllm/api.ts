/**
 * The part of a vLLM server's HTTP API that a run uses, through the `openai` client. Each call has a time limit. Errors are one sentence with vLLM's
 * own words. Source for the endpoints: vLLM 0.32's OpenAPI page (`/docs` of a server).
 */
import OpenAI, { APIConnectionError, APIError, APIUserAbortError, OpenAIError } from 'openai'
import { messageOf } from '../../common/errors.ts'
import { patientFetch } from '../../common/patient-fetch.ts'
import { NEUTRAL } from '../../common/sampling.ts'

/** A call that failed. `status` is missing if no answer came (the server is not there, or the time limit passed), and 0 if nothing was sent. */
export class VllmError extends Error {
  override name = 'VllmError'
  readonly status: number | undefined
  constructor(message: string, status?: number) {
    super(message)
    this.status = status
  }

  /** Whether the same call may succeed later: there was no answer, or the answer was about the server and not about the request. */
  get passing(): boolean {
    return this.status === undefined || this.status >= 500 || this.status === 429 || this.status === 408
  }
}

/** Whether an error is of a call that may succeed later. */
export const isPassing = (error: unknown): error is VllmError => error instanceof VllmError && error.passing

/** A model that the server lists. Adapters have a parent. */
export interface ModelCard {
  id: string
  root: string | null
  parent: string | null
  max_model_len?: number
  owned_by?: string
}

/** The part of a streamed answer that is used, for both endpoints that stream tokens. */
export interface TokenChunk {
  choices: {
    token_ids?: number[] | null
    logprobs?: { token_logprobs?: (number | null)[]; content?: { logprob: number }[] | null } | null
    finish_reason?: string | null
    stop_reason?: string | number | null
    /** In the last piece: output tokens [start, end) were sampled by these weights. */
    weight_versions?: { version: string; start: number; end: number }[] | null
  }[]
}

/** The log-probability of the token at a position, if the server returned one. */
type Scored = (position: number) => number | undefined

/** Time limit in milliseconds for calls that do no work on the model. */
const QUICK_MS = 30_000

export class VllmApi {
  readonly url: string
  readonly #client: OpenAI
  /** Whether sequences are scored through `prompt_logprobs`. */
  #scoresPrompts = false
  /** Why the last `healthy` was false. */
  unwell = ''

  /** @param apiKey for a server that requires one; default: VLLM_API_KEY of the environment */
  constructor(url: string, apiKey = process.env.VLLM_API_KEY) {
    this.url = url.replace(/\/(v1\/?)?$/, '')
    // Callers decide about retries: a push may be repeated, and a rollout survives the restart of a server.
    const common = { maxRetries: 0, timeout: QUICK_MS, logLevel: 'off', fetch: patientFetch } as const
    // The client refuses an empty key; vLLM takes an empty VLLM_API_KEY as none.
    this.#client = new OpenAI({ baseURL: this.url, apiKey: apiKey || 'none', ...common })
  }

  /** Whether the server answers and its engine is alive. */
  async healthy(): Promise<boolean> {
    try {
      await this.#get('/health', 5000)
      return true
    } catch (error) {
      this.unwell = messageOf(error)
      return false
    }
  }

  async version(): Promise<string> {
    return (await this.#get<{ version: string }>('/version')).version
  }

  async models(): Promise<ModelCard[]> {
    return this.#part(await this.#get<{ data: ModelCard[] }>('/v1/models'), 'data')
  }

  /** The text of /metrics, in Prometheus' format. */
  async metrics(): Promise<string> {
    return String(await this.#get('/metrics'))
  }

  async loadAdapter(name: string, dir: string, timeoutMs: number): Promise<void> {
    await this.#post('/v1/load_lora_adapter', { lora_name: name, lora_path: dir }, { timeoutMs })
  }

  async unloadAdapter(name: string): Promise<void> {
    await this.#post('/v1/unload_lora_adapter', { lora_name: name })
  }

  /** Freezes generation: requests stay where they are, with their KV cache. Needs dev mode. */
  async pause(timeoutMs: number): Promise<void> {
    await this.#post('/pause?mode=keep', {}, { timeoutMs })
  }

  async resume(): Promise<void> {
    await this.#post('/resume', {})
  }

  /** Loads the safetensors of a folder into the model, in place. Needs dev mode. */
  async reloadWeights(dir: string, timeoutMs: number): Promise<void> {
    await this.#post('/collective_rpc', { method: 'reload_weights', kwargs: { weights_path: dir } }, { timeoutMs })
  }

  /** Names the current weights; tokens sampled from now on carry the name. */
  async nameWeights(version: string): Promise<void> {
    await this.#post('/update_weight_version', { new_version: version })
  }

  /** The name of the current weights. */
  async weightsName(): Promise<string> {
    return this.#part(await this.#get<{ weight_version: string }>('/weight_info'), 'weight_version')
  }

  /**
   * Log-probabilities at temperature 1, by the weights of `model`, of a sequence's tokens at some positions. Sends one request of one token per
   * position. A single request with `prompt_logprobs` would do, but with an adapter it crashes the engine of vLLM 0.32 on a CPU if other requests run
   * beside it. A server that refuses what vLLM needs for this (dawn-rl's) is asked for `prompt_logprobs`.
   * @param positions each at least 1
   */
  async score(
    model: string,
    ids: readonly number[],
    positions: readonly number[],
    salt: string,
    timeoutMs: number,
  ): Promise<number[]> {
    const common = { model, ...NEUTRAL, max_tokens: 1, seed: 0, cache_salt: salt, add_special_tokens: false }
    const scored = this.#scoresPrompts
      ? await this.#scorePrompt(common, ids, timeoutMs)
      : await this.#scoreTokens(common, ids, positions, timeoutMs).catch((error: unknown) => {
          if (!(error instanceof VllmError) || error.status !== 400 || !error.message.includes('logprob_token_ids')) throw error
          this.#scoresPrompts = true
          return this.#scorePrompt(common, ids, timeoutMs)
        })
    return positions.map((t) => {
      const logprob = scored(t)
      if (logprob === undefined)
        throw new VllmError(`${this.url} returned no log-probability for token ${t} of a sequence that it was asked to score`, 0)
      return logprob
    })
  }

  async #scoreTokens(common: object, ids: readonly number[], positions: readonly number[], timeoutMs: number): Promise<Scored> {
    const body = {
      ...common, prompt: positions.map((t) => ids.slice(0, t)),
      logprobs: 0, logprob_token_ids: [...new Set(positions.map((t) => ids[t]))], return_tokens_as_token_ids: true,
    } // prettier-ignore
    type Choice = { index: number; logprobs?: { top_logprobs?: Record<string, number>[] } | null }
    const choices = this.#part(await this.#post<{ choices: Choice[] }>('/v1/completions', body, { timeoutMs }), 'choices')
    const byPosition = new Map(choices.map((choice) => [positions[choice.index], choice.logprobs?.top_logprobs?.[0]]))
    return (t) => byPosition.get(t)?.[`token_id:${ids[t]}`]
  }

  async #scorePrompt(common: object, ids: readonly number[], timeoutMs: number): Promise<Scored> {
    type Choice = { prompt_logprobs?: (Record<string, { logprob: number }> | null)[] | null }
    const body = { ...common, prompt: ids, prompt_logprobs: 0 }
    const choices = this.#part(await this.#post<{ choices: Choice[] }>('/v1/completions', body, { timeoutMs }), 'choices')
    return (t) => choices[0]?.prompt_logprobs?.[t]?.[ids[t]]?.logprob
  }

  /** Sends one request that is not streamed. */
  async complete(body: object, timeoutMs: number): Promise<TokenChunk> {
    return await this.#post<TokenChunk>('/v1/completions', body, { timeoutMs })
  }

  /** Streams the tokens of a request. Errors during the stream are also VllmErrors. Has no time limit of its own, only the signal. */
  async *stream(path: string, body: object, signal: AbortSignal): AsyncGenerator<TokenChunk> {
    try {
      const chunks = await this.#client.post<AsyncIterable<TokenChunk>>(path, {
        body: { ...body, stream: true },
        stream: true,
        signal,
        timeout: 24 * 3_600_000,
      })
      yield* chunks
    } catch (error) {
      throw this.#explain(path, error)
    }
  }

  async #get<T = unknown>(path: string, timeoutMs = QUICK_MS): Promise<T> {
    try {
      return await this.#client.get<T>(path, { timeout: Math.ceil(timeoutMs) })
    } catch (error) {
      throw this.#explain(path, error)
    }
  }

  async #post<T = unknown>(path: string, body: object, { timeoutMs = QUICK_MS } = {}): Promise<T> {
    try {
      return await this.#client.post<T>(path, { body, timeout: Math.ceil(timeoutMs) })
    } catch (error) {
      throw this.#explain(path, error)
    }
  }

  /** A part of an answer. While the server is away, a proxy in front of it may answer with a page instead: that error is passing. */
  #part<Answer, Key extends keyof Answer>(answer: Answer | null, key: Key): Answer[Key] {
    const part = answer?.[key]
    if (part === undefined || part === null)
      throw new VllmError(`${this.url} sent an answer without ${String(key)}: is it a vLLM server?`)
    return part
  }

  #explain(path: string, error: unknown): VllmError {
    if (error instanceof VllmError) return error
    const where = `${path.replace(/\?.*/, '')} of ${this.url}`
    // The client refused to send the request.
    if (error instanceof OpenAIError && !(error instanceof APIError)) return new VllmError(`${where}: ${error.message}`, 0)
    if (error instanceof APIConnectionError || error instanceof APIUserAbortError || !(error instanceof APIError)) {
      const cause = error instanceof Error && error.cause ? ` (${messageOf(error.cause)})` : ''
      return new VllmError(`${where} gave no answer: ${messageOf(error)}${cause}`)
    }
    const said = (error.error as { message?: string } | undefined)?.message ?? error.message
    // An error in the midst of a stream has its status in the text: the answer's own was 200.
    const status = (error.status as number | undefined) ?? (Number(error.code) || 500)
    return new VllmError(`${where} answered ${status}: ${said}`, status)
  }
}
