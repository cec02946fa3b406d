/** Types of the functions that plug into the orchestrator. Built-ins and users' files have the same types. */
import type { Rollout } from '../common/types.ts'

/** The rollouts of one task that have a reward; failed ones are left out. */
export type Group = readonly Rollout[]

/** Returns one advantage for each rollout, or one for each completion token. @param groups all of the step's groups that are trained on */
export type AdvantageFunction<Args = Record<string, unknown>> = (
  group: Group,
  args: Args,
  groups: readonly Group[],
) => (number | ArrayLike<number>)[]

/** Returns whether to train on the group. */
export type FilterFunction<Args = Record<string, unknown>> = (group: Group, args: Args) => boolean
