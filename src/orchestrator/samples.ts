/** From scored rollouts to training samples: consecutive turns whose tokens continue each other become one sequence with one loss mask. */
import type { Rollout, RolloutTurn, TrainingBatch, TrainingSample } from '../common/types.ts'
import { batchOf, untrained } from '../model/decoder/packed.ts'
import type { ScoredRollout } from '../monitor/aggregate.ts'
import type { TrainerTokens } from '../monitor/rollout-writer.ts'

/**
 * Makes the batch for one optimizer step. The loss covers all tokens that the policy sampled, in all turns, but not those of the prompt, the
 * environment or tools. A token whose log-probability is not finite (a broken sampler) is left out. N (`lossTokenCount`) is the number of loss tokens
 * in the whole batch.
 */
export function trainingBatch(step: number, rollouts: readonly ScoredRollout[]): TrainingBatch {
  const samples = rollouts.flatMap(({ rollout, advantage }) => (advantage === null ? [] : samplesOf(rollout, advantage)))
  return batchOf(step, samples)
}

/** The turns of a rollout, grouped into sequences ("branches"). */
function branchesOf({ promptIds, completion_tokens: tokens, turns }: Rollout): RolloutTurn[][] {
  const branches: RolloutTurn[][] = []
  for (const turn of turns ?? [{ branch: true, promptIds, sampled: tokens.ids.length }]) {
    if (turn.branch || branches.length === 0) branches.push([turn])
    else branches.at(-1)!.push(turn)
  }
  return branches
}

/** The samples of one rollout, one for each branch. @param advantage one for the rollout, or one for each sampled token in the order of the turns */
function samplesOf(rollout: Rollout, advantage: number | ArrayLike<number>): TrainingSample[] {
  let from = 0
  return branchesOf(rollout).map((branch) => {
    const sample = sampleOf(rollout, branch, from, advantage)
    from += branch.reduce((sum, turn) => sum + turn.sampled, 0)
    return sample
  })
}

/** The sample for turns that form one sequence. @param from index of their first sampled token among all that the rollout sampled */
function sampleOf(
  rollout: Rollout,
  turns: readonly RolloutTurn[],
  from: number,
  advantage: number | ArrayLike<number>,
): TrainingSample {
  const tokens = rollout.completion_tokens
  const length = turns.reduce((sum, turn) => sum + turn.promptIds.length + turn.sampled, 0)
  const [{ promptIds }] = turns
  const sample: TrainingSample = {
    ...untrained(new Int32Array(length)),
    rollout,
    // Samples with the same prompt share its rows in a micro-batch.
    promptKey: promptIds.join(','),
    promptLength: promptIds.length,
  }
  let [at, i] = [0, from]
  for (const turn of turns) {
    sample.ids.set(turn.promptIds, at)
    at += turn.promptIds.length
    for (const end = i + turn.sampled; i < end; i++, at++) {
      sample.ids[at] = tokens.ids[i]
      if (at === 0 || !Number.isFinite(tokens.logprobs[i])) continue
      sample.lossMask[at] = 1
      sample.inferenceLogprobs[at] = tokens.logprobs[i]
      sample.advantages[at] = typeof advantage === 'number' ? advantage : advantage[i]
    }
  }
  return sample
}

/**
 * The trainer's log-probability and entropy of each sampled token, in the order of its rollout; null for tokens without loss.
 * @param results one for each sample of the batch; empty for a step without loss tokens
 */
export function trainerTokens(
  { samples }: TrainingBatch,
  results: readonly { logprobs: Float32Array; entropy: Float32Array }[],
): Map<Rollout, TrainerTokens> {
  const found = new Map<Rollout, TrainerTokens>()
  // The samples of a rollout are adjacent, in the order of its branches.
  const branches = new Map<Rollout, RolloutTurn[][]>()
  results.forEach(({ logprobs, entropy }, i) => {
    const { rollout, lossMask } = samples[i]
    if (!rollout) return
    if (!branches.has(rollout)) branches.set(rollout, branchesOf(rollout))
    if (!found.has(rollout)) found.set(rollout, { logprobs: [], entropies: [] })
    const tokens = found.get(rollout)!
    let at = 0
    for (const turn of branches.get(rollout)!.shift()!) {
      at += turn.promptIds.length
      for (const end = at + turn.sampled; at < end; at++) {
        tokens.logprobs.push(lossMask[at] ? logprobs[at] : null)
        tokens.entropies.push(lossMask[at] ? entropy[at] : null)
      }
    }
  })
  return found
}

/**
 * Freezes a rollout and its lists of tokens. An advantage or a filter that sorted a group in place would assign advantages to the wrong rollouts;
 * changing a reward would change what is logged, and sorting tokens or log-probabilities what is trained on.
 */
export function frozen(rollout: Rollout): Rollout {
  const { promptIds, completion_tokens: tokens, turns = [] } = rollout
  const lists = [promptIds, tokens.ids, tokens.logprobs, tokens.versions, turns, ...turns.map((turn) => turn.promptIds)]
  for (const part of [tokens, ...lists]) Object.freeze(part)
  return Object.freeze(rollout)
}
