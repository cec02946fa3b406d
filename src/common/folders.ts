/** Making folders that a user names, reading what the names in one say, and making them last. */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readdirSync, statSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'

/**
 * Makes a folder, and those above it that are not there. Node's own `recursive` would try for ever where a file system answers that there is no such
 * folder, as /proc does and a working directory that was deleted.
 * @returns those that were made, the outermost first
 */
export function makeFolder(path: string): string[] {
  const missing: string[] = []
  let at = resolve(path)
  for (; !existsSync(at); at = dirname(at)) missing.unshift(at)
  // A file there, or above it, is told by the system's own error.
  if (missing.length === 0 && !isFolder(at)) mkdirSync(at)
  return missing.filter(makeOne)
}

/** False where another process made it meanwhile. */
function makeOne(path: string): boolean {
  try {
    mkdirSync(path)
    return true
  } catch (error) {
    if (isFolder(path)) return false
    throw error
  }
}

const isFolder = (path: string) => statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false

/**
 * Waits until the names in a folder are on the disk, so that a rename in it lasts. Where the system cannot do that (Windows cannot open a folder, and
 * some file systems refuse) nothing is waited for: the rename is atomic all the same.
 */
export async function syncFolder(path: string): Promise<void> {
  try {
    await using handle = await open(path, 'r')
    await handle.sync()
  } catch {}
}

/** `syncFolder` for synchronous code. */
export function syncFolderSync(path: string): void {
  let fd: number | undefined
  try {
    fd = openSync(path, 'r')
    fsyncSync(fd)
  } catch {
  } finally {
    if (fd !== undefined) closeSync(fd)
  }
}

/** What a folder may be called that a user names, on every system. */
export const FOLDER_NAME = /^[\p{L}\p{N}_][\p{L}\p{N}_.+=@ -]{0,199}(?<![. ])$/u
/** All names but those of Windows' devices, which these are with any ending. */
export const NO_DEVICE = /^(?!(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\.|$))/iu

/** The numbers in those of the names that match, each once, ascending: of `step_N.jsonl`, of `attempt_N.log`. */
export function numbersIn(names: readonly string[], pattern: RegExp): number[] {
  const found = names.flatMap((name) => pattern.exec(name)?.[1] ?? [])
  return [...new Set(found.map(Number))].toSorted((a, b) => a - b)
}

/** Steps that have a folder in `root`, as checkpoints do, whole or not, ascending; none where there is no `root`. */
export function stepFolders(root: string): number[] {
  return numbersIn(existsSync(root) ? readdirSync(root) : [], /^step_(\d+)$/)
}
