import { describe, expect, test } from 'vitest'
import { Rubric, type Scorable } from '../../src/environments/rubric.ts'
import { ThinkParser } from '../../src/environments/parsers.ts'
import type { RewardArgs } from '../../src/environments/types.ts'

const scorable = (text: string, more: Partial<Scorable> = {}): Scorable => ({
  prompt: [{ role: 'user', content: 'q' }],
  completion: [{ role: 'assistant', content: text }],
  answer: 'a',
  info: { level: 2 },
  completion_tokens: { ids: [5, 6], logprobs: [-1, -1], versions: [0, 0] },
  isTruncated: false,
  stopCondition: 'eos',
  ...more,
})

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms))

describe('the weighted sum', () => {
  test('weights, metrics of weight 0, sync and async together', async () => {
    const rubric = new Rubric({
      right: { reward: ({ text, answer }) => (text === answer ? 1 : 0), weight: 0.75 },
      late: { reward: async () => (await sleep(5), 0.5), weight: 0.5 },
      length: { reward: ({ rawText }) => rawText.length, weight: 0 },
    })
    expect(await rubric.score(scorable(' a '))).toEqual({ reward: 1, metrics: { right: 1, late: 0.5, length: 3 }, error: null })
    expect(rubric.weights).toEqual({ right: 0.75, late: 0.5, length: 0 })
  })
  test('null takes a function out of the sum; it is not a 0', async () => {
    const rubric = new Rubric({ minus: () => -1, none: () => null })
    expect(await rubric.score(scorable(''))).toEqual({ reward: -1, metrics: { minus: -1, none: null }, error: null })
  })
  test('where no function applies there is no reward', async () => {
    const scores = await new Rubric({ none: () => null, metric: { reward: () => 1, weight: 0 } }).score(scorable(''))
    expect(scores).toEqual({
      reward: null,
      metrics: { none: null, metric: 1 },
      error: 'no reward function applied: each returned null',
    })
  })
  test('functions see the facts of the rollout', async () => {
    let seen: RewardArgs | undefined
    const rubric = new Rubric({ look: (args) => ((seen = args), 1) }, { parser: new ThinkParser() })
    await rubric.score(scorable('<think>x</think> yes', { isTruncated: true, stopCondition: 'max_tokens', state: { turns: 1 } }))
    expect(seen).toMatchObject({
      text: 'yes',
      rawText: '<think>x</think> yes',
      answer: 'a',
      info: { level: 2 },
      state: { turns: 1 },
      finishReason: 'length',
      isTruncated: true,
      stopCondition: 'max_tokens',
      completionIds: [5, 6],
    })
    expect(seen?.signal).toBeInstanceOf(AbortSignal)
  })
  test('a function that changes what it is shown changes it for itself alone', async () => {
    const spoil = ({ prompt, completion, completionIds, trajectory }: RewardArgs) => {
      prompt.push({ role: 'user', content: 'and now?' })
      completion.pop()
      trajectory[0].promptIds.pop()
      return completionIds.pop()! + completionIds.length
    }
    const turns = [{ branch: true, promptIds: [1], sampled: 2 }]
    const [given, same] = [scorable('a', { turns }), scorable('a', { turns: structuredClone(turns) })]
    const rubric = new Rubric({ one: spoil, two: spoil }, { group: { three: (group) => group.map(spoil) } })
    const { metrics } = await rubric.score(given)
    expect(metrics).toEqual({ one: 7, two: 7 })
    expect(await rubric.scoreGroup([{ ...given, metrics }])).toMatchObject([{ metrics: { three: 7 } }])
    expect(given).toEqual(same)
  })
  test('a completion without an answer is scored as an empty text', async () => {
    const rubric = new Rubric({ length: ({ rawText }) => rawText.length })
    const asked = scorable('', { completion: [{ role: 'user', content: 'and now?' }] })
    expect(await rubric.score(asked)).toEqual({ reward: 0, metrics: { length: 0 }, error: null })
  })
  test('a group function gives one value for each rollout, no fewer and no more', async () => {
    for (const values of [[], [1, 2]]) {
      const [{ reward, error }] = await new Rubric({}, { group: { rank: () => values } }).scoreGroup([
        { ...scorable('a'), metrics: {} },
      ])
      expect(reward).toBeNull()
      expect(error).toContain('group reward function "rank" must return an array with one value for each of the 1 rollouts')
    }
  })
  test('a group function that sorts the group in place is refused: values are taken in its order', async () => {
    const ranks = new Rubric(
      { one: () => 1 },
      { group: { rank: (group) => (group as RewardArgs[]).sort(() => 1).map((_, i) => i) } },
    )
    const group = [scorable('a'), scorable('b')].map((one) => ({ ...one, metrics: { one: 1 } }))
    for (const { error } of await ranks.scoreGroup(group)) expect(error).toMatch(/group reward function "rank" threw/)
  })
})

describe('failures name the function and are no reward', () => {
  const errorOf = async (rubric: Rubric) => {
    const { reward, error } = await rubric.score(scorable('x'))
    expect(reward).toBeNull()
    return error
  }
  test('thrown, rejected, NaN, infinite, undefined, text', async () => {
    const never = undefined as unknown as number
    expect(
      await errorOf(
        new Rubric({
          judge: () => {
            throw new Error('no key')
          },
        }),
      ),
    ).toMatch(/^reward function "judge" threw: no key \(rubric\.test\.ts:\d+:\d+\)$/)
    expect(await errorOf(new Rubric({ judge: async () => await Promise.reject(new Error('503')) }))).toMatch(
      /^reward function "judge" threw: 503 \(/,
    )
    // In the user's own line, also where it is a function of JavaScript's or of ours that throws.
    expect(await errorOf(new Rubric({ judge: () => Number(JSON.parse('{')) }))).toMatch(
      / in JSON .* \(rubric\.test\.ts:\d+:\d+\)$/,
    )
    expect(await errorOf(new Rubric({ ratio: () => 0 / 0 }))).toContain('reward function "ratio" returned NaN')
    expect(await errorOf(new Rubric({ ratio: () => 1 / 0 }))).toContain('returned Infinity')
    expect(await errorOf(new Rubric({ forgot: () => never }))).toContain('"forgot" returned undefined')
    expect(await errorOf(new Rubric({ odd: () => '1' as unknown as number }))).toContain('returned the string "1"')
    expect(await errorOf(new Rubric({ a: { reward: () => 1e308, weight: 10 } }))).toBe('the sum of the rewards is not finite')
  })
  test('a failed metric fails the rollout too, and the other values stay', async () => {
    const rubric = new Rubric({ good: () => 1, metric: { reward: () => Number.NaN, weight: 0 } })
    const scores = await rubric.score(scorable('x'))
    expect(scores.reward).toBeNull()
    expect(scores.metrics).toEqual({ good: 1 })
  })
  test('a late function: its signal fires, and the error names it and its limit', async () => {
    let fired = false
    const rubric = new Rubric({
      quick: () => 1,
      slow: {
        timeoutSeconds: 0.02,
        reward: async ({ signal }) => {
          signal.addEventListener('abort', () => (fired = true))
          await sleep(10_000_000)
          return 1
        },
      },
    })
    const scores = await rubric.score(scorable('x'))
    expect(scores).toEqual({
      reward: null,
      metrics: { quick: 1 },
      error: 'reward function "slow" took longer than its limit of 0.02 s',
    })
    expect(fired).toBe(true)
  })
  test('the first failure aborts the others, and it is the first that is told', async () => {
    const aborted: unknown[] = []
    const rubric = new Rubric({
      waits: ({ signal }) =>
        new Promise((_, reject) =>
          signal.addEventListener('abort', () => (aborted.push(signal.reason), reject(new Error('late')))),
        ),
      fails: () => {
        throw new Error('first')
      },
    })
    expect((await rubric.score(scorable('x'))).error).toContain('reward function "fails" threw: first')
    expect(aborted).toHaveLength(1)
  })
  test('an outer abort ends the wait', async () => {
    const controller = new AbortController()
    const scored = new Rubric({ forever: () => new Promise<number>(() => {}) }).score(scorable('x'), {
      signal: controller.signal,
    })
    controller.abort('the run is ending')
    expect(await scored).toMatchObject({ reward: null, error: 'reward function "forever" was aborted: the run is ending' })
  })
  test('a parser that throws', async () => {
    const rubric = new Rubric(
      { a: () => 1 },
      {
        parser: new ThinkParser({
          extract: () => {
            throw new Error('bad')
          },
        }),
      },
    )
    expect((await rubric.score(scorable('</think>x'))).error).toBe("the rubric's parser threw: bad")
  })
})

test('a rubric that cannot work is refused when it is made', () => {
  expect(() => new Rubric({})).toThrow('no function has a weight')
  expect(() => new Rubric({ a: { reward: () => 1, weight: 0 } })).toThrow('no function has a weight')
  expect(() => new Rubric({ a: { reward: () => 1, weight: Number.NaN } })).toThrow('the weight of "a" is NaN')
  expect(() => new Rubric({ a: { reward: () => 1, weight: '3' as never } })).toThrow('the weight of "a" is the string "3"; it')
  expect(() => new Rubric({ a: () => 1 }, { timeoutSeconds: 0 })).toThrow('the time limit of "a" is 0')
  expect(() => new Rubric({ a: 1 as never })).toThrow('"a" has no reward function')
})
