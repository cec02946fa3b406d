/**
 * Says that a run is stuck where it cannot say so itself: code of a user's that computes without a pause (a reward, an environment, a loss)
 * holds the event loop, so no limit passes and no Ctrl-C is heard. A thread of its own looks whether the loop comes round.
 */
import { Worker } from 'node:worker_threads'

/** Looks of the thread until a loop that does not come round is stuck. */
const looks = 8

/**
 * What the thread runs. Plain, since it must not depend on how this file is run; it writes by itself, since its console would need the loop. It counts its
 * own looks: by a clock, a process that was stopped for a while (Ctrl-Z) would be stuck as it goes on.
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
 * Watches this process until `close`. Said after `limitMs`, and then after twice, four times, ... as long.
 * Holds no process back from its end.
 */
export function watchLoop(limitMs = 60_000): { close(): void } {
  const beats = new SharedArrayBuffer(4)
  const view = new Int32Array(beats)
  const everyMs = limitMs / looks
  const timer = setInterval(() => Atomics.add(view, 0, 1), everyMs).unref()
  const stuck =
    `the run has been held up for SECONDS s by code that computes without a pause: a reward, an environment or a loss in TypeScript? ` +
    `No limit and no Ctrl-C reaches it. \`kill -9 ${process.pid}\` ends the run, and --resume goes on from its newest checkpoint.`
  const workerData = { beats, looks, everyMs, stuck, again: 'the run goes on.' }
  const worker = new Worker(thread, { eval: true, workerData, execArgv: [], env: {} })
  worker.unref()
  // Without it the run is as good.
  worker.on('error', () => {})
  return {
    close() {
      clearInterval(timer)
      void worker.terminate()
    },
  }
}
