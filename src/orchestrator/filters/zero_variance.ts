/** Rejects groups whose rewards are all equal, as every advantage would be 0. Differences up to 1e-6 count as rounding errors. */
import type { Group } from '../types.ts'

export default function zeroVariance(group: Group): boolean {
  const rewards = group.map((rollout) => rollout.reward!)
  return Math.max(...rewards) - Math.min(...rewards) > 1e-6
}
