import { expect, test } from 'vitest'
import { trainingBatch } from '../../src/orchestrator/samples.ts'
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
