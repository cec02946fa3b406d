/** `view`: the runs of a folder on a local web page, live and afterwards. */
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import type { Command } from 'commander'
import { messageOf, UserError } from '../common/errors.ts'
import { numbersIn } from '../common/folders.ts'
import { counted } from '../monitor/format.ts'
import type { TokenBytes } from '../monitor/view/rollout.ts'
import { whole } from './options.ts'

interface ViewCliOptions {
  host: string
  port: number
  key?: string
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('view')
    .description(
      'Show runs on a local web page: curves, rollouts token by token, timelines, kernels, configs; live and afterwards.',
    )
    .argument('[dir]', 'a folder of runs, or one run', 'outputs')
    .option('--host <address>', 'the address to listen on; one that other machines can reach needs a key', '127.0.0.1')
    .option('--port <number>', 'the port to listen on; 0: any free one', whole(0, 65535), 0)
    .option(
      '--key <key>',
      'the key that the page asks for (default: a random one, in the printed address); DAWN_RL_VIEW_KEY is safer, since other users can see the command line',
    )
    .action(view)
}

async function view(dir: string, { host, port, ...given }: ViewCliOptions): Promise<void> {
  const { startView } = await import('../monitor/view/server.ts')
  const { Runs } = await import('../monitor/view/runs.ts')
  // An empty variable counts as not set.
  const key = given.key ?? (process.env.DAWN_RL_VIEW_KEY || undefined)
  if (key === '') throw new UserError('The key is empty: leave --key out for a random one.')
  const server = await startView({ outputs: dir, host, port, key, tokenizer: tokenBytes })
  const { size } = await new Runs(resolve(dir)).scan()
  const found = size === 0 ? `no run in ${dir} yet; new runs show up by themselves` : `${counted(size, 'run')} in ${dir}`
  console.log(`${server.url}\n${found}; Ctrl-C ends`)
  await Promise.race(['SIGINT', 'SIGTERM', 'SIGHUP'].map((signal) => once(process, signal)))
  await server.close()
}

/**
 * The bytes of a run's tokens: from the tokenizer in its newest checkpoint, else from the model that its config names. Never fetches anything.
 * @param model the config's model
 * @returns the tokenizer, or a sentence that says why there is none
 */
export async function tokenBytes(model: string | null, runFolder: string): Promise<TokenBytes | string> {
  const { loadTokenizer } = await import('../model/tokenizer/tokenizer.ts')
  try {
    const saved = await newestTokenizer(runFolder)
    if (saved) return bytesOf(await loadTokenizer(saved, []), saved)
    const path = model === null ? undefined : await modelPath(model, runFolder)
    if (path === undefined)
      return model === null ? "the run's config names no model" : `the model ${model} is not on this machine`
    if (existsSync(join(path, 'tokenizer.json'))) return bytesOf(await loadTokenizer(path, []), path)
    const { openModel } = await import('../model/files/open.ts')
    const files = await openModel(path)
    try {
      return bytesOf(await files.tokenizer(), path)
    } finally {
      files.close()
    }
  } catch (error) {
    return `the tokenizer of ${model} cannot be read (${messageOf(error)})`
  }
}

const bytesOf = (tokenizer: { tokenBytes(id: number): Uint8Array | null }, about: string): TokenBytes => ({
  about,
  bytes: (id) => tokenizer.tokenBytes(id),
})

async function newestTokenizer(runFolder: string): Promise<string | undefined> {
  const names = await readdir(join(runFolder, 'checkpoints')).catch(() => [])
  return numbersIn(names, /^step_(\d+)$/)
    .map((step) => join(runFolder, 'checkpoints', `step_${step}`))
    .findLast((folder) => existsSync(join(folder, 'tokenizer.json')))
}

/** Looks for the model's path from here and from each folder above the run's, as the run may have been started there; for a hub id, in the cache. */
async function modelPath(model: string, runFolder: string): Promise<string | undefined> {
  if (isAbsolute(model)) return existsSync(model) ? model : undefined
  const above = [resolve(runFolder)]
  while (dirname(above.at(-1)!) !== above.at(-1)) above.push(dirname(above.at(-1)!))
  const found = [resolve('.'), ...above].map((folder) => join(folder, model)).find((path) => existsSync(path))
  if (found !== undefined) return found
  const { cachedModel } = await import('../model/files/hub.ts')
  return await cachedModel(model)
}
