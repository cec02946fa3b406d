/** Environments in groups, rubrics in groups, and rewards of a group of rollouts. */
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EnvGroup } from '../../src/environments/env-group.ts'
import { MultiTurnEnv } from '../../src/environments/multi-turn.ts'
import { Parser } from '../../src/environments/parsers.ts'
import { runRollout, scoreGroup, sftRows } from '../../src/environments/rollout.ts'
import { Rubric, RubricGroup } from '../../src/environments/rubric.ts'
import { SingleTurnEnv } from '../../src/environments/single-turn.ts'
import { ToolEnv } from '../../src/environments/tool-env.ts'
import { tool } from '../../src/environments/tools.ts'
import type { Environment } from '../../src/environments/types.ts'
import { membersOf } from '../../src/orchestrator/tasks.ts'
import { makeOrchestrator } from '../orchestrator/helpers.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

const saying = (word: string, rubric: Rubric) =>
  SingleTurnEnv.create({ id: word, rubric, dataset: [0, 1, 2, 3].map((i) => ({ question: `${word} ${i}` })), evalSize: 1 })
const length = new Rubric({ length: ({ text }) => text.length })
const play = async (env: Environment, text: string, row = env.dataset[0]) =>
  await runRollout(env, row, { client: new ScriptedClient(() => completionOf(text)), sampling, group: 'g', index: 0 })

describe('rubrics', () => {
  const upper = new Rubric({ same: ({ text }) => Number(text === 'A') }, { parser: new Parser((text) => text.toUpperCase()) })
  const all = (rubrics: Rubric[]) => saying('x', new RubricGroup(rubrics))
  test('add up, each with its parser', async () => {
    const metric = new Rubric({ half: { reward: () => 1, weight: 0.5 }, words: { reward: () => 9, weight: 0 } })
    const env = await all([upper, length, metric])
    expect(env.rubric.names).toEqual(['same', 'length', 'half', 'words'])
    expect(env.rubric.weights).toEqual({ same: 1, length: 1, half: 0.5, words: 0 })
    expect(await play(env, 'a')).toMatchObject({ reward: 2.5, metrics: { same: 1, length: 1, half: 1, words: 9 } })
  })
  test('one that does not apply leaves the others; one that fails fails all', async () => {
    const none = new Rubric({ none: () => null })
    expect(await play(await all([none, length]), 'abc')).toMatchObject({ reward: 3, metrics: { none: null, length: 3 } })
    expect(await play(await all([none]), 'abc')).toMatchObject({
      reward: null,
      error: 'no reward function applied: each returned null',
    })
    const bad = new Rubric({ bad: () => Number.NaN })
    expect(await play(await all([bad, length]), 'abc')).toMatchObject({ reward: null, metrics: { length: 3 } })
  })
  test('a sum that is too large for a number fails, as one within a rubric does', async () => {
    const [one, other] = ['one', 'other'].map((name) => new Rubric({ [name]: () => 1e308 }))
    const told = { reward: null, error: 'the sum of the rewards is not finite', metrics: { one: 1e308, other: 1e308 } }
    expect(await play(await all([one, other]), 'a')).toMatchObject(told)
  })
  test('two functions of one name are refused', () => {
    expect(() => new RubricGroup([length, length])).toThrow('two functions are named "length"')
    expect(() => new Rubric({ a: () => 1 }, { group: { a: () => [1] } })).toThrow(
      '"a" names both a function and a group function',
    )
  })
})

describe('group functions', () => {
  /** The longest answer of the group earns 1. */
  const longest = new Rubric(
    { said: { reward: ({ text }) => (text === 'bad' ? Number.NaN : text.length), weight: 0.1 } },
    {
      group: {
        longest: (group) => group.map(({ text }) => Number(text.length === Math.max(...group.map((r) => r.text.length)))),
        count: { reward: (group) => group.map(() => group.length), weight: 0 },
      },
    },
  )
  test('see the rollouts of one task that did not fail, and are a part of the sum', async () => {
    const env = await saying('x', longest)
    const played = [await play(env, 'a'), await play(env, 'abc'), await play(env, 'bad')]
    expect(played[0]).toMatchObject({ reward: 0.1, metrics: { said: 1 } })
    const [a, b, c] = await scoreGroup(env, played)
    expect(a).toMatchObject({ reward: 0.1, metrics: { said: 1, longest: 0, count: 2 } })
    // What was played stays as it was.
    expect(played[0].metrics).toEqual({ said: 1 })
    expect(b.reward).toBeCloseTo(1.3, 12)
    expect(c).toMatchObject({ reward: null, metrics: {} })
  })
  test('may be all that a rubric has, or all that applies; one without weight makes no reward', async () => {
    const group = { place: (g: readonly unknown[]) => g.map((_, i) => i) }
    const none = { none: () => null }
    for (const own of [{}, none]) {
      const env = await saying('x', new Rubric(own, { group }))
      const scored = await scoreGroup(env, [await play(env, 'a'), await play(env, 'b')])
      expect(scored.map((r) => [r.reward, r.error])).toEqual([[0, null], [1, null]]) // prettier-ignore
    }
    const watched = await saying('x', new Rubric(none, { group: { place: { reward: group.place, weight: 0 } } }))
    expect(await play(watched, 'a')).toMatchObject({ reward: null, error: 'no reward function applied: each returned null' })
  })
  test.each<[string, () => number[] | Promise<number[]>, string]>([
    ['throws', () => { throw new Error('odd') }, 'group reward function "bad" threw: odd'],
    ['gives too few', () => [1], 'group reward function "bad" must return an array with one value for each of the 2 rollouts'],
    ['gives too many', () => [1, 2, 3], 'with one value for each of the 2 rollouts'],
    ['gives nothing for a rollout', () => Object.assign([], { 1: 1 }) as number[], 'group reward function "bad" returned undefined'],
    ['gives NaN', () => [1, Number.NaN], 'group reward function "bad" returned NaN'],
    ['hangs', () => new Promise(() => {}), 'group reward function "bad" took longer than its limit of 0.02 s'],
  ])('one that %s fails the group', async (_, bad, error) => {
    const env = await saying('x', new Rubric({ one: () => 1 }, { group: { bad }, timeoutSeconds: 0.02 }))
    const scored = await scoreGroup(env, [await play(env, 'a'), await play(env, 'b')])
    expect(scored.map((r) => r.reward)).toEqual([null, null])
    expect(scored[0].error).toContain(error)
  }) // prettier-ignore
  test('the state of a rollout is there, and in a run each group is scored once it is whole', async () => {
    const rubric = new Rubric({ zero: () => 0 }, { group: { rank: (group) => group.map(({ state }) => Number(state.own)) } })
    let own = 0
    const env = await MultiTurnEnv.create({
      id: 'many', rubric, dataset: [{ question: 'q' }], evalSize: 0, maxTurns: 1, envResponse: () => '', setupState: () => ({ own: own++ }),
    }) // prettier-ignore
    const { orchestrator } = await makeOrchestrator(() => ({ text: 'x' }), { environments: [{ name: 'named', env, weight: 1 }] })
    const { rollouts } = await orchestrator.batch(1, 0)
    expect(rollouts.map(({ rollout }) => [rollout.env, rollout.reward])).toEqual([0, 1, 2, 3, 4, 5].map((n) => ['named', n]))
    expect(rollouts.map(({ advantage }) => advantage)).toEqual([-1, 0, 1, -1, 0, 1])
  })
})

describe('a group of environments', () => {
  const group = async () => {
    const same = new Rubric(
      { same: ({ text }) => Number(text === 'yes') },
      { group: { rest: { reward: (g) => g.map(() => 0), weight: 1 } } },
    )
    return new EnvGroup({
      id: 'both',
      envs: [
        { env: await saying('a', length), weight: 3 },
        { env: await saying('b', same), name: 'bee' },
      ],
    })
  }
  test('plays and scores each row with the member that it came from', async () => {
    const both = await group()
    expect(both.dataset.map((row) => [row.exampleId, row.info.env_id])).toEqual(
      ['a', 'a', 'a', 'bee', 'bee', 'bee'].map((name, i) => [i, name]),
    )
    expect(both.evalDataset).toHaveLength(2)
    expect(await play(both, 'yes')).toMatchObject({ reward: 3, metrics: { length: 3 } })
    const bee = await play(both, 'yes', both.dataset[3])
    expect((await scoreGroup(both, [bee]))[0]).toMatchObject({ reward: 1, metrics: { same: 1, rest: 0 } })
    await expect(both.rollout({ ...both.dataset[0], info: {} }, {} as never)).rejects.toThrow(
      'but no member of the group has that name',
    )
  })
  test('in a run its members stand apart, with their share of its weight', async () => {
    const both = await group()
    const sources = membersOf({ name: 'run', env: both, weight: 2 })
    expect(sources.map(({ name, weight }) => [name, weight])).toEqual([['run/a', 1.5], ['run/bee', 0.5]]) // prettier-ignore
    const nested = new EnvGroup({ id: 'outer', envs: [{ env: both }] })
    expect(membersOf({ name: 'n', env: nested, weight: 1 }).map(({ name }) => name)).toEqual(['n/both/a', 'n/both/bee'])
  })
  test('within a group stands for its members there too, with their share of its weight', async () => {
    const nested = new EnvGroup({ id: 'outer', envs: [{ env: await group(), weight: 2 }, { env: await saying('c', length) }] }) // prettier-ignore
    expect(nested.members.map(({ name, weight }) => [name, weight])).toEqual([['both/a', 1.5], ['both/bee', 0.5], ['c', 1]]) // prettier-ignore
    const earned = await Promise.all([0, 3, 6].map(async (i) => (await play(nested, 'yes', nested.dataset[i])).metrics))
    expect(earned).toEqual([{ length: 3 }, { same: 1 }, { length: 3 }])
  })
  test('has the turns of the member with most, and no limit where one has none', async () => {
    const single = await saying('a', length)
    const turns = (maxTurns: number) => Object.assign(Object.create(single) as Environment, { maxTurns, id: `of ${maxTurns}` })
    const most = (...envs: Environment[]) => new EnvGroup({ id: 'g', envs: envs.map((env) => ({ env })) }).maxTurns
    expect([most(single), most(single, turns(3)), most(turns(3), turns(-1))]).toEqual([1, 3, -1])
  })
  test('is refused without members, with two of one name, or with a weight that is none', async () => {
    const env = await saying('a', length)
    expect(() => new EnvGroup({ id: 'g', envs: [] })).toThrow('needs at least one environment')
    expect(() => new EnvGroup({ id: 'g', envs: [{ env }, { env }] })).toThrow('two members are named a')
    expect(() => new EnvGroup({ id: 'g', envs: [{ env, weight: 0 }] })).toThrow('the weight of a is 0')
  })
})

test('supervised examples of a group are told of the tools of their own member', async () => {
  const look = tool({ name: 'look', description: '', parameters: z.object({}), run: () => 1 })
  const dataset = [{ question: 'a', answer: 'b' }]
  const calls = await ToolEnv.create({ id: 'calls', rubric: length, dataset, evalSize: 0, tools: [look] })
  const plain = await SingleTurnEnv.create({ id: 'plain', rubric: length, dataset, evalSize: 0 })
  const group = new EnvGroup({ id: 'both', envs: [{ env: calls }, { env: plain }] })
  expect(sftRows(group)).toEqual([...sftRows(calls), ...sftRows(plain)])
  expect(sftRows(group)[0].tools).toEqual(calls.tools)
})
