/**
 * Small file tools of the model room: reads of a byte range, JSON with errors that name the file, and writes that are whole or absent
 * (written aside, synced, renamed).
 */
import { closeSync, fstatSync, openSync, read } from 'node:fs'
import { lstat, mkdir, open, readdir, readFile, readlink, realpath, rm, stat } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { UserError, messageOf } from '../../common/errors.ts'
import { makeFolder, stepFolders, syncFolder } from '../../common/folders.ts'
import { isAlive } from '../../common/processes.ts'
import { moveTo } from '../../common/renames.ts'
import { textOfBytes } from '../../common/texts.ts'

const readAt = promisify(read)
/** One read call takes at most 2 GiB - 1 on Linux. */
const LARGEST_READ = 1 << 30

/** A file open for reading byte ranges. */
export class RangeFile {
  readonly path: string
  readonly size: number
  #fd: number | null
  /** Throws UserError where the file cannot be opened. */
  constructor(path: string) {
    this.path = path
    try {
      this.#fd = openSync(path, 'r')
      this.size = fstatSync(this.#fd).size
    } catch (error) {
      throw new UserError(`Cannot open ${path}: ${messageOf(error)}.`)
    }
  }
  /** Bytes [start, start + length). Throws UserError where the file ends before. */
  async bytes(start: number, length: number): Promise<Uint8Array<ArrayBuffer>> {
    if (this.#fd === null) throw new Error(`${this.path} is read after it was closed`)
    const out = new Uint8Array(length)
    for (let done = 0; done < length;) {
      const { bytesRead } = await readAt(this.#fd, out, done, Math.min(length - done, LARGEST_READ), start + done)
      if (bytesRead === 0) throw new UserError(`${this.path} is cut off: it ends at byte ${start + done}. Fetch it again.`)
      done += bytesRead
    }
    return out
  }
  close(): void {
    if (this.#fd !== null) closeSync(this.#fd)
    this.#fd = null
  }
}

/** What a path is: 'file', 'folder' or null. Follows links. Throws UserError where the system does not say (a folder that may not be entered). */
export async function kindOf(path: string): Promise<'file' | 'folder' | null> {
  try {
    return (await stat(path)).isDirectory() ? 'folder' : 'file'
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) return null
    throw new UserError(`Cannot read ${path}: ${messageOf(error)}.`)
  }
}

/** A sentence for whoever names a run where one of its checkpoints is wanted: which is the newest. Empty where the folder is no run. */
export function checkpointHint(dir: string): string {
  const root = join(dir, 'checkpoints')
  const newest = stepFolders(root).at(-1)
  return newest === undefined ? '' : ` It is a run, whose newest checkpoint is ${join(root, `step_${newest}`)}.`
}

/** A text file without its byte order mark; UserError where it cannot be read, or is not UTF-8. */
export async function readText(path: string): Promise<string> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw new UserError(`Cannot read ${path}: ${messageOf(error)}.`)
  })
  return textOfBytes(bytes, path)
}

/** A JSON object from a file; UserError where it is not there or not an object. */
export async function readJson(path: string): Promise<Record<string, unknown>> {
  const text = await readText(path)
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new UserError(`${path} is not valid JSON (${messageOf(error)}). Is the file complete?`)
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new UserError(`${path} must hold a JSON object.`)
  return value as Record<string, unknown>
}

/** Writes a file aside, syncs and renames it, so that `path` is the whole new content or what it was before. */
export async function writeWhole(path: string, chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array | string>): Promise<void> {
  makeFolder(dirname(path))
  const aside = `${path}.partial-${process.pid}`
  try {
    await writeSynced(aside, chunks)
    await moveTo(aside, path)
  } catch (error) {
    await rm(aside, { force: true })
    throw error
  }
}

async function writeSynced(path: string, chunks: Parameters<typeof writeWhole>[1]): Promise<void> {
  await using handle = await open(path, 'w')
  for await (const chunk of chunks) {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk
    for (let done = 0; done < bytes.length;) {
      const { bytesWritten } = await handle.write(bytes, done, Math.min(bytes.length - done, LARGEST_READ))
      done += bytesWritten
    }
  }
  await handle.sync()
}

/** JSON text as Hugging Face writes it: two spaces, a newline at the end. */
export function jsonText(value: unknown): string {
  return JSON.stringify(value, null, 2) + '\n'
}

/**
 * Makes a folder whole or not at all: `fill` writes into a new folder beside it, whose files are then synced and which takes the name.
 * A folder of that name that was there before is replaced when `replace` is set, else UserError. If the name is a link, it stays, and the folder that
 * it points to is replaced: a link is how a user puts models on another disk.
 */
export async function writeFolderWhole(
  path: string,
  fill: (aside: string) => Promise<void>,
  options: { replace?: boolean },
): Promise<void> {
  // Without a slash at its end, or it would be written aside within itself.
  const named = resolve(path)
  const dir = await behindLink(named)
  await clearLeft(dir)
  const before = await kindOf(dir)
  if (before === 'file') throw new UserError(`${path} is a file, but a folder is to be written there. Name another path.`)
  if (before === null && (await lstat(named).catch(() => null)))
    throw new UserError(`${path} is a broken symbolic link. Remove it or name another path.`)
  if (before === 'folder' && !options.replace) throw new UserError(`${path} exists already. Remove it or name another folder.`)
  makeFolder(dirname(dir))
  const aside = `${dir}.partial-${process.pid}`
  const old = `${dir}.old-${process.pid}`
  try {
    await mkdir(aside)
    await fill(aside)
    await syncFolder(aside)
    if (before) await moveTo(dir, old)
    await moveTo(aside, dir).catch(async (error: unknown) => {
      if (!(await kindOf(dir))) throw error
      throw new UserError(`${path} has been written by another process meanwhile. Remove it or name another folder.`)
    })
  } catch (error) {
    // Unless it never had its name taken.
    if (before && !(await kindOf(dir))) await moveTo(old, dir).catch(() => {})
    await rm(aside, { recursive: true, force: true })
    throw error
  }
  await rm(old, { recursive: true, force: true })
  await syncFolder(dirname(dir))
}

/** Where a link points to, also if nothing is there; any other path as it is. */
async function behindLink(path: string): Promise<string> {
  const target = await readlink(path).catch(() => undefined)
  if (target === undefined) return path
  return await realpath(path).catch(() => resolve(dirname(path), target))
}

/**
 * Removes what a process that was killed in the midst of `writeFolderWhole` left beside a folder, a whole model's size, and brings back the folder that
 * it was about to replace. In a container every process may have the same id: what bears ours is an earlier one's.
 */
async function clearLeft(dir: string): Promise<void> {
  const [folder, name] = [dirname(dir), basename(dir)]
  for (const left of await readdir(folder).catch(() => [])) {
    const [, kind, pid] = /\.(partial|old)-(\d+)$/.exec(left) ?? []
    if (left !== `${name}.${kind}-${pid}` || (Number(pid) !== process.pid && isAlive(Number(pid)))) continue
    if (kind === 'old' && (await kindOf(dir)) === null) await moveTo(join(folder, left), dir)
    else await rm(join(folder, left), { recursive: true, force: true })
  }
}
