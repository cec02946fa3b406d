/** Keeps cores awake by threads that spin at idle priority (SCHED_IDLE), so that any other work on a core preempts them at once. */
import { execFile } from 'node:child_process'
import { availableParallelism, setPriority } from 'node:os'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'
import { awakeThreads } from '../common/cpu-time.ts'
import type { Keeper } from './awake.ts'

/** The source of one of the threads. Plain JavaScript, since it must not depend on how this file is loaded. */
const thread = (lingered: number): string => `
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

/**
 * Starts one thread for each of the driver's, at most `most`; each takes 10 MB. Undefined if they do not start: results do not depend on them, so
 * failures are not reported.
 */
export async function keptByThreads(lingered: number, most: number): Promise<Keeper | undefined> {
  /** [0]: number of waits under way, [1]: whether the threads may begin, [2]: whether they keep spinning for a while after the last wait. */
  const state = new Int32Array(new SharedArrayBuffer(12))
  state[2] = 1
  const threads: Worker[] = []
  // Throws if the system allows this process no more threads.
  const start = async (): Promise<boolean> => {
    const resourceLimits = { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 1, stackSizeMb: 1 }
    threads.push(new Worker(thread(lingered), { eval: true, workerData: { state }, execArgv: [], env: {}, resourceLimits }))
    return await lowest(threads.at(-1)!)
  }
  const end = (): void => {
    for (const thread of threads.splice(0)) void thread.terminate()
  }
  const starts = Array.from({ length: Math.min(availableParallelism(), most) }, () => start().catch(() => false))
  const all = await Promise.all(starts)
  if (!all.every(Boolean)) {
    end()
    return undefined
  }
  Atomics.store(state, 1, 1)
  Atomics.notify(state, 1)
  return {
    hold(): void {
      Atomics.add(state, 0, 1)
      Atomics.notify(state, 0)
    },
    release: () => void Atomics.sub(state, 0, 1),
    linger: (on) => void Atomics.store(state, 2, Number(on)),
    end,
  }
}

/** Gives a thread idle priority, or, if `chrt` (util-linux) is missing, the lowest normal one. Returns false if the thread has ended. */
async function lowest(worker: Worker): Promise<boolean> {
  worker.unref()
  const id = await new Promise<string | undefined>((resolve) => {
    worker.once('message', resolve)
    worker.once('error', () => resolve(undefined))
  })
  if (id === undefined) return false
  awakeThreads.add(id)
  // Another thread may get the same id.
  worker.once('exit', () => awakeThreads.delete(id))
  await promisify(execFile)('chrt', ['--idle', '--pid', '0', id]).catch(() => setPriority(Number(id), 19))
  return true
}
