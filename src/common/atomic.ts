/** Files that are replaced whole. */
import { closeSync, fsyncSync, lstatSync, openSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { syncFolderSync } from './folders.ts'
import { moveToSync } from './renames.ts'

/** Replaces `path` so that a reader, or a machine that loses power, sees the old text or the new one and never a part of either. */
export function writeFileAtomic(path: string, text: string | Iterable<string>): void {
  const aside = `${path}.${process.pid}.tmp`
  try {
    const fd = openSync(aside, 'w')
    try {
      for (const part of typeof text === 'string' ? [text] : text) writeFileSync(fd, part)
      fsyncSync(fd)
    } finally {
      closeSync(fd)
    }
    moveToSync(aside, path)
  } catch (error) {
    rmSync(aside, { force: true })
    throw error
  }
  syncFolderSync(dirname(path))
}

/** Whether a path may be replaced by a new file. A link, a pipe or a device that the user named must stay, and is written into. */
export function isReplaceable(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isFile() ?? true
}
