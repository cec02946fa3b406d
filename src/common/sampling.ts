/** Sampling from the model's own distribution, and how much of it. */
import type { SamplingParams } from './types.ts'

/** The most rollouts or examples of a step, and answers to an example: each has an entry in lists that are made at once. */
export const MOST_ROLLOUTS = 2 ** 20

/** Sampling parameters with which tokens are drawn from the softmax of the logits: none is cut off, none made more or less likely. */
export const NEUTRAL = {
  temperature: 1,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
}

/** The same, for a single token. To be changed if more is wanted. */
export const neutralSampling: SamplingParams = { ...NEUTRAL, max_tokens: 1, stop: [], stop_token_ids: [], seed: 0 }
