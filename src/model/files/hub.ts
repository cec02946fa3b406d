/**
 * A model from the Hugging Face hub, in the cache that the Python libraries use too (HF_HUB_CACHE, HF_HOME).
 *  - When the cache has the files, the network is not touched. HF_HUB_OFFLINE=1 forbids it altogether.
 *  - Only what a model needs is fetched: its config, its tokenizer, its safetensors.
 *  - The revision's name is written last, so that a download which was cut off is taken up again and never counts as whole.
 */
import { existsSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { makeFolder } from '../../common/folders.ts'
import { UserError } from '../../common/errors.ts'
import { hubAccess, hubCache, hubFailure, hubUrl, offlineBy, openHubFile } from '../../common/hub.ts'
import { fetchHubFile, sizeOf, type HubEntry } from '../../common/hub-file.ts'
import { readJson } from './files.ts'

export const SINGLE_FILE = 'model.safetensors'
export const INDEX_FILE = 'model.safetensors.index.json'
const REVISION = 'main'
const SMALL_FILES = [
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template.jinja',
  'chat_template.json',
  'additional_chat_templates/tool_use.jinja',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
]

/** The folder of a hub model (`owner/name`), fetched when it is not in the cache. Throws UserError naming what to do. */
export async function hubFolder(id: string): Promise<string> {
  const repoFolder = join(hubCache(), `models--${id.replace('/', '--')}`)
  const offline = offlineBy('models')
  const cached = await cachedSnapshot(repoFolder, !offline)
  if (cached) return cached
  if (offline) {
    throw new UserError(
      `The model ${id} is not in the cache ${repoFolder}, and ${offline} forbids downloading it. Unset that variable, or name a folder or a GGUF file.`,
    )
  }
  try {
    return await download(id, repoFolder)
  } catch (error) {
    if (error instanceof UserError) throw error
    throw new UserError(
      `The model ${id} could not be fetched from ${hubUrl()}: ${hubFailure(error, 'model')}. There is no folder of that name here either. To work without the hub, name a folder or a GGUF file.`,
    )
  }
}

/** Whether it is written as the hub writes names, `owner/name`: a path may be, too. */
export const isHubId = (text: string): boolean => /^[\w-][\w.-]*\/[\w-][\w.-]*$/.test(text)

/** The folder of a hub model with its tokenizer where the cache has it; the network is not touched. */
export async function cachedModel(id: string): Promise<string | undefined> {
  if (!isHubId(id)) return undefined
  return (await cachedSnapshot(join(hubCache(), `models--${id.replace('/', '--')}`), true)) ?? undefined
}

/** The snapshot's folder when it has all that a model needs (a tokenizer only if `withTokenizer`), else null. */
async function cachedSnapshot(repoFolder: string, withTokenizer: boolean): Promise<string | null> {
  const ref = await readFile(join(repoFolder, 'refs', REVISION), 'utf8').catch(() => REVISION)
  const folder = join(repoFolder, 'snapshots', ref.trim())
  // existsSync follows links: a link to a blob that was removed does not count.
  const has = (name: string) => existsSync(join(folder, name))
  if (!has('config.json') || (withTokenizer && !has('tokenizer.json'))) return null
  if (has(SINGLE_FILE)) return folder
  if (!has(INDEX_FILE)) return null
  return shardsOf(await readJson(join(folder, INDEX_FILE)), join(folder, INDEX_FILE)).every(has) ? folder : null
}

/** File names of the shards of a model.safetensors.index.json. Throws UserError for an index that names none, or a path outside. */
export function shardsOf(index: Record<string, unknown>, path: string): string[] {
  const map = index.weight_map
  if (typeof map !== 'object' || map === null) throw new UserError(`${path} has no weight_map. Fetch it again.`)
  const shards = [...new Set(Object.values(map as Record<string, unknown>))]
  for (const shard of shards) {
    if (typeof shard !== 'string' || !/^[^/\\]+\.safetensors$/.test(shard))
      throw new UserError(
        `${path} names ${JSON.stringify(shard)} as a weights file, which is not the name of a safetensors file in the same folder. Fetch it again.`,
      )
  }
  if (shards.length === 0) throw new UserError(`${path} names no files. Fetch it again.`)
  return shards as string[]
}

async function download(id: string, repoFolder: string): Promise<string> {
  const hub = await import('@huggingface/hub')
  const access = await hubAccess()
  const info = await hub.modelInfo({ name: id, revision: REVISION, additionalFields: ['sha'], ...access })
  const entries = new Map<string, HubEntry>()
  const list = async (path?: string) => {
    for await (const entry of hub.listFiles({ repo: id, path, revision: info.sha, ...access })) {
      if (entry.type === 'file') entries.set(entry.path, entry)
      else if (SMALL_FILES.some((name) => dirname(name) === entry.path)) await list(entry.path)
    }
  }
  await list()
  const fetchFile = async (path: string) => {
    const entry = entries.get(path)!
    const progress = reportProgress(entry)
    try {
      const open = () => openHubFile({ type: 'model', name: id }, info.sha, entry, access, hub.downloadFile)
      return await fetchHubFile(repoFolder, info.sha, entry, open, progress.onBytes)
    } finally {
      progress.stop()
    }
  }
  if (!entries.has('config.json'))
    throw new UserError(`The hub model ${id} has no config.json, so it is not a transformers model.`)
  for (const name of SMALL_FILES) if (entries.has(name)) await fetchFile(name)
  let weights = [SINGLE_FILE]
  if (!entries.has(SINGLE_FILE) && entries.has(INDEX_FILE))
    weights = shardsOf(await readJson(await fetchFile(INDEX_FILE)), INDEX_FILE)
  const absent = weights.find((name) => !entries.has(name))
  if (absent)
    throw new UserError(
      `The hub model ${id} has no ${absent}; only safetensors weights are read. Use a version of the model that has them.`,
    )
  for (const name of weights) await fetchFile(name)
  const ref = join(repoFolder, 'refs', REVISION)
  makeFolder(dirname(ref))
  await writeFile(ref, info.sha)
  return join(repoFolder, 'snapshots', info.sha)
}

const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`

/** Says on standard error that a file is being fetched, and every ten seconds how far it is. */
function reportProgress(entry: HubEntry): { onBytes: (bytes: number) => void; stop: () => void } {
  const say = (line: string) => process.stderr.write(`${line}\n`)
  const size = megabytes(sizeOf(entry))
  let bytes = 0
  say(`fetching ${entry.path} (${size})`)
  const timer = setInterval(() => say(`fetching ${entry.path}: ${megabytes(bytes)} of ${size}`), 10_000)
  return { onBytes: (now) => (bytes = now), stop: () => clearInterval(timer) }
}
