/**
 * Keeps cores from halting while a software adapter computes in a virtual machine.
 *
 * The driver's threads meet after each dispatch, some 300 times a decode step, and sleep until the next. Where a core that sleeps is halted, a virtual
 * machine gives it back to its host: it wakes late, beside whatever ran there meanwhile. A thread a core that does nothing, at the priority of an idle machine, keeps it:
 * steps of decode take two thirds of the time (bench/LOG.md). OpenMP's threads, and so PyTorch's, spin for 200 ms for the same reason (KMP_BLOCKTIME).
 *
 * Only in a virtual machine under Linux, where no limit of a container counts the time. On some such machines it is a loss, so it is tried for some seconds (awake-trial.ts), and the threads
 * end where it is. `DAWN_RL_AWAKE=0` leaves cores to sleep, `=1` keeps them awake on any Linux.
 */
import { execFile } from 'node:child_process'
import { availableParallelism, setPriority } from 'node:os'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'
import { awakeThreads, readOrNothing } from '../common/cpu-time.ts'
import { AwakeTrial } from './awake-trial.ts'
import type { Help, Wait } from './cores.ts'

/** Milliseconds that they go on after the device is through: the next work comes soon, or not at all. */
const lingered = 100

/** Threads at most. On a machine of more cores a thread of the driver's that sleeps is a smaller part of it. */
const most = 8

/** What one of the threads runs. Plain, since it must not depend on how this file is run. */
const thread = `
const { workerData: { state }, parentPort } = require('node:worker_threads')
parentPort.postMessage(require('node:fs').readlinkSync('/proc/thread-self').split('/').at(-1))
// Until its priority is the lowest.
Atomics.wait(state, 1, 0)
for (;;) {
  Atomics.wait(state, 0, 0)
  for (let end = Infinity, now = 0; now < end; ) {
    for (let i = 0; i < 200; i++) Atomics.pause()
    now = performance.now()
    end = Atomics.load(state, 0) ? Infinity : Atomics.load(state, 2) ? Math.min(end, now + ${lingered}) : 0
  }
}
`

/** [0]: how many waits there are that keep cores awake, [1]: whether the threads may begin, [2]: whether they go on for a while after the last wait. */
const state = new Int32Array(new SharedArrayBuffer(12))
state[2] = 1
/** While it is tried whether it is a gain. */
let trial: AwakeTrial | undefined
let threads: Worker[] = []

/** Keeps cores awake for a device that computes on them, while it is waited for. */
export const awake: Help = {
  // Threads of 10 MB each, and the trial, in which some seconds go the slower way.
  after: 5000,
  start(): void {
    if (wanted()) void startThreads()
  },
  wait(): Wait {
    const turn = trial?.turn()
    const on = turn?.awake ?? true
    if (turn) Atomics.store(state, 2, Number(on))
    if (on) {
      Atomics.add(state, 0, 1)
      Atomics.notify(state, 0)
    }
    return {
      rest: () => void (on && Atomics.sub(state, 0, 1)),
      took: (name, ms, work) => {
        const verdict = turn && trial?.took(turn, name, ms, work)
        if (verdict !== undefined) settle(verdict)
      },
    }
  },
}

/** Ends the trial, and the threads where they are no gain. */
function settle(on: boolean): void {
  trial = undefined
  Atomics.store(state, 2, Number(on))
  if (!on) for (const thread of threads.splice(0)) void thread.terminate()
}

/** Whether cores are worth keeping awake on this machine, by what the system says of it. */
export function wanted(setting = process.env.DAWN_RL_AWAKE, read = readOrNothing): boolean {
  if (process.platform !== 'linux' || setting === '0') return false
  if (setting === '1') return true
  if (!/^flags\s*:.*\bhypervisor\b/m.test(read('/proc/cpuinfo'))) return false
  // A container's limit counts time that is spun away like any other.
  const group = /^0::(.*)$/m.exec(read('/proc/self/cgroup'))?.[1] ?? '/'
  const folders = group.split('/').map((_, i, parts) => parts.slice(0, i + 1).join('/'))
  const limited = folders.some((folder) => /^\d/.test(read(`/sys/fs/cgroup${folder}/cpu.max`)))
  return !limited && !/^[1-9]/.test(read('/sys/fs/cgroup/cpu/cpu.cfs_quota_us'))
}

/** One thread for each of the driver's. Without them everything is as right, so no failure here is told. */
async function startThreads(): Promise<void> {
  threads = Array.from({ length: Math.min(availableParallelism(), most) }, () => {
    const workerData = { state }
    const resourceLimits = { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 1, stackSizeMb: 1 }
    return new Worker(thread, { eval: true, workerData, execArgv: [], env: {}, resourceLimits })
  })
  const all = await Promise.all(threads.map((worker) => lowest(worker).catch(() => false)))
  if (all.every(Boolean)) {
    Atomics.store(state, 1, 1)
    Atomics.notify(state, 1)
    if (process.env.DAWN_RL_AWAKE !== '1') trial = new AwakeTrial()
  } else settle(false)
}

/** Gives a thread the priority of an idle machine; where `chrt` (util-linux) is missing, the least of the others. False where the thread has ended. */
async function lowest(worker: Worker): Promise<boolean> {
  worker.unref()
  const id = await new Promise<string | undefined>((resolve) => {
    worker.once('message', resolve)
    worker.once('error', () => resolve(undefined))
  })
  if (id === undefined) return false
  awakeThreads.add(id)
  // Another thread may get its number.
  worker.once('exit', () => awakeThreads.delete(id))
  await promisify(execFile)('chrt', ['--idle', '--pid', '0', id]).catch(() => setPriority(Number(id), 19))
  return true
}
