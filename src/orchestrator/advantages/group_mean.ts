/**
 * A = reward - mean reward of the group: the other rollouts of the same task are the baseline. No division by the deviation, which would
 * make nearly-equal groups as loud as clear ones (Dr. GRPO, arXiv 2503.20783).
 */
import type { Group } from '../types.ts'

export default function groupMean(group: Group): number[] {
  const mean = group.reduce((sum, rollout) => sum + rollout.reward!, 0) / group.length
  return group.map((rollout) => rollout.reward! - mean)
}
