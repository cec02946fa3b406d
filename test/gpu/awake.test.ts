/** Cores that are kept from halting: on which machines, and that it ends with the device's work. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { wanted } from '../../src/gpu/awake.ts'

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
