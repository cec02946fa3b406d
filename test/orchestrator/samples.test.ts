import { expect, test } from 'vitest'
import { trainerTokens, trainingBatch } from '../../src/orchestrator/samples.ts'
import { rollout } from './helpers.ts'

const logprob = (x: number) => Math.fround(x)

test('prompt, then completion with mask, log-probabilities and advantage', () => {
  const own = rollout()
  const { samples, lossTokenCount, step } = trainingBatch(7, [{ rollout: own, advantage: 0.25 }])
  expect({ step, lossTokenCount }).toEqual({ step: 7, lossTokenCount: 3 })
  const [sample] = samples
  expect(sample.ids).toEqual(Int32Array.of(10, 11, 5, 6, 7))
  expect(sample.lossMask).toEqual(Uint8Array.of(0, 0, 1, 1, 1))
  expect(sample.inferenceLogprobs).toEqual(Float32Array.of(0, 0, -0.1, -0.2, -0.3))
  expect(sample.advantages).toEqual(Float32Array.of(0, 0, 0.25, 0.25, 0.25))
  expect(sample.rollout).toBe(own)
})

test('what has no advantage is not in the batch; N counts the rest', () => {
  const all = [null, 1, null, -1].map((advantage) => ({ rollout: rollout(), advantage }))
  const batch = trainingBatch(1, all)
  expect(batch.samples).toHaveLength(2)
  expect(batch.lossTokenCount).toBe(6)
  expect(trainingBatch(1, [])).toEqual({ step: 1, samples: [], lossTokenCount: 0 })
})

test('a token whose log-probability is not finite is left out, and N does not count it', () => {
  const tokens = { ids: [5, 6, 7], logprobs: [-0.1, NaN, -Infinity], versions: [0, 0, 0] }
  const { samples, lossTokenCount } = trainingBatch(1, [{ rollout: rollout({ completion_tokens: tokens }), advantage: 1 }])
  expect(lossTokenCount).toBe(1)
  expect(samples[0].lossMask).toEqual(Uint8Array.of(0, 0, 1, 0, 0))
  expect(samples[0].inferenceLogprobs).toEqual(Float32Array.of(0, 0, logprob(-0.1), 0, 0))
  expect(samples[0].advantages).toEqual(Float32Array.of(0, 0, 1, 0, 0))
  expect(samples[0].ids).toHaveLength(5)
})

test('an advantage a token', () => {
  const [sample] = trainingBatch(1, [{ rollout: rollout(), advantage: [1, -2, 3] }]).samples
  expect(sample.advantages).toEqual(Float32Array.of(0, 0, 1, -2, 3))
})

test('the same prompt has the same key, another one another', () => {
  const of = (promptIds: number[]) => ({ rollout: rollout({ promptIds }), advantage: 1 })
  const [a, b, c] = trainingBatch(1, [of([1, 23]), of([1, 23]), of([12, 3])]).samples
  expect(a.promptKey).toBe(b.promptKey)
  expect(a.promptKey).not.toBe(c.promptKey)
  expect(a.promptLength).toBe(2)
})

test('without a prompt the first token has nothing to be predicted from', () => {
  const [sample] = trainingBatch(1, [{ rollout: rollout({ promptIds: [] }), advantage: 1 }]).samples
  expect(sample.lossMask).toEqual(Uint8Array.of(0, 1, 1))
})

const tokensOf = (count: number) => ({
  ids: Array.from({ length: count }, (_, i) => 50 + i),
  logprobs: Array.from({ length: count }, (_, i) => -1 - i),
  versions: Array.from({ length: count }, () => 0),
})

test('turns that go on with each other are one sample; what stands between the answers is no part of the loss', () => {
  const turns = [
    { branch: true, promptIds: [1, 2], sampled: 2 },
    { branch: false, promptIds: [3], sampled: 1 },
    { branch: false, promptIds: [4, 5], sampled: 2 },
  ]
  const own = rollout({ promptIds: [1, 2], completion_tokens: tokensOf(5), turns })
  const { samples, lossTokenCount } = trainingBatch(1, [{ rollout: own, advantage: [1, 2, 3, 4, 5] }])
  expect(lossTokenCount).toBe(5)
  expect(samples).toHaveLength(1)
  const [sample] = samples
  expect(sample.ids).toEqual(Int32Array.of(1, 2, 50, 51, 3, 52, 4, 5, 53, 54))
  expect(sample.lossMask).toEqual(Uint8Array.of(0, 0, 1, 1, 0, 1, 0, 0, 1, 1))
  expect(sample.advantages).toEqual(Float32Array.of(0, 0, 1, 2, 0, 3, 0, 0, 4, 5))
  expect(sample.inferenceLogprobs).toEqual(Float32Array.of(0, 0, -1, -2, 0, -3, 0, 0, -4, -5))
  expect([sample.promptKey, sample.promptLength]).toEqual(['1,2', 2])
  // The first turn begins a sequence, also where a user's environment forgets to say so.
  const forgot = rollout({ ...own, turns: [{ ...turns[0], branch: false }, ...turns.slice(1)] })
  expect(trainingBatch(1, [{ rollout: forgot, advantage: 1 }]).samples.map((s) => s.ids)).toEqual([sample.ids])
})

test('a turn that begins anew is a sample of its own, with its own tokens and advantages', () => {
  const turns = [
    { branch: true, promptIds: [1], sampled: 1 },
    { branch: true, promptIds: [1, 2, 3], sampled: 2 },
    { branch: false, promptIds: [4], sampled: 1 },
  ]
  const own = rollout({ promptIds: [1], completion_tokens: tokensOf(4), turns })
  const { samples, lossTokenCount } = trainingBatch(1, [{ rollout: own, advantage: [1, 2, 3, 4] }])
  expect(lossTokenCount).toBe(4)
  expect(samples.map((s) => [...s.ids])).toEqual([[1, 50], [1, 2, 3, 51, 52, 4, 53]]) // prettier-ignore
  expect(samples.map((s) => [...s.advantages])).toEqual([[0, 1], [0, 0, 0, 2, 3, 0, 4]]) // prettier-ignore
  expect(samples.map((s) => [s.promptKey, s.promptLength])).toEqual([['1', 1], ['1,2,3', 3]]) // prettier-ignore
  expect(samples.every((s) => s.rollout === own)).toBe(true)
})

test("the trainer's numbers come back in the order of the rollout's tokens", () => {
  const turns = [
    { branch: true, promptIds: [1], sampled: 1 },
    { branch: true, promptIds: [1, 2, 3], sampled: 2 },
    { branch: false, promptIds: [4], sampled: 1 },
  ]
  const several = rollout({ promptIds: [1], completion_tokens: tokensOf(4), turns })
  const broken = rollout({ completion_tokens: { ...tokensOf(3), logprobs: [-1, NaN, -3] } })
  const left = rollout()
  const all = [
    { rollout: broken, advantage: 1 },
    { rollout: left, advantage: null },
    { rollout: several, advantage: 1 },
  ]
  const batch = trainingBatch(1, all)
  // Each token's own id, so that it is seen where it went.
  const results = batch.samples.map(({ ids }) => ({
    logprobs: Float32Array.from(ids),
    entropy: Float32Array.from(ids, (id) => id / 2),
  }))
  const found = trainerTokens(batch, results)
  expect([...found.keys()]).toEqual([broken, several])
  expect(found.get(broken)).toEqual({ logprobs: [50, null, 52], entropies: [25, null, 26] })
  expect(found.get(several)).toEqual({ logprobs: [50, 51, 52, 53], entropies: [25, 25.5, 26, 26.5] })
  expect(trainerTokens(batch, []).size).toBe(0)
})
