/**
 * CISPO (MiniMax-M1, arXiv 2506.13585): loss = -sum of stopgrad(clamp(ratio, low, high)) * A * logprob / N, with the importance ratio exp(logprob -
 * inference logprob). The clamped ratio is only a weight, so every token keeps its gradient. On the GPU: cispo.wgsl.
 */
import type { LossInputs, LossOutputs, RatioBounds } from './types.ts'

export default function cispo(x: LossInputs, { mask_ratio_low = 0.125, mask_ratio_high = 8 }: Partial<RatioBounds>): LossOutputs {
  const gradient = new Float32Array(x.logprobs.length)
  let loss = 0
  for (let t = 0; t < gradient.length; t++) {
    if (!x.lossMask[t]) continue
    const ratio = Math.exp(x.frozenLogprobs[t] - x.inferenceLogprobs[t])
    const weight = Math.min(Math.max(ratio, mask_ratio_low), mask_ratio_high)
    gradient[t] = (-weight * x.advantages[t]) / x.lossTokenCount
    loss += gradient[t] * x.logprobs[t]
  }
  return { gradient, loss }
}
