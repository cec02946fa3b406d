import { causeOf } from '../../common/errors.ts'

/** JSON over HTTP for sinks: a response without success becomes an error with its text. */
export async function postJson<T>(
  url: string,
  body: unknown,
  options: { headers?: Record<string, string>; signal: AbortSignal; method?: string },
): Promise<T> {
  const { headers, signal, method = 'POST' } = options
  const response = await fetch(url, {
    method,
    signal,
    headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  }).catch((error: unknown) => {
    // fetch's own message is only 'fetch failed'.
    throw signal.aborted ? error : new Error(`${new URL(url).origin} cannot be reached: ${causeOf(error)}`, { cause: error })
  })
  const text = await response.text()
  if (!response.ok)
    throw new HttpError(response.status, `${new URL(url).pathname} answered ${response.status}: ${text.slice(0, 300)}`)
  return (text === '' ? {} : JSON.parse(text)) as T
}

/** A response with an error status. */
export class HttpError extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}
