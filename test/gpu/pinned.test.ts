/** A core for each of a software driver's threads: which threads, which cores, and while others leave these alone. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { CpuTime } from '../../src/common/cpu-time.ts'
import { busyThreads, coresOf, isCrowded } from '../../src/gpu/pinned.ts'

const at = (threads: Record<string, number>): CpuTime => ({ threads: new Map(Object.entries(threads)), seconds: 0 })

test("the threads that shared the work are the driver's, where there is one for each core", () => {
  const before = at({ '1': 5, '2': 1000, '3': 40 })
  expect(busyThreads(before, at({ '1': 105, '2': 1010, '3': 120, '4': 15 }), 2)).toEqual(['1', '3'])
  // Another computed, too; one of them hardly did; there are fewer than cores; nobody did anything.
  expect(busyThreads(before, at({ '1': 105, '2': 1040, '3': 120 }), 2)).toBeUndefined()
  expect(busyThreads(before, at({ '1': 105, '2': 1000, '3': 80 }), 2)).toBeUndefined()
  expect(busyThreads(before, at({ '1': 105, '2': 1000, '3': 120 }), 3)).toBeUndefined()
  expect(busyThreads(before, before, 2)).toBeUndefined()
})

test('the cores of a process are read from what the system says', () => {
  expect(coresOf('Name:\tnode\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\nMems_allowed:\t1\n')).toEqual([0, 1, 2, 3])
  expect(coresOf('Cpus_allowed_list:\t2,4-5,64\n')).toEqual([2, 4, 5, 64])
  expect(coresOf('Name:\tnode\n')).toEqual([])
})

test('threads that stand in line for more than a seventh of their time have others on their cores', () => {
  const before = { ran: 1000, stoodInLine: 500 }
  expect(isCrowded(before, { ran: 2000, stoodInLine: 600 })).toBe(false)
  expect(isCrowded(before, { ran: 2000, stoodInLine: 700 })).toBe(true)
  expect(isCrowded(before, before)).toBe(false)
})

test.runIf(process.platform === 'linux')(
  "a process that computes gives its driver's threads a core each, while it has the cores to itself",
  ({ skip }) => {
    const out = execFileSync(process.execPath, [join(import.meta.dirname, 'fixtures/pinned.ts')], {
      env: { ...process.env, DAWN_RL_PIN: '' },
      encoding: 'utf8',
      timeout: 300_000,
    })
    const seen = JSON.parse(out)
    if (!seen.software || seen.own.length === 1) skip('the driver has no thread for each of several cores')
    expect(seen.pinned).toEqual(seen.own)
    expect(seen.letGo, 'beside others').toBe(true)
  },
)
