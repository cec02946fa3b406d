import { expect, test } from 'vitest'
import type { Rollout } from '../../src/common/types.ts'
import { Rubric, runRollout, SingleTurnEnv } from '../../src/environments/index.ts'
import { Watch } from '../../src/monitor/warnings.ts'
import { sampling } from '../environments/scripted.ts'
import { groupsOf } from './helpers.ts'

const healthy = groupsOf([
  [0, 1],
  [0.2, 0.4],
])

function first(rollouts: Rollout[], rewardFunctions?: string[]) {
  return new Watch({ maxTokens: 24, rewardFunctions }).check(1, rollouts)
}

test('a healthy batch gets no words', () => {
  expect(first(healthy)).toEqual([])
  expect(first([])).toEqual([])
  // One truncated, one failed, one group without variance: that is how runs are.
  expect(first([...healthy, ...groupsOf([[1, 1, null]], { isTruncated: true })])).toEqual([])
})

test('each sentence names what holds and the key to change', () => {
  expect(first(groupsOf([[0.2, 0.4], [0.1, 0.3]], { isTruncated: true }))).toMatchInlineSnapshot(`
    [
      "all 4 completions hit max_tokens=24: raise trainer.args.max_tokens or shorten the task.",
    ]
  `) // prettier-ignore
  expect(first(groupsOf([[0.2, 0.2], [1, 1]]))).toMatchInlineSnapshot(`
    [
      "0 of 2 groups have reward variance, so nothing is learned from this batch; all answers to a question earn the same: raise trainer.args.rollouts_per_example or trainer.args.temperature, or change the task's difficulty (env.args).",
    ]
  `) // prettier-ignore
  expect(first(groupsOf([[0.2], [1]]))).toMatchInlineSnapshot(`
    [
      "0 of 2 groups have reward variance, so nothing is learned from this batch; each has one rollout: raise trainer.args.rollouts_per_example to 8 or more.",
    ]
  `)
  // That all are 0 says more than that none differs: one sentence, not two.
  expect(first(groupsOf([[0, 0], [0, 0]]))).toMatchInlineSnapshot(`
    [
      "all 4 rewards are 0, so nothing can be learned: read the answers in rollouts/step_1.jsonl, then make the task easier (env.args), fix its reward functions, or raise trainer.args.temperature.",
    ]
  `) // prettier-ignore
  const constant = healthy.map((r) => ({ ...r, metrics: { ends: 1, exact: r.reward, turns: 1 } }))
  expect(first(constant, ['ends', 'exact'])).toMatchInlineSnapshot(`
    [
      "reward function ends gave 1 to all 4 answers, so it teaches nothing. Unless that is its highest value, fix it, or remove it from the environment (env.id, env.args).",
    ]
  `)
})

test('after a resume too, a function whose values have differed is not said to teach nothing', () => {
  const constant = healthy.map((r) => ({ ...r, metrics: { ends: 1, exact: r.reward } }))
  const options = { maxTokens: 24, rewardFunctions: ['ends', 'exact'] }
  const history = [0.25, 0.75, 1].map((mean, i) => ({ step: i + 1, 'reward/ends': mean }))
  expect(new Watch(options, history).check(4, constant)).toEqual([])
  expect(new Watch(options, history.slice(2)).check(4, constant)).toEqual([expect.stringMatching(/^reward function ends gave 1/)])
})

test('a batch of which filters left nothing', () => {
  const watch = new Watch({ maxTokens: 24 })
  const keys = /^none of 2 groups is left to train on, so nothing.*filters.*mask_truncated_completions.*max_off_policy_steps/
  expect(watch.check(1, healthy, false)).toEqual([expect.stringMatching(keys)])
  expect(watch.check(2, healthy, true)).toEqual([])
})

test('equal rewards are no fault where something else trains the model: a teacher, or an advantage of its own', () => {
  for (const rewards of [
    [[0, 0]],
    [
      [1, 1],
      [0.2, 0.2],
    ],
  ])
    // prettier-ignore
    expect([0, null, 0.3].map((norm) => new Watch({ maxTokens: 24 }).check(1, groupsOf(rewards), true, norm).length)).toEqual([
      1, 1, 0,
    ])
})

test('null beside a number tells answers apart; a function of another environment says nothing of these', () => {
  const bonus = healthy.map((r, i) => ({ ...r, metrics: { bonus: i % 2 ? null : 5 } }))
  expect(first(bonus, ['bonus'])).toEqual([])
  // One that applied to none of the answers gave no value.
  const none = healthy.map((r) => ({ ...r, metrics: { bonus: null } }))
  expect(first(none, ['bonus'])).toEqual([])
  const mixed = healthy.map((r, i) => ({ ...r, metrics: (i % 2 ? { own: i } : { bonus: 5 }) as Rollout['metrics'] }))
  expect(first(mixed, ['bonus', 'own'])).toEqual([expect.stringContaining('bonus gave 5 to all 2 answers')])
})

test('a reward function that told answers apart before and no longer does was learned: no word about it', () => {
  const watch = new Watch({ maxTokens: 24, rewardFunctions: ['ends'] })
  const batch = (ends: number[]) => healthy.map((r, i) => ({ ...r, metrics: { ends: ends[i % ends.length] } }))
  expect(watch.check(1, batch([0, 1]))).toEqual([])
  for (let step = 2; step < 8; step++) expect(watch.check(step, batch([1]))).toEqual([])
})

test('many failures: how many, the most common message, what to do', () => {
  const failures = ['Error: a', 'TypeError: b\n at x', 'TypeError: b\n at x'].map((error, i) => ({
    ...healthy[i],
    reward: null,
    error,
  }))
  expect(first([...healthy, ...failures])).toMatchInlineSnapshot(`
    [
      "3 of 7 rollouts failed and are not trained on; 2 of them with: TypeError: b at x. To fix this, see "error" in rollouts/step_1.jsonl and fix the environment (env.id, env.args).",
    ]
  `)
  // One of four is the least that is told.
  expect([3, 4].map((scored) => first([...groupsOf([[0, 1, 0.5, 0.2].slice(0, scored)]), failures[0]]).length)).toEqual([1, 0])
  expect(first(groupsOf([[null, null]]))).toMatchInlineSnapshot(`
    [
      "2 of 2 rollouts failed and are not trained on; 2 of them with: Error: no. To fix this, see "error" in rollouts/step_1.jsonl and fix the environment (env.id, env.args).",
    ]
  `)
})

test('a limit of the run that has passed: the key that raises it', async () => {
  const never = () => new Promise<never>(() => {})
  const rubric = new Rubric({ never })
  const asked = await SingleTurnEnv.create({ id: 'asked', rubric, dataset: [{ prompt: 'a' }, { prompt: 'b' }], evalSize: 1 })
  const facts = { dataset: asked.dataset, evalDataset: [], rubric }
  const silent = { ...facts, id: 'silent', rollout: never }
  const ready = { ...facts, id: 'ready', rollout: () => Promise.resolve(healthy[0]) }
  const cases = [
    [asked, { generationTimeoutSeconds: 0.01 }, 'generation_timeout'],
    [silent, { generationTimeoutSeconds: 0.01 }, 'generation_timeout'],
    [asked, { rolloutTimeoutSeconds: 0.01 }, 'rollout_timeout'],
    [ready, { rewardTimeoutSeconds: 0.01 }, 'reward_timeout'],
  ] as const
  for (const [env, limit, key] of cases) {
    const options = { client: { complete: never }, sampling, group: '1.0', index: 0, ...limit }
    const failed = await runRollout(env, asked.dataset[0], options)
    expect(first([failed, failed])).toEqual([
      expect.stringMatching(new RegExp(`longer than its limit of 0.01 s.*To fix this, raise trainer.args.${key}.$`)),
    ])
  }
})

test('said after the first batch, at 3 steps in a row, at 12, at 48; from the start again after a better step', () => {
  const bad = groupsOf([[0, 0]])
  const watch = new Watch({ maxTokens: 24 })
  const saidAt = Array.from({ length: 50 }, (_, i) => watch.check(i + 1, bad)).flatMap((said, i) =>
    said.length > 0 ? i + 1 : [],
  )
  expect(saidAt).toEqual([1, 3, 12, 48])
  expect(watch.check(51, healthy)).toEqual([])
  expect([52, 53, 54].map((step) => watch.check(step, bad).length)).toEqual([0, 0, 1])

  const later = new Watch({ maxTokens: 24 })
  expect([healthy, bad, bad, bad].map((batch, i) => later.check(i, batch).length)).toEqual([0, 0, 0, 1])
  expect(new Watch({ maxTokens: 1 }).check(1, bad)[0]).not.toContain('for ')
  expect(watch.check(55, bad)).toEqual([])
})
