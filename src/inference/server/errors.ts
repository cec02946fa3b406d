/**
 * Errors in OpenAI's form with vLLM's types: { error: { message, type, param, code } }, where `code` is the HTTP status. A client's mistake names the
 * field. An internal error is a 500 with an id; the log has the stack under that id, which clients never see.
 */
import { randomUUID } from 'node:crypto'
import { UserError } from '../../common/errors.ts'
import { MixedWeightsError } from '../../model/decoder/reload.ts'

const types: Record<number, string> = {
  400: 'BadRequestError',
  401: 'AuthenticationError',
  403: 'PermissionDeniedError',
  404: 'NotFoundError',
  405: 'MethodNotAllowedError',
  408: 'RequestTimeoutError',
  413: 'PayloadTooLargeError',
  429: 'RateLimitError',
  500: 'InternalServerError',
  503: 'ServiceUnavailableError',
}

interface ErrorBody {
  error: { message: string; type: string; param: string | null; code: number }
}

/** An error with an HTTP status. */
export class HttpError extends Error {
  override name = 'HttpError'
  readonly status: number
  readonly param: string | null
  readonly headers: Record<string, string>
  constructor(status: number, message: string, options: { param?: string; headers?: Record<string, string> } = {}) {
    super(message)
    this.status = status
    this.param = options.param ?? null
    this.headers = options.headers ?? {}
  }

  get body(): ErrorBody {
    const { message, param, status } = this
    return { error: { message, type: types[status] ?? 'APIError', param, code: status } }
  }
}

/** A bad request: 400, with the field. */
export function badRequest(message: string, param?: string): HttpError {
  return new HttpError(400, message, { param })
}

/** A field that this server does not support. */
export function unsupported(field: string, why: string): HttpError {
  return badRequest(`${field}: ${why}. Leave it out.`, field)
}

/** Called for internal errors, with the id that the client sees. */
type ReportFault = (id: string, error: unknown) => void

/** Turns anything thrown into an answer. */
export function asHttpError(error: unknown, report: ReportFault): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof UserError) return badRequest(error.message, fieldOf(error.message))
  if (error instanceof MixedWeightsError) return new HttpError(503, error.message)
  const id = randomUUID()
  report(id, error)
  return new HttpError(500, `Something went wrong in the server; its log has the details under ${id}.`)
}

/** The field of an error about a value, which begins with its name: "max_tokens is 0; ...". */
function fieldOf(message: string): string | undefined {
  const name = /^(?:sampling_params\.)?([a-z]+(?:_[a-z]+)*)(?:\[\d+\])?(?: is | names | of token |: )/.exec(message)?.[1]
  return name && knownFields.has(name) ? name : undefined
}

const knownFields = new Set([
  'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'max_tokens', 'min_tokens', 'seed',
  'stop', 'stop_token_ids', 'logit_bias', 'allowed_token_ids', 'logprobs', 'top_logprobs', 'prompt_logprobs', 'response_format', 'structured_outputs',
  'tools', 'tool_choice', 'lora_name', 'lora_path', 'messages', 'prompt',
]) // prettier-ignore
