/**
 * On-policy distillation: the policy samples, and a teacher (trainer.args.ref_model) gives the log-probability it would have assigned to each token.
 * The advantage of a token is the teacher's log-probability minus the policy's, so that a step follows the gradient of KL(policy || teacher) on the
 * policy's own samples (MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649 with lambda = 1 and the reverse KL, of which a sampled token gives an
 * estimate):
 *
 *     A = distill x clamp(logprob of the teacher - logprob, -most, most) + reward x advantage
 *     loss = -clamp(ratio, low, high) x A x logprob / N,  ratio and A as constants
 *     d loss / d logprob = -clamp(ratio, low, high) x A / N
 *
 * Used by configs/distill.toml. `reward` above 0 adds the advantage from the task's own reward. `most` limits the effect of a single token that the
 * teacher finds very unlikely.
 */

/** One sequence. Arrays have one entry per token. */
interface Sequence {
  /** Under the weights being trained, at the sampling temperature. */
  logprobs: Float32Array
  /** The same values, as constants for stop-gradients. */
  frozenLogprobs: Float32Array
  /** As of the time when the token was sampled. */
  inferenceLogprobs: Float32Array
  /** Under the reference model, which is the teacher. */
  refLogprobs?: Float32Array
  advantages: Float32Array
  /** 1 for tokens that the loss counts. */
  lossMask: Uint8Array
  /** N: the number of counted tokens in the whole batch. */
  lossTokenCount: number
}

/** loss_args of [trainer.args]. */
interface Args {
  distill?: number
  reward?: number
  most?: number
  low?: number
  high?: number
}

export default function distillation(x: Sequence, args: Args) {
  const { distill = 1, reward = 0, most = 10, low = 0.125, high = 8 } = args
  if (!x.refLogprobs) throw new Error('on-policy distillation needs a teacher: set trainer.args.ref_model')
  const gradient = new Float32Array(x.logprobs.length)
  let [loss, reverseKl, counted] = [0, 0, 0]
  for (let t = 0; t < gradient.length; t++) {
    if (!x.lossMask[t]) continue
    const above = x.refLogprobs[t] - x.frozenLogprobs[t]
    const A = distill * Math.min(Math.max(above, -most), most) + reward * x.advantages[t]
    const ratio = Math.exp(x.frozenLogprobs[t] - x.inferenceLogprobs[t])
    const weight = (Math.min(Math.max(ratio, low), high) * A) / x.lossTokenCount
    gradient[t] = -weight
    loss -= weight * x.logprobs[t]
    reverseKl -= above
    counted++
  }
  return { gradient, loss, metrics: { reverse_kl: counted ? reverseKl / counted : 0 } }
}
