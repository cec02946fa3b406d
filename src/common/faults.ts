/**
 * Faults that pass, and what a run does about them: which errors they are, how often something is tried again, how long the pauses in
 * between are. docs/reliability.md says the same in words, with the tests that cause each of them. What a vLLM server may do, and how
 * often it is started again, is in src/inference/vllm/wait.ts and host.ts.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from './errors.ts'

/** Pauses that double from the first to the longest, in milliseconds. */
export interface Pauses {
  firstMs: number
  longestMs: number
}

/** A device that was lost is opened again so often without a finished step in between. */
export const LOST_DEVICE: Pauses & { tries: number } = { tries: 3, firstMs: 1000, longestMs: 30_000 }
/** A disk that is full is tried again until there is room, or the user ends the run. */
const FULL_DISK: Pauses = { firstMs: 1000, longestMs: 60_000 }
/** A step whose rollouts all failed is played again so often, where an earlier step went well (a judge that is away, not a mistake). */
export const FAILED_STEP: Pauses & { tries: number } = { tries: 5, firstMs: 3000, longestMs: 60_000 }

/** The pause before try `n` (from 0) of the same thing. */
export const pauseMs = (n: number, { firstMs, longestMs }: Pauses): number => Math.min(firstMs * 2 ** n, longestMs)

const oneOf = (error: unknown, codes: string[]): boolean =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' && codes.includes(error.code)

/** No room on the disk, or none left of the user's quota. */
export const isFullDisk = (error: unknown): boolean => oneOf(error, ['ENOSPC', 'EDQUOT'])

/** Windows refuses a rename because a process has the file open. */
export const isHeldOpen = (error: unknown): boolean => process.platform === 'win32' && oneOf(error, ['EPERM', 'EBUSY', 'EACCES'])

/** Nobody reads an output any more: `| head` has ended, or its terminal was closed. */
export const isGoneReader = (error: unknown): boolean =>
  oneOf(error, ['EPIPE', 'EIO', 'ENXIO', 'ENOTCONN', 'ECONNRESET', 'ERR_STREAM_DESTROYED'])

/** An output on which nothing can be said: nobody reads it, or its file finds the disk full. */
export const isDeadOutput = (error: unknown): boolean => isGoneReader(error) || isFullDisk(error)

/** After an error: saves the last step, so that nothing learned is lost, and says that it was saved, or why it cannot be. */
export async function saveAfter(step: number, save: () => Promise<void>, warn?: (line: string) => void): Promise<void> {
  try {
    await save()
    warn?.(`an error ends the run; step ${step} is saved, and --resume goes on from there.`)
  } catch (error) {
    warn?.(`an error ends the run, and step ${step} cannot be saved either (${messageOf(error)}).`)
  }
}

/**
 * Does `work`, and where the disk is full does it again after growing pauses, until there is room.
 * @param what is written, for the sentences
 * @param work leaves nothing behind where it fails
 * @param say told that the run waits (the first six times, then every tenth), and that it goes on
 * @throws what `work` throws that is no full disk
 */
export async function whenThereIsRoom<T>(
  what: string,
  work: () => T | Promise<T>,
  say: (line: string) => void,
  pauses: Pauses = FULL_DISK,
): Promise<T> {
  for (let n = 0; ; n++) {
    try {
      const result = await work()
      if (n > 0) say(`there is room on the disk again for ${what}: the run goes on.`)
      return result
    } catch (error) {
      if (!isFullDisk(error)) throw error
      const ms = pauseMs(n, pauses)
      if (n < 6 || n % 10 === 0)
        say(
          `the disk is full: no room for ${what}. The run waits for room and tries again (next in ${ms / 1000} s); what was written before is whole. Ctrl-C twice ends it.`,
        )
      await sleep(ms)
    }
  }
}
