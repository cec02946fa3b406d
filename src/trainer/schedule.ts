/** Learning-rate schedules, as in `get_scheduler` of transformers (optimization.py). */

export type ScheduleType = 'constant' | 'constant_with_warmup' | 'linear' | 'cosine'

export interface Schedule {
  type: ScheduleType
  /** The peak learning rate. */
  learningRate: number
  /** Steps over which the learning rate rises linearly from 0. Ignored by `constant`. */
  warmupSteps: number
  /** The step at which `linear` and `cosine` reach 0. */
  maxSteps: number
}

/** The learning rate of a step. Steps count from 1. With warmup, the first step has learning rate 0, as in transformers. */
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
