/** Groups in the place of those that are not trained on. */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { spareGroups } from '../../src/config/algorithm-schema.ts'
import { Spares } from '../../src/orchestrator/spares.ts'
import { TaskOrder, type RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { algorithm, makeOrchestrator, numbersEnv, type Script } from './helpers.ts'

const rows = 12
const rowOf = (prompt: string) => Number(/\d+$/.exec(prompt)![0])
/** Every third task is solved alike by all; another third fails; the rest teaches something. */
const answer: Script = (prompt, _n, { sampling }) => {
  const kind = rowOf(prompt) % 3
  return { text: kind === 0 ? '1' : kind === 1 ? 'x' : String(sampling.seed % 1000) }
}

async function play(factor: number, delay: (n: number) => number, steps = 3) {
  const environments = [await numbersEnv('numbers', rows)]
  const { orchestrator, generator } = await makeOrchestrator(
    (prompt, n, request) => ({ ...answer(prompt, n, request), afterMs: delay(n) }),
    {
      environments,
      groupsPerStep: 4,
      spareGroups: spareGroups(4, factor),
    },
  )
  const seen: { groups: string[]; trained: string[]; seeds: number[]; prompts: number[] }[] = []
  for (let step = 1; step <= steps; step++) {
    if (step < steps) orchestrator.prepare(step + 1)
    const { rollouts, batch } = await orchestrator.batch(step, step - 1)
    seen.push({
      groups: rollouts.filter((_, i) => i % 3 === 0).map((r) => r.rollout.group),
      trained: [...new Set(batch.samples.map((s) => s.rollout!.group))],
      seeds: rollouts.map((r) => r.rollout.seed),
      prompts: rollouts.map((r) => r.rollout.exampleId),
    })
  }
  await orchestrator.close()
  return { seen, requests: generator.requests.length }
}

test('1: no group is replaced', async () => {
  const { seen } = await play(1, () => 0)
  expect(seen.map((s) => s.groups.length)).toEqual([4, 4, 4])
  expect(seen.some((s) => s.trained.length < 4)).toBe(true)
})

test('as many as it takes, and no more than the factor allows; the tasks of the steps themselves stay', async () => {
  const { seen } = await play(4, () => 0)
  const plain = await play(1, () => 0)
  let [full, used] = [0, 0]
  seen.forEach(({ groups, trained, prompts }, i) => {
    expect(groups).toEqual(Array.from({ length: groups.length }, (_, g) => `${i + 1}.${g}`))
    expect(prompts.slice(0, 12)).toEqual(plain.seen[i].prompts)
    const learns = groups.map((_, g) => prompts[3 * g] % 3 === 2)
    expect(trained).toEqual(groups.filter((_, g) => learns[g]))
    // The last one played was needed.
    const before = learns.slice(0, -1).filter(Boolean).length
    if (groups.length > 4) expect(before).toBeLessThan(4)
    if (trained.length === 4) full++
    else expect(groups).toHaveLength(16)
    used += groups.length - 4
  })
  expect(full).toBeGreaterThan(0)
  expect(used).toBeGreaterThan(0)
  const tight = await play(1.5, () => 0)
  expect(Math.max(...tight.seen.map((s) => s.groups.length))).toBe(6)
})

test('who ends first changes nothing', async () => {
  const still = await play(3, () => 0)
  for (const seed of [1, 2]) {
    const random = new Random(seed)
    expect(await play(3, () => random.next() * 12)).toEqual(still)
  }
})

test('they go before what waits for later steps', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: n < 3 ? '1' : String(n), afterMs: 2 }), {
    groupsPerStep: 1,
    spareGroups: 1,
    maxConcurrent: 3,
    environments: [await numbersEnv('numbers', rows)],
  })
  for (const step of [1, 2, 3]) orchestrator.prepare(step)
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.rollout.group)).toEqual(['1.0', '1.0', '1.0', '1.1', '1.1', '1.1'])
  // Step 2 had the places that step 1 left; the spares came next, and nobody of step 3.
  const before = generator.requests.slice(0, 9).map((request) => request.seed)
  for (const { rollout } of rollouts) expect(before).toContain(rollout.seed)
  await orchestrator.close()
})

/** Where a rollout goes on once all of its group have begun, as the bridge's do. */
async function playsTogether(): Promise<RunEnvironment> {
  const { env, ...source } = await numbersEnv('numbers', rows)
  const groups = new Map<string, (() => void)[]>()
  const begun = (group: string, size: number) =>
    new Promise<void>((resolve) => {
      const here = [...(groups.get(group) ?? []), resolve]
      groups.set(group, here)
      if (here.length === size) for (const begin of here) begin()
    })
  const rollout: typeof env.rollout = async (row, context) => {
    await begun(context.group!.id, context.group!.size)
    return await env.rollout(row, context)
  }
  return { ...source, env: Object.assign(Object.create(env) as typeof env, { playsGroups: true, rollout }) }
}

test('an environment that plays groups together: no two groups wait for the places that the other holds', async () => {
  const random = new Random(3)
  const options = { groupsPerStep: 10, rolloutsPerExample: 8, spareGroups: 30, maxConcurrent: 12, generationTimeoutSeconds: 2 }
  // Nothing is learned from any, so all spares are played, which go before those that wait.
  const script: Script = () => ({ text: '1', afterMs: random.next() < 0.2 ? 40 : 2 + random.next() * 10 })
  const play = async (): Promise<number> => {
    const { orchestrator, generator } = await makeOrchestrator(script, { ...options, environments: [await playsTogether()] })
    const { rollouts } = await orchestrator.batch(1, 0)
    await orchestrator.close()
    expect(generator.mostRunning).toBeLessThanOrEqual(12)
    return rollouts.filter(({ rollout }) => rollout.error).length
  }
  expect(await Promise.all(Array.from({ length: 12 }, play))).toEqual(Array.from({ length: 12 }, () => 0))
  const few = { ...options, environments: [await playsTogether()], evalRolloutsPerExample: 13 }
  await expect(makeOrchestrator(answer, few)).rejects.toThrow(
    'numbers plays the rollouts of a task together: max_concurrent (12) must be at least eval_rollouts_per_example (13).',
  )
  // Its groups are those of evaluations alone where it is not trained on.
  const only = { environments: [{ ...(await playsTogether()), weight: 0 }, await numbersEnv('other')], maxConcurrent: 4 }
  await makeOrchestrator(answer, { ...options, ...only, evalRolloutsPerExample: 4 })
  await expect(makeOrchestrator(answer, { ...options, ...only, evalRolloutsPerExample: 5 })).rejects.toThrow(
    'max_concurrent (4) must be at least eval_rollouts_per_example (5).',
  )
  // As many places as the largest group are enough; nothing is evaluated where no row is held out.
  await makeOrchestrator(answer, { ...few, maxConcurrent: 13 })
  const [{ env, ...source }] = few.environments
  const unheld = { ...source, env: Object.assign(Object.create(env) as typeof env, { evalDataset: [] }) }
  await makeOrchestrator(answer, { ...few, environments: [unheld] })
})

test('a filter that throws ends the groups that still play, and close waits for them', async () => {
  const filters = [{ name: 'wrong', args: {}, run: () => { throw new Error('a typo') } }] // prettier-ignore
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), hangs: n >= 3 }), {
    spareGroups: 2,
    algorithm: { ...algorithm, filters },
  })
  orchestrator.prepare(1)
  while (generator.aborted === 0) await sleep(1)
  await orchestrator.close()
  expect([generator.running, generator.aborted]).toEqual([0, 3])
  await expect(orchestrator.batch(1, 0)).rejects.toThrow('a typo')
})

test('none begins once the run ends', async () => {
  const { orchestrator, generator } = await makeOrchestrator(() => ({ text: '1', afterMs: 20 }), { spareGroups: 14 })
  const failed = expect(orchestrator.batch(1, 0)).rejects.toThrow('All 6 rollouts of step 1 failed.')
  await sleep(5)
  await orchestrator.close()
  await sleep(60)
  expect(generator.requests).toHaveLength(6)
  await failed
})

test('the spare tasks of steps follow each other, and from the step alone', async () => {
  const environments = [await numbersEnv('numbers', rows)]
  const spares = new Spares(environments, 7, spareGroups(4, 1.5))
  expect(spares.most).toBe(2)
  const take = (step: number) => {
    const next = new Spares(environments, 7, spareGroups(4, 1.5)).of(step, 4 * step)
    return [next(), next(), next()].map((spare) => spare && [spare.number, spare.task.row.exampleId])
  }
  const steps = [1, 2, 3, 4, 5, 6].map(take)
  expect(steps.every(([, , none]) => none === undefined)).toBe(true)
  expect(steps.map(([first, second]) => [first![0], second![0]])).toEqual(steps.map(() => [0, 1]))
  // Of 12 rows, 12 spares are each row once.
  expect(steps.flatMap(([first, second]) => [first![1], second![1]]).toSorted((a, b) => a - b)).toEqual(
    Array.from({ length: 12 }, (_, i) => i),
  )
  expect(take(3)).toEqual(steps[2])
  // In an order of their own: they would else be the tasks that the run's first steps have played already.
  const order = new TaskOrder(environments, 7)
  expect(steps.flatMap(([first, second]) => [first![1], second![1]])).not.toEqual(
    Array.from({ length: 12 }, (_, i) => order.at(i).row.exampleId),
  )
})

test('in the order of the rows, they are the rows that come next', async () => {
  const environments = [await numbersEnv('numbers', rows)]
  const alike: Script = () => ({ text: '1' })
  const options = { environments, groupsPerStep: 4, spareGroups: 3, shuffle: false }
  for (const done of [undefined, { step: 1, tasks: 4 }]) {
    const { orchestrator } = await makeOrchestrator(alike, { ...options, done })
    const { rollouts } = await orchestrator.batch(2, 1)
    const played = rollouts.filter((_, i) => i % 3 === 0).map(({ rollout }) => rollout.exampleId)
    expect(played).toEqual([4, 5, 6, 7, 8, 9, 10])
    await orchestrator.close()
  }
})

test('in the order of the rows of several environments, they are the tasks of the next step', async () => {
  const environments = [await numbersEnv('a', rows), await numbersEnv('b', rows)]
  const [order, spares] = [{ shuffle: false }, 6]
  const tasks = new TaskOrder(environments, 3, order)
  const next = new Spares(environments, 3, spares, order).of(1, 4)
  for (let i = 0; i < spares; i++) expect(next()).toEqual({ number: i, task: tasks.at(4 + i) })
})

test('a factor makes whole groups', () => {
  expect([1, 1.1, 1.25, 2, 3.5].map((factor) => spareGroups(10, factor))).toEqual([0, 1, 2, 10, 25])
  expect(spareGroups(1, 1.9)).toBe(0)
})
