/** The shapes of what plugs into the orchestrator. A built-in has exactly the shape that a file of yours has. */
import type { Rollout } from '../common/types.ts'

/** The rollouts of one task that were scored; failed ones are not in it. */
export type Group = readonly Rollout[]

/** One advantage a rollout, or one a completion token. @param groups all of the step that are trained on, this one among them */
export type AdvantageFunction<Args = Record<string, unknown>> = (
  group: Group,
  args: Args,
  groups: readonly Group[],
) => (number | ArrayLike<number>)[]

/** Whether a group is trained on. */
export type FilterFunction<Args = Record<string, unknown>> = (group: Group, args: Args) => boolean
