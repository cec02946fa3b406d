/** Cores that are kept from halting: on which machines, and that it ends with the device's work. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { AwakeTrial } from '../../src/gpu/awake-trial.ts'
import { wanted } from '../../src/gpu/awake.ts'
import { seed } from '../seed.ts'

const machine = (files: Record<string, string>) => (path: string) => files[path] ?? ''
const virtual = { '/proc/cpuinfo': 'processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n' }
const real = { '/proc/cpuinfo': 'processor : 0\nflags\t\t: fpu vme lahf_lm\nmodel name : a hypervisor by name\n' }

describe.runIf(process.platform === 'linux')('cores are kept awake', () => {
  test('in a virtual machine, not elsewhere', () => {
    expect(wanted('', machine(virtual))).toBe(true)
    expect(wanted('', machine(real))).toBe(false)
    expect(wanted('', machine({}))).toBe(false)
  })

  test('not where a limit of a container counts the time', () => {
    const group = { ...virtual, '/proc/self/cgroup': '0::/docker/abc\n' }
    expect(wanted('', machine({ ...group, '/sys/fs/cgroup/docker/abc/cpu.max': 'max 100000\n' }))).toBe(true)
    expect(wanted('', machine({ ...group, '/sys/fs/cgroup/docker/abc/cpu.max': '150000 100000\n' }))).toBe(false)
    expect(wanted('', machine({ ...group, '/sys/fs/cgroup/docker/cpu.max': '50000 100000\n' }))).toBe(false)
    expect(wanted('', machine({ ...virtual, '/sys/fs/cgroup/cpu.max': '50000 100000\n' }))).toBe(false)
    expect(wanted('', machine({ ...virtual, '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '50000\n' }))).toBe(false)
    expect(wanted('', machine({ ...virtual, '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '-1\n' }))).toBe(true)
  })

  test('as DAWN_RL_AWAKE says, where it says something', () => {
    expect(wanted('0', machine(virtual))).toBe(false)
    expect(wanted('1', machine({ ...real, '/sys/fs/cgroup/cpu.max': '50000 100000\n' }))).toBe(true)
  })

  test('by threads of the lowest priority, while the device is waited for, and they hold no process back from its end', () => {
    const out = execFileSync(process.execPath, [join(import.meta.dirname, 'fixtures/awake.ts')], {
      env: { ...process.env, DAWN_RL_AWAKE: '1' },
      encoding: 'utf8',
      timeout: 120_000,
    })
    const seen = JSON.parse(out)
    expect(seen.before, 'threads of a process that has hardly waited').toBe(0)
    expect(seen.awakeMs).toBeGreaterThan(300)
    expect(seen.lowest).toBeGreaterThan(0)
    expect(seen.driverMs, "time that is not the driver's is not counted as such").toBeLessThan(seen.awakeMs)
    expect(seen.rests, 'they sleep once nothing is waited for').toBe(true)
  })
})

describe('whether it is a gain is tried', () => {
  /**
   * Waits of two kinds and several sizes, of which every other one ends with the one before it, on a machine that is up to a quarter slower for stretches.
   * @param awake what waits take while cores are kept awake, of what they take else
   * @param late whether there are waits besides that began in the block before, for a million times the work
   * @returns the verdict, and seconds of waiting until then
   */
  function tried(awake: number, late = false): { verdict: boolean | undefined; seconds: number; turns: number[] } {
    const random = new Random(seed)
    const trial = new AwakeTrial(() => random.next())
    const turns = [0, 0]
    let [total, slow, left, verdict]: [number, number, number, boolean | undefined] = [0, 1, 0, undefined]
    for (let i = 0; verdict === undefined && total < 100_000; i++) {
      if (left-- === 0) [slow, left] = [1 + random.next() / 4, random.int(200)]
      const turn = trial.turn()
      turns[Number(turn.awake)]++
      const [name, work] = i % 40 < 24 ? ['decode', 1 + random.int(64)] : [`section ${i % 40}`, 100]
      const ms =
        (name === 'decode' ? work * 0.1 : work * 0.05 * (2 - (i % 3))) *
        slow *
        (turn.awake ? awake : 1) *
        (0.9 + random.next() / 5)
      total += ms
      if (late) trial.took({ ...turn, block: turn.block - 1 }, name, 0, 1e6 * work)
      verdict = trial.took(turn, name, ms, work)
    }
    return { verdict, seconds: total / 1000, turns }
  }

  test('a clear gain is taken, a clear loss is not, soon', () => {
    for (const [awake, verdict] of [
      [0.67, true],
      [1.5, false],
    ] as const) {
      const found = tried(awake)
      expect(found.verdict).toBe(verdict)
      expect(found.seconds).toBeLessThan(12)
      expect(Math.min(...found.turns)).toBeGreaterThan(20)
    }
  })

  test('what is not clear takes longer, and is no gain where there is none', () => {
    expect(tried(1)).toMatchObject({ verdict: false })
    expect(tried(0.9)).toMatchObject({ verdict: true })
    expect(tried(1.1)).toMatchObject({ verdict: false })
  })

  test('it ends, whatever waits it sees', () => {
    const trial = new AwakeTrial(() => 0.7)
    let [verdict, waits]: [boolean | undefined, number] = [undefined, 0]
    while (verdict === undefined && waits < 1000) verdict = trial.took(trial.turn(), `once ${waits++}`, 100, 1)
    expect(verdict).toBe(false)
    expect(waits).toBeLessThan(500)
  })

  test('a wait that reaches into the next block counts for neither', () => {
    expect(tried(1.1, true)).toEqual(tried(1.1))
  })
})
