/** The metrics of an update from its tokens, and those of a step from its updates, by hand. */
import { expect, test } from 'vitest'
import type { TrainingSample } from '../../src/common/types.ts'
import { ofAllUpdates, policyMetrics } from '../../src/trainer/metrics.ts'

/** A sample and what the trainer found: of each token whether it counts, both log-probabilities and the entropy. */
function sampleOf(tokens: { counts?: boolean; ratio: number; entropy?: number; ref?: number }[]) {
  const sampler = tokens.map(() => -2)
  const sample: TrainingSample = {
    ids: new Int32Array(tokens.length),
    lossMask: Uint8Array.from(tokens, ({ counts = true }) => Number(counts)),
    inferenceLogprobs: Float32Array.from(sampler),
    advantages: new Float32Array(tokens.length),
    ...(tokens[0].ref !== undefined && { refLogprobs: Float32Array.from(tokens, ({ ref }) => ref!) }),
  }
  const logprobs = Float32Array.from(tokens, ({ ratio }, t) => sampler[t] + Math.log(ratio))
  return { sample, result: { logprobs, entropy: Float32Array.from(tokens, ({ entropy = 0 }) => entropy) } }
}

const metricsOf = (all: ReturnType<typeof sampleOf>[], bounds?: { mask_ratio_low: number; mask_ratio_high: number }) =>
  policyMetrics(
    { step: 1, samples: all.map(({ sample }) => sample), lossTokenCount: 1 },
    all.map(({ result }) => result),
    bounds,
  )

test('means over all tokens that count, of all samples', () => {
  const one = sampleOf([
    { counts: false, ratio: 100, entropy: 9 },
    { ratio: 1, entropy: 1 },
  ])
  const other = sampleOf([{ ratio: 0.5, entropy: 2 }, { ratio: 4, entropy: 3 }, { ratio: 1, entropy: 0 }]) // prettier-ignore
  const k3 = (ratio: number) => ratio - Math.log(ratio) - 1
  const found = metricsOf([one, other], { mask_ratio_low: 0.6, mask_ratio_high: 3.9 })
  const wanted = {
    'entropy/all/mean': 6 / 4,
    'mismatch_kl/all/mean': (k3(0.5) + k3(4)) / 4,
    'mismatch_kl/all/max': k3(4),
    importance_ratio: 6.5 / 4,
    'is_masked/mean': 0.5,
    'is_masked_low/mean': 0.25,
    'is_masked_high/mean': 0.25,
  }
  expect(Object.keys(found)).toEqual(Object.keys(wanted))
  for (const [key, value] of Object.entries(wanted)) expect(found[key], key).toBeCloseTo(value, 5)
  expect(metricsOf([one, other], { mask_ratio_low: 0.4, mask_ratio_high: 4.1 })['is_masked/mean']).toBe(0)
  expect(Object.keys(metricsOf([one, other])).filter((key) => key.startsWith('is_masked'))).toEqual([])
})

test('the KL to a reference, and what is not finite, which JSON cannot hold', () => {
  const withReference = sampleOf([{ ratio: 1, ref: -2 }, { ratio: 1, ref: -1 }]) // prettier-ignore
  expect(metricsOf([withReference])['ref_kl/all/mean']).toBeCloseTo((Math.E - 2) / 2, 5)
  const broken = metricsOf([sampleOf([{ ratio: NaN }, { ratio: 1, entropy: 2 }])])
  expect(broken).toEqual({
    'entropy/all/mean': 1,
    'mismatch_kl/all/mean': null,
    'mismatch_kl/all/max': null,
    importance_ratio: null,
  })
})

test('a step of two updates', () => {
  const update = (of: number, seconds: number) => ({
    'loss/mean': of,
    'mismatch_kl/all/mean': of,
    'optim/grad_norm': of === 3 ? null : of,
    'optim/lr': of / 10,
    'perf/throughput': of,
    'perf/peak_memory': of,
    'time/forward_backward': seconds,
  })
  expect(ofAllUpdates([update(1, 1), update(2, 3)])).toEqual({
    'loss/mean': 1.5,
    // Agreement with the sampler is of the weights that it had.
    'mismatch_kl/all/mean': 1,
    'optim/grad_norm': 1.5,
    'optim/lr': 0.2,
    // All rows over all seconds.
    'perf/throughput': (1 * 1 + 2 * 3) / 4,
    'perf/peak_memory': 2,
    'time/forward_backward': 4,
  })
  expect(ofAllUpdates([update(1, 1), update(3, 1)])['optim/grad_norm']).toBeNull()
})
