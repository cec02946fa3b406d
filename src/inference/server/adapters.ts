/** /v1/load_lora_adapter and /v1/unload_lora_adapter. Folders must be below one root, so that a request cannot open any file of the machine. */
import { realpath } from 'node:fs/promises'
import { resolve, sep } from 'node:path'
import type { Context } from 'hono'
import { UserError } from '../../common/errors.ts'
import { badRequest, HttpError } from './errors.ts'
import type { App, ServerContext } from './parts.ts'
import { loadAdapterBody, unloadAdapterBody } from './schemas/control.ts'

/**
 * The real path of a folder that a request names, absolute or relative to the root.
 * @throws HttpError 400 for a folder that is not below the root (after following links), 404 for a missing one, 403 without a root
 */
export async function pathUnderRoot(root: string | undefined, path: string, field: string): Promise<string> {
  if (root === undefined) {
    throw new HttpError(
      403,
      `${field}: this server loads nothing at run time; serve does if started with --adapter-root, a training run's server never does.`,
      {
        param: field,
      },
    )
  }
  const outside = badRequest(`${field}: the folder must lie below the server's --adapter-root.`, field)
  if (path.includes('\0')) throw outside
  const real = await realpath(root)
  const isBelow = (folder: string, top: string) => folder.startsWith(top.endsWith(sep) ? top : top + sep)
  const wanted = resolve(real, path)
  // On Windows, c:\Adapters may be the same folder as C:\adapters; the comparison of real paths decides.
  const spelled = (folder: string) => (process.platform === 'win32' ? folder.toLowerCase() : folder)
  if (![real, resolve(root)].some((top) => isBelow(spelled(wanted), spelled(top)))) throw outside
  const found = await realpath(wanted).catch(() => undefined)
  if (found === undefined)
    throw new HttpError(404, `${field}: there is no such folder below the server's --adapter-root.`, { param: field })
  if (!isBelow(found, real)) throw outside
  return found
}

export function addAdapters(app: App, server: ServerContext): void {
  const { engine, parts, options } = server

  app.post('/v1/load_lora_adapter', async (context: Context) => {
    const { lora_name: name, lora_path, load_inplace } = await server.bodies.read(context, loadAdapterBody)
    const path = await pathUnderRoot(options.adapterRoot, lora_path, 'lora_path')
    if (parts.names.includes(name) || name === parts.baseName)
      throw badRequest(`lora_name: ${name} is the model's own name.`, 'lora_name')
    const inPlace = load_inplace === true
    if (engine.adapters.has(name) && !inPlace) {
      throw badRequest(`lora_name: the adapter ${name} has already been loaded; send load_inplace to replace it.`, 'lora_name')
    }
    try {
      await engine.adapters.load(name, path, { inPlace })
    } catch (error) {
      if (error instanceof UserError) throw badRequest(error.message, 'lora_path')
      throw error
    }
    parts.log.info({ adapter: name, path, inPlace }, 'adapter loaded')
    return context.text(`Success: LoRA adapter '${name}' added successfully.`)
  })

  app.post('/v1/unload_lora_adapter', async (context: Context) => {
    const { lora_name: name } = await server.bodies.read(context, unloadAdapterBody)
    if (!engine.adapters.has(name)) throw new HttpError(404, `lora_name: there is no adapter ${name}.`, { param: 'lora_name' })
    if (options.adapterRoot === undefined)
      throw new HttpError(403, 'lora_name: this server does not unload adapters; serve does if started with --adapter-root.', {
        param: 'lora_name',
      })
    await engine.adapters.unload(name)
    parts.log.info({ adapter: name }, 'adapter unloaded')
    return context.text(`Success: LoRA adapter '${name}' removed successfully.`)
  })
}
