import { expect, test } from 'vitest'
import { evalMetrics, passAtK, populationStd, reaches, rolloutMetrics, totalsOf } from '../../src/monitor/aggregate.ts'
import { METRICS, metricInfo } from '../../src/monitor/metrics-table.ts'
import fc from '../fast-check.ts'
import { groupsOf, rollout, scored } from './helpers.ts'

const nothingYet = { tokens: 0, rollouts: 0 }

test('a step, worked out by hand', () => {
  const rollouts = [
    // One group whose rewards differ, one solved by all, one by none, and a failure in the last.
    ...groupsOf([
      [0.2, 0.8],
      [1, 1],
      [0, 0, null],
    ]),
  ]
  rollouts[0] = { ...rollouts[0], isTruncated: true, stopCondition: 'max_tokens', metrics: { ends: 0, words: 20 } }
  rollouts[1] = { ...rollouts[1], stopCondition: 'stop: </answer>', metrics: { ends: 1, words: null } }
  rollouts[1].completion_tokens = { ids: [1], logprobs: [-1], versions: [2] }
  rollouts[0].completion_tokens = { ids: [1, 2, 3], logprobs: [-1, -1, -1], versions: [3, 4, 4] }
  const withAdvantage = scored(rollouts).map((r, i) => ({ ...r, advantage: [-0.3, 0.3][i] ?? null }))
  const m = rolloutMetrics({ rollouts: withAdvantage, version: 4, dropped: 2, totals: { tokens: 100, rollouts: 10 } })
  expect(m).toEqual({
    reward: 0.5,
    // Deviations -0.3, 0.3, 0.5, 0.5, -0.5, -0.5: sum of squares 1.18, over n = 6.
    'reward/std': expect.closeTo(Math.sqrt(1.18 / 6), 12),
    'reward/ends': 0.5,
    'reward/words': 20,
    'advantage/absmean': 0.3,
    solved_none: 1 / 3,
    solved_all: 1 / 3,
    solved_some: 1 / 3,
    'is_truncated/mean': 1 / 6,
    'tokens/completion': (3 + 1 + 4 * 3) / 6,
    'num_turns/mean': 1,
    'num_branches/mean': 1,
    'history_rewritten/mean': 0,
    'has_error/mean': 1 / 7,
    'stop_condition/max_tokens': 1 / 7,
    'stop_condition/stop': 1 / 7,
    'stop_condition/eos': 5 / 7,
    // Ages of the four tokens that are trained on: 1, 0, 0, 2.
    'off_policy/mean': 0.75,
    'off_policy/max': 2,
    'off_policy/dropped': 2,
    'discarded/mean': 5 / 7,
    'progress/tokens': 7 * 4 + 3 + 1 + 5 * 3,
    'progress/total_tokens': 147,
    'progress/total_rollouts': 17,
  })
  const before = { 'progress/total_tokens': 100, 'progress/total_rollouts': 10 }
  expect(totalsOf([before, m, { 'eval/x/avg@1': 1 }])).toEqual({ tokens: 147, rollouts: 17 })
  expect(totalsOf([])).toEqual(nothingYet)
})

test('what a failed rollout did counts in the errors, the stop conditions and the progress, and nowhere else', () => {
  const turns = [true, true, false].map((branch) => ({ branch, promptIds: [1], sampled: 3, rewritten: true }))
  const tokens = { ids: [1, 2, 3, 4, 5, 6, 7, 8, 9], logprobs: Array<number>(9).fill(-1), versions: Array<number>(9).fill(0) }
  const failed = rollout({ reward: null, error: 'no', isTruncated: true, metrics: { ends: 9 }, turns, completion_tokens: tokens })
  // Of two environments, as each has numbers of its own.
  const good = [{}, { env: 'other' }].flatMap((of) => groupsOf([[0, 1]], { metrics: { ends: 1 }, ...of }))
  const kept = (rollouts: typeof good) =>
    Object.entries(rolloutMetrics({ rollouts: scored(rollouts), version: 4, totals: nothingYet })).filter(
      ([key]) => !/^(?:has_error|stop_condition|discarded|progress)\//.test(key),
    )
  expect(kept([...good, failed])).toEqual(kept(good))
})

test('turns: answers, sequences, prompts that were rewritten, and the tokens between the answers', () => {
  const turn = (branch: boolean, prompt: number, rewritten?: boolean) => ({
    branch, promptIds: Array<number>(prompt).fill(1), sampled: 1, ...(rewritten && { rewritten }),
  }) // prettier-ignore
  const played = [
    rollout({ turns: [turn(true, 4), turn(false, 2), turn(true, 9, true)] }),
    rollout({ turns: [turn(true, 4), turn(false, 3), turn(false, 1)] }),
  ]
  expect(rolloutMetrics({ rollouts: scored(played), version: 0, totals: nothingYet })).toMatchObject({
    'num_turns/mean': 3,
    'num_branches/mean': 1.5,
    'history_rewritten/mean': 0.5,
    'progress/tokens': 15 + 8 + 6,
  })
})

test('of several environments, one that fails altogether is told of; a function named mean is not the mean reward', () => {
  const own = groupsOf([[0, 1]]).map((r) => ({ ...r, env: 'good', metrics: { mean: 9 } }))
  const away = groupsOf([[null, null]]).map((r) => ({ ...r, env: 'away', group: 'other' }))
  const m = rolloutMetrics({ rollouts: scored([...own, ...away]), version: 0, totals: nothingYet })
  expect(m).toMatchObject({
    'has_error/good/mean': 0,
    'has_error/away/mean': 1,
    'reward/away/mean': null,
    'reward/good/mean': 0.5,
    'reward/good/mean_': 9,
  })
})

test('a run on several environments has the metrics of the one that a small batch is of', () => {
  const rollouts = scored(groupsOf([[0, 1]]).map((r) => ({ ...r, env: 'good' })))
  const step = { rollouts, version: 0, totals: nothingYet }
  expect(rolloutMetrics({ ...step, mixture: true })['reward/good/mean']).toBe(0.5)
  expect(rolloutMetrics(step)).not.toHaveProperty('reward/good/mean')
})

test('the oldest token counts wherever it stands, and a rollout without a stop condition under a name', () => {
  const completion_tokens = { ids: [1, 2, 3], logprobs: [-1, -1, -1], versions: [1, 2, 4] }
  const rollouts = scored([rollout({ completion_tokens, stopCondition: '' })], 0.1)
  const m = rolloutMetrics({ rollouts, version: 4, totals: nothingYet })
  expect(m).toMatchObject({ 'off_policy/mean': 5 / 3, 'off_policy/max': 3, 'stop_condition/unknown': 1 })
})

test('nothing but failures, and nothing at all, give nulls and no NaN', () => {
  for (const rollouts of [groupsOf([[null, null]]), []]) {
    const m = rolloutMetrics({ rollouts: scored(rollouts), version: 0, totals: nothingYet })
    expect(m.reward).toBeNull()
    expect(m.solved_some).toBeNull()
    expect(Object.values(m).every((v) => v === null || Number.isFinite(v))).toBe(true)
  }
  expect(Object.values(evalMetrics('e', [], 0)).every((v) => v === null || Number.isFinite(v))).toBe(true)
})

test('rewards that differ by rounding alone are no variance', () => {
  const m = rolloutMetrics({ rollouts: scored(groupsOf([[0.1 + 0.2, 0.3]])), version: 0, totals: nothingYet })
  expect(m).toMatchObject({ solved_none: 1, solved_all: 0, solved_some: 0 })
})

test('a reward that rounding left below the bound reaches it', () => {
  const parts = 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 - 0.2 // 0.49999999999999994
  expect(parts).toBeLessThan(0.5)
  const rollouts = groupsOf([[parts, parts]])
  expect(rolloutMetrics({ rollouts: scored(rollouts), version: 0, totals: nothingYet })).toMatchObject({
    solved_all: 1,
    solved_none: 0,
  })
  expect(evalMetrics('e', rollouts, 0)).toMatchObject({ 'eval/e/pass@1': 1 })
  expect([reaches(0.7 + 0.2 + 0.1, 1), reaches(0.999, 1)]).toEqual([true, false])
})

test('an advantage a token counts by its mean, a reward function called std is not lost, environments are told apart', () => {
  const m = rolloutMetrics({
    rollouts: [
      { rollout: rollout({ env: 'a', reward: 1, metrics: { std: 7 } }), advantage: new Float32Array([1, -1, 0, 0]) },
      { rollout: rollout({ env: 'b', reward: 0 }), advantage: 0.25 },
    ],
    version: 0,
    totals: nothingYet,
  })
  expect(m).toMatchObject({
    'advantage/absmean': 0.375,
    'reward/std': 0.5,
    'reward/std_': 7,
    'reward/a/mean': 1,
    'reward/b/mean': 0,
  })
})

test('evaluation: avg@k and pass@k over examples, failed answers left out', () => {
  const m = evalMetrics('short-answers', groupsOf([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, null], [null, null, null, null]]), 12) // prettier-ignore
  expect(m).toEqual({
    'eval/short-answers/avg@4': (0.25 + 0 + 1) / 3,
    'eval/short-answers/pass@1': expect.closeTo((0.25 + 0 + 1) / 3, 12),
    // 1 - C(3,2)/C(4,2) = 1/2 for the first.
    'eval/short-answers/pass@2': expect.closeTo((0.5 + 0 + 1) / 3, 12),
    // The third has three answers only.
    'eval/short-answers/pass@4': 0.5,
    'eval/short-answers/is_truncated/mean': 0,
    'eval/short-answers/tokens/completion': 3,
    'eval/short-answers/has_error/mean': 5 / 16,
    'eval/short-answers/policy_version': 12,
  })
})

test('evaluation: k is the most answers of an example', () => {
  expect(evalMetrics('e', groupsOf([[0], [1, 0], [1]]), 0)).toMatchObject({ 'eval/e/avg@2': 0.5, 'eval/e/pass@2': 1 })
})

test('evaluation: of more examples than a call takes arguments', () => {
  const one = rollout({ reward: 1 })
  const many = Array.from({ length: 200_000 }, (_, exampleId) => ({ ...one, exampleId }))
  expect(evalMetrics('e', many, 0)).toMatchObject({ 'eval/e/avg@1': 1, 'eval/e/pass@1': 1 })
})

test('pass@k is the part of all draws of k that holds a right answer', () => {
  const small = fc.integer({ min: 1, max: 7 })
  fc.assert(
    fc.property(small, fc.nat(7), small, (n, c, k) => {
      fc.pre(c <= n && k <= n)
      let [hits, draws] = [0, 0]
      for (let set = 0; set < 2 ** n; set++) {
        if (set.toString(2).replaceAll('0', '').length !== k) continue
        draws++
        if (set % 2 ** c !== 0) hits++
      }
      expect(passAtK(n, c, k)).toBeCloseTo(hits / draws, 12)
    }),
  )
})

test('solved_* are a partition, means lie in range, and every key is in the table', () => {
  const reward = fc.option(fc.constantFrom(0, 0.2, 0.5, 1), { freq: 5 })
  fc.assert(
    fc.property(fc.array(fc.array(reward, { minLength: 1, maxLength: 4 }), { minLength: 1, maxLength: 6 }), (groups) => {
      const rollouts = groupsOf(groups, { metrics: { f: 1 } })
      const m = rolloutMetrics({ rollouts: scored(rollouts, 0.1), version: 1, totals: nothingYet })
      const rewards = groups.flat().filter((r) => r !== null)
      if (rewards.length > 0) {
        expect(m.solved_none! + m.solved_all! + m.solved_some!).toBeCloseTo(1, 12)
        expect(m.reward).toBeCloseTo(rewards.reduce<number>((a, b) => a + b, 0) / rewards.length, 12)
        expect(m['reward/std']).toBe(populationStd(rewards))
      }
      const stops = Object.entries(m).filter(([key]) => key.startsWith('stop_condition/'))
      expect(stops.reduce((sum, [, v]) => sum + v!, 0)).toBeCloseTo(1, 12)
      for (const key of [...Object.keys(m), ...Object.keys(evalMetrics('env', rollouts, 0))]) {
        expect(metricInfo(key), key).toBeDefined()
      }
    }),
  )
})

test('a key finds its own entry of the table', () => {
  const nameOf = (key: string) => metricInfo(key)?.name
  expect(nameOf('reward/std')).toBe('reward/std')
  expect(nameOf('reward/lcs')).toBe('reward/<func>')
  expect(nameOf('reward/a/mean')).toBe('reward/<env>/mean')
  expect(nameOf('eval/short-answers/avg@8')).toBe('eval/<env>/avg@<k>')
  expect(nameOf('eval/x/reward/f')).toBe('eval/<env>/reward/<func>')
  expect(nameOf('loss/mean')).toBe('loss/mean')
  expect(nameOf('mismatch_kl/all/max')).toBe('mismatch_kl/all/max')
  expect(nameOf('toString')).toBeUndefined()
  expect(Object.values(METRICS).every((m) => m.formula && m.unit && m.healthy)).toBe(true)
})
