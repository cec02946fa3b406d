/** How long rollouts that have not ended may take, what is said of them, and whose turn it is at the sampler. */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Rubric, SingleTurnEnv } from '../../src/environments/index.ts'
import { Progress } from '../../src/monitor/progress.ts'
import { gateOf, left, limitMs, type Flight, type RolloutSet } from '../../src/orchestrator/flights.ts'
import { Meter, Slots } from '../../src/orchestrator/slots.ts'
import type { RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { makeOrchestrator, numbersEnv } from './helpers.ts'

test('the limit of a set has room for every turn and both scorings of the environment that takes longest', async () => {
  const single = await numbersEnv()
  const turns = (maxTurns: number): RunEnvironment => ({ ...single, env: Object.assign(Object.create(single.env), { maxTurns }) })
  const grouped = await SingleTurnEnv.create({
    id: 'grouped',
    rubric: new Rubric({ one: () => 1 }, { group: { best: (group) => group.map(() => 1) } }),
    dataset: [{ prompt: 'q' }],
    evalSize: 0,
  })
  const options = {
    generationTimeoutSeconds: 10,
    rewardTimeoutSeconds: 3,
    maxConcurrent: 1,
    maxSampling: 1,
    rolloutsPerExample: 1,
  }
  const limit = (...environments: RunEnvironment[]) =>
    limitMs({ spares: 0 } as RolloutSet, 1, { ...options, environments }) / 2000
  expect(limit(single)).toBe(10 + 3)
  // Three answers, and the environment's work between them.
  expect(limit(single, turns(3))).toBe(5 * 10 + 3)
  // Without a limit of its own, a rollout ends at max_seq_len alone.
  expect(limit(turns(-1), turns(3))).toBeGreaterThan(1000 * 10)
  expect(limit(single, { name: 'grouped', env: grouped, weight: 1 })).toBe(10 + 2 * 3)
})

test('the limit of a set counts places that a group which plays together has to leave free', async () => {
  const single = await numbersEnv()
  const together = { ...single, env: Object.assign(Object.create(single.env), { playsGroups: true }) as typeof single.env }
  const options = {
    generationTimeoutSeconds: 10,
    rewardTimeoutSeconds: 1,
    maxConcurrent: 7,
    maxSampling: 64,
    rolloutsPerExample: 4,
  }
  const limit = (...environments: RunEnvironment[]) => limitMs({ spares: 0 } as RolloutSet, 120, { ...options, environments })
  expect(limit(single)).toBeLessThan(20 * 11_000)
  // 30 groups of 4, one at a time, as there is no room for a second one.
  expect(limit(single, together)).toBeGreaterThanOrEqual(30 * 11_000)
})

test('the limit of a set has room for every rollout of its spare groups, and of those of other sets, which go first', async () => {
  const environments = [await numbersEnv()]
  const times = { generationTimeoutSeconds: 10, rewardTimeoutSeconds: 1 }
  const options = { ...times, environments, maxConcurrent: 64, maxSampling: 2, rolloutsPerExample: 8 }
  // Two at a time: 32 rollouts, then one spare group of 8 after another.
  expect(limitMs({ spares: 3 }, 32, options)).toBeGreaterThanOrEqual((16 + 3 * 4) * 11_000)
  const progress = new Progress()
  const limits: number[] = []
  const wait = progress.wait.bind(progress)
  progress.wait = (name, how) => (limits.push(how.limitMs), wait(name, how))
  const { orchestrator } = await makeOrchestrator(() => ({ text: '1' }), {
    ...options,
    groupsPerStep: 4,
    spareGroups: 3,
    progress,
  })
  orchestrator.prepare(1)
  await orchestrator.evaluate(environments[0], { step: 0, examples: 2, rolloutsPerExample: 1, temperature: 1 })
  expect(limits[0]).toBeGreaterThanOrEqual((17 + 3 * 4) * 11_000)
  await orchestrator.close()
})

test('who comes again, and a group in the place of another, go before those that wait', async () => {
  const slots = new Slots(1)
  await slots.take()
  const order: string[] = []
  const enter = (name: string, again: boolean, soon: boolean) => {
    const gate = gateOf({ state: 'queued' }, slots, [new Meter()], soon)
    void gate.take(again).then(() => (order.push(name), gate.give()))
  }
  enter('first', false, false)
  enter('spare', false, true)
  enter('second turn', true, false)
  slots.give()
  await sleep(1)
  expect(order).toEqual(['spare', 'second turn', 'first'])
})

test('the oldest counts from its first place at the sampler on; most of those that begun say what is done', async () => {
  const flight: Flight = { state: 'queued' }
  const gate = gateOf(flight, new Slots(1), [])
  await gate.take(false)
  const { since } = flight
  gate.give()
  await sleep(2)
  await gate.take(true)
  expect(flight).toEqual({ state: 'decoding', since })

  const now = performance.now()
  const said = (...states: (Flight['state'] | 'new')[]) => {
    const flights = states.map((state, i): Flight => (state === 'new' ? { state: 'queued' } : { state, since: now - 60_000 * i }))
    return left(new Set(flights), 9)
  }
  expect(said('new')).toBe('waiting for 1 of 9 rollouts, queued')
  expect(said('decoding', 'scoring')).toBe('waiting for 2 of 9 rollouts, oldest 1m00s, decoding')
  expect(said('scoring', 'decoding', 'scoring', 'new')).toBe('waiting for 4 of 9 rollouts, oldest 2m00s, scoring')
})
