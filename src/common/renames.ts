/**
 * Renames that are retried for a moment if Windows refuses them: as long as another process (a virus scanner, an indexer, a backup) has a file open,
 * neither the file nor its folder can be renamed or replaced. There are no retries on other systems, which rename open files.
 */
import { renameSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHeldOpen } from './faults.ts'

/** Milliseconds before each retry, two seconds in total. */
const PAUSES = [10, 20, 50, 120, 300, 500, 1000]

/** Renames a file or folder, and replaces a file that has the new name. */
export async function moveTo(from: string, to: string): Promise<void> {
  for (const ms of PAUSES) {
    try {
      return await rename(from, to)
    } catch (error) {
      if (!isHeldOpen(error)) throw error
      await sleep(ms)
    }
  }
  await rename(from, to)
}

/** `moveTo` for synchronous code. */
export function moveToSync(from: string, to: string): void {
  for (const ms of PAUSES) {
    try {
      return renameSync(from, to)
    } catch (error) {
      if (!isHeldOpen(error)) throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
    }
  }
  renameSync(from, to)
}
