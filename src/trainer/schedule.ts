/** Learning-rate schedules, as transformers' `get_scheduler` defines them (optimization.py). */

export type ScheduleType = 'constant' | 'constant_with_warmup' | 'linear' | 'cosine'

export interface Schedule {
  type: ScheduleType
  /** The peak. */
  learningRate: number
  /** Steps over which the rate rises from 0; `constant` has none. */
  warmupSteps: number
  /** Where linear and cosine reach 0. */
  maxSteps: number
}

/** The learning rate of a step. Steps count from 1; with a warm-up the first step has rate 0, as in transformers. */
export function learningRateAt(schedule: Schedule, step: number): number {
  const { type, learningRate, warmupSteps: warmup, maxSteps } = schedule
  const done = step - 1
  if (type === 'constant') return learningRate
  if (done < warmup) return learningRate * (done / warmup)
  if (type === 'constant_with_warmup') return learningRate
  const span = Math.max(1, maxSteps - warmup)
  if (type === 'linear') return learningRate * Math.max(0, (maxSteps - done) / span)
  return learningRate * 0.5 * (1 + Math.cos((Math.PI * (done - warmup)) / span))
}
