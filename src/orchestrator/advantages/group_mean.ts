/**
 * A = reward - mean reward of the group, as in GRPO, but without division by the standard deviation, which would give groups with nearly equal
 * rewards as much weight as clear ones (Dr. GRPO, arXiv 2503.20783).
 */
import type { Group } from '../types.ts'

export default function groupMean(group: Group): number[] {
  const mean = group.reduce((sum, rollout) => sum + rollout.reward!, 0) / group.length
  return group.map((rollout) => rollout.reward! - mean)
}
