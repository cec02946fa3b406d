/** The options of the orchestrator. */
import { UserError } from '../common/errors.ts'
import type { ChatClient, SamplingParams } from '../common/types.ts'
import type { Progress } from '../monitor/progress.ts'
import type { Again } from './again.ts'
import type { Algorithm } from './algorithm.ts'
import { evaluatedRows, isTrained, type RunEnvironment } from './tasks.ts'

export interface OrchestratorOptions {
  environments: readonly RunEnvironment[]
  client: ChatClient
  /** `seed` is replaced by a seed for each rollout. */
  sampling: SamplingParams
  seed: number
  /** Shuffle the rows anew for each pass over the data; false: keep their order. Default true. */
  shuffle?: boolean
  /** Groups in a step, and rollouts in a group. */
  groupsPerStep: number
  rolloutsPerExample: number
  /** Rollouts in a group of an evaluation, if there are evaluations. Default 1. */
  evalRolloutsPerExample?: number
  /** The most groups of a step that are replaced because they cannot be trained on (spares.ts). Default 0. */
  spareGroups?: number
  /** Set the reward of training rollouts that were cut off to 0. */
  zeroTruncated?: boolean
  /** In a resumed run: the steps already done, and how many tasks they had. */
  done?: { step: number; tasks: number }
  /** The most rollouts that are sampled or scored at once. */
  maxConcurrent: number
  /** The most answers sampled at once. Time limits do not run while a rollout waits for its turn. */
  maxSampling: number
  maxOffPolicySteps: number
  generationTimeoutSeconds: number
  rolloutTimeoutSeconds?: number
  rewardTimeoutSeconds: number
  /** How many tokens the policy has. */
  vocabulary: number
  algorithm: Algorithm
  progress: Progress
  /** Whether and how often to retry a step whose rollouts all failed. Default: never. */
  again?: Again
  warn?: (line: string) => void
}

/** @throws UserError if a group that plays together needs more places than max_concurrent, as it would wait forever */
export function checkPlaces({
  environments,
  maxConcurrent,
  rolloutsPerExample,
  evalRolloutsPerExample = 1,
}: OrchestratorOptions): void {
  for (const source of environments.filter(({ env }) => env.playsGroups)) {
    const trained = isTrained(source) ? rolloutsPerExample : 1
    const evaluated = evaluatedRows(source).length > 0 ? evalRolloutsPerExample : 1
    const most = Math.max(trained, evaluated)
    if (maxConcurrent >= most) continue
    const key = most === trained ? 'rollouts_per_example' : 'eval_rollouts_per_example'
    throw new UserError(
      `${source.name} plays the rollouts of a task together: max_concurrent (${maxConcurrent}) must be at least ${key} (${most}).`,
    )
  }
}
