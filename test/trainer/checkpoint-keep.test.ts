/** Which checkpoints stay, and what is the best. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { tidyCheckpoints } from '../../src/trainer/checkpoint.ts'
import { bestAfter, clearLeftovers, pointAtBest, stepsToDelete, type Best } from '../../src/trainer/checkpoint-keep.ts'
import { pointed } from '../windows.ts'

const key = 'eval/even/avg@1'

test('the best: the highest, the lowest with a "-", the first of equal ones', () => {
  const run = (metric: string, values: (number | null | undefined)[]) => {
    let best: Best | undefined
    values.forEach(
      (value, i) => (best = bestAfter(i + 1, value === undefined ? {} : { [key]: value, 'loss/mean': value }, metric, best)),
    )
    return best
  }
  expect(run(key, [0.1, 0.5, 0.5, 0.2])).toEqual({ metric: key, value: 0.5, step: 2 })
  expect(run('-loss/mean', [0.1, -0.5, 0.2])).toEqual({ metric: '-loss/mean', value: -0.5, step: 2 })
  expect(run(key, [undefined, null, Number.NaN])).toBeUndefined()
  expect(run(key, [0, undefined, null])).toEqual({ metric: key, value: 0, step: 1 })
  // Another metric begins anew; a run that keeps none forgets.
  expect(bestAfter(9, { reward: 0.1 }, 'reward', { metric: key, value: 0.9, step: 2 })).toEqual({
    metric: 'reward',
    value: 0.1,
    step: 9,
  })
  expect(bestAfter(9, { [key]: 1 }, undefined, { metric: key, value: 0.9, step: 2 })).toBeUndefined()
})

test('what goes: neither among the newest, nor of the interval, nor the best', () => {
  const steps = [10, 20, 30, 40, 50, 60]
  expect(stepsToDelete(steps, { last: 2 }, undefined)).toEqual([10, 20, 30, 40])
  expect(stepsToDelete(steps, { last: 2, interval: 20 }, undefined)).toEqual([10, 30])
  expect(stepsToDelete(steps, { last: 2, interval: 20 }, { metric: key, value: 1, step: 30 })).toEqual([10])
  expect(stepsToDelete([60, 10], { last: 1 }, undefined)).toEqual([10])
  expect(stepsToDelete([10], { last: 3 }, undefined)).toEqual([])
})

test('the pointer follows the best, and goes where there is none; leftovers of a killed process go', () => {
  const root = mkdtempSync(join(tmpdir(), 'dawn-rl-keep-'))
  try {
    for (const name of [
      'step_2',
      'step_4',
      'step_6.partial-12',
      'step_3.gone-12',
      'step_4.old-12',
      'step_5.old-12',
      'step_1.superseded',
    ])
      mkdirSync(join(root, name))
    writeFileSync(join(root, 'best.77.tmp'), '')
    writeFileSync(join(root, 'step_4', 'state.json'), 'new')
    const best = () => pointed(join(root, 'best'))
    pointAtBest(root, { metric: key, value: 1, step: 2 })
    expect(best()).toBe('step_2')
    pointAtBest(root, { metric: key, value: 2, step: 4 })
    expect(best()).toBe('step_4')
    clearLeftovers(root)
    // The new step 5 had not taken the name yet.
    expect(readdirSync(root).toSorted()).toEqual(['best', 'step_1.superseded', 'step_2', 'step_4', 'step_5'])
    expect(readFileSync(join(root, 'step_4', 'state.json'), 'utf8')).toBe('new')
    // Nor does it point at a folder that somebody took away.
    for (const best of [undefined, { metric: key, value: 3, step: 9 }]) {
      pointAtBest(root, { metric: key, value: 2, step: 4 })
      pointAtBest(root, best)
      expect(readdirSync(root)).not.toContain('best')
    }
    clearLeftovers(join(root, 'nowhere'))
  } finally {
    rmSync(root, { recursive: true })
  }
})

test('what was set aside stays until its step, or a later one, is saved again, and goes then; so does what a kill left of that', () => {
  const root = mkdtempSync(join(tmpdir(), 'dawn-rl-keep-'))
  const whole = (name: string) => {
    mkdirSync(join(root, name))
    writeFileSync(join(root, name, 'STABLE'), '{}')
  }
  const tidied = (saved: string) => {
    whole(saved)
    tidyCheckpoints(root, { last: 9 }, undefined)
    return readdirSync(root).filter((name) => name.includes('superseded'))
  }
  try {
    for (const name of ['step_4', 'step_8.superseded', 'step_12.superseded', 'step_7.superseded.old-4194304']) whole(name)
    // A damaged one was passed over, and is set aside too.
    mkdirSync(join(root, 'step_10.superseded'))
    expect(tidied('step_6').toSorted()).toEqual(['step_10.superseded', 'step_12.superseded', 'step_8.superseded'])
    expect(tidied('step_8').toSorted()).toEqual(['step_10.superseded', 'step_12.superseded'])
    expect(tidied('step_11')).toEqual(['step_12.superseded'])
    // One that is not whole makes up for nothing.
    mkdirSync(join(root, 'step_12'))
    expect(tidied('step_5')).toEqual(['step_12.superseded'])
    rmSync(join(root, 'step_12'), { recursive: true })
    expect(tidied('step_12')).toEqual([])
  } finally {
    rmSync(root, { recursive: true })
  }
})
