/**
 * The KL term that keeps the policy near its reference model, added to any loss: beta * sum of kl / N over the loss tokens, where kl = exp(d) - d - 1
 * and d = reference logprob - logprob. kl is never negative, is 0 where both models agree, and for sampled tokens is an unbiased estimate of
 * KL(policy || reference) (DeepSeekMath, arXiv 2402.03300, eq. 4). On the GPU: `kl_term` of kernels/common/token_loss.wgsl.
 */
import type { LossInputs, LossOutputs } from './types.ts'

/** The KL estimate exp(d) - d - 1 of one token, with d = refLogprob - logprob. */
export function klTerm(logprob: number, refLogprob: number): number {
  const d = refLogprob - logprob // near d = 0 expm1(d) - d would cancel; its series is used there
  return Math.abs(d) < 1e-3 ? d * d * (0.5 + d / 6) : Math.expm1(d) - d
}

/** Adds the KL term to a loss's outputs for a sequence if beta is above 0; `x.refLogprobs` must then be present. */
export function withKl(out: LossOutputs, x: LossInputs, beta = 0): LossOutputs {
  if (beta === 0) return out
  const gradient = out.gradient.slice()
  let sum = 0
  for (let t = 0; t < gradient.length; t++) {
    if (!x.lossMask[t]) continue
    sum += klTerm(x.logprobs[t], x.refLogprobs![t])
    gradient[t] -= (beta * Math.expm1(x.refLogprobs![t] - x.logprobs[t])) / x.lossTokenCount
  }
  return { ...out, gradient, loss: out.loss + (beta * sum) / x.lossTokenCount }
}
