/**
 * The shape of a loss, built-in or yours. A loss sees one sequence at a time and depends on the model only through the log-probabilities
 * of its tokens, so it can say dLoss/dlogprob itself; the backward pass starts from (onehot - softmax) times that.
 */
import type { Rollout } from '../../common/types.ts'

/** One sequence. All arrays have one entry a token of the sequence; entries where `lossMask` is 0 mean nothing and must give gradient 0. */
export interface LossInputs {
  /** Under the weights that are being trained, at the sampling temperature. */
  logprobs: Float32Array
  /**
   * The same values, as constants: write them for what stands under a stop-gradient (CISPO's weight). The check by finite differences
   * moves `logprobs` and leaves these, so a loss that uses them is checked exactly.
   */
  frozenLogprobs: Float32Array
  /** As they were when the token was sampled. */
  inferenceLogprobs: Float32Array
  /** Under the frozen reference model, where the run has one: [trainer.args] beta above 0, or use_ref_model. */
  refLogprobs?: Float32Array
  advantages: Float32Array
  lossMask: Uint8Array
  /** Full-vocabulary entropy at the sampling temperature. */
  entropy: Float32Array
  /** N: loss-mask tokens of the whole global batch. Divide by it, and micro-batching changes nothing. */
  lossTokenCount: number
  /** Where the sequence came from: reward, metrics, environment, info. Absent for batches made by hand. */
  rollout?: Rollout
}

export interface LossOutputs {
  /** dLoss/dlogprob of each token; 0 outside the mask. */
  gradient: Float32Array
  /** This sequence's part of the loss; parts add up. */
  loss: number
  /** Means over the sequence; logged as loss/<name>, averaged over sequences. */
  metrics?: Record<string, number>
}

/** A loss is a pure function; its second argument is [trainer.args] loss_args (built-ins: mask_ratio_low and mask_ratio_high). */
export type LossFunction<Args = Record<string, unknown>> = (inputs: LossInputs, args: Args) => LossOutputs

/** Bounds of the importance ratio. */
export interface RatioBounds {
  mask_ratio_low: number
  mask_ratio_high: number
}
