/**
 * On-policy distillation: the policy writes, and a teacher (trainer.args.ref_model) says of every token how likely it would have been.
 * Each token's advantage is what the teacher's log-probability is above the policy's, so that the step goes down the gradient of
 * KL(policy || teacher) on what the policy itself writes (MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649 with lambda = 1 and the
 * reverse KL, of which a sampled token gives an estimate):
 *
 *     A = distill x clamp(logprob of the teacher - logprob, -most, most) + reward x advantage
 *     loss = -clamp(ratio, low, high) x A x logprob / N,  ratio and A as constants
 *     d loss / d logprob = -clamp(ratio, low, high) x A / N
 *
 * Used by configs/distill.toml. `reward` above 0 adds the advantage of the task's own reward. `most` bounds what a single token
 * that the teacher finds absurd can do.
 */

/** One sequence; arrays have an entry a token. */
interface Sequence {
  /** Under the weights that are being trained, at the sampling temperature. */
  logprobs: Float32Array
  /** The same, as constants: for stop-gradients. */
  frozenLogprobs: Float32Array
  /** As they were when the token was sampled. */
  inferenceLogprobs: Float32Array
  /** Of the reference model, which is the teacher. */
  refLogprobs?: Float32Array
  advantages: Float32Array
  /** 1 where the token counts. */
  lossMask: Uint8Array
  /** N. */
  lossTokenCount: number
}

/** [trainer.args] loss_args. */
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
