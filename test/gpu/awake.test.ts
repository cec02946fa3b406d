/** Cores that are kept from halting: on which machines, and that it ends with the device's work. */
import { execFileSync } from 'node:child_process'
import { accessSync, constants, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import workers from 'node:worker_threads'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { AwakeTrial } from '../../src/gpu/awake-trial.ts'
import { keptByTheSystem } from '../../src/gpu/awake-idle.ts'
import { keptByThreads } from '../../src/gpu/awake-threads.ts'
import { isLimited, wanted } from '../../src/gpu/awake.ts'
import { seed } from '../seed.ts'

const machine = (files: Record<string, string>) => (path: string) => files[path] ?? ''
const virtual = { '/proc/cpuinfo': 'processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n' }
const real = { '/proc/cpuinfo': 'processor : 0\nflags\t\t: fpu vme lahf_lm\nmodel name : a hypervisor by name\n' }

const latency = '/dev/cpu_dma_latency'
/** What the system was told, or what holds by all that it was told. */
const toldOf = (path: string): number[] => [...new Int32Array(new Uint8Array(readFileSync(path)).buffer)]
function mayAsk(): boolean {
  try {
    accessSync(latency, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

describe.runIf(process.platform === 'linux')('cores are kept awake', () => {
  test('in a virtual machine, not elsewhere', () => {
    expect(wanted('', machine(virtual))).toBe(true)
    expect(wanted('', machine(real))).toBe(false)
    expect(wanted('', machine({}))).toBe(false)
  })

  test('not by threads where a limit of a container counts their time', () => {
    const group = { '/proc/self/cgroup': '0::/docker/abc\n' }
    expect(isLimited(machine({ ...group, '/sys/fs/cgroup/docker/abc/cpu.max': 'max 100000\n' }))).toBe(false)
    expect(isLimited(machine({ ...group, '/sys/fs/cgroup/docker/abc/cpu.max': '150000 100000\n' }))).toBe(true)
    expect(isLimited(machine({ ...group, '/sys/fs/cgroup/docker/cpu.max': '50000 100000\n' }))).toBe(true)
    expect(isLimited(machine({ '/sys/fs/cgroup/cpu.max': '50000 100000\n' }))).toBe(true)
    expect(isLimited(machine({ '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '50000\n' }))).toBe(true)
    expect(isLimited(machine({ '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '-1\n' }))).toBe(false)
    expect(isLimited(machine({}))).toBe(false)
  })

  test('as DAWN_RL_AWAKE says, where it says something', () => {
    expect(wanted('0', machine(virtual))).toBe(false)
    expect(wanted('1', machine(real))).toBe(true)
    expect(wanted('threads', machine(real))).toBe(true)
  })

  test('by the system, which is told so while the device is waited for, and for a while longer', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'awake-'))
    const path = join(folder, 'cpu_dma_latency')
    try {
      expect(keptByTheSystem(20, path), 'where there is no such file').toBeUndefined()
      expect(existsSync(path)).toBe(false)
      writeFileSync(path, '')
      const keeper = keptByTheSystem(20, path)!
      const told = () => toldOf(path)
      const [atOnce, whenever] = [0, 2_000_000_000]
      expect(told(), 'before the first wait').toEqual([])
      keeper.hold()
      keeper.hold()
      keeper.release()
      expect(told(), 'two waits, of which one is over').toEqual([atOnce])
      keeper.release()
      keeper.hold()
      keeper.release()
      expect(told(), 'the next wait begins soon').toEqual([atOnce])
      await expect.poll(told).toEqual([atOnce, whenever])
      keeper.linger(false)
      keeper.hold()
      keeper.release()
      expect(told(), 'where they are not to stay awake for a while').toEqual([atOnce, whenever, atOnce, whenever])
      keeper.linger(true)
      keeper.hold()
      keeper.end()
      keeper.release()
      keeper.hold()
      await sleep(40)
      expect(told(), 'nothing once it has ended').toEqual([atOnce, whenever, atOnce, whenever, atOnce])
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  test.runIf(mayAsk())("the system's own file takes it", () => {
    const keeper = keptByTheSystem(20)!
    keeper.hold()
    const limit = toldOf(latency)
    keeper.end()
    expect(limit).toEqual([0])
  })

  test('by threads of the lowest priority, while the device is waited for, and they hold no process back from its end', () => {
    const out = execFileSync(process.execPath, [join(import.meta.dirname, 'fixtures/awake.ts')], {
      env: { ...process.env, DAWN_RL_AWAKE: 'threads' },
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

  test('not by threads where the system starts no more of them, which Node throws at once', async () => {
    const { Worker } = workers
    workers.Worker = class {
      constructor() {
        throw new Error('ERR_WORKER_INIT_FAILED: EAGAIN')
      }
    } as unknown as typeof Worker
    syncBuiltinESMExports()
    try {
      expect(await keptByThreads(20, 2)).toBeUndefined()
    } finally {
      workers.Worker = Worker
      syncBuiltinESMExports()
    }
  })
})

describe('whether it is a gain is tried', () => {
  /**
   * Waits of two kinds and several sizes, of which every other one ends with the one before it, on a machine that is up to a quarter slower for stretches.
   * @param awake what waits take while cores are kept awake, of what they take else
   * @param options.late whether there are waits besides that began in the block before, for a million times the work
   * @param options.expected whether it is expected to be a gain
   * @returns the verdict, and seconds of waiting until then
   */
  function tried(
    awake: number,
    { late = false, expected = false } = {},
  ): { verdict: boolean | undefined; seconds: number; turns: number[] } {
    const random = new Random(seed)
    const trial = new AwakeTrial(expected, () => random.next())
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

  test('it begins with what is expected, and finds out where that is wrong', () => {
    for (const expected of [false, true]) {
      const trial = new AwakeTrial(expected, () => 0.5)
      expect(trial.turn().awake).toBe(expected)
      expect(tried(1.1, { expected })).toMatchObject({ verdict: false })
      expect(tried(0.9, { expected })).toMatchObject({ verdict: true })
    }
  })

  test('it ends, whatever waits it sees', () => {
    const trial = new AwakeTrial(false, () => 0.7)
    let [verdict, waits]: [boolean | undefined, number] = [undefined, 0]
    while (verdict === undefined && waits < 1000) verdict = trial.took(trial.turn(), `once ${waits++}`, 100, 1)
    expect(verdict).toBe(false)
    expect(waits).toBeLessThan(500)
  })

  test('a wait that reaches into the next block counts for neither', () => {
    expect(tried(1.1, { late: true })).toEqual(tried(1.1))
  })
})
