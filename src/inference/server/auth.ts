/**
 * Authentication. Keys are compared in constant time. On loopback, where no key is needed, web pages must be kept out: a page in a browser can send
 * requests there, through a host name that it makes resolve to 127.0.0.1 (DNS rebinding), or blindly (a form). So the Host header must name this
 * machine, and a request from a page (it has an Origin header) is refused unless that origin is allowed.
 */
import type { MiddlewareHandler } from 'hono'
import { digest, isKnown, isLoopback } from '../../common/servers.ts'
import { HttpError } from './errors.ts'

/** Paths that need no key: they tell whether the server is up. */
const open = new Set(['/health', '/ping'])

/** Checks `Authorization: Bearer KEY` for all paths but /health and /ping. Without keys, everyone is admitted. */
export function requireKey(keys: readonly string[]): MiddlewareHandler {
  const known = keys.map(digest)
  return async (context, next) => {
    if (known.length > 0 && !open.has(context.req.path)) {
      const [, given] = /^Bearer\s+(.+)$/i.exec(context.req.header('authorization') ?? '') ?? []
      if (!isKnown(given, known)) {
        const words =
          given === undefined ? 'An API key is needed: send the header Authorization: Bearer KEY.' : 'The API key is wrong.'
        throw new HttpError(401, words, { headers: { 'www-authenticate': 'Bearer' } })
      }
    }
    await next()
  }
}

/**
 * Refuses requests from pages that are not allowed, and requests with a Host name other than this machine's.
 * @param options.anyName whether to allow every Host name: if a key is needed, which no page has. A proxy in front (Caddy, a tunnel) may then keep
 * its own name.
 */
export function guardBrowsers(options: { anyName: boolean; origins: readonly string[] }): MiddlewareHandler {
  const { anyName, origins } = options
  const any = origins.includes('*')
  return async (context, next) => {
    const host = context.req.header('host')
    if (!anyName && (host === undefined || !isLoopback(host.replace(/:\d+$/, '')))) {
      throw new HttpError(
        403,
        'The Host header does not name this machine; without a key (--api-key or DAWN_RL_API_KEY) this server answers only to localhost.',
      )
    }
    const origin = context.req.header('origin')
    if (origin === undefined) return await next()
    if (!any && !origins.includes(origin)) {
      throw new HttpError(403, 'Requests from web pages are refused; allow their origin with --allowed-origins.')
    }
    context.header('access-control-allow-origin', any ? '*' : origin)
    context.header('vary', 'Origin')
    if (context.req.method === 'OPTIONS') {
      context.header('access-control-allow-methods', 'GET, POST')
      context.header(
        'access-control-allow-headers',
        context.req.header('access-control-request-headers') ?? 'authorization, content-type',
      )
      return context.body(null, 204)
    }
    await next()
  }
}
