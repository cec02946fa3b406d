/**
 * A core for each thread of a software adapter's driver.
 *
 * Lavapipe has a thread for each core, gives all of them the same share of a dispatch, and goes on when the last is done. Which core a thread wakes on the system decides, hundreds of times a decode step, by
 * what it knows of cores in general: it may take the one on which another of these threads has begun, and moves neither for milliseconds, so that a dispatch takes twice as long. Virtual machines whose
 * system packs work onto few cores do so often. With a core for each thread steps take 3 to 10% less there (bench/LOG.md).
 *
 * Only under Linux, by `taskset` (util-linux), where the driver has as many threads as the process has cores, and while others leave these to it: a thread that cannot leave its core waits
 * for whoever else runs there. `DAWN_RL_PIN=0` leaves the threads to the system.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { driverSeconds, readOrNothing, type CpuTime } from '../common/cpu-time.ts'
import type { Help } from './cores.ts'

/** Milliseconds of waiting after which it is looked which threads computed meanwhile, and how often at most until it is clear. */
const lookAfter = 200
const mostLooks = 50
/** Milliseconds of waiting after which it is looked whether threads that have a core each wait for it, the share of their time that may be, and after how many they get them back. */
const watchAfter = 1000
const crowded = 0.15
const againAfter = 20_000

/** What threads did so far, by the system's numbers. */
interface Times {
  ran: number
  stoodInLine: number
}

let cores: number[] = []
let threads: string[] = []
/** What comes next, and milliseconds that are waited until then. */
let next: (() => void) | undefined
let left = 0

/** Gives the driver's threads a core each, once it is known which they are. */
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
    // Anew: the device, and with it these threads, may be another by then.
    after(againAfter, () => look(driverSeconds(), mostLooks))
  })
}

/** Whether threads stood in line, for cores that others hold, for more of their time than they should. */
export function isCrowded(before: Times, now: Times): boolean {
  const [ran, stood] = [now.ran - before.ran, now.stoodInLine - before.stoodInLine]
  return stood > crowded * (ran + stood)
}

/** Nanoseconds of threads in all; of one that has ended none. */
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
 * The threads that computed between two moments, where there is one for each core: they share dispatches, so each took about as much time, and none else came near.
 * @returns their numbers; undefined where it is not clear
 */
export function busyThreads(from: CpuTime, to: CpuTime, count: number): string[] | undefined {
  const times = [...to.threads].map(([id, time]) => ({ id, took: time - (from.threads.get(id) ?? 0) }))
  times.sort((a, b) => b.took - a.took)
  const [most, least, other] = [0, count - 1, count].map((i) => times[i]?.took ?? 0)
  if (most <= 0 || least < most / 2 || other > most / 4) return undefined
  return times.slice(0, count).map(({ id }) => id)
}

/** The cores that a process may run on, by what /proc says of it: '0-2,5' are 0, 1, 2 and 5. */
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

/** Puts each thread on its core, or on any. Where that fails everything is as right, so no failure is told. */
async function put(apart: boolean): Promise<void> {
  const masks = cores.map((core) => 1n << BigInt(core))
  const any = masks.reduce((all, mask) => all | mask)
  // The number of one that has ended may be that of another process by now. One child for all of them: each that is forked takes its time of a core.
  const commands = threads.map((id, i) =>
    existsSync(`/proc/self/task/${id}`) ? `taskset -p ${(apart ? masks[i] : any).toString(16)} ${id}` : ':',
  )
  await promisify(execFile)('sh', ['-c', commands.join('; ')]).catch(() => {})
}
