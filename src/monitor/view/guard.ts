/**
 * Access control. Runs contain prompts, answers and configurations, so every request needs the key, even on loopback, which other users of the machine
 * can reach.
 * The key is in the URL once and becomes a cookie that scripts cannot read and other sites do not send; programs send it as a header.
 */
import { createHmac } from 'node:crypto'
import type { MiddlewareHandler } from 'hono'
import { CLI } from '../../common/commands.ts'
import { digest, isKnown, isLoopback } from '../../common/servers.ts'

/** An error with an HTTP status. */
export class ViewError extends Error {
  override name = 'ViewError'
  readonly status: 400 | 401 | 403 | 404 | 405
  constructor(status: ViewError['status'], message: string) {
    super(message)
    this.status = status
  }
}

/** Headers of every answer. */
const headers = {
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cross-origin-opener-policy': 'same-origin',
  'cache-control': 'no-store',
}

/**
 * Removes the key from the page's address and history and keeps the # part. A script, not a redirect: after a click on another site (a terminal in a
 * browser) the redirected request would lack the SameSite=Strict cookie.
 */
const exchanged = `<!doctype html><meta charset="utf-8"><title>dawn-rl</title><script>location.replace(location.pathname + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0;url=./"></noscript>`
const exchangedPolicy = `default-src 'none'; script-src 'sha256-${digest('location.replace(location.pathname + location.hash)').toString('base64')}'`

/** All checks of a request, before anything else. `port` is known once the server listens. */
export function guard(options: { key: string; loopback: boolean; port: () => number }): MiddlewareHandler {
  const { key, loopback, port } = options
  const keys = [digest(key)]
  // Not the key itself: the cookie is valid for this server only, and only with this key.
  const ticket = createHmac('sha256', key).update('cookie of dawn-rl view').digest('hex')
  const tickets = [digest(ticket)]
  return async (context, next) => {
    const { req } = context
    for (const [name, value] of Object.entries(headers)) context.header(name, value)
    const host = req.header('host')
    if (host === undefined || (loopback && !isLoopback(host.replace(/:\d+$/, ''))))
      throw new ViewError(403, 'The Host header does not name this machine; this server answers only on localhost.')
    const origin = req.header('origin')
    if (origin !== undefined && origin !== `http://${host}`)
      throw new ViewError(403, 'Requests from other web pages are refused.')
    if (req.method !== 'GET') {
      context.header('allow', 'GET')
      throw new ViewError(405, `This server changes nothing: ${req.method} is refused, only GET is answered.`)
    }
    // Cookies ignore ports, so each server on this machine uses its own cookie name.
    const cookie = `dawn_rl_view_${port()}`
    const given = req.query('key')
    if (given !== undefined && !req.path.startsWith('/api/')) {
      if (!isKnown(given, keys))
        throw new ViewError(401, `The key in the address is wrong: take the one that \`${CLI} view\` printed.`)
      context.header('set-cookie', `${cookie}=${ticket}; HttpOnly; SameSite=Strict; Path=/`)
      context.header('content-security-policy', exchangedPolicy)
      return context.html(exchanged)
    }
    const bearer = /^Bearer\s+(.+)$/i.exec(req.header('authorization') ?? '')?.[1]
    const ours = new RegExp(`(?:^|;\\s*)${cookie}=([0-9a-f]+)`).exec(req.header('cookie') ?? '')?.[1]
    if (!isKnown(bearer, keys) && !isKnown(ours, tickets)) {
      context.header('www-authenticate', 'Bearer')
      const words = `A key is needed: open the address that \`${CLI} view\` printed, or send it as Authorization: Bearer KEY.`
      throw new ViewError(401, bearer === undefined ? words : 'The key is wrong.')
    }
    await next()
  }
}
