import { expect, test } from 'vitest'
import { evaluatedRows, membersOf, TaskOrder, type RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { makeOrchestrator, numbersEnv } from './helpers.ts'

const range = (n: number) => Array.from({ length: n }, (_, i) => i)
const keys = (order: TaskOrder, positions: number[]) =>
  positions.map((p) => `${order.at(p).source.name}:${order.at(p).row.exampleId}`)

test('each pass has every row once, in another order', async () => {
  const env = await numbersEnv('a', 5)
  const order = new TaskOrder([env], 3)
  const passes = [0, 1, 2].map((pass) => range(5).map((i) => order.at(pass * 5 + i).row.exampleId))
  for (const pass of passes) expect(pass.toSorted((a, b) => a - b)).toEqual([0, 1, 2, 3, 4])
  expect(new Set(passes.map(String)).size).toBeGreaterThan(1)
})

test('a position gives the same task whatever was asked before it', async () => {
  const sources = [await numbersEnv('a', 5), { ...(await numbersEnv('b', 7)), weight: 2 }]
  const all = keys(new TaskOrder(sources, 3), range(60))
  expect(keys(new TaskOrder(sources, 3), [41, 3, 59, 0])).toEqual([all[41], all[3], all[59], all[0]])
  // Another seed mixes the environments in another way too.
  const names = (of: string[]) => of.map((key) => key.split(':')[0])
  expect(names(keys(new TaskOrder(sources, 4), range(60)))).not.toEqual(names(all))
})

test('environments are mixed by weight, and each goes through its own rows', async () => {
  const sources = [{ ...(await numbersEnv('a', 4)), weight: 1 }, { ...(await numbersEnv('b', 4)), weight: 3 }] // prettier-ignore
  const order = new TaskOrder(sources, 1)
  const n = 4000
  const tasks = range(n).map((p) => order.at(p))
  const share = tasks.filter((t) => t.source.name === 'b').length / n
  // Deviation of the share: sqrt(0.75 x 0.25 / 4000) = 0.007.
  expect(Math.abs(share - 0.75)).toBeLessThan(0.03)
  const ofB = tasks.filter((t) => t.source.name === 'b').map((t) => t.row.exampleId)
  for (let first = 0; first + 4 <= 40; first += 4)
    expect(ofB.slice(first, first + 4).toSorted((a, b) => a - b)).toEqual([0, 1, 2, 3])
  // Not in one order: rows of datasets that were made alike would always come side by side.
  const ofA = tasks.filter((t) => t.source.name === 'a').map((t) => t.row.exampleId)
  expect(ofA.slice(0, 40)).not.toEqual(ofB.slice(0, 40))
})

test('the members of a group share its weight, also against other environments', async () => {
  const member = async (name: string, weight: number) => ({ ...(await numbersEnv(name, 12)), weight })
  const groupOf = async (members: RunEnvironment[], weight: number) => {
    const { env } = await numbersEnv('group')
    return { name: 'group', weight, env: Object.assign(Object.create(env) as typeof env, { members }) }
  }
  const inner = await groupOf([await member('b', 1), await member('c', 4)], 5)
  const sources = [...membersOf(await groupOf([await member('a', 15), inner], 2)), await numbersEnv('alone')]
  expect(sources.map(({ name, weight }) => [name, weight])).toEqual([
    ['group/a', 1.5],
    ['group/group/b', 0.1],
    ['group/group/c', 0.4],
    ['alone', 1],
  ])
})

test('fewer rows than a step needs: rows come again', async () => {
  const order = new TaskOrder([await numbersEnv('a', 2)], 1)
  expect(
    range(6)
      .map((p) => order.at(p).row.exampleId)
      .toSorted((a, b) => a - b),
  ).toEqual([0, 0, 0, 1, 1, 1])
})

test('a run that goes on with batches of another size goes on with the tasks that come next', async () => {
  const { orchestrator } = await makeOrchestrator(() => ({ text: '1' }), {
    environments: [await numbersEnv('a', 40)],
    groupsPerStep: 2,
  })
  const order = new TaskOrder([await numbersEnv('a', 40)], 1)
  expect(orchestrator.tasksBefore(1)).toBe(0)
  expect(orchestrator.tasksBefore(4)).toBe(6)
  const { rollouts } = await orchestrator.batch(3, 2)
  expect([...new Set(rollouts.map(({ rollout }) => rollout.exampleId))]).toEqual([4, 5].map((p) => order.at(p).row.exampleId))
  await orchestrator.close()
  const later = await makeOrchestrator(() => ({ text: '1' }), {
    environments: [await numbersEnv('a', 40)],
    groupsPerStep: 5,
    done: { step: 3, tasks: 6 },
  })
  const next = await later.orchestrator.batch(4, 3)
  expect([...new Set(next.rollouts.map(({ rollout }) => rollout.exampleId))]).toEqual(
    [6, 7, 8, 9, 10].map((p) => order.at(p).row.exampleId),
  )
  expect(later.orchestrator.tasksBefore(5)).toBe(11)
  await later.orchestrator.close()
})

test('without shuffling each environment gives its rows in their order, again and again, and the mixture is the same', async () => {
  const sources = [await numbersEnv('a', 5), { ...(await numbersEnv('b', 7)), weight: 2 }]
  const all = keys(new TaskOrder(sources, 3, { shuffle: false }), range(60))
  for (const [name, rows] of [
    ['a', 5],
    ['b', 7],
  ] as const) {
    const own = all.filter((key) => key.startsWith(name))
    expect(own).toEqual(own.map((_, i) => `${name}:${i % rows}`))
  }
  const names = (of: string[]) => of.map((key) => key.split(':')[0])
  expect(names(all)).toEqual(names(keys(new TaskOrder(sources, 3), range(60))))
})

test('an environment of weight 0 gives no task, and changes none of those that others give', async () => {
  const trained = [await numbersEnv('a', 5), await numbersEnv('b', 7)]
  const other = { ...(await numbersEnv('c', 3)), weight: 0 }
  const plain = keys(new TaskOrder(trained, 3), range(200))
  expect(keys(new TaskOrder([other, ...trained], 3), range(200))).toEqual(plain)
  expect(keys(new TaskOrder([...trained, other], 3), range(200))).toEqual(plain)
})

test('an environment that is only evaluated plays all its rows where it holds none out; one that is trained on never does', async () => {
  const held = await numbersEnv('a', 5)
  expect(evaluatedRows({ ...held, weight: 0 })).toBe(held.env.evalDataset)
  const none = { ...held, env: Object.assign(Object.create(held.env) as typeof held.env, { evalDataset: [] }) }
  expect(evaluatedRows(none)).toEqual([])
  expect(evaluatedRows({ ...none, weight: 0 })).toBe(held.env.dataset)
})
