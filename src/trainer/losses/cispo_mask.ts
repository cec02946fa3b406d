/**
 * CISPO as in verifiers' RLTrainer: tokens whose importance ratio is outside [low, high] are dropped, the others contribute -ratio * A / N. That is
 * also the derivative with respect to logprob, as ratio = exp(logprob - inference logprob). On the GPU: cispo_mask.wgsl.
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
