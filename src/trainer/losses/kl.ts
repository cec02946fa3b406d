/**
 * The KL term that keeps a policy near its reference model, added to any loss: beta x sum of kl / N over the loss tokens, with
 * kl = exp(d) - d - 1, d = reference logprob - logprob: never negative, 0 where both agree, and for sampled tokens an estimate without
 * bias of KL(policy || reference) (GRPO, DeepSeekMath, arXiv 2402.03300, eq. 4). Its twin on the GPU is `kl_term` of token_loss.wgsl.
 */
import type { LossInputs, LossOutputs } from './types.ts'

/** kl of one token. */
export function klTerm(logprob: number, refLogprob: number): number {
  const d = refLogprob - logprob // expm1(d) - d is a difference of nearly equal numbers near 0
  return Math.abs(d) < 1e-3 ? d * d * (0.5 + d / 6) : Math.expm1(d) - d
}

/** What a loss gave for a sequence, with the KL term added where beta is above 0; `refLogprobs` must be there then. */
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
