/**
 * Serves the policy to Python environments: /v1/chat/completions on the loopback interface, with an API key of its own. It is not meant for other
 * clients: each call belongs to a running rollout, uses that rollout's place at the sampler, and is answered by its `ChatClient`, whichever backend
 * samples. Answers contain token ids and log-probabilities in vLLM's format.
 */
import { randomBytes } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { messageOf } from '../../common/errors.ts'
import { jsonWithTools } from '../../common/json-floats.ts'
import { digest, isKnown } from '../../common/servers.ts'
import type { SamplingParams } from '../../common/types.ts'
import { ContextFullError } from '../chat.ts'
import type { Answered, Asked, Calls } from './calls.ts'
import { messagesOf, toolOf, type LooseTool } from './types.ts'

/** Field in a call's body: id of the environment server's request that the call belongs to. */
export const REQUEST_FIELD = 'dawn_rl_request'
/** Header of a call: the environment server's id of the rollout. */
export const SESSION_HEADER = 'X-Session-ID'
/** Maximum size of a call in bytes. */
const MOST_BYTES = 64 * 2 ** 20

type Body = Record<string, unknown>

/** The HTTP server that answers the calls of Python environments. */
export class PolicyEndpoint {
  readonly url: string
  readonly key: string
  readonly #http: Server
  readonly #calls = new Map<string, Calls>()

  static async open(): Promise<PolicyEndpoint> {
    const key = randomBytes(24).toString('hex')
    // No time limits, as calls wait for their place at the sampler and clients keep their connections open.
    const http = createServer({ keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0, connectionsCheckingInterval: 600_000 })
    await new Promise<void>((resolve, reject) => {
      http.once('error', reject)
      http.listen(0, '127.0.0.1', resolve)
    })
    return new PolicyEndpoint(http, key)
  }

  private constructor(http: Server, key: string) {
    this.#http = http
    this.key = key
    this.url = `http://127.0.0.1:${(http.address() as AddressInfo).port}/v1`
    http.on('request', (request, response) => void this.#serve(request, response))
  }

  /** Accepts calls that belong to a request, until `forget`. */
  expect(request: string, calls: Calls): void {
    this.#calls.set(request, calls)
  }

  forget(request: string): void {
    this.#calls.delete(request)
  }

  async close(): Promise<void> {
    this.#http.closeAllConnections()
    await new Promise<void>((resolve) => this.#http.close(() => resolve()))
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController()
    response.once('close', () => {
      if (!response.writableFinished) gone.abort()
    })
    try {
      const { status, body } = await this.#answer(request, gone.signal)
      send(response, status, body)
    } catch (error) {
      // Clients do not retry after status 400. verifiers recognises a full context by these words.
      const full = error instanceof ContextFullError ? "This model's maximum context length is reached: " : ''
      send(response, 400, fault(full + messageOf(error)))
    }
  }

  async #answer(request: IncomingMessage, signal: AbortSignal): Promise<{ status: number; body: object }> {
    if (!isKnown(request.headers.authorization, [digest(`Bearer ${this.key}`)]))
      return { status: 401, body: fault('The API key is not the one of this run.') }
    const path = request.url?.split('?')[0]
    if (path === '/v1/models') return { status: 200, body: { object: 'list', data: [{ id: 'policy', object: 'model' }] } }
    if (path !== '/v1/chat/completions' || request.method !== 'POST')
      return { status: 404, body: fault(`${request.method} ${path}: only chat completions are served here.`) }
    const body = jsonWithTools(await textOf(request)) as Body
    const name = body[REQUEST_FIELD]
    const calls = typeof name === 'string' ? this.#calls.get(name) : undefined
    if (!calls) throw new Error('the call does not belong to any rollout in progress')
    const session = request.headers[SESSION_HEADER.toLowerCase()]
    const answered = await calls.answer(typeof session === 'string' ? session : '', askedOf(body), signal)
    return { status: 200, body: completionOf(answered, String(body.model)) }
  }
}

function send(response: ServerResponse, status: number, body: object): void {
  if (response.destroyed) return
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

const fault = (message: string) => ({ error: { message, type: 'invalid_request_error', code: 400 } })

async function textOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = []
  let bytes = 0
  for await (const part of request as AsyncIterable<Buffer>) {
    bytes += part.length
    if (bytes > MOST_BYTES) throw new Error('the call is too large')
    parts.push(part)
  }
  return Buffer.concat(parts).toString()
}

/** Sampling parameters that environments may change. The others keep the run's values, since the log-probabilities are those of the run's distribution. */
const OWN = ['top_p', 'top_k', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'min_tokens'] as const
/** Fields that are refused, because ignoring them would go unnoticed. */
const REFUSED = ['response_format', 'guided_json', 'guided_regex', 'guided_choice', 'guided_grammar', 'structured_outputs', 'logit_bias', 'stream', 'functions'] as const // prettier-ignore

/** Reads a call. @throws Error for anything unsupported, in words that help the environment's author */
function askedOf(body: Body): Asked {
  const refused = REFUSED.find((field) => body[field] !== undefined && body[field] !== null && body[field] !== false)
  if (refused) throw new Error(`the environment requests ${refused}, which is not supported for Python environments in a run`)
  if (body.n !== undefined && body.n !== null && body.n !== 1)
    throw new Error(`the environment requests n = ${JSON.stringify(body.n)}; n must be 1`)
  const choice = body.tool_choice
  if (choice !== undefined && choice !== null && choice !== 'auto')
    throw new Error(
      `the environment requests tool_choice ${JSON.stringify(choice)}; only "auto" is supported for Python environments in a run`,
    )
  const variables = body.chat_template_kwargs ?? undefined
  if (variables !== undefined && (typeof variables !== 'object' || Array.isArray(variables)))
    throw new Error(`the environment sends chat_template_kwargs ${JSON.stringify(variables)}; it must be an object`)
  const sampling: Partial<SamplingParams> = {}
  for (const field of OWN) if (typeof body[field] === 'number') sampling[field] = body[field]
  const most = body.max_completion_tokens ?? body.max_tokens
  if (typeof most === 'number') sampling.max_tokens = most
  if (typeof body.stop === 'string') sampling.stop = [body.stop]
  else if (Array.isArray(body.stop)) sampling.stop = body.stop as string[]
  if (typeof body.temperature === 'number') sampling.temperature = body.temperature
  const given = Array.isArray(body.tools) ? (body.tools as { function: LooseTool }[]) : []
  const tools = given.length > 0 ? given.map((tool) => toolOf(tool.function)) : undefined
  return { messages: messagesOf(body.messages, 'the call'), tools, variables: variables as Asked['variables'], sampling }
}

/**
 * A completion in vLLM's format, with token ids (return_token_ids) and logprobs. They are left out if the tokens are unknown (id -1), as when an
 * endpoint is evaluated.
 */
function completionOf({ id, message, completion }: Answered, model: string): object {
  const { promptIds, ids, logprobs, finishReason } = completion
  const calls = message.tool_calls ?? []
  const finish = calls.length > 0 && finishReason === 'stop' ? 'tool_calls' : finishReason
  const known = !ids.includes(-1)
  const entries = ids.map((token, i) => ({
    token: `token_id:${token}`,
    logprob: Math.max(logprobs[i], -9999),
    bytes: null,
    top_logprobs: [],
  }))
  return {
    id,
    object: 'chat.completion',
    created: Math.floor(Date.now() / 1000),
    model,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: message.content === '' && calls.length > 0 ? null : message.content,
          ...(calls.length > 0 ? { tool_calls: calls } : {}),
        },
        finish_reason: finish,
        logprobs: known ? { content: entries, refusal: null } : null,
        token_ids: known ? ids : null,
      },
    ],
    usage: { prompt_tokens: promptIds.length, completion_tokens: ids.length, total_tokens: promptIds.length + ids.length },
    prompt_token_ids: known ? promptIds : null,
  }
}
