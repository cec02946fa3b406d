/**
 * Renames that wait a moment where Windows refuses them: while another process (a virus scanner, an indexer, a backup) has the file open, or one in the
 * folder, it can neither be renamed nor be replaced. Other systems rename open files, and what they refuse they would refuse again.
 */
import { renameSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHeldOpen } from './faults.ts'

/** Milliseconds before each further try, two seconds in all. */
const PAUSES = [10, 20, 50, 120, 300, 500, 1000]

/** Gives a file or folder another name, in place of the file that has it. */
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
