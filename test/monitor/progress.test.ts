import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test, vi } from 'vitest'
import { Progress, rolloutsLeft, WaitTimeoutError } from '../../src/monitor/progress.ts'

test('the line says everything that is being waited for, oldest first, and for how long', () => {
  let now = 0
  const progress = new Progress({ now: () => now })
  expect(progress.line()).toBe('')
  const batch = progress.wait('batch of step 4', { limitMs: 1000, details: () => `since ${now} ms` })
  now = 12_000
  const training = progress.wait('training', { limitMs: 1000, details: 'micro-batch 1 of 4' })
  training.update('micro-batch 2 of 4')
  batch.say(rolloutsLeft({ left: 3, total: 32, oldestMs: 12_000, state: 'decoding' }))
  now = 13_500
  expect(progress.line()).toMatchInlineSnapshot(
    `"waiting for 3 of 32 rollouts, oldest 12.0s, decoding (13.5s) | training: micro-batch 2 of 4 (1.5s)"`,
  )
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = timers()
  batch.done()
  batch.done()
  expect(timers(), 'the limit of a wait that has ended').toBe(before - 1)
  expect(progress.active.map((w) => w.name)).toEqual(['training'])
  training.done()
})

test('a clock that is set while something is waited for changes nothing', () => {
  vi.useFakeTimers({ toFake: ['Date'] })
  const progress = new Progress()
  const wait = progress.wait('a', { limitMs: 60_000 })
  vi.setSystemTime(Date.now() - 3_600_000)
  expect(progress.line()).toMatch(/^a \(\d\.\ds\)$/)
  vi.useRealTimers()
  wait.done()
})

test('listeners hear of a beginning, a change and an end, until they stop listening', () => {
  const progress = new Progress()
  let heard = 0
  const stop = progress.onChange(() => heard++)
  const wait = progress.wait('a', { limitMs: 1000 })
  wait.update('b')
  wait.done()
  wait.update('after the end')
  expect(heard).toBe(3)
  stop()
  progress.wait('c', { limitMs: 1000 }).done()
  expect(heard).toBe(3)
})

test("at its limit a wait rejects and names itself, and how the work ends later is nobody's", async () => {
  const progress = new Progress()
  const work = progress.run(
    'reward of rollout 7',
    { limitMs: 20, details: 'judge', hint: 'raise env.args.timeout' },
    () => new Promise((_, reject) => setTimeout(() => reject(new Error('late')), 40)),
  )
  const error = await work.catch((e: unknown) => e)
  expect(error).toBeInstanceOf(WaitTimeoutError)
  expect((error as Error).message).toMatchInlineSnapshot(
    `"Gave up on "reward of rollout 7" after its limit of 0.0s (last state: reward of rollout 7: judge): raise env.args.timeout."`,
  )
  expect(progress.active).toEqual([])
  // An unhandled rejection would fail the test.
  await new Promise((resolve) => setTimeout(resolve, 60))
})

test('run gives back the value, or the error of the work, and ends the wait', async () => {
  const progress = new Progress()
  expect(await progress.run('a', { limitMs: 1000 }, async () => 5)).toBe(5)
  await expect(progress.run('a', { limitMs: 1000 }, () => Promise.reject(new Error('mine')))).rejects.toThrow('mine')
  expect(progress.active).toEqual([])
})

test('a wait without a limit is refused', () => {
  for (const limitMs of [0, -1, NaN, Infinity]) {
    expect(() => new Progress().wait('x', { limitMs })).toThrow(/limitMs is/)
  }
})

test('a promise that nobody settles ends a process with the name of the wait, not with a silent exit', () => {
  const url = pathToFileURL(join(import.meta.dirname, '../../src/monitor/progress.ts')).href
  const { stderr, status } = spawnSync(process.execPath, [
    '--input-type=module',
    '-e',
    `import { Progress } from ${JSON.stringify(url)}
     await new Progress().run('weights of step 3', { limitMs: 50 }, () => new Promise(() => {}))`,
  ])
  expect(stderr.toString()).toContain('Gave up on "weights of step 3"')
  expect(status).toBe(1)
})
