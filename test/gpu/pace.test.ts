/** Submits of GPUs end before a system that watches them would end the device: without a device and by a clock of its own, then on this adapter as a GPU. */
import { fileURLToPath } from 'node:url'
import { afterAll, expect, test } from 'vitest'
import { openDevice } from '../../src/gpu/adapter.ts'
import type { Command } from '../../src/gpu/commands.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Pace } from '../../src/gpu/pace.ts'
import { emptyPlan, type Plan } from '../../src/gpu/plan.ts'

/** Commands of so many workgroups each. */
const commandsOf = (count: number, workgroups: number): Command[] =>
  Array.from({ length: count }, () => ({ kernel: {}, workgroups: [workgroups, 1, 1] }) as unknown as Command)

/** A device that takes `each` ms for a workgroup. */
class Slow {
  each: number
  now = 0
  readonly pace = new Pace(() => this.now)
  constructor(each: number) {
    this.each = each
  }

  /** Sends a plan and waits for it. @returns how long each submit takes */
  replay(plan: Plan, commands: Command[]): number[] {
    const isEnough = this.pace.begin(plan)
    const submits: number[] = []
    let pending: Command[] = []
    const send = (): void => {
      if (pending.length === 0) return
      this.pace.sent(pending)
      submits.push(pending.reduce((sum, command) => sum + ('kernel' in command ? command.workgroups[0] * this.each : 0), 0))
      pending = []
    }
    for (const command of commands) {
      pending.push(command)
      if (isEnough(command)) send()
    }
    send()
    const over = this.pace.wait()
    this.now += submits.reduce((a, b) => a + b, 0)
    over()
    return submits
  }
}

test('a plan that takes 20 s goes out in submits of half a second, at first in some of few commands', () => {
  const slow = new Slow(0.1)
  const plan = emptyPlan()
  const commands = commandsOf(1000, 200)
  expect(slow.replay(plan, commands)).toHaveLength(Math.ceil(1000 / 16))
  const submits = slow.replay(plan, commands)
  expect(submits).toHaveLength(40)
  expect(Math.max(...submits)).toBeCloseTo(500)
})

test('it goes by the work, not by the commands: twice as many rows are twice as many submits', () => {
  const slow = new Slow(0.1)
  const plan = emptyPlan()
  slow.replay(plan, commandsOf(1000, 10))
  expect(slow.replay(plan, commandsOf(1000, 10))).toHaveLength(2)
  expect(slow.replay(plan, commandsOf(1000, 20))).toHaveLength(4)
})

test('a plan that takes less goes out whole, also after one that takes long; and a command by itself where it alone takes as long', () => {
  const slow = new Slow(0.001)
  const [short, long] = [emptyPlan(), emptyPlan()]
  slow.replay(short, commandsOf(1000, 100))
  slow.each = 5
  slow.replay(long, commandsOf(20, 200))
  expect(slow.replay(long, commandsOf(20, 200))).toEqual(Array.from({ length: 20 }, () => 1000))
  slow.each = 0.001
  expect(slow.replay(short, commandsOf(1000, 100))).toHaveLength(1)
  // The second wait after the driver has compiled its kernels is the last that counts them.
  for (const submits of [20, 20, 1]) expect(slow.replay(long, commandsOf(20, 200))).toHaveLength(submits)
})

test('a wait counts from the first of several submits, and one with nothing sent says nothing about the plan', () => {
  const [slow, plan] = [new Slow(0.1), emptyPlan()]
  const { pace } = slow
  pace.begin(plan)
  pace.sent(commandsOf(50, 100))
  slow.now = 500
  pace.sent(commandsOf(50, 100))
  const over = pace.wait()
  slow.now = 1000
  over()
  for (let i = 0; i < 2; i++) {
    pace.begin(plan)
    pace.wait()()
  }
  expect(slow.replay(plan, commandsOf(100, 100))).toEqual([500, 500])
})

test('waits that overlap have a time of their own each', () => {
  const [slow, plan] = [new Slow(0.1), emptyPlan()]
  const { pace } = slow
  const begin = (): (() => void) => {
    pace.begin(plan)
    pace.sent(commandsOf(100, 100))
    return pace.wait()
  }
  const [first, second] = [begin(), begin()]
  slow.now = 1000
  first()
  slow.now = 2000
  second()
  expect(slow.replay(plan, commandsOf(100, 100))).toEqual([500, 500])
})

test('of waits that are seen to end together, as after the process was stopped, the second does not make the plan look quick', () => {
  const [slow, plan] = [new Slow(0.1), emptyPlan()]
  const commands = commandsOf(1000, 200)
  slow.replay(plan, commands)
  const begin = (): (() => void) => {
    pace.begin(plan)
    pace.sent(commands)
    return pace.wait()
  }
  const { pace } = slow
  const [first, second] = [begin(), begin()]
  slow.now += 60_000 // both took 20 s of these
  first()
  second()
  expect(Math.max(...slow.replay(plan, commands))).toBeLessThan(600)
  expect(slow.replay(plan, commands).length).toBeLessThan(150)
  expect(slow.replay(plan, commands)).toHaveLength(40)
})

const opened = await openDevice({ checks: true })
const gpu = new Gpu({ ...opened, facts: { ...opened.facts, software: false } })
afterAll(() => gpu.close())

test('on a GPU, with the same results, and whole as soon as that is known to be quick', async () => {
  const kernel = gpu.kernel(fileURLToPath(new URL('fixtures/double.wgsl', import.meta.url)))
  const [x, y] = [gpu.upload(Float32Array.of(1), 'x'), gpu.pool.acquire(4, 'y')]
  const plan = gpu.record(() => {
    for (let i = 0; i < 100; i++) gpu.dispatch(kernel, [x, y], { count: 1, offset: i }, [1])
  })
  const submitsOf = async (): Promise<number> => {
    const before = gpu.submits
    gpu.replay(plan)
    expect((await gpu.readF32(y, 1))[0]).toBe(2 + 99)
    return gpu.submits - before
  }
  await gpu.sync()
  // The read-back goes with the last one.
  expect(await submitsOf()).toBe(Math.ceil(100 / 16))
  expect(await submitsOf()).toBe(1)
  x.release()
  y.release()
})
