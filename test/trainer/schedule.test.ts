import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { learningRateAt, type ScheduleType } from '../../src/trainer/schedule.ts'
import { goldenPath } from './helpers.ts'

interface ScheduleCase {
  lr_scheduler_type: ScheduleType
  warmup_steps: number
  max_steps: number
  learning_rate: number
  lr: number[]
}
const cases = JSON.parse(readFileSync(goldenPath('misc/schedules.json'), 'utf8')) as ScheduleCase[]

test.each(cases)('$lr_scheduler_type, $warmup_steps of $max_steps warm-up steps: as transformers', (c) => {
  const schedule = {
    type: c.lr_scheduler_type,
    learningRate: c.learning_rate,
    warmupSteps: c.warmup_steps,
    maxSteps: c.max_steps,
  }
  c.lr.forEach((lr, i) => expect(Math.abs(learningRateAt(schedule, i + 1) - lr)).toBeLessThan(1e-15))
})

test('the cases cover all four', () => {
  expect(new Set(cases.map((c) => c.lr_scheduler_type)).size).toBe(4)
})

test('a run whose only step behind its warm-up is the last makes that one at the peak', () => {
  for (const type of ['linear', 'cosine'] as const)
    expect([1, 2, 3].map((step) => learningRateAt({ type, learningRate: 1, warmupSteps: 2, maxSteps: 3 }, step))).toEqual([
      0, 0.5, 1,
    ])
})

test('beyond its last step a linear rate stays at 0, also where all steps were the warm-up', () => {
  for (const [warmupSteps, maxSteps] of [
    [0, 4],
    [3, 3],
  ])
    // prettier-ignore
    for (const step of [maxSteps + 1, maxSteps + 2])
      expect(learningRateAt({ type: 'linear', learningRate: 1, warmupSteps, maxSteps }, step)).toBe(0)
})
