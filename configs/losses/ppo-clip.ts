/**
 * PPO's clipped surrogate objective (arXiv 1707.06347), with separate lower and upper bounds (DAPO, arXiv 2503.14476), as an example of a custom
 * loss. With ratio = exp(logprob - inferenceLogprob), for each token that the loss counts:
 *
 *     loss = -min(ratio x A, clamp(ratio, 1 - clip_low, 1 + clip_high) x A) / N
 *     d loss / d logprob = -ratio x A / N, and 0 where the clamped side is the smaller one
 *
 * For A < 0 nothing bounds a growing ratio. `delta` does: it is the upper bound of the first ratio (INTELLECT-2, arXiv 2505.07291; dual-clip PPO).
 *
 * Used by configs/custom-loss.toml. A loss file exports one function. It gets a sequence, and returns the gradient with respect to each token's
 * log-probability, the sequence's part of the loss, and metrics. N is the number of counted tokens in the whole batch, so that parts can be added.
 *
 * On the first batch the gradient is compared with finite differences of the loss. Anything under a stop-gradient must be computed from
 * x.frozenLogprobs (the same values, which the comparison does not change), as in src/trainer/losses/cispo.ts. A file whose gradient intentionally
 * differs from that of its loss has `export const checkGradient = false`.
 */

/** One sequence. Arrays have one entry per token. */
interface Sequence {
  /** Under the weights being trained, at the sampling temperature. */
  logprobs: Float32Array
  /** The same values, as constants for stop-gradients. */
  frozenLogprobs: Float32Array
  /** As of the time when the token was sampled. */
  inferenceLogprobs: Float32Array
  advantages: Float32Array
  /** 1 for tokens that the loss counts. */
  lossMask: Uint8Array
  /** N: the number of counted tokens in the whole batch. */
  lossTokenCount: number
}

/** loss_args of [trainer.args]. */
interface Args {
  clip_low?: number
  clip_high?: number
  /** Must be above 1 + clip_high. */
  delta?: number
}

export default function ppoClip(x: Sequence, { clip_low = 0.2, clip_high = 0.2, delta = Infinity }: Args) {
  const gradient = new Float32Array(x.logprobs.length)
  let loss = 0
  let clipped = 0
  let counted = 0
  for (let t = 0; t < gradient.length; t++) {
    if (!x.lossMask[t]) continue
    counted++
    const A = x.advantages[t]
    const ratio = Math.exp(x.logprobs[t] - x.inferenceLogprobs[t])
    const clamped = Math.min(Math.max(ratio, 1 - clip_low), 1 + clip_high)
    const gain = Math.min(Math.min(ratio, delta) * A, clamped * A)
    loss -= gain / x.lossTokenCount
    if (gain === ratio * A) gradient[t] = (-ratio * A) / x.lossTokenCount
    else clipped++
  }
  return { gradient, loss, metrics: { clipped: counted ? clipped / counted : 0 } }
}
