/**
 * CISPO as verifiers' RLTrainer writes it: tokens whose ratio is outside [low, high] are dropped, the others give -ratio * A / N; the
 * derivative by the log-probability is the same expression, since ratio = exp(logprob - inference logprob). Twin: cispo_mask.wgsl.
 */
import type { LossInputs, LossOutputs, RatioBounds } from './types.ts'

export default function cispoMask(
  x: LossInputs,
  { mask_ratio_low = 0.125, mask_ratio_high = 8 }: Partial<RatioBounds>,
): LossOutputs {
  const gradient = new Float32Array(x.logprobs.length)
  let loss = 0
  for (let t = 0; t < gradient.length; t++) {
    const ratio = Math.exp(x.logprobs[t] - x.inferenceLogprobs[t])
    if (!x.lossMask[t] || ratio < mask_ratio_low || ratio > mask_ratio_high) continue
    gradient[t] = (-ratio * x.advantages[t]) / x.lossTokenCount
    loss += gradient[t]
  }
  return { gradient, loss }
}
