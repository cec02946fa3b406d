/** Limits of a process that is stopped (Ctrl-Z, a paused container) and goes on. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const file = (path: string) => new URL(`../../src/${path}`, import.meta.url).href

test.skipIf(process.platform === 'win32')('the time in which a process was stopped counts towards no limit', async () => {
  // Work of 1 s in parts, as answers and rewards are, under limits of 4 s; stopped for 6 s in its midst. A limit that is exceeded later on still holds.
  const program = `
    const { spawn } = await import('node:child_process')
    const { withLimit } = await import('${file('environments/limit.ts')}')
    const { StepClock } = await import('${file('environments/clock.ts')}')
    const { Progress } = await import('${file('monitor/progress.ts')}')
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
    const work = async () => {
      for (let i = 0; i < 20; i++) await pause(50)
      return 'done'
    }
    const clock = new StepClock(4, undefined, 4.5)
    clock.step('generation')
    const wait = new Progress().wait('rollouts', { limitMs: 4000 })
    const all = [
      withLimit({ what: 'scoring', seconds: 4 }, work),
      Promise.race([clock.ended, work()]),
      Promise.race([wait.expired, work()]),
    ]
    await pause(300)
    spawn('/bin/sh', ['-c', 'sleep 6; kill -CONT ' + process.pid], { stdio: 'ignore', detached: true }).unref()
    process.kill(process.pid, 'SIGSTOP')
    const first = await Promise.allSettled(all)
    wait.done()
    clock.step('generation')
    const second = await Promise.allSettled([clock.ended, withLimit({ what: 'scoring', seconds: 0.2 }, () => new Promise(() => {}))])
    console.log(JSON.stringify([...first, ...second].map(({ value, reason }) => value ?? reason.message)))`
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', program])
  expect(JSON.parse(stdout)).toEqual([
    'done',
    'done',
    'done',
    expect.stringMatching(/^the rollout took longer than its limit of 4\.5 s \(in generation\)$/),
    'scoring took longer than its limit of 0.2 s',
  ])
})
