/**
 * Pins each thread of a software adapter's driver to a core of its own.
 *
 * Lavapipe has a thread a core, gives each the same share of a dispatch, and goes on when the last one is done. The system chooses the core on
 * which a thread wakes, hundreds of times a decode step. It may choose one on which another of these threads already runs and move neither for
 * milliseconds, and the dispatch takes twice as long: virtual machines whose system packs work onto few cores do so often. With pinned
 * threads steps take 3 to 10% less there (bench/LOG.md).
 *
 * Only under Linux, by `taskset` (util-linux), where the driver has as many threads as the process has cores, and only while no other work
 * needs these cores: a pinned thread cannot move away from it. `DAWN_RL_PIN=0` pins nothing.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { driverSeconds, readOrNothing, type CpuTime } from '../common/cpu-time.ts'
import type { Help } from './cores.ts'

/** To find the driver's threads: how many milliseconds of waiting for the device lie between two looks at who computed, and how many looks there are. */
const lookAfter = 200
const mostLooks = 50
/**
 * While they are pinned: milliseconds of waiting between two looks at whether they had to queue for their cores, the share of their time that
 * may go to that, and after how many milliseconds they are pinned again.
 */
const watchAfter = 1000
const crowded = 0.15
const againAfter = 20_000

/** Nanoseconds that threads have run and have been queued for a core. */
interface Times {
  ran: number
  stoodInLine: number
}

let cores: number[] = []
let threads: string[] = []
/** What is done next, and after how many more milliseconds of waiting for the device. */
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
    // Looks for the threads again: they may belong to another device by then.
    after(againAfter, () => look(driverSeconds(), mostLooks))
  })
}

/** Whether threads were queued for cores for more of their time than `crowded`. */
export function isCrowded(before: Times, now: Times): boolean {
  const [ran, stood] = [now.ran - before.ran, now.stoodInLine - before.stoodInLine]
  return stood > crowded * (ran + stood)
}

/** The sum over threads; one that has ended adds nothing. */
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
 * The driver's threads, by who computed between two moments: they share each dispatch, so there are `count` that took about the same time, and
 * no other came near.
 * @returns their ids; undefined where it is not clear
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

/** Pins each thread to its core, or lets them all go. Failure is not reported: results do not depend on it. */
async function put(apart: boolean): Promise<void> {
  const masks = cores.map((core) => 1n << BigInt(core))
  const any = masks.reduce((all, mask) => all | mask)
  // The id of a thread that has ended may be that of another process by now. One child for all, since each fork takes time of a core.
  const commands = threads.map((id, i) =>
    existsSync(`/proc/self/task/${id}`) ? `taskset -p ${(apart ? masks[i] : any).toString(16)} ${id}` : ':',
  )
  await promisify(execFile)('sh', ['-c', commands.join('; ')]).catch(() => {})
}
