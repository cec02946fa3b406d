import { expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { Rollout } from '../../src/common/types.ts'
import groupMean from '../../src/orchestrator/advantages/group_mean.ts'
import { assignAdvantages, type Algorithm } from '../../src/orchestrator/algorithm.ts'
import { tryAlgorithm } from '../../src/orchestrator/plugins.ts'
import zeroVariance from '../../src/orchestrator/filters/zero_variance.ts'
import type { AdvantageFunction, FilterFunction } from '../../src/orchestrator/types.ts'
import { algorithm, rollout } from './helpers.ts'

const group = (rewards: (number | null)[], name = '1.0'): Rollout[] =>
  rewards.map((reward, index) => rollout({ reward, index, group: name, error: reward === null ? 'failed' : null }))
const advantagesOf = (rollouts: Rollout[], ...rest: [Algorithm?, ((r: Rollout) => boolean)?]) =>
  assignAdvantages(rollouts, rest[0] ?? algorithm, rest[1]).map((r) => r.advantage)
const withAdvantage = (run: unknown): Algorithm => ({
  ...algorithm,
  advantage: { name: './mine.ts', run: run as AdvantageFunction, args: { scale: 2 } },
})
const withFilter = (run: unknown): Algorithm => ({
  ...algorithm,
  filters: [{ name: './mine.ts', run: run as FilterFunction, args: {} }],
})

test('group_mean: reward - mean reward, not divided by the deviation', () => {
  expect(groupMean(group([0, 1, 0.5, 0.5]))).toEqual([-0.5, 0.5, 0, 0])
  expect(groupMean(group([0.5, 0.75])).reduce((a, b) => a + b)).toBe(0)
})

test('zero_variance: equal rewards carry no signal, nor do differences of rounding', () => {
  expect(zeroVariance(group([0.3, 0.3, 0.3]))).toBe(false)
  expect(zeroVariance(group([0.3, 0.1 + 0.2, 0.3]))).toBe(false)
  expect(zeroVariance(group([0.3, 0.31]))).toBe(true)
})

test('the baseline is the mean of the scored ones; failed rollouts and filtered groups get nothing', () => {
  expect(advantagesOf([...group([0, null, 1]), ...group([1, 1, 1], '1.1')])).toEqual([-0.5, null, 0.5, null, null, null])
})

test('a group with fewer than 2 scored rollouts is dropped', () => {
  expect(advantagesOf(group([1, null, null]))).toEqual([null, null, null])
  // also where no filter asks for variance
  expect(advantagesOf(group([1, null]), { ...algorithm, filters: [] })).toEqual([null, null])
})

test('rollouts that are too old leave their group', () => {
  const rollouts = group([0, 1, 0.5])
  expect(advantagesOf(rollouts, algorithm, (r) => r.index === 1)).toEqual([-0.25, null, 0.25])
  expect(advantagesOf(rollouts, algorithm, (r) => r.index > 0)).toEqual([null, null, null])
})

test('masked: what was cut off counts in the mean and is not trained on; a group of nothing else is not either', () => {
  const cut = (rollouts: Rollout[], which: number[]) => rollouts.map((r, i) => ({ ...r, isTruncated: which.includes(i) }))
  const masking = { ...algorithm, maskTruncated: true }
  expect(advantagesOf(cut(group([0, 1, 0.5]), [1]), masking)).toEqual([-0.5, null, 0])
  expect(advantagesOf(cut(group([0, 1, 0.5]), [0, 1, 2]), masking)).toEqual([null, null, null])
  expect(advantagesOf(cut(group([0, 1, 0.5]), [1]))).toEqual([-0.5, 0.5, 0])
})

test('every filter must let a group pass', () => {
  const always = { name: 'mine', run: () => true, args: {} }
  for (const filters of [
    [always, ...algorithm.filters],
    [...algorithm.filters, always],
  ])
    expect(advantagesOf([...group([1, 1]), ...group([0, 2], '1.1')], { ...algorithm, filters })).toEqual([null, null, -1, 1])
})

test('groups do not mix, and results keep the order of the rollouts', () => {
  const [a, b] = [group([0, 1]), group([4, 8], '1.1')]
  expect(advantagesOf([a[0], b[0], a[1], b[1]])).toEqual([-0.5, -2, 0.5, 2])
})

test('an advantage is told all groups that are trained on, itself among them, and none of these can be changed', () => {
  const seen: unknown[] = []
  const mine = withAdvantage((of: Rollout[], _: unknown, groups: Rollout[][]) => {
    seen.push([groups.indexOf(of), groups.map((one) => one.map(({ reward }) => reward)), Object.isFrozen(groups)])
    return of.map(() => 0)
  })
  advantagesOf([...group([0, 1]), ...group([1, 1], '1.1'), ...group([2, null, 4], '1.2'), ...group([9, null], '1.3')], mine)
  const trained = [[0, 1], [2, 4]] // prettier-ignore
  expect(seen).toEqual([[0, trained, true], [1, trained, true]]) // prettier-ignore
})

test('advantages a token, and arguments', () => {
  const perToken = withAdvantage((rollouts: Rollout[], args: { scale: number }) =>
    rollouts.map((r) => Float32Array.from(r.completion_tokens.ids, (_, t) => t * args.scale * r.reward!)),
  )
  expect(advantagesOf(group([0, 1]), perToken)).toEqual([Float32Array.of(0, 0, 0), Float32Array.of(0, 2, 4)])
})

test.each([
  ['NaN', () => [NaN, 1], /gave rollout 0 the value NaN/],
  ['Infinity in an array', () => [[0, Infinity, 0], 1], /gave rollout 0 the value Infinity/],
  ['a place in an array that nothing was put into', () => [Object.assign([], { 2: 1 }), 1], /gave rollout 0 the value undefined/],
  ['none for a rollout', () => Object.assign([], { 1: 1 }), /gave rollout 0 undefined/],
  ['too few', () => [1], /returned 1 value for 2 rollouts/],
  ['an array of another length', () => [1, [1]], /gave rollout 1, which has 3 tokens, 1 value\./],
  ['a longer array', () => [1, [1, 2, 3, 4]], /gave rollout 1, which has 3 tokens, 4 values\./],
  ['nothing', () => undefined, /returned undefined/],
  ['a promise', async () => [1, 2], /returned a promise \(the function must not be async\)/],
  ['text', () => ['a', 'b'], /gave rollout 0 the string a/],
  ['a throw', () => { throw new TypeError('no such thing') }, /^The advantage \.\/mine\.ts threw: no such thing/], // prettier-ignore
])('an advantage that gives %s is refused in one sentence', (_, run, message) => {
  expect(() => advantagesOf(group([0, 1]), withAdvantage(run))).toThrow(UserError)
  expect(() => advantagesOf(group([0, 1]), withAdvantage(run))).toThrow(message)
})

test('an advantage that sorts the group in place is refused: values are taken in its order', () => {
  const ranks = (rollouts: Rollout[]) => rollouts.sort((a, b) => a.reward! - b.reward!).map((_, i) => i)
  expect(() => advantagesOf(group([1, 0]), withAdvantage(ranks))).toThrow(/threw: Cannot assign to read only/)
})

test('an advantage, or a filter, that writes a reward over is refused: what is written down is what was earned', () => {
  const shifts = (rollouts: Rollout[]) => rollouts.map((r) => (r.reward! -= 0.5))
  expect(() => advantagesOf(group([1, 0]), withAdvantage(shifts))).toThrow(/threw: .*read only property 'reward'/)
  expect(() => advantagesOf(group([1, 0]), withFilter(shifts))).toThrow(/threw: .*read only property 'reward'/)
})

test('an advantage, or a filter, that sorts the tokens of a rollout in place is refused: these are trained on', () => {
  for (const key of ['ids', 'logprobs', 'versions'] as const) {
    const sorts = (rollouts: Rollout[]) => rollouts.map((r) => Number(r.completion_tokens[key].sort((a, b) => b - a)[0]))
    expect(() => advantagesOf(group([1, 0]), withAdvantage(sorts))).toThrow(/threw: Cannot assign to read only/)
    expect(() => advantagesOf(group([1, 0]), withFilter(sorts))).toThrow(/threw: Cannot assign to read only/)
  }
  const grows = (rollouts: Rollout[]) => rollouts.map((r) => r.promptIds.push(1))
  expect(() => advantagesOf(group([1, 0]), withAdvantage(grows))).toThrow(/threw: Cannot add property/)
})

test('a filter must say true or false: a promise is always true', () => {
  expect(() =>
    advantagesOf(
      group([0, 1]),
      withFilter(async () => false),
    ),
  ).toThrow(/must return true or false, not a promise/)
  expect(() =>
    advantagesOf(
      group([0, 1]),
      withFilter(() => undefined),
    ),
  ).toThrow(/must return true or false, not undefined/)
  expect(
    advantagesOf(
      group([0, 1]),
      withFilter(() => false),
    ),
  ).toEqual([null, null])
})

test('tryAlgorithm runs both on made-up answers to a real task', () => {
  const { env, prompt, answer, info, metrics } = rollout({ answer: '42', info: { hard: true }, metrics: { exact: 0.5 } })
  const example = { env, prompt, answer, info, metrics }
  const seen: Rollout[][] = []
  const looks = (rollouts: Rollout[]) => {
    seen.push(rollouts)
    return rollouts.map(() => 0)
  }
  tryAlgorithm(withAdvantage(looks), example)
  expect(seen[0]).toHaveLength(4)
  expect(seen[0][3]).toMatchObject({
    answer: '42',
    info: { hard: true },
    metrics: { exact: 0.5 },
    completion: [{ content: '42' }],
  })
  expect(() =>
    tryAlgorithm(
      withAdvantage(() => [NaN, 0, 0, 0]),
      example,
    ),
  ).toThrow(/the value NaN.*made-up answers/s)
  expect(() =>
    tryAlgorithm(
      withFilter((rollouts: Rollout[]) => rollouts[0].info.nothing),
      example,
    ),
  ).toThrow(/true or false/)
})
