/** Creating folders that a user names, syncing them to disk, and finding numbers in the names in a folder. */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readdirSync, statSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'

/**
 * Creates a folder and its missing parents. Node's own `recursive` would retry forever if a file system answers that the folder does not exist, as
 * /proc and a deleted working directory do.
 * @returns the folders that were created, the outermost first
 */
export function makeFolder(path: string): string[] {
  const missing: string[] = []
  let at = resolve(path)
  for (; !existsSync(at); at = dirname(at)) missing.unshift(at)
  // If there is a file at the path or above it, the system's own error says so.
  if (missing.length === 0 && !isFolder(at)) mkdirSync(at)
  return missing.filter(makeOne)
}

/** Creates a folder. Returns false if another process created it meanwhile. */
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
 * Waits until the entries of a folder are on the disk, so that a rename in it is durable. If the system does not support that (Windows cannot open
 * folders, and some file systems refuse), it does nothing; the rename is still atomic.
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

/** What a folder that a user names may be called, on every system. */
export const FOLDER_NAME = /^[\p{L}\p{N}_][\p{L}\p{N}_.+=@ -]{0,199}(?<![. ])$/u
/** Matches all names except Windows' device names, which are reserved with any extension. */
export const NO_DEVICE = /^(?!(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\.|$))/iu

/** The numbers in those names that match, such as `step_N.jsonl` or `attempt_N.log`. Ascending, without duplicates. */
export function numbersIn(names: readonly string[], pattern: RegExp): number[] {
  const found = names.flatMap((name) => pattern.exec(name)?.[1] ?? [])
  return [...new Set(found.map(Number))].toSorted((a, b) => a - b)
}

/** Steps that have a folder in `root`, as checkpoints do, complete or not. Ascending. Empty if `root` does not exist. */
export function stepFolders(root: string): number[] {
  return numbersIn(existsSync(root) ? readdirSync(root) : [], /^step_(\d+)$/)
}
