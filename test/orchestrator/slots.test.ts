import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished, test, vi } from 'vitest'
import { Meter, Slots } from '../../src/orchestrator/slots.ts'

test('first come, first served, and nobody slips in when a permit comes back', async () => {
  const slots = new Slots(2)
  const order: string[] = []
  let [running, most] = [0, 0]
  const work = async (name: string) => {
    await slots.take()
    order.push(name)
    most = Math.max(most, ++running)
    await sleep(1)
    running--
    slots.give()
    // Asks again in the very turn in which it gave back: those who wait come first.
    if (name.length < 3) await work(`${name}'`)
  }
  await Promise.all(['a', 'b', 'c', 'd'].map(work))
  expect(most).toBe(2)
  expect(order.slice(0, 4)).toEqual(['a', 'b', 'c', 'd'])
  expect(order).toHaveLength(12)
})

test('a long queue keeps its order', async () => {
  const slots = new Slots(1)
  const order: number[] = []
  const names = Array.from({ length: 300 }, (_, i) => i)
  await Promise.all(names.map((i) => slots.take().then(() => (order.push(i), slots.give()))))
  expect(order).toEqual(names)
})

test('the meter counts time in which anything ran, once', async () => {
  const meter = new Meter()
  const begin = performance.now()
  meter.enter()
  meter.enter()
  await sleep(30)
  meter.leave(0, 2)
  meter.leave(0, 3)
  const passed = (performance.now() - begin) / 1000
  await sleep(30)
  const first = meter.take()
  expect(first.seconds).toBeGreaterThan(0.02)
  expect(first.seconds).toBeLessThanOrEqual(passed)
  expect(meter.take()).toEqual({ seconds: 0, speed: null })
  meter.enter()
  await sleep(50)
  const [second, third] = [meter.take(), meter.take()]
  expect(second.seconds).toBeGreaterThan(0.04)
  // What was counted is not counted again.
  expect(third.seconds).toBeLessThan(second.seconds)
})

test('the speed is that of the answers that ended, each with its share of the time since it began', () => {
  let now = 0
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now * 1000)
  onTestFinished(() => clock.mockRestore())
  const meter = new Meter()
  const begun = [meter.enter(), meter.enter(), meter.enter()]
  now = 3
  // None has ended: they have no speed yet, rather than 0.
  expect(meter.take()).toEqual({ seconds: 3, speed: null })
  meter.leave(begun[0], 12)
  now = 5
  meter.leave(begun[1], 10)
  // 12 + 10 tokens in 1 + 2 seconds of the sampler's time.
  expect(meter.take()).toEqual({ seconds: 2, speed: 22 / 3 })
  now = 9
  // One that failed tells nothing.
  meter.leave(begun[2], 0)
  expect(meter.take()).toEqual({ seconds: 4, speed: null })
  const alone = meter.enter()
  now = 11
  meter.leave(alone, 8)
  expect(meter.take()).toEqual({ seconds: 2, speed: 4 })
})

test('the meter counts as idle the time since the last take in which nothing ran', async () => {
  const meter = new Meter()
  await sleep(30)
  expect(meter.idle).toBeGreaterThan(0.02)
  const begin = performance.now()
  meter.take()
  expect(meter.idle).toBeLessThanOrEqual((performance.now() - begin) / 1000)
  meter.enter()
  const ran = performance.now()
  await sleep(60)
  const busy = (performance.now() - ran) / 1000
  // While something runs, and after it.
  for (const end of [() => {}, () => meter.leave(0, 1)]) {
    end()
    expect(meter.idle).toBeLessThanOrEqual((performance.now() - begin) / 1000 - busy)
  }
})

test('several permits come at once, and those behind do not overtake who waits for them', async () => {
  const slots = new Slots(3)
  const order: string[] = []
  const take = (name: string, count: number, again = false) => slots.take(again, count).then(() => order.push(name))
  void take('a', 1)
  void take('three', 3)
  void take('b', 1)
  void take('two more', 2, true)
  await sleep(1)
  // Who comes again goes before the three that wait.
  expect(order).toEqual(['a', 'two more'])
  slots.give()
  slots.give()
  await sleep(1)
  expect(order).toHaveLength(2)
  slots.give()
  await sleep(1)
  expect(order).toEqual(['a', 'two more', 'three'])
  slots.give()
  await sleep(1)
  expect(order.at(-1)).toBe('b')
})
