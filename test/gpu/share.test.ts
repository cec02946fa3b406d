/** Who runs when, without a device: an engine of steps and a trainer of sections take turns on a clock of their own. */
import { expect, test } from 'vitest'
import type { Gpu } from '../../src/gpu/gpu.ts'
import { emptyPlan } from '../../src/gpu/plan.ts'
import { DeviceShare, sendInSections } from '../../src/gpu/share.ts'

const turn = () => new Promise<void>((resolve) => setImmediate(resolve))

/** Whether training may go on now. */
async function may(share: DeviceShare): Promise<boolean> {
  let given = false
  void share.turn().then(() => (given = true))
  await turn()
  return given
}

test('training waits while an engine has requests, and goes on when the last one has none', async () => {
  const share = new DeviceShare()
  expect(await may(share)).toBe(true)
  expect(share.idle).toBe(true)
  share.work(0)
  share.work(0)
  expect(share.idle).toBe(false)
  let given = false
  void share.turn().then(() => (given = true))
  share.rest()
  await turn()
  expect(given).toBe(false)
  share.rest()
  await turn()
  expect(given).toBe(true)
})

test('several that wait all get their turn: one for each time that training is owed, and the others when the engines rest', async () => {
  const share = new DeviceShare()
  share.work(0)
  const given: string[] = []
  for (const who of ['a', 'b', 'c']) void share.turn().then(() => given.push(who))
  share.stepped(10)
  await turn()
  expect(given).toEqual(['a'])
  share.trained(0, 10)
  share.rest()
  await turn()
  expect(given).toEqual(['a', 'b', 'c'])
})

test.each([
  { step: 10, section: 10 },
  { step: 40, section: 5 },
  { step: 5, section: 200 },
])('neither starves: steps of $step ms, sections of $section ms', async ({ step, section }) => {
  const share = new DeviceShare()
  share.work(0)
  let [engine, trained, between] = [0, 0, 0]
  let mostBetween = 0
  const trainer = (async () => {
    while (engine < 20_000) {
      await share.turn()
      if (engine >= 20_000) return
      trained += section
      mostBetween = Math.max(mostBetween, ++between)
      share.trained(0, section)
    }
  })()
  while (engine < 20_000) {
    await turn()
    engine += step
    between = 0
    share.stepped(step)
  }
  share.rest()
  await trainer
  // A sixteenth, to one section.
  expect(Math.abs(trained - engine / 16)).toBeLessThanOrEqual(Math.max(section, step))
  expect(mostBetween).toBe(1)
})

/** Expects that training's turn has not come after `ms` of the engine's time, and has after 2 more. */
async function expectTurnAfter(share: DeviceShare, ms: number): Promise<void> {
  let given = false
  void share.turn().then(() => (given = true))
  share.stepped(ms)
  await turn()
  expect(given).toBe(false)
  share.stepped(2)
  await turn()
  expect(given).toBe(true)
}

test('a section that was sent while no engine had anything to run counts only from when one had', async () => {
  const share = new DeviceShare()
  await share.turn()
  share.work(990)
  // 10 of its 1,000 ms, which 160 ms of the engine's time make up for.
  share.trained(0, 1000)
  await expectTurnAfter(share, 159)
})

test('what training got while no engine had anything to run is not held against it later', async () => {
  const share = new DeviceShare()
  share.trained(0, 100_000)
  share.work(100_000)
  let given = false
  void share.turn().then(() => (given = true))
  share.stepped(17)
  await turn()
  expect(given).toBe(true)
  // Of a millisecond that it is owed, nothing is left to wait for: the next one goes at once.
  expect(await may(share)).toBe(true)
  share.trained(100_000, 100_017)
  expect(await may(share)).toBe(false)
})

test('of two engines, the time since the first got requests counts', async () => {
  const share = new DeviceShare()
  share.work(0)
  share.work(100)
  share.trained(0, 100)
  await expectTurnAfter(share, 1599)
})

/** A device whose work ends when `ends` is called, oldest first, and which counts the sections that it got. */
function deviceOf(software: boolean) {
  const waits: PromiseWithResolvers<void>[] = []
  const device = {
    share: new DeviceShare(),
    facts: { software },
    sent: 0,
    replay: () => device.sent++,
    sync: () => {
      waits.push(Promise.withResolvers())
      return waits.at(-1)!.promise
    },
    ends: async (error?: Error) => {
      const wait = waits.shift()!
      if (error) wait.reject(error)
      else wait.resolve()
      await turn()
    },
  }
  return device
}

test.each([
  { software: false, busy: false, inFlight: 2 },
  { software: false, busy: true, inFlight: 2 },
  { software: true, busy: false, inFlight: 2 },
  { software: true, busy: true, inFlight: 1 },
])(
  '$inFlight sections are in flight, on software: $software, with an engine at work: $busy',
  async ({ software, busy, inFlight }) => {
    const device = deviceOf(software)
    const sent = sendInSections(device as unknown as Gpu, { ...emptyPlan(), cuts: [1, 2, 3] }, {}, 1)
    if (busy) {
      // Training is owed more than it takes.
      device.share.work()
      void device.share.turn()
      device.share.stepped(1e9)
    }
    for (const ended of [0, 1, 2]) {
      await turn()
      expect(device.sent).toBe(Math.min(ended + inFlight, 4))
      await device.ends()
    }
    await device.ends()
    await sent
  },
)

test('an error of the last section is not an unhandled one', async () => {
  const device = deviceOf(false)
  const sent = sendInSections(device as unknown as Gpu, emptyPlan(), {}, 1)
  await turn()
  await device.ends(new Error('the device is lost'))
  await sent
})
