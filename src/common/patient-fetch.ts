/** A `fetch` for answers that take a long time. */
import { Agent as AgentHttp, globalAgent, request as requestHttp, type AgentOptions, type IncomingMessage } from 'node:http'
import { Agent as AgentHttps, request as requestHttps } from 'node:https'
import { Readable } from 'node:stream'

/** Maximum number of redirects that are followed, as in `fetch`. */
const REDIRECTS = 20
/** Headers that must not be sent to another server after a redirect. */
const SECRETS = ['authorization', 'cookie', 'proxy-authorization']
const THIS_MACHINE = /^(localhost|127(\.\d+){3}|\[::1\])$/u
/** The option exists, but is not declared in the types. */
const { proxyEnv } = (globalAgent as unknown as { options: AgentOptions }).options
/** Whether Node was told to use the proxies that the environment names. */
export const usesProxies = proxyEnv !== undefined

/**
 * Like `fetch`, but without time limits of its own. Node's `fetch` ends a request if the answer, or the next piece of it, takes more than five
 * minutes, whatever limit the client was given, and a completion may wait longer than that for its turn. Each request has its own connection. As in
 * `fetch`, redirects are followed, and proxies from the environment are used if Node is told to (NODE_USE_ENV_PROXY), but never for this machine,
 * where a run's own servers are.
 */
export async function patientFetch(...asked: Parameters<typeof fetch>): Promise<Response> {
  const request = new Request(...asked)
  const { redirect } = request
  const signal = signalOf(asked)
  const headers = new Headers(request.headers)
  // This function does not decompress answers.
  headers.set('accept-encoding', 'identity')
  let { url, method } = request
  let body = request.body === null ? undefined : Buffer.from(await request.arrayBuffer())
  for (let redirects = 0; ; redirects++) {
    const incoming = await send(new URL(url), { method, headers, signal, body })
    const { statusCode = 500 } = incoming
    const place = [301, 302, 303, 307, 308].includes(statusCode) ? incoming.headers.location : undefined
    if (place === undefined || redirect === 'manual') return responseOf(incoming, method)
    incoming.destroy()
    if (redirect === 'error' || redirects === REDIRECTS)
      throw new TypeError(`${url} redirects to ${place}${redirect === 'error' ? '' : `, after ${REDIRECTS} redirects`}`)
    const next = new URL(place, url)
    if (!/^https?:$/u.test(next.protocol)) throw new TypeError(`${url} redirects to ${place}, which is not an HTTP address`)
    if (next.origin !== new URL(url).origin) for (const name of SECRETS) headers.delete(name)
    if (statusCode === 303 ? method !== 'HEAD' : statusCode < 303 && method === 'POST') {
      method = 'GET'
      body = undefined
      for (const name of Array.from(headers.keys())) if (name.startsWith('content-')) headers.delete(name)
    }
    url = next.href
  }
}

/** The caller's own signal. That of a new Request follows it only until the Request is garbage-collected, and an abort would then go unnoticed. */
const signalOf = ([input, init]: Parameters<typeof fetch>): AbortSignal | undefined =>
  init?.signal ?? (input instanceof Request ? input.signal : undefined)

/**
 * Like `patientFetch`, but resolves only when the whole body has arrived. A client's time limit and retries cover the promise that its `fetch`
 * returns, which normally ends at the headers. This way they also cover a body that never ends or breaks off.
 */
export async function fetchWhole(...asked: Parameters<typeof fetch>): Promise<Response> {
  const response = await patientFetch(...asked)
  const body = await response.arrayBuffer().catch((error: unknown) => {
    // If a body is aborted, Node reports a lost connection.
    const signal = signalOf(asked)
    throw signal?.aborted ? signal.reason : error
  })
  // `Response` refuses even an empty body for statuses that have none.
  return new Response(body.byteLength > 0 ? body : null, response)
}

async function send(
  url: URL,
  { method, headers, signal, body }: { method: string; headers: Headers; signal: AbortSignal | undefined; body?: Buffer },
): Promise<IncomingMessage> {
  const [request, Agent] = url.protocol === 'https:' ? [requestHttps, AgentHttps] : [requestHttp, AgentHttp]
  const agent = new Agent({ proxyEnv: THIS_MACHINE.test(url.hostname) ? undefined : proxyEnv })
  return await new Promise((resolve, reject) => {
    const outgoing = request(url, { method, headers: Object.fromEntries(headers), signal, agent }, resolve)
    outgoing.on('error', reject)
    // Detects that the other machine has vanished without closing the connection.
    outgoing.setSocketKeepAlive(true, 30_000)
    outgoing.end(body)
  })
}

function responseOf(incoming: IncomingMessage, method: string): Response {
  const { statusCode: status = 500, statusMessage: statusText } = incoming
  const headers = new Headers()
  for (const [name, values = []] of Object.entries(incoming.headersDistinct))
    for (const value of values) headers.append(name, value)
  const hasBody = ![204, 205, 304].includes(status) && method !== 'HEAD'
  if (!hasBody) incoming.resume()
  return new Response(hasBody ? (Readable.toWeb(incoming) as ReadableStream<Uint8Array>) : null, { status, statusText, headers })
}
