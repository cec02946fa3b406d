/** Scored groups become training samples: a prompt and a completion with one loss mask. */
import type { Rollout, TrainingBatch, TrainingSample } from '../common/types.ts'

/** A rollout with its advantage; null where it is not trained on. */
export interface AdvantagedRollout {
  rollout: Rollout
  advantage: number | ArrayLike<number> | null
}

/**
 * One optimizer step's batch. Loss on completion tokens; a token whose log-probability is not finite (a broken sampler) is left out. N
 * counts the loss tokens of the whole batch.
 */
export function trainingBatch(step: number, rollouts: readonly AdvantagedRollout[]): TrainingBatch {
  const samples = rollouts.flatMap(({ rollout, advantage }) => (advantage === null ? [] : [sampleOf(rollout, advantage)]))
  const lossTokenCount = samples.reduce((sum, s) => sum + s.lossMask.reduce((a, b) => a + b, 0), 0)
  return { step, samples, lossTokenCount }
}

function sampleOf(rollout: Rollout, advantage: number | ArrayLike<number>): TrainingSample {
  const { promptIds, completion_tokens: tokens } = rollout
  const length = promptIds.length + tokens.ids.length
  const sample: TrainingSample = {
    ids: Int32Array.from([...promptIds, ...tokens.ids]),
    lossMask: new Uint8Array(length),
    inferenceLogprobs: new Float32Array(length),
    advantages: new Float32Array(length),
    rollout,
    // Rollouts of one prompt are computed around one copy of it.
    promptKey: promptIds.join(','),
    promptLength: promptIds.length,
  }
  tokens.ids.forEach((_, i) => {
    const at = promptIds.length + i
    if (at === 0 || !Number.isFinite(tokens.logprobs[i])) return
    sample.lossMask[at] = 1
    sample.inferenceLogprobs[at] = tokens.logprobs[i]
    sample.advantages[at] = typeof advantage === 'number' ? advantage : advantage[i]
  })
  return sample
}
