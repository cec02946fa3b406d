/** The device's part of a trace: every dispatch once, however many there are, and none beyond what there is room for. */
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { startTrace, stopTrace, tracer as current, type TraceLevel } from '../../src/common/trace.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'

const path = fileURLToPath(new URL('fixtures/double.wgsl', import.meta.url))
const count = 64
let gpu: Gpu
let [x, y]: GpuBuffer[] = []

beforeAll(async () => {
  gpu = await Gpu.open({ checks: true })
  x = gpu.upload(new Float32Array(count).fill(3), 'x')
  y = gpu.pool.acquire(count * 4, 'y')
})
afterEach(() => void stopTrace())
afterAll(() => gpu.close())

const double = () => gpu.dispatch(gpu.kernel(path), [x, y], { count, offset: 0 }, [1])

/** What was timed while `fn` ran, and the sentences about it. */
async function traced(fn: () => void | Promise<void>, level: TraceLevel = 'kernels', maxEvents = 100_000) {
  const tracer = startTrace({ level, maxEvents })
  await fn()
  await gpu.sync()
  stopTrace()
  const events = await tracer.finish()
  const onGpu = (track: string) => events.filter((e) => e.ph === 'X' && e.pid === 2 && e.cat === track)
  return { tracer, events, kernels: onGpu('trainer'), engine: onGpu('engine'), submits: onGpu('submits') }
}

test('more dispatches in a submit than a query set holds', async () => {
  if (!gpu.facts.timestamps) return
  const plan = gpu.record(() => {
    for (let i = 0; i < 2100; i++) double()
  })
  const { kernels, submits } = await traced(() => gpu.replay(plan))
  gpu.releasePlan(plan)
  expect(kernels).toHaveLength(2100)
  // Two query sets of one submit.
  expect(new Set(submits.map((e) => e.name)).size).toBe(1)
  expect(submits.reduce((sum, e) => sum + (e.args!.passes as number), 0)).toBe(2100)
  expect(await gpu.readF32(y, count)).toEqual(new Float32Array(count).fill(6))
})

test('passes are timed as they are: a copy ends one', async () => {
  if (!gpu.facts.timestamps) return
  const work = () => {
    double()
    double()
    gpu.copy(y, 0, x, 0, 16)
    double()
  }
  const { kernels } = await traced(work, 'passes')
  expect(kernels.map((e) => e.args!.dispatches ?? 1)).toEqual([2, 1])
  expect((await traced(work)).kernels).toHaveLength(3)
})

test('a full trace leaves kernels out and goes on', async () => {
  const { tracer, events } = await traced(
    async () => {
      for (let i = 0; i < 20; i++) {
        double()
        await gpu.sync()
      }
    },
    'kernels',
    40,
  )
  expect(tracer.full).toBe(true)
  // Names of tracks do not count.
  expect(events.filter((e) => e.ph !== 'M').length).toBeLessThanOrEqual(40)
})

test('commands are on the track of who recorded them; a second trace begins anew', async () => {
  if (!gpu.facts.timestamps) return
  for (let i = 0; i < 2; i++) {
    const { kernels, engine } = await traced(() => {
      double()
      gpu.flush()
      current!.author = 'engine'
      double()
      double()
      gpu.flush()
      current!.author = 'trainer'
    })
    expect([kernels.length, engine.length]).toEqual([1, 2])
  }
})

test('without a trace nothing is timed', async () => {
  const tracer = startTrace({ level: 'kernels', maxEvents: 100 })
  stopTrace()
  double()
  await gpu.sync()
  expect((await tracer.finish()).every((e) => e.ph === 'M')).toBe(true)
})
