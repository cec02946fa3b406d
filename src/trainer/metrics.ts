/** What a step came to, in float64 on the host, under the names of src/monitor/metrics-table.ts. */
import type { Metrics, TrainingBatch } from '../common/types.ts'
import type { SampleResult } from './gradients.ts'
import { klTerm } from './losses/kl.ts'
import type { RatioBounds } from './losses/types.ts'

/**
 * Entropy, what the importance ratios of the loss tokens came to, and how far they are from a reference model, where there is one.
 * @param bounds of the built-in losses; without them nothing is said about masked tokens
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
      most = mismatch > most || Number.isNaN(mismatch) ? mismatch : most
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

/** null for what JSON has no word for. */
export const finite = (value: number): number | null => (Number.isFinite(value) ? value : null)

/** Where a custom loss's own metric goes; `loss/mean` is the loss itself. */
export const lossKey = (name: string): string => `loss/${name === 'mean' ? 'mean_' : name}`
