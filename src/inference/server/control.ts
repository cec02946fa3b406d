/** Routes for trainers, which pause the engine, clear its cache, and change its weights. By default only on loopback (devMode). */
import type { Context } from 'hono'
import { UserError } from '../../common/errors.ts'
import type { PauseMode } from '../types.ts'
import { pathUnderRoot } from './adapters.ts'
import { badRequest } from './errors.ts'
import type { App, ServerContext } from './parts.ts'
import { rpcBody, weightVersionBody } from './schemas/control.ts'

const modes: readonly string[] = ['abort', 'wait', 'keep']

export function addControl(app: App, server: ServerContext): void {
  const { engine, parts, options, weightNames } = server
  /** One change of the weights at a time. */
  let changing: Promise<unknown> = Promise.resolve()

  app.post('/pause', async (context: Context) => {
    const waits = context.req.query('wait_for_inflight_requests') === 'true'
    const mode = context.req.query('mode') ?? (waits ? 'wait' : 'abort')
    if (!modes.includes(mode)) throw badRequest(`mode: it must be one of ${modes.join(', ')}.`, 'mode')
    await engine.pause(mode as PauseMode)
    if (mode !== 'keep' && context.req.query('clear_cache') !== 'false') engine.resetPrefixCache()
    // A resume that arrived while this waited has cancelled the pause.
    return context.json({ status: engine.paused ? 'paused' : 'resumed' })
  })

  app.post('/resume', (context: Context) => {
    engine.resume()
    return context.json({ status: 'resumed' })
  })

  app.get('/is_paused', (context: Context) => context.json({ is_paused: engine.paused }))

  app.post('/reset_prefix_cache', (context: Context) => {
    engine.resetPrefixCache()
    return context.json({ success: true })
  })

  app.post('/collective_rpc', async (context: Context) => {
    const { method, args, kwargs } = await server.bodies.read(context, rpcBody)
    if (method !== 'reload_weights')
      throw badRequest(`method: ${JSON.stringify(method.slice(0, 100))} is not supported, only reload_weights is.`, 'method')
    if (!parts.reloadWeights)
      throw badRequest('method: this server belongs to a training run, and only the run changes its weights.', 'method')
    // An unknown field for the folder would be ignored: the model's own weights would be reloaded, and success reported.
    const other = Object.entries(kwargs ?? {}).find(([key, value]) => key !== 'weights_path' && value !== null)?.[0]
    if (other !== undefined || (args?.length ?? 0) > 0) {
      const [field, param] = other === undefined ? ['args', 'args'] : [`kwargs.${other.slice(0, 100)}`, 'kwargs']
      throw badRequest(`${field}: reload_weights takes only kwargs.weights_path. Leave this out.`, param)
    }
    const given = kwargs?.weights_path
    if (given !== undefined && given !== null && typeof given !== 'string')
      throw badRequest('kwargs.weights_path: it must be a path.', 'kwargs')
    const dir = typeof given === 'string' ? await pathUnderRoot(options.adapterRoot, given, 'kwargs.weights_path') : undefined
    const { reloadWeights } = parts
    const change = changing.then(() => reloadWeights(dir))
    changing = change.catch(() => {})
    try {
      await change
    } catch (error) {
      if (error instanceof UserError) throw badRequest(error.message, 'kwargs.weights_path')
      throw error
    }
    // Failures of the old weights say nothing about these.
    server.failuresInARow = 0
    parts.log.info({ path: dir ?? parts.root, version: engine.version }, 'weights reloaded')
    return context.json({ results: [null] })
  })

  app.post('/update_weight_version', async (context: Context) => {
    const { new_version } = await server.bodies.read(context, weightVersionBody)
    weightNames.set(engine.version, new_version)
    // Keeps only names that running requests may still use.
    for (const version of weightNames.keys()) if (weightNames.size > 1000) weightNames.delete(version)
    return context.json({ success: true, new_version })
  })

  app.get('/weight_info', (context: Context) => {
    return context.json({ weight_version: weightNames.get(engine.version) ?? String(engine.version) })
  })
}
