/**
 * Pins each thread of a software adapter's driver to its own core.
 *
 * Lavapipe has one thread per core, gives each the same share of a dispatch, and continues when the last one is done. The system chooses the core on
 * which a thread wakes, hundreds of times per decode step. It may choose one on which another of these threads already runs and move neither for
 * milliseconds, and the dispatch takes twice as long. This happens often in virtual machines whose system packs work onto few cores. With pinned
 * threads, steps take 3 to 10% less time there (bench/LOG.md).
 *
 * Only under Linux, by `taskset` (util-linux), if the driver has as many threads as the process has cores, and only while no other work needs these
 * cores, because a pinned thread cannot move away from it. `DAWN_RL_PIN=0` disables it.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { driverSeconds, readOrNothing, type CpuTime } from '../common/cpu-time.ts'
import type { Help } from './cores.ts'

/** For finding the driver's threads: milliseconds of waiting for the device between two looks at which threads computed, and the number of looks. */
const lookAfter = 200
const mostLooks = 50
/**
 * While threads are pinned: milliseconds of waiting between two checks of whether they had to queue for their cores, the share of their time that may
 * go to queueing, and milliseconds of waiting after which they are pinned again.
 */
const watchAfter = 1000
const crowded = 0.15
const againAfter = 20_000

/** Nanoseconds that threads have run, and have been queued for a core. */
interface Times {
  ran: number
  stoodInLine: number
}

let cores: number[] = []
let threads: string[] = []
/** The next action, and the milliseconds of waiting for the device until it is due. */
let next: (() => void) | undefined
let left = 0

/** Finds the driver's threads and pins them. */
export const pinned: Help = {
  after: 1000,
  start(): void {
    if (process.platform !== 'linux' || process.env.DAWN_RL_PIN === '0') return
    cores = coresOf(readOrNothing('/proc/self/status'))
    if (cores.length > 1) look(driverSeconds(), mostLooks)
  },
  wait() {
    const begin = performance.now()
    return {
      rest(): void {
        left -= performance.now() - begin
        if (left <= 0) next?.()
      },
    }
  },
}

function after(ms: number, then: () => void): void {
  left = ms
  next = then
}

function look(from: CpuTime, looks: number): void {
  after(lookAfter, () => {
    const now = driverSeconds()
    const found = busyThreads(from, now, cores.length)
    if (found) {
      threads = found
      void put(true)
      watch(timesOf(threads))
    } else if (looks > 0) look(now, looks - 1)
    else next = undefined
  })
}

function watch(before: Times): void {
  after(watchAfter, () => {
    const now = timesOf(threads)
    if (!isCrowded(before, now)) return watch(now)
    void put(false)
    // Looks for the threads again, since they may belong to another device by then.
    after(againAfter, () => look(driverSeconds(), mostLooks))
  })
}

/** Whether threads were queued for cores for a larger share of their time than `crowded`. */
export function isCrowded(before: Times, now: Times): boolean {
  const [ran, stood] = [now.ran - before.ran, now.stoodInLine - before.stoodInLine]
  return stood > crowded * (ran + stood)
}

/** Sum over the threads; a thread that has ended adds nothing. */
function timesOf(ids: string[]): Times {
  const times = { ran: 0, stoodInLine: 0 }
  for (const id of ids) {
    const [ran, stood = 0] = readOrNothing(`/proc/self/task/${id}/schedstat`).split(' ').map(Number)
    times.ran += ran
    times.stoodInLine += stood
  }
  return times
}

/**
 * Finds the driver's threads by who computed between two moments. They share each dispatch, so there are `count` threads that took about the same
 * time, and no other thread comes near.
 * @returns their ids; undefined if it is not clear
 */
export function busyThreads(from: CpuTime, to: CpuTime, count: number): string[] | undefined {
  const times = [...to.threads].map(([id, time]) => ({ id, took: time - (from.threads.get(id) ?? 0) }))
  times.sort((a, b) => b.took - a.took)
  const [most, least, other] = [0, count - 1, count].map((i) => times[i]?.took ?? 0)
  if (most <= 0 || least < most / 2 || other > most / 4) return undefined
  return times.slice(0, count).map(({ id }) => id)
}

/** The cores that a process may run on, from its /proc/PID/status: '0-2,5' are 0, 1, 2 and 5. */
export function coresOf(status: string): number[] {
  const list = /^Cpus_allowed_list:\s*([\d,-]+)/m.exec(status)?.[1] ?? ''
  return list
    .split(',')
    .filter(Boolean)
    .flatMap((part) => {
      const [first, last = first] = part.split('-').map(Number)
      return Array.from({ length: last - first + 1 }, (_, i) => first + i)
    })
}

/** Pins each thread to its core, or unpins all. Failures are not reported, since results do not depend on them. */
async function put(apart: boolean): Promise<void> {
  const masks = cores.map((core) => 1n << BigInt(core))
  const any = masks.reduce((all, mask) => all | mask)
  // The id of a thread that has ended may belong to another process by now. One child process does all, since each fork takes time of a core.
  const commands = threads.map((id, i) =>
    existsSync(`/proc/self/task/${id}`) ? `taskset -p ${(apart ? masks[i] : any).toString(16)} ${id}` : ':',
  )
  await promisify(execFile)('sh', ['-c', commands.join('; ')]).catch(() => {})
}
