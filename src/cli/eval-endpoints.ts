/** Models behind OpenAI-compatible endpoints: how they are named, and a chat client that asks them. */
import { existsSync } from 'node:fs'
import type { OpenAI } from 'openai'
import { parse, TomlError } from 'smol-toml'
import { causeOf, messageOf, nearest, UserError } from '../common/errors.ts'
import { fetchWhole } from '../common/patient-fetch.ts'
import { textOfFile } from '../common/texts.ts'
import { notToml } from '../config/compose.ts'
import { ContextFullError } from '../environments/chat.ts'
import { replyText } from '../environments/judge.ts'
import type { ChatClient, ChatCompletion, ChatTurn, Message, SamplingParams } from '../common/types.ts'

/** An OpenAI-compatible endpoint, as endpoints.toml or the options name it. */
export interface Endpoint {
  /** The model's name at the endpoint. */
  model: string
  /** With its path: `http://127.0.0.1:8000/v1`. */
  url: string
  /** Name of the environment variable that holds the key. */
  keyVar?: string
  headers?: Record<string, string>
}

/** The files in which endpoints are looked up when none is named. */
const ENDPOINT_FILES = ['configs/endpoints.toml', 'endpoints.toml']

/**
 * Reads verifiers' endpoints.toml: `[[endpoint]]` with `endpoint_id`, `model`, `url`, `key` (the name of a variable), and `extra_headers`.
 * @returns the endpoints by id
 * @throws UserError for a file that is missing or has another form
 */
export function readEndpoints(file: string): Map<string, Endpoint> {
  const text = textOfFile(file)
  let table: Record<string, unknown>
  try {
    table = parse(text)
  } catch (error) {
    // Without quoting the line, which may hold a key.
    throw new UserError(error instanceof TomlError ? notToml(error, file) : `${file} can't be read: ${messageOf(error)}.`)
  }
  const list = table.endpoint
  const wrong = (what: string) =>
    new UserError(`${file}: ${what}. Write [[endpoint]] with endpoint_id, model, url and key (the name of a variable).`)
  if (!Array.isArray(list)) throw wrong('there is no [[endpoint]]')
  const endpoints = new Map<string, Endpoint>()
  for (const [i, item] of (list as Record<string, unknown>[]).entries()) {
    const { endpoint_id: id, model, url, api_base_url: base, key, api_key_var: variable, extra_headers: headers } = item
    const [address, keyVar] = [url ?? base, key ?? variable]
    if (typeof id !== 'string') throw wrong(`endpoint ${i + 1} has no endpoint_id`)
    if (typeof address !== 'string') throw wrong(`${id} has no url`)
    if (keyVar !== undefined && typeof keyVar !== 'string') throw wrong(`the key of ${id} is not a string`)
    // Several entries with one id are replicas of one model; only the first is used.
    if (endpoints.has(id)) continue
    endpoints.set(id, {
      model: typeof model === 'string' ? model : id,
      url: address,
      keyVar,
      headers: headers as Record<string, string> | undefined,
    })
  }
  return endpoints
}

/**
 * The endpoint of this name in a file, or in one of the usual files; undefined where the name may be that of a model.
 * @throws UserError where it can be neither
 */
export function endpointNamed(name: string, file?: string): Endpoint | undefined {
  const path = file ?? ENDPOINT_FILES.find((candidate) => existsSync(candidate))
  const endpoints = path === undefined ? new Map<string, Endpoint>() : readEndpoints(path)
  const found = endpoints.get(name)
  const mayBeModel = /[/\\]/u.test(name) || existsSync(name)
  if (found || (file === undefined && mayBeModel)) return found
  const near = nearest(name, endpoints.keys())
  const theirs = near ? `; did you mean ${near}?` : `. It has ${[...endpoints.keys()].join(', ')}.`
  if (file !== undefined) throw new UserError(`${file} has no endpoint ${name}${theirs}`)
  const what = `There is no model at ${name}: no such folder or file`
  throw new UserError(
    path === undefined
      ? `${what}, and no ${ENDPOINT_FILES.join(' or ')} that could name an endpoint. Name a Hugging Face folder, a .gguf file, or a hub id like Qwen/Qwen3-0.6B, or give an endpoint's address with -b.`
      : `${what}, and ${path} has no endpoint of that name${theirs}`,
  )
}

/** How servers say that a conversation no longer fits the context: OpenAI, vLLM, SGLang, llama.cpp, dawn-rl. They share no error code. */
const CONTEXT_IS_FULL = /context[ _](length|window|size)|maximum model length|prompt is too long/iu

/** An endpoint's response. Every field is optional, since some endpoints leave some out. */
type Reply = Partial<OpenAI.ChatCompletion> & {
  choices?: (Partial<OpenAI.ChatCompletion.Choice> & { error?: unknown })[]
  error?: unknown
}

const same = (count: number, value: number): number[] => Array.from({ length: count }, () => value)

/** How one endpoint is asked. */
interface EndpointOptions {
  /** Further fields of the request, by the endpoint's names. */
  extra?: Record<string, unknown>
  retries?: number
  timeoutSeconds?: number
}

/**
 * Asks an endpoint for chat completions. Endpoints give no token ids: the ids are -1, as many as `usage` counts, with log-probability
 * NaN and version 0. Good for evaluation, not for training.
 */
export class EndpointClient implements ChatClient {
  readonly #endpoint: Endpoint
  readonly #options: EndpointOptions
  #client: Promise<OpenAI> | undefined

  /** @throws UserError for a bad address or a missing key, with which every answer would fail */
  constructor(endpoint: Endpoint, options: EndpointOptions = {}) {
    const { url, keyVar } = endpoint
    if (!/^https?:$/u.test(URL.parse(url)?.protocol ?? ''))
      throw new UserError(
        `The endpoint's address ${JSON.stringify(url)} is not a URL. Write it in full, such as http://127.0.0.1:8000/v1.`,
      )
    if (keyVar !== undefined && !process.env[keyVar])
      throw new UserError(
        `The environment variable ${keyVar}, which should hold the key for ${url}, is not set. Set it, or name another variable.`,
      )
    this.#endpoint = endpoint
    this.#options = options
  }

  /** @throws Error with the cause in words; the rollout then failed. */
  async complete(
    messages: Message[],
    sampling: SamplingParams,
    signal?: AbortSignal,
    turn: ChatTurn = {},
  ): Promise<ChatCompletion> {
    const client = await (this.#client ??= this.#connect())
    const body = this.#body(messages, sampling, turn)
    const where = `${this.#endpoint.model} at ${this.#endpoint.url}`
    const reply = (await client.chat.completions.create(body as never, { signal }).catch((error: unknown) => {
      const why = error instanceof Error && error.cause !== undefined ? ` (${causeOf(error)})` : ''
      // Proxies answer with whole pages of HTML.
      const words = `${where}: ${messageOf(error).slice(0, 300)}${why}`
      const full = (error as { status?: number }).status === 400 && CONTEXT_IS_FULL.test(messageOf(error))
      throw full ? new ContextFullError(words, { cause: error }) : new Error(words, { cause: error })
    })) as Reply | null
    const choice = reply?.choices?.[0]
    // Routers over several providers report a provider's failure with status 200, some beside an empty answer.
    const failed = choice?.error ?? reply?.error
    if (!reply || !choice?.message || failed) {
      throw new Error(`${where} replied without an answer: ${String(JSON.stringify(failed ?? reply)).slice(0, 300)}`)
    }
    // Without `usage`, or with an empty answer, there are no tokens; the rewards judge the answer all the same.
    const count = Math.max(1, reply.usage?.completion_tokens ?? 1)
    const calls = choice.message.tool_calls?.filter((call) => call.type === 'function')
    const text = replyText(choice.message.content)
    const cut = choice.finish_reason === 'length'
    return {
      text,
      ...(calls?.length && { message: { role: 'assistant' as const, content: text, tool_calls: calls } }),
      ids: same(count, -1),
      logprobs: same(count, NaN),
      versions: same(count, 0),
      promptIds: same(reply.usage?.prompt_tokens ?? 0, -1),
      finishReason: cut ? 'length' : 'stop',
      stopCondition: cut ? 'max_tokens' : choice.finish_reason === 'stop' ? 'eos' : (choice.finish_reason ?? 'unknown'),
    }
  }

  #body(messages: Message[], sampling: SamplingParams, { tools, variables }: ChatTurn): Record<string, unknown> {
    const { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty } = sampling
    const { extra = {} } = this.#options
    const openai = new URL(this.#endpoint.url).hostname === 'api.openai.com'
    return {
      model: this.#endpoint.model,
      // OpenAI's tool messages have no name.
      messages: messages.map((message) => ({ ...message, name: undefined })),
      temperature,
      [openai ? 'max_completion_tokens' : 'max_tokens']: sampling.max_tokens,
      seed: sampling.seed,
      ...(top_p !== 1 && { top_p }),
      ...(top_k > 0 && { top_k }),
      ...(min_p !== 0 && { min_p }),
      ...(repetition_penalty !== 1 && { repetition_penalty }),
      ...(presence_penalty !== 0 && { presence_penalty }),
      ...(frequency_penalty !== 0 && { frequency_penalty }),
      ...(sampling.stop.length > 0 && { stop: sampling.stop }),
      ...(tools?.length && { tools }),
      ...extra,
      ...(variables && { chat_template_kwargs: { ...(extra.chat_template_kwargs as object | undefined), ...variables } }),
    }
  }

  async #connect(): Promise<OpenAI> {
    const { OpenAI: Client } = await import('openai')
    const { url, keyVar, headers } = this.#endpoint
    // An empty OPENAI_API_KEY counts as not set.
    const apiKey = process.env[keyVar ?? 'OPENAI_API_KEY'] || 'none'
    const { retries: maxRetries = 4, timeoutSeconds = 600 } = this.#options
    const timeout = timeoutSeconds * 1000
    return new Client({ apiKey, baseURL: url, maxRetries, timeout, defaultHeaders: headers, fetch: fetchWhole })
  }
}
