/** Drops groups whose rewards are all equal: every advantage would be 0. Differences below 1e-6 are rounding of equal sums, no signal. */
import type { Group } from '../types.ts'

export default function zeroVariance(group: Group): boolean {
  const rewards = group.map((rollout) => rollout.reward!)
  return Math.max(...rewards) - Math.min(...rewards) > 1e-6
}
