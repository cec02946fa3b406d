/**
 * Datasets in the layout of the Hugging Face hub. A source is a snapshot folder, with files for each split and often a folder for each subset, or an
 * id (`openai/gsm8k`). Files of an id are taken from the cache that the Python libraries use too (HF_HUB_CACHE, HF_HOME), or downloaded into it. Only
 * the files of the requested split are downloaded. If the cache has them, the network is not used. HF_HUB_OFFLINE=1 forbids downloads.
 */
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { basename, dirname, extname, join, sep } from 'node:path'
import { makeFolder } from '../common/folders.ts'
import { UserError } from '../common/errors.ts'
import { hubAccess, hubCache, hubFailure, hubUrl, offlineBy, openHubFile } from '../common/hub.ts'
import { fetchHubFile, sizeOf, type HubEntry } from '../common/hub-file.ts'
import { writeFileAtomic } from '../common/atomic.ts'
import { mendOf, tableEndings } from './tables.ts'

export interface SplitOptions {
  /** train, test, validation, ... Default train. */
  split?: string
  /** Which subset, if a dataset has several (the hub calls them configurations), such as `main` of openai/gsm8k. */
  subset?: string
  /** Branch, tag or commit of a hub dataset. Default main. */
  revision?: string
}

/** Whether a source names a hub dataset: it has the form `owner/name`, and no file or folder of this name exists. */
export function isHubId(source: string): boolean {
  return /^[\w.-]+\/[\w.-]+$/u.test(source) && !source.startsWith('.') && !existsSync(source) && !isTable(source)
}

const isTable = (path: string) => (tableEndings as readonly string[]).includes(extname(path).toLowerCase())

/** Files that describe a dataset and contain no rows. */
const isMetadata = (path: string) =>
  /^(?:dataset_infos?|dataset_dict|state|package(?:-lock)?|config)\.json$/u.test(basename(path)) || /(?:^|\/)\./u.test(path)

const validation = ['validation', 'valid', 'val', 'dev', 'eval']
const splitNames = ['train', 'test', ...validation]
const sameSplit = (name: string) => (validation.includes(name) ? validation : [name])

/** The parts of a path that may name a split: `main/train-00000-of-00001.parquet` has main and train. */
const wordsOf = (path: string) =>
  path
    .toLowerCase()
    .slice(0, -extname(path).length)
    .split(/[/._-]/u)

/** A file's name without its part number: `train_sft` of data/train_sft-00000-of-00001.parquet. */
const nameOf = (path: string) => basename(path.toLowerCase(), extname(path).toLowerCase()).replace(/-\d+(?:-of-\d+)?$/u, '')

/**
 * Selects the files of one split of a dataset, in order. If no file names a split, all of them are the train split. Throws UserError, listing what
 * exists, if no file or more than one subset matches.
 */
export function filesOfSplit(files: readonly string[], where: string, options: SplitOptions): string[] {
  const { subset, split = 'train' } = options
  const tables = files.filter((path) => isTable(path) && !isMetadata(path)).toSorted()
  if (tables.length === 0) {
    const other = files.find((path) => mendOf(path))
    const local = existsSync(where)
    const mend = other === undefined ? '' : ` There is ${other}. ${mendOf(local ? join(where, other) : other)}.`
    throw new UserError(`dataset ${where} has no data files (${tableEndings.join(', ')}).${mend}`)
  }
  const subsets = [...new Set(tables.map(subsetOf).filter((name) => name !== ''))]
  const ofSubset = subset === undefined ? tables : tables.filter((path) => subsetOf(path) === subset)
  if (ofSubset.length === 0) {
    throw new UserError(`dataset ${where} has no subset "${subset}". It has ${subsets.join(', ') || 'none'}.`)
  }
  const wanted = sameSplit(split)
  const named = ofSubset.some((path) => wordsOf(path).some((word) => splitNames.includes(word)))
  // An exact name wins over one that only contains the word: train.jsonl over train_socratic.jsonl.
  const exact = ofSubset.filter((path) => wanted.includes(nameOf(path)))
  const having =
    named || split !== 'train' ? ofSubset.filter((path) => wordsOf(path).some((word) => wanted.includes(word))) : ofSubset
  const found = exact.length > 0 ? exact : having
  if (found.length === 0) {
    const there = [...new Set(ofSubset.flatMap((path) => wordsOf(path).filter((word) => splitNames.includes(word))))]
    throw new UserError(
      `dataset ${where} has no split "${split}". It has ${there.join(', ') || `only files that name no split: ${ofSubset.slice(0, 5).join(', ')}`}.`,
    )
  }
  const kinds = [...new Set(found.map(subsetOf))]
  if (kinds.length > 1)
    throw new UserError(
      `dataset ${where} has several subsets. Name one of ${kinds.map((kind) => kind || '(none)').join(', ')} as subset.`,
    )
  // Rows that exist in two file formats must not count twice.
  const endings = [...new Set(found.map((path) => extname(path).toLowerCase()))]
  return endings.length > 1 && endings.includes('.parquet')
    ? found.filter((path) => path.toLowerCase().endsWith('.parquet'))
    : found
}

/** The folder that names a file's subset, or '': `main` for main/train.parquet, '' for data/train.parquet and train/0.parquet. */
function subsetOf(path: string): string {
  return path.split('/').slice(0, -1).filter((part) => part !== 'data' && part !== 'default' && !splitNames.includes(part.toLowerCase())).join('/') // prettier-ignore
}

/** Returns the files of one split in a snapshot folder. Throws UserError as filesOfSplit does. */
export async function splitOfFolder(folder: string, options: SplitOptions): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true })
  const files = entries.map((path) => path.split(sep).join('/'))
  return filesOfSplit(files, folder, options).map((path) => join(folder, path))
}

/** Returns the files of one split of a hub dataset, and downloads those that the cache lacks. Throws UserError that says what to do. */
export async function splitOfHub(id: string, options: SplitOptions): Promise<string[]> {
  const revision = options.revision ?? 'main'
  const repoFolder = join(hubCache(), `datasets--${id.replace('/', '--')}`)
  const cached = await cachedFiles(repoFolder, revision, id, options)
  if (cached) return cached
  const offline = offlineBy('datasets')
  if (offline) {
    throw new UserError(
      `The dataset ${id} is not in the cache ${repoFolder}, and ${offline} forbids downloading it. Unset that variable, or name a file or a folder.`,
    )
  }
  try {
    return await download(id, revision, repoFolder, options)
  } catch (error) {
    if (error instanceof UserError) throw error
    throw new UserError(
      `The dataset ${id} could not be fetched from ${hubUrl()}: ${hubFailure(error, 'dataset')}. To work without the hub, name a file or a folder.`,
    )
  }
}

/** The files of this split in the cache, from an earlier download by dawn-rl or another tool's snapshot. Null if some are missing. */
async function cachedFiles(repoFolder: string, revision: string, id: string, options: SplitOptions): Promise<string[] | null> {
  const sha = await readFile(join(repoFolder, 'refs', revision), 'utf8').catch(() => revision)
  const folder = join(repoFolder, 'snapshots', sha.trim())
  if (!existsSync(folder)) return null
  const list = await readFile(listOf(repoFolder, sha.trim()), 'utf8').catch(() => null)
  if (list !== null) {
    let names: string[]
    try {
      names = JSON.parse(list) as string[]
    } catch {
      return null // a process was killed while writing it
    }
    const found = filesOfSplit(names, id, options).map((path) => join(folder, path))
    return found.every((path) => existsSync(path)) ? found : null
  }
  const found = await splitOfFolder(folder, options).catch(() => null)
  return found && hasAllParts(found) ? found : null
}

/** Whether no part is missing of files whose names tell how many there are, such as train-00000-of-00003.parquet. */
function hasAllParts(paths: readonly string[]): boolean {
  const there = new Set(paths)
  return paths.every((path) => {
    const [, start, digits, count, end] = /^(.*-)(\d+)-of-(\d+)(\.\w+)$/su.exec(path) ?? []
    if (count === undefined) return true
    const part = (n: number) => `${start}${String(n).padStart(digits.length, '0')}-of-${count}${end}`
    // The files may be numbered from 1.
    return [0, 1].some((first) =>
      Array.from({ length: Number(count) }, (_, i) => part(first + i)).every((name) => there.has(name)),
    )
  })
}

/** The path of the list of all files of a snapshot, by which a partial snapshot is recognised. */
const listOf = (repoFolder: string, sha: string) => join(repoFolder, '.dawn-rl', `${sha}.json`)

async function download(id: string, revision: string, repoFolder: string, options: SplitOptions) {
  const hub = await import('@huggingface/hub')
  const access = await hubAccess()
  const repo = { type: 'dataset', name: id } as const
  const { sha } = await hub.datasetInfo({ name: id, revision, additionalFields: ['sha'], ...access })
  const entries = new Map<string, HubEntry>()
  for await (const entry of hub.listFiles({ repo, revision: sha, recursive: true, ...access })) {
    if (entry.type === 'file') entries.set(entry.path, entry)
  }
  const wanted = filesOfSplit([...entries.keys()], id, options)
  const write = (file: string, text: string) => {
    makeFolder(dirname(file))
    writeFileAtomic(file, text)
  }
  // The list comes first: a commit's snapshot is found without its name in refs, even if the download of its files is cut off.
  write(listOf(repoFolder, sha), JSON.stringify([...entries.keys()]))
  for (const path of wanted) {
    const entry = entries.get(path)!
    process.stderr.write(`fetching ${id}/${path} (${(sizeOf(entry) / 1e6).toFixed(1)} MB)\n`)
    const open = () => openHubFile(repo, sha, entry, access, hub.downloadFile)
    await fetchHubFile(repoFolder, sha, entry, open)
  }
  if (revision !== sha) write(join(repoFolder, 'refs', revision), sha)
  return wanted.map((path) => join(repoFolder, 'snapshots', sha, path))
}
