/** Processor time of a software adapter's driver: a measure that does not depend on what else the machine is doing. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'

/** Ids of threads that only keep cores awake (src/gpu/awake.ts). Their time is not counted. */
export const awakeThreads = new Set<string>()

/** A measurement of processor time. */
export interface CpuTime {
  /** Nanoseconds of each thread so far. A single entry for all threads if the system does not tell them apart. */
  threads: Map<string, number>
  /** Seconds of all counted threads together, since `since` or in total. */
  seconds: number
}

/**
 * Processor time in seconds of all threads of this process except the calling one and those that keep cores awake, since `since` or in total. Exact
 * for threads that sleep, as the driver's do after a wait for the device. Accurate to the last tick of the system's clock for running threads.
 */
export function driverSeconds(since?: CpuTime): CpuTime {
  const threads = threadTimes() ?? processTime()
  let nanoseconds = 0
  for (const [id, time] of threads) nanoseconds += time - (since?.threads.get(id) ?? 0)
  return { threads, seconds: nanoseconds / 1e9 }
}

/** Reads /proc on Linux. Undefined on other systems. A thread that ends meanwhile is left out. */
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
  // A Node process always has other threads. If none was found, the system does not provide the times.
  return times.size > 0 ? times : undefined
}

function processTime(): Map<string, number> {
  const [all, own] = [process.cpuUsage(), process.threadCpuUsage()]
  return new Map([['', (all.user + all.system - own.user - own.system) * 1000]])
}

/** The content of a system file, or '' if it cannot be read. */
export function readOrNothing(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
