/**
 * The interface of a loss, built-in or the user's. A loss sees one sequence at a time and depends on the model only through the log-probabilities of
 * its tokens, so it returns dLoss/dlogprob itself. The backward pass multiplies that by dlogprob/dlogits = (onehot - softmax) / temperature.
 */
import type { Rollout } from '../../common/types.ts'

/** One sequence. All arrays have one entry for each token; entries where `lossMask` is 0 have no meaning and must get gradient 0. */
export interface LossInputs {
  /** Log-probabilities under the weights being trained, at the sampling temperature. */
  logprobs: Float32Array
  /**
   * The same values as `logprobs`, to be treated as constants: use them for terms under a stop-gradient, such as CISPO's weight. The
   * finite-difference check perturbs `logprobs` but not these, so it gets such losses right.
   */
  frozenLogprobs: Float32Array
  /** Log-probabilities recorded when the tokens were sampled. */
  inferenceLogprobs: Float32Array
  /** Log-probabilities under the reference model, if the run has one: [trainer.args] beta above 0, or use_ref_model. */
  refLogprobs?: Float32Array
  advantages: Float32Array
  lossMask: Uint8Array
  /** Entropy over the full vocabulary at the sampling temperature, in nats. */
  entropy: Float32Array
  /** N: the number of loss tokens in the whole global batch. Divide by it, and the result does not depend on the micro-batches. */
  lossTokenCount: number
  /** The rollout that the sequence comes from: reward, metrics, environment, info. Absent in hand-made batches. */
  rollout?: Rollout
}

export interface LossOutputs {
  /** dLoss/dlogprob of each token; 0 outside the mask. */
  gradient: Float32Array
  /** This sequence's part of the loss. The batch's loss is the sum of these parts. */
  loss: number
  /** Each metric is a mean over the sequence. It is averaged over sequences and logged as loss/<name>. */
  metrics?: Record<string, number>
}

/** A loss is a pure function. `args` is [trainer.args] loss_args (for built-in losses: mask_ratio_low and mask_ratio_high). */
export type LossFunction<Args = Record<string, unknown>> = (inputs: LossInputs, args: Args) => LossOutputs

/** Bounds of the importance ratio. */
export interface RatioBounds {
  mask_ratio_low: number
  mask_ratio_high: number
}
