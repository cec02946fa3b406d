/** `fetch` for answers that take their time. */
import { request as requestHttp, type IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import { Readable } from 'node:stream'

/**
 * As `fetch`, without limits of its own: Node's ends a request whose answer, or whose next piece, has not come after five minutes, whatever limit the client
 * was given, and a completion may wait longer than that for its turn. Each request has its own connection, and redirects are not followed.
 */
export async function patientFetch(...asked: Parameters<typeof fetch>): Promise<Response> {
  const { url, method, headers, signal, body } = new Request(...asked)
  const sent = body === null ? undefined : Buffer.from(await new Response(body).arrayBuffer())
  const request = url.startsWith('https:') ? requestHttps : requestHttp
  const incoming = await new Promise<IncomingMessage>((resolve, reject) => {
    const outgoing = request(url, { method, headers: Object.fromEntries(headers), signal, agent: false }, resolve)
    outgoing.on('error', reject)
    // Of a machine that is gone without a word one hears in this way.
    outgoing.setSocketKeepAlive(true, 30_000)
    outgoing.end(sent)
  })
  const { statusCode: status = 500, statusMessage: statusText } = incoming
  const known = new Headers()
  for (const [name, values = []] of Object.entries(incoming.headersDistinct))
    for (const value of values) known.append(name, value)
  const hasBody = status !== 204 && status !== 304 && method !== 'HEAD'
  if (!hasBody) incoming.resume()
  return new Response(hasBody ? (Readable.toWeb(incoming) as ReadableStream<Uint8Array>) : null, {
    status,
    statusText,
    headers: known,
  })
}
