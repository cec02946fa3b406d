/** How long waits sleep, without a device: promises that take a known time stand for its work. */
import { setTimeout as after } from 'node:timers/promises'
import { expect, test, vi } from 'vitest'
import { napping, WaitClock } from '../../src/gpu/waits.ts'

/** The milliseconds that the clock takes for work of `ms`. */
async function timed(clock: WaitClock, ms: number, kernels: number, name = 'a step'): Promise<number> {
  const begin = performance.now()
  // The device works from when it was sent something, however late it is asked whether it is through.
  const through = after(ms)
  await clock.through({ name, work: 1 }, () => through, kernels)
  return performance.now() - begin
}

test('a wait that held the compilation of kernels lets no later one oversleep', async () => {
  const clock = new WaitClock()
  expect(await timed(clock, 800, 5)).toBeGreaterThanOrEqual(795)
  // 340 ms the first of them, and 0.6 times as long each next one, if 800 ms counted by half were what a step takes.
  let total = 0
  for (let i = 0; i < 5; i++) total += await timed(clock, 10, 5)
  expect(total).toBeLessThan(200)
})

test('nor does one that was sent behind them and brought kernels of its own', async () => {
  const clock = new WaitClock()
  await Promise.all([timed(clock, 300, 2, 'training'), timed(clock, 800, 3, 'engine')])
  let total = 0
  for (let i = 0; i < 4; i++) total += await timed(clock, 10, 3, 'engine')
  expect(total).toBeLessThan(160)
})

test('what a unit of work takes is learned, and most of such a wait is slept through', async () => {
  const clock = new WaitClock()
  const took = [await timed(clock, 40, 1), await timed(clock, 40, 1)]
  const learned = 10 * Math.min(...took)
  const begin = performance.now()
  let asked = 0
  const through = after(400)
  await clock.through(
    { name: 'a step', work: 10 },
    () => {
      asked = performance.now() - begin
      return through
    },
    1,
  )
  expect(asked).toBeGreaterThan(0.55 * learned)
  expect(asked).toBeLessThan(learned)
})

test('a wait for what fails ends with its error', async () => {
  const fails = async () => {
    await after(5)
    throw new Error('the device is lost')
  }
  const clock = new WaitClock()
  await expect(clock.through({ name: 'a step', work: 1 }, fails, 1)).rejects.toThrow('the device is lost')
})

test('naps grow with a wait, up to 2 ms, and the newest of several waits naps for all', async () => {
  const nap = vi.spyOn(Atomics, 'wait')
  try {
    const naps = () => nap.mock.calls.map(([, , , ms]) => ms!)
    const long = napping(after(200))
    await after(100)
    expect(naps()[0]).toBeLessThan(2)
    expect(naps().at(-1)).toBe(2)
    expect(naps()).toEqual(naps().toSorted((a, b) => a - b))
    const before = naps().length
    await napping(after(20))
    expect(Math.min(...naps().slice(before))).toBeLessThan(2)
    await long
    expect(naps().at(-1)).toBe(2)
  } finally {
    nap.mockRestore()
  }
})
