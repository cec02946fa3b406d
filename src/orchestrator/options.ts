/** What an orchestrator is made of. */
import { UserError } from '../common/errors.ts'
import type { ChatClient, SamplingParams } from '../common/types.ts'
import type { Progress } from '../monitor/progress.ts'
import type { Again } from './again.ts'
import type { Algorithm } from './algorithm.ts'
import { evaluatedRows, isTrained, type RunEnvironment } from './tasks.ts'

export interface OrchestratorOptions {
  environments: readonly RunEnvironment[]
  client: ChatClient
  /** `seed` is replaced by each rollout's own. */
  sampling: SamplingParams
  seed: number
  /** Rows in a new order in each pass; false: in the order of the data. Default true. */
  shuffle?: boolean
  /** Groups of a step, and rollouts of a group. */
  groupsPerStep: number
  rolloutsPerExample: number
  /** Rollouts of a group of an evaluation, where there are any. */
  evalRolloutsPerExample?: number
  /** Most groups of a step that are replaced because they cannot be trained on (spares.ts). Default 0. */
  spareGroups?: number
  /** Training rollouts that were cut off have the reward 0. */
  zeroTruncated?: boolean
  /** Of a resumed run: the steps already made, and the number of their tasks. */
  done?: { step: number; tasks: number }
  /** Rollouts that are sampled or scored at once, at most. */
  maxConcurrent: number
  /** Most answers sampled at once. No time limit runs while a rollout waits for its turn. */
  maxSampling: number
  maxOffPolicySteps: number
  generationTimeoutSeconds: number
  rolloutTimeoutSeconds?: number
  rewardTimeoutSeconds: number
  algorithm: Algorithm
  progress: Progress
  /** How often a step whose rollouts all failed is played again. Default: never. */
  again?: Again
  warn?: (line: string) => void
}

/** @throws UserError where a group that plays together would wait for more places than there are */
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
      `${source.name} plays the rollouts of a task together: max_concurrent (${maxConcurrent}) must be ${key} (${most}) or more.`,
    )
  }
}
