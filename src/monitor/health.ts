/** Where a metric stops being healthy: the one definition, behind colours in the terminal, warnings, and the words of docs/metrics.md. */

export interface Limits {
  /** Below it, a look is due. */
  low?: number
  /** Above it, a look is due. */
  high?: number
  /** From it on, something is broken. */
  bad?: number
  /** So many times the median of the steps before is a spike. */
  spike?: number
}

/** Metrics that have a range of their own in every task. The others (rewards, speeds, lengths) depend on it. */
export const LIMITS = {
  solved_some: { low: 0.3 },
  'is_truncated/mean': { high: 0.1, bad: 0.5 },
  'has_error/mean': { high: 0, bad: 0.25 },
  'entropy/all/mean': { low: 0.05 },
  'mismatch_kl/all/mean': { high: 0.01, bad: 0.1 },
  'mismatch_kl/all/max': { high: 10 },
  'is_masked/mean': { high: 0.01, bad: 0.1 },
  'optim/grad_norm': { spike: 5 },
} as const satisfies Record<string, Limits>

/** none: there is no range, or no value. */
export type Health = 'none' | 'good' | 'watch' | 'bad'

const LIMITS_OF: ReadonlyMap<string, Limits> = new Map(Object.entries(LIMITS))

/** Steps that a spike is held against, and the fewest that say anything. */
const WINDOW = 20
const FEWEST = 4

/**
 * How a metric of a step stands.
 * @param value null where it was not finite; undefined where the step has no such metric
 * @param before its values in the steps before, oldest first: what a spike is held against
 */
export function healthOf(key: string, value: number | null | undefined, before: readonly (number | null)[] = []): Health {
  const limits = LIMITS_OF.get(key)
  if (!limits || value === undefined) return 'none'
  // A gradient that is not finite is a step that was skipped.
  if (value === null) return key === 'optim/grad_norm' ? 'bad' : 'none'
  const { low, high, bad, spike } = limits
  if (bad !== undefined && value >= bad) return 'bad'
  if (high !== undefined && value > high) return 'watch'
  if (low !== undefined && value < low) return 'watch'
  if (spike === undefined) return 'good'
  const recent = before.slice(-WINDOW).filter((v): v is number => v !== null)
  if (recent.length < FEWEST) return 'none'
  return value > spike * median(recent) ? 'watch' : 'good'
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = Math.floor(sorted.length / 2)
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}
