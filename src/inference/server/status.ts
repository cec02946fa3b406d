/** Routes about the server itself: health, models, load. */
import type { Context } from 'hono'
import { HttpError } from './errors.ts'
import type { App, ServerContext } from './parts.ts'
import { modelOf, now } from './route.ts'

/** Adds /health, /ping, /version, /load, /v1/models, also of one name, and /metrics. */
export function addStatus(app: App, server: ServerContext): void {
  const { engine, parts, metrics } = server
  const created = now()

  const health = (context: Context) => {
    if (server.failuresInARow >= 3) throw new HttpError(503, 'The engine is failing; the log of the server says why.')
    return context.body(null, 200)
  }
  app.get('/health', health)
  app.on(['GET', 'POST'], '/ping', health)
  app.get('/version', (context: Context) => context.json({ version: parts.version }))
  app.get('/load', (context: Context) => context.json({ server_load: metrics.load }))

  const models = () => {
    const common = { object: 'model', created, owned_by: 'dawn-rl' }
    const bases = parts.names.map((id) => ({ ...common, id, root: parts.root, parent: null, max_model_len: engine.maxLength }))
    if (parts.baseName !== undefined) bases.push({ ...bases[0], id: parts.baseName })
    const adapters = engine.adapters.list().map(({ name, path }) => ({ ...common, id: name, root: path, parent: parts.names[0] }))
    return [...bases, ...adapters]
  }
  app.get('/v1/models', (context: Context) => context.json({ object: 'list', data: models() }))
  // A name may have slashes, which clients send as they are or escaped.
  app.get('/v1/models/:name{.+}', (context: Context) => {
    const { model } = modelOf(server, context.req.param('name'))
    return context.json(models().find(({ id }) => id === model))
  })

  app.get('/metrics', (context: Context) => {
    const adapters = { names: engine.adapters.list().map(({ name }) => name), most: parts.maxAdapters }
    const page = metrics.text(engine.stats(), parts.names[0], adapters)
    return context.body(page, 200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' })
  })
}
