/** The metrics of a training step, computed in float64 on the host. Their names are those of src/monitor/metrics-table.ts. */
import type { Metrics, TrainingBatch } from '../common/types.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GradientResult, SampleResult } from './gradients.ts'
import { negativeLogLikelihood, type Loss } from './losses/index.ts'
import { klTerm } from './losses/kl.ts'
import type { RatioBounds } from './losses/types.ts'

/**
 * Entropy, statistics of the loss tokens' importance ratios, and the KL to the reference model, if there is one.
 * @param bounds those of a built-in loss; without them there are no metrics of masked tokens
 */
export function policyMetrics(batch: TrainingBatch, results: readonly SampleResult[], bounds: RatioBounds | undefined): Metrics {
  let [entropy, kl, most, ratios, low, high, count, refKl] = [0, 0, 0, 0, 0, 0, 0, 0]
  batch.samples.forEach(({ lossMask, inferenceLogprobs, refLogprobs }, i) => {
    for (let t = 0; t < lossMask.length; t++) {
      if (!lossMask[t]) continue
      const logRatio = results[i].logprobs[t] - inferenceLogprobs[t]
      const ratio = Math.exp(logRatio)
      const mismatch = ratio - logRatio - 1
      count++
      entropy += results[i].entropy[t]
      ratios += ratio
      kl += mismatch
      most = Math.max(most, mismatch)
      if (refLogprobs) refKl += klTerm(results[i].logprobs[t], refLogprobs[t])
      if (bounds && ratio < bounds.mask_ratio_low) low++
      if (bounds && ratio > bounds.mask_ratio_high) high++
    }
  })
  const mean = (sum: number) => finite(sum / count)
  return {
    'entropy/all/mean': mean(entropy),
    'mismatch_kl/all/mean': mean(kl),
    'mismatch_kl/all/max': finite(most),
    importance_ratio: mean(ratios),
    ...(batch.samples[0]?.refLogprobs && { 'ref_kl/all/mean': mean(refKl) }),
    ...(bounds && { 'is_masked/mean': mean(low + high), 'is_masked_low/mean': mean(low), 'is_masked_high/mean': mean(high) }),
  }
}

/** All metrics of one update. */
export function updateMetrics(
  batch: TrainingBatch,
  result: GradientResult,
  loss: Loss,
  gpu: Gpu,
  update: { norm: number; learningRate: number; seconds: number },
): Metrics {
  const { 'entropy/all/mean': entropy, ...ratios } = policyMetrics(batch, result.samples, loss.kernel?.bounds)
  return {
    ...Object.fromEntries(Object.entries(result.lossMetrics).map(([name, value]) => [lossKey(name), finite(value)])),
    'loss/mean': finite(result.loss),
    'entropy/all/mean': entropy,
    // Supervised tokens were not sampled by a policy.
    ...(loss === negativeLogLikelihood ? {} : ratios),
    'optim/grad_norm': finite(update.norm),
    'optim/lr': update.learningRate,
    'perf/throughput': result.rows / update.seconds,
    'perf/peak_memory': gpu.pool.peakBytes / 2 ** 30,
    'perf/buffers_made': gpu.pool.buffersMade + gpu.readBuffersMade,
    'time/forward_backward': update.seconds,
  }
}

/**
 * Metrics taken from the first update (agreement with the sampler, before an update has moved the weights) or from the last (memory, learning rate).
 */
const OF_FIRST = /^mismatch_kl\//
const OF_LAST = /^(?:optim\/lr|perf\/(?:peak_memory|buffers_made))$/

/**
 * Combines the metrics of a step's updates: times are summed, others averaged over the updates that have them. The result is null if any value is.
 */
export function ofAllUpdates(updates: readonly Metrics[]): Metrics {
  const [first, last] = [updates[0], updates.at(-1)!]
  if (updates.length === 1) return first
  const of = (name: string) => updates.flatMap((update) => (name in update ? [update[name]] : []))
  const sum = (values: (number | null)[]) => values.reduce<number | null>((a, b) => (a === null || b === null ? null : a + b), 0)
  const seconds = of('time/forward_backward') as number[]
  const combined = (name: string): number | null => {
    const values = of(name)
    if (OF_FIRST.test(name)) return values[0]
    if (OF_LAST.test(name)) return last[name] as number
    if (name === 'time/forward_backward') return sum(seconds)
    if (name === 'perf/throughput') return sum(values.map((v, i) => v! * seconds[i]))! / sum(seconds)!
    const total = sum(values)
    return total === null ? null : total / values.length
  }
  return Object.fromEntries(Array.from(new Set(updates.flatMap(Object.keys)), (name) => [name, combined(name)]))
}

/** null for NaN and infinity, which JSON cannot express. */
export const finite = (value: number): number | null => (Number.isFinite(value) ? value : null)

/** The key of a custom loss's own metric. `loss/mean` is taken by the loss itself. */
const lossKey = (name: string): string => `loss/${name === 'mean' ? 'mean_' : name}`
