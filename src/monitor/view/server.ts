/**
 * The server of `node cli.js view`: serves a folder of runs as a page and as JSON (types.ts). It only reads, answers only GET, and needs no network.
 * The caller provides the tokenizer, as this room must not import it.
 */
import { randomBytes } from 'node:crypto'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { resolve } from 'node:path'
import { getRequestListener } from '@hono/node-server'
import { Hono, type Context } from 'hono'
import { messageOf, UserError } from '../../common/errors.ts'
import { isLoopback, listen } from '../../common/servers.ts'
import { addApi } from './api.ts'
import { Events } from './events.ts'
import { guard, ViewError } from './guard.ts'
import type { TokenBytes } from './rollout.ts'
import { isFolder, Runs } from './runs.ts'
import { contentSecurityPolicy, StaticFiles } from './static.ts'
import type { ErrorAnswer } from './types.ts'

export interface ViewOptions {
  /** A folder with runs, up to 4 levels deep, or the folder of one run. */
  outputs: string
  /** Default 127.0.0.1. Any other address needs a key. */
  host?: string
  /** Default 0: any free port. */
  port?: number
  /** Default: a random one. */
  key?: string
  /** Finds the tokenizer of a run's model; or returns a sentence that says why there is none. */
  tokenizer?: (model: string | null, runFolder: string) => Promise<TokenBytes | string>
  /** Milliseconds between two looks at the files while a page is open. Default 1000. */
  everyMs?: number
  /** Milliseconds after which a search of rollouts answers with what it has found. Default 2000. */
  searchMs?: number
  /** Called for internal errors. Default: prints to standard error. */
  log?: (line: string) => void
}

export interface RunningView {
  /** The address to open, with the key. */
  url: string
  /** The address without the key. */
  origin: string
  key: string
  close(): Promise<void>
}

/** @throws UserError for a missing folder, an address that needs a key without one, or an address or port that can't be used */
export async function startView(options: ViewOptions): Promise<RunningView> {
  const { host = '127.0.0.1', log = (line) => console.error(line) } = options
  const root = resolve(options.outputs)
  if (!(await isFolder(root)))
    throw new UserError(`There is no folder ${options.outputs}: name one that holds runs, such as outputs/.`)
  const loopback = isLoopback(host)
  if (!loopback && !options.key)
    throw new UserError(
      `${host} can be reached from other machines, so it needs a key of your own: set --key or DAWN_RL_VIEW_KEY.`,
    )
  const key = options.key ?? randomBytes(18).toString('base64url')
  const runs = new Runs(root)
  const events = new Events(runs, options.everyMs ?? 1000)
  const app = new Hono()
  let port = 0
  app.use(guard({ key, loopback, port: () => port }))
  addApi(app, { runs, events, tokenizer: options.tokenizer, searchMs: options.searchMs ?? 2000 })
  addStatic(app)
  app.notFound((context) => fail(context, 404, `There is nothing at ${context.req.path.slice(0, 200)}.`))
  app.onError((error, context) => {
    if (error instanceof ViewError) return fail(context, error.status, error.message)
    log(`${context.req.path.slice(0, 200)}: ${error instanceof Error ? (error.stack ?? error.message) : messageOf(error)}`)
    return fail(context, 500, 'Something went wrong in the viewer; its terminal says what.')
  })
  const http = httpServer(app)
  await listen('viewer', http, host, options.port ?? 0)
  port = (http.address() as AddressInfo).port
  const origin = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
  return {
    url: `${origin}/?key=${encodeURIComponent(key)}`,
    origin,
    key,
    close: async () => {
      events.close()
      const closed = new Promise<void>((done) => http.close(() => done()))
      http.closeAllConnections()
      await closed
    },
  }
}

function addStatic(app: Hono): void {
  const files = new StaticFiles()
  app.get('*', async (context, next) => {
    const file = files.get(context.req.path)
    if (!file) return await next()
    if (file.type.startsWith('text/html'))
      context.header('content-security-policy', contentSecurityPolicy(Buffer.from(file.body).toString('utf8')))
    context.header('content-type', file.type)
    context.header('cache-control', 'no-cache')
    return context.body(file.body)
  })
}

function fail(context: Context, status: ViewError['status'] | 500, message: string): Response {
  return context.json({ error: { message } } satisfies ErrorAnswer, status)
}

function httpServer(app: Hono): Server {
  const listener = getRequestListener(app.fetch, {
    overrideGlobalObjects: false,
    // An invalid request: Host and path do not form a URL.
    errorHandler: () =>
      new Response(JSON.stringify({ error: { message: 'The request is malformed.' } }), {
        status: 400,
        headers: { 'content-type': 'application/json', connection: 'close' },
      }),
  })
  const http = createServer({ headersTimeout: 10_000, requestTimeout: 15_000, maxHeaderSize: 64 << 10 }, (incoming, outgoing) => {
    void listener(incoming, outgoing)
  })
  http.maxConnections = 256
  return http
}
