/**
 * PPO's clipped surrogate (arXiv 1707.06347), with a lower and an upper bound of their own (DAPO, arXiv 2503.14476), as an example of
 * a loss of one's own. With ratio = exp(logprob - inferenceLogprob), for each token that the loss counts:
 *
 *     loss = -min(ratio x A, clamp(ratio, 1 - clip_low, 1 + clip_high) x A) / N
 *     d loss / d logprob = -ratio x A / N, and 0 where the clamped side is the smaller one
 *
 * Below A = 0 nothing bounds a ratio that grows. `delta` does: the first ratio is at most that (INTELLECT-2, arXiv 2505.07291; dual-clip PPO).
 *
 * Used by configs/custom-loss.toml. A loss file exports one function: a sequence in, the gradient of each token's log-probability, the
 * sequence's part of the loss and metrics out. N is the number of counted tokens of the whole batch, so that parts just add up.
 *
 * On the first batch the gradient is compared with finite differences of the loss. What stands under a stop-gradient is computed from
 * x.frozenLogprobs (the same values, which the comparison does not move), as src/trainer/losses/cispo.ts does. A file whose gradient is on
 * purpose not that of its loss says `export const checkGradient = false`.
 */

/** One sequence; arrays have an entry a token. */
interface Sequence {
  /** Under the weights that are being trained, at the sampling temperature. */
  logprobs: Float32Array
  /** The same, as constants: for stop-gradients. */
  frozenLogprobs: Float32Array
  /** As they were when the token was sampled. */
  inferenceLogprobs: Float32Array
  advantages: Float32Array
  /** 1 where the token counts. */
  lossMask: Uint8Array
  /** N. */
  lossTokenCount: number
}

/** [trainer.args] loss_args. */
interface Args {
  clip_low?: number
  clip_high?: number
  /** Above 1 + clip_high. */
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
