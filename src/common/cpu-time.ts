/** Processor time of a software adapter's driver: figures that hold whatever else the machine does. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'

/** Ids of threads that only keep cores awake (src/gpu/awake.ts): their time is not counted. */
export const awakeThreads = new Set<string>()

export interface CpuTime {
  /** Nanoseconds of each thread so far; a single entry for all where the system does not tell them apart. */
  threads: Map<string, number>
  /** Seconds of all threads together, since `since` or in all. */
  seconds: number
}

/**
 * Seconds of processor time that threads of this process other than the calling one took, since `since` or in all; of those that keep cores awake, none.
 * Exact for threads that sleep, as the driver's do after a wait for the device; of one that runs, up to the last tick of the system's clock.
 */
export function driverSeconds(since?: CpuTime): CpuTime {
  const threads = threadTimes() ?? processTime()
  let nanoseconds = 0
  for (const [id, time] of threads) nanoseconds += time - (since?.threads.get(id) ?? 0)
  return { threads, seconds: nanoseconds / 1e9 }
}

/** Reads /proc on Linux; undefined elsewhere. A thread that ends meanwhile is left out. */
function threadTimes(): Map<string, number> | undefined {
  const times = new Map<string, number>()
  try {
    const own = readlinkSync('/proc/thread-self').split('/').at(-1)
    for (const id of readdirSync('/proc/self/task')) {
      if (id === own || awakeThreads.has(id)) continue
      try {
        times.set(id, Number(readFileSync(`/proc/self/task/${id}/schedstat`, 'utf8').split(' ')[0]))
      } catch {}
    }
  } catch {}
  // A process of node's always has other threads: none means that the system does not say.
  return times.size > 0 ? times : undefined
}

function processTime(): Map<string, number> {
  const [all, own] = [process.cpuUsage(), process.threadCpuUsage()]
  return new Map([['', (all.user + all.system - own.user - own.system) * 1000]])
}

/** A file of the system's, '' where it cannot be read. */
export function readOrNothing(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
