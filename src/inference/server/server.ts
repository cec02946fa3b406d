/**
 * The OpenAI-compatible server over an engine: combines routes, guards and limits, from opening the port to the last request. It does not depend on
 * the command line; a training run can start one too.
 */
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { getRequestListener } from '@hono/node-server'
import { Hono, type Context } from 'hono'
import type { ContentfulStatusCode } from 'hono/utils/http-status'
import { UserError } from '../../common/errors.ts'
import { isLoopback, listen } from '../../common/servers.ts'
import type { ServingEngine } from '../types.ts'
import { addAdapters } from './adapters.ts'
import { guardBrowsers, requireKey } from './auth.ts'
import { BodyReader } from './body.ts'
import { addChat } from './chat.ts'
import { addCompletions } from './completions.ts'
import { addControl } from './control.ts'
import { asHttpError, HttpError } from './errors.ts'
import { addGenerate } from './generate.ts'
import { Gate, shuttingDown } from './limits.ts'
import { ServerMetrics } from './metrics.ts'
import type { App, ServerContext, ServerOptions, ServerParts } from './parts.ts'
import { addResponses } from './responses.ts'
import { addStatus } from './status.ts'
import { addTokens } from './tokens.ts'

export interface RunningServer {
  /** Without a slash at its end. */
  url: string
  /** Refuses new requests, gives running ones this many seconds to finish (default 0), aborts the rest, and closes the port. */
  close(drainSeconds?: number): Promise<void>
}

/**
 * Checks who could reach the server, and with which keys.
 * @returns the address, without brackets, and whether only this machine reaches it
 * @throws UserError for an address that needs a key if there is none, or for a key that no request can carry
 */
export function checkAccess(options: ServerOptions): { host: string; loopback: boolean } {
  const host = (options.host ?? '127.0.0.1').replace(/^\[|\]$/g, '')
  const loopback = isLoopback(host)
  if (!loopback && !options.apiKeys?.length) {
    throw new UserError(
      `${host} can be reached from other machines, so the server needs a key there: set --api-key or DAWN_RL_API_KEY.`,
    )
  }
  // Keys arrive in a header, which is printable ASCII and trimmed.
  if (options.apiKeys?.some((key) => !/^[!-~](?:[ -~]*[!-~])?$/.test(key))) {
    throw new UserError(
      'An API key is empty, begins or ends with a space, or has characters other than printable ASCII, so no request could carry it: choose another for --api-key or DAWN_RL_API_KEY.',
    )
  }
  return { host, loopback }
}

/**
 * Serves the engine. The engine stays open when the server closes.
 * @throws UserError for an address that needs a key if there is none, or for an address or port that can't be used
 */
export async function startServer(
  engine: ServingEngine,
  parts: ServerParts,
  options: ServerOptions = {},
): Promise<RunningServer> {
  const { host, loopback } = checkAccess(options)
  const server = contextOf(engine, parts, options)
  const app = appOf(server, options.devMode ?? loopback)
  const http = httpServer(app, server)
  await listen('server', http, host, options.port ?? 0)
  const { port } = http.address() as AddressInfo
  let closing: Promise<void> | undefined
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    close: (drainSeconds = 0) => (closing ??= close(http, server, drainSeconds)),
  }
}

function contextOf(engine: ServingEngine, parts: ServerParts, options: ServerOptions): ServerContext {
  const limits = { maxBytes: options.maxBodyBytes ?? 32 * 2 ** 20, ms: (options.bodySeconds ?? 30) * 1000 }
  const said = new Set<string>()
  const server: ServerContext = {
    engine,
    parts,
    options,
    gate: new Gate(options.maxHeld ?? 1024),
    metrics: new ServerMetrics(),
    bodies: new BodyReader(limits, (message) => parts.log.warn(message)),
    ending: new AbortController(),
    // vLLM's name for the initial weights. A training run has its own version numbers.
    weightNames: new Map(parts.reloadWeights ? [[engine.version, 'default']] : []),
    failuresInARow: 0,
    warnOnce: (message) => {
      if (!said.has(message)) parts.log.warn(message)
      said.add(message)
    },
    fault: (id, error) => {
      parts.log.error({ fault: id, stack: error instanceof Error ? error.stack : String(error) }, 'a request failed')
    },
  }
  return server
}

function appOf(server: ServerContext, devMode: boolean): App {
  const { apiKeys = [], allowedOrigins = [] } = server.options
  const app: App = new Hono()
  app.use(async (context, next) => {
    // Unknown paths share one name in the metrics; otherwise anyone could add names without limit.
    watch(context, server, (path) => (app.routes.some((route) => route.path === path) ? path : 'other'))
    await next()
  })
  app.use(guardBrowsers({ anyName: apiKeys.length > 0, origins: allowedOrigins }))
  // After the guard: an allowed page can read the answer only with the header that the guard sets.
  app.use(async (_, next) => {
    if (server.gate.draining) throw shuttingDown()
    await next()
  })
  app.use(requireKey(apiKeys))
  addStatus(app, server)
  addCompletions(app, server)
  addChat(app, server)
  addResponses(app, server)
  addGenerate(app, server)
  addTokens(app, server)
  addAdapters(app, server)
  if (devMode) addControl(app, server)
  app.notFound((context) => {
    const { path } = context.req
    const methods = app.routes.filter((route) => route.path === path && route.method !== 'ALL').map((route) => route.method)
    if (methods.length === 0) {
      const off = "this route is disabled; serve offers it on loopback or with --dev-mode, a training run's server never does"
      const words = !devMode && controlRoutes.has(path) ? off : 'there is no such route'
      return fail(context, new HttpError(404, `${context.req.method} ${path.slice(0, 200)}: ${words}.`))
    }
    const allow = [...new Set(methods)].join(', ')
    return fail(context, new HttpError(405, `${path} takes ${allow}, not ${context.req.method}.`, { headers: { allow } }))
  })
  app.onError((error, context) =>
    fail(
      context,
      asHttpError(error, (id, cause) => server.fault(id, cause)),
    ),
  )
  return app
}

const controlRoutes = new Set([
  '/pause',
  '/resume',
  '/is_paused',
  '/reset_prefix_cache',
  '/collective_rpc',
  '/update_weight_version',
  '/weight_info',
])

function fail(context: Context, error: HttpError): Response {
  for (const [name, value] of Object.entries(error.headers)) context.header(name, value)
  return context.json(error.body, error.status as ContentfulStatusCode)
}

/** Counts a request, and logs it when its answer was sent or its client is gone. */
function watch(context: Context, { metrics, parts }: ServerContext, handlerOf: (path: string) => string): void {
  const begin = performance.now()
  const { method, path } = context.req
  const { outgoing } = context.env as { outgoing: ServerResponse }
  // As in vLLM, only requests for the model count as load, not those for the server's state.
  const load = Number(method === 'POST' && !controlRoutes.has(path))
  metrics.load += load
  outgoing.once('close', () => {
    metrics.load -= load
    const gone = !outgoing.writableFinished
    const status = gone ? 499 : outgoing.statusCode
    metrics.answered(handlerOf(path), status)
    const line = {
      method,
      path: path.slice(0, 200),
      status,
      ms: Math.round(performance.now() - begin),
      ...(context.get('note') as object | undefined),
    }
    const often = path === '/health' || path === '/metrics' || path === '/ping'
    parts.log[often ? 'debug' : 'info'](line, gone ? 'the client went' : 'request')
  })
}

function httpServer(app: App, server: ServerContext): Server {
  const { options } = server
  const bodyMs = (options.bodySeconds ?? 30) * 1000
  const listener = getRequestListener(app.fetch, {
    overrideGlobalObjects: false,
    // An invalid request: Host and path do not form a URL.
    errorHandler: () => {
      const { body } = new HttpError(400, 'The request is malformed.')
      return new Response(JSON.stringify(body), {
        status: 400,
        headers: { 'content-type': 'application/json', connection: 'close' },
      })
    },
  })
  const http = createServer(
    {
      // Limits slow headers. Bodies have their own time limit, with a proper answer.
      headersTimeout: Math.min(20_000, bodyMs),
      requestTimeout: bodyMs + 5000,
      connectionsCheckingInterval: 1000,
      keepAliveTimeout: 10_000,
      maxHeaderSize: 16 * 2 ** 10,
      // The listener refuses a request without Host, with a body that clients can parse; Node would send none.
      requireHostHeader: false,
    },
    (incoming, outgoing) => void listener(incoming, outgoing),
  )
  http.maxConnections = options.maxConnections ?? 1024
  http.on('checkExpectation', (_, outgoing: ServerResponse) => {
    const { status, body } = new HttpError(417, 'Expect: only 100-continue is supported. Leave the header out.')
    outgoing.writeHead(status, { 'content-type': 'application/json', connection: 'close' }).end(JSON.stringify(body))
  })
  http.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => answerBroken(error, socket))
  return http
}

/** Answers invalid HTTP and headers that never become complete. */
function answerBroken(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy()
    return
  }
  const [status, words, said]: [number, string, string] =
    error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
      ? [408, 'Request Timeout', 'The request did not arrive in time.']
      : error.code === 'HPE_HEADER_OVERFLOW'
        ? [431, 'Request Header Fields Too Large', 'The headers are too large.']
        : [400, 'Bad Request', 'The request is malformed.']
  const body = JSON.stringify(new HttpError(status, said).body)
  const head = `HTTP/1.1 ${status} ${words}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n`
  socket.end(head + body)
}

async function close(http: Server, server: ServerContext, drainSeconds: number): Promise<void> {
  server.gate.drain()
  await server.gate.empty(drainSeconds * 1000)
  server.ending.abort()
  const closed = new Promise<void>((resolve) => http.close(() => resolve()))
  http.closeIdleConnections()
  // Answers being sent get a moment to finish.
  const timer = setTimeout(() => http.closeAllConnections(), 2000)
  await closed
  clearTimeout(timer)
  await server.gate.empty(10_000)
}
