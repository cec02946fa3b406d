/** The limits of healthy metrics, defined once for the colours in the terminal, the warnings and the text of docs/metrics.md. */

/** The healthy range of a metric. */
export interface Limits {
  /** Below this, worth a look. */
  low?: number
  /** Above this, worth a look. */
  high?: number
  /** From this value on, something is broken. */
  bad?: number
  /** This many times the median of the steps before is a spike. */
  spike?: number
}

/** Metrics whose healthy range is the same in every task. The others (rewards, speeds, lengths) depend on the task. */
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

/** 'none': there is no range, or no value. */
export type Health = 'none' | 'good' | 'watch' | 'bad'

const LIMITS_OF: ReadonlyMap<string, Limits> = new Map(Object.entries(LIMITS))

/** How many steps a spike is compared with, and the fewest that are enough. */
const WINDOW = 20
const FEWEST = 4

/**
 * The health of a step's metric.
 * @param value null where it was not finite; undefined where the step lacks it
 * @param before the values of the steps before, oldest first, to recognise a spike
 */
export function healthOf(key: string, value: number | null | undefined, before: readonly (number | null)[] = []): Health {
  const limits = LIMITS_OF.get(key)
  if (!limits || value === undefined) return 'none'
  // With a gradient that is not finite the step was skipped.
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
