/**
 * Reports a run that is stuck in user code: a reward, an environment or a loss that computes without a pause blocks the event loop, so no
 * time limit and no Ctrl-C takes effect. A separate thread checks that the loop still turns.
 */
import { Worker } from 'node:worker_threads'

/** How many checks in a row must find the event loop standing still before it counts as stuck. */
const looks = 8

/**
 * The thread's code. It is plain JavaScript, as it must not depend on how this file is run, and writes to the descriptor, as its console needs the
 * main thread's event loop. It counts its own checks: by a clock, a process that was stopped for a while (Ctrl-Z) would look stuck when it continues.
 */
const thread = `
const { workerData: { beats, looks, everyMs, stuck, again } } = require('node:worker_threads')
const { writeSync } = require('node:fs')
const say = (line) => { try { writeSync(2, line + '\\n') } catch {} }
const view = new Int32Array(beats)
let [seen, same, next] = [-1, 0, looks]
setInterval(() => {
  const beat = Atomics.load(view, 0)
  if (beat !== seen) {
    if (next > looks) say(again)
    ;[seen, same, next] = [beat, 0, looks]
  } else if (++same >= next) {
    say(stuck.replace('SECONDS', String(Math.round((same * everyMs) / 1000))))
    next *= 2
  }
}, everyMs)
`

/**
 * Watches this process until `close`. Reports after `limitMs`, then after twice, four times, ... as long.
 * Does not keep the process alive.
 */
export function watchLoop(limitMs = 60_000): { close(): void } {
  const beats = new SharedArrayBuffer(4)
  const view = new Int32Array(beats)
  const everyMs = limitMs / looks
  const timer = setInterval(() => Atomics.add(view, 0, 1), everyMs).unref()
  const kill = process.platform === 'win32' ? `taskkill /F /PID ${process.pid}` : `kill -9 ${process.pid}`
  const stuck =
    `the run has been blocked for SECONDS s by code that computes without a pause, such as a reward, an environment or a loss in TypeScript. ` +
    `Neither time limits nor Ctrl-C can stop it. \`${kill}\` ends the run, and --resume continues from its newest checkpoint.`
  const workerData = { beats, looks, everyMs, stuck, again: 'the run goes on.' }
  const worker = new Worker(thread, { eval: true, workerData, execArgv: [], env: {} })
  worker.unref()
  // A run also works without the thread.
  worker.on('error', () => {})
  return {
    close() {
      clearInterval(timer)
      void worker.terminate()
    },
  }
}
