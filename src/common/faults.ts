/**
 * Transient faults, and what a run does about them: which errors count as such, how often an action is retried, and how long the pauses between the
 * tries are. docs/reliability.md describes them, with the tests that cause each of them. The faults of a vLLM server, and its restarts, are handled
 * in src/inference/vllm/wait.ts and host.ts.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { messageOf } from './errors.ts'

/** Pauses that double from the first to the longest, in milliseconds. */
export interface Pauses {
  firstMs: number
  longestMs: number
}

/** How often a lost device is reopened without a finished step in between. */
export const LOST_DEVICE: Pauses & { tries: number } = { tries: 3, firstMs: 1000, longestMs: 30_000 }
/** Writing to a full disk is retried until there is room, or the user ends the run. */
const FULL_DISK: Pauses = { firstMs: 1000, longestMs: 60_000 }
/** How often a step is replayed if all of its rollouts failed but an earlier step succeeded (a judge is away, rather than a mistake). */
export const FAILED_STEP: Pauses & { tries: number } = { tries: 5, firstMs: 3000, longestMs: 60_000 }

/** The pause in milliseconds before retry `n` (from 0) of the same action. */
export const pauseMs = (n: number, { firstMs, longestMs }: Pauses): number => Math.min(firstMs * 2 ** n, longestMs)

const oneOf = (error: unknown, codes: string[]): boolean =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' && codes.includes(error.code)

/** Whether the disk is full, or the user's quota used up. */
export const isFullDisk = (error: unknown): boolean => oneOf(error, ['ENOSPC', 'EDQUOT'])

/** Whether Windows refused a rename because a process has the file open. */
export const isHeldOpen = (error: unknown): boolean => process.platform === 'win32' && oneOf(error, ['EPERM', 'EBUSY', 'EACCES'])

/** Whether nobody reads an output any more: `| head` has ended, or the terminal was closed. */
export const isGoneReader = (error: unknown): boolean =>
  oneOf(error, ['EPIPE', 'EIO', 'ENXIO', 'ENOTCONN', 'ECONNRESET', 'ERR_STREAM_DESTROYED'])

/** Whether nothing can be written to an output: nobody reads it, or its file is on a full disk. */
export const isDeadOutput = (error: unknown): boolean => isGoneReader(error) || isFullDisk(error)

/** Saves the last step after an error, so that no training is lost. Reports that it was saved, or why it cannot be. */
export async function saveAfter(step: number, save: () => Promise<void>, warn?: (line: string) => void): Promise<void> {
  try {
    await save()
    warn?.(`an error ends the run; step ${step} is saved, and --resume continues from there.`)
  } catch (error) {
    warn?.(`an error ends the run, and step ${step} cannot be saved either (${messageOf(error)}).`)
  }
}

/**
 * Does `work`, and repeats it after growing pauses as long as the disk is full.
 * @param what is written, for the messages
 * @param work must leave nothing behind if it fails
 * @param say is told that the run waits (the first six times, then every tenth), and that it continues
 * @throws whatever `work` throws, except if the disk is full
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
      if (n > 0) say(`there is room on the disk again for ${what}: the run continues.`)
      return result
    } catch (error) {
      if (!isFullDisk(error)) throw error
      const ms = pauseMs(n, pauses)
      if (n < 6 || n % 10 === 0)
        say(
          `the disk is full: no room for ${what}. The run waits for room and tries again (next in ${ms / 1000} s); everything written before is intact. Press Ctrl-C twice to end the run.`,
        )
      await sleep(ms)
    }
  }
}
