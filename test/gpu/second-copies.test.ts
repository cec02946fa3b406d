/** Of two copies of a kernel the faster one stays; what is short or seen seldom gets none. */
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { encode, type Dispatch } from '../../src/gpu/commands.ts'
import { cacheFault } from '../../src/gpu/driver-cache.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Kernel } from '../../src/gpu/kernel.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { SecondCopies, takesSecondCopies } from '../../src/gpu/second-copies.ts'

const path = fileURLToPath(new URL('fixtures/spin.wgsl', import.meta.url))
const count = 64 * 64
let gpu: Gpu
let [x, y]: GpuBuffer[] = []

beforeAll(async () => {
  gpu = await Gpu.open({ checks: true })
  x = gpu.upload(new Float32Array(count).fill(1), 'x')
  y = gpu.pool.acquire(count * 4, 'y')
})
afterAll(() => gpu.close())

/** A kernel that goes so many turns, whose second copy goes `copied`. */
function spinning(turns: number, copied: number): Kernel {
  const kernel = gpu.kernel(path, { TURNS: turns })
  return { ...kernel, copy: copied === turns ? kernel.copy : gpu.kernel(path, { TURNS: copied }).copy }
}

/** Sends a plan of eight dispatches of a kernel, each of half of the rows or of all. */
function sender(kernel: Kernel, copies: SecondCopies): () => Promise<void> {
  const plan = gpu.record(() => {
    for (let i = 0; i < 8; i++) gpu.dispatch(kernel, [x, y], { count }, [i % 2 ? 64 : 32])
  })
  const commands = plan.commands as Dispatch[]
  return async () => {
    const encoder = gpu.device.createCommandEncoder()
    encode(encoder, commands, { uniforms: undefined, timer: copies.timer(commands) })
    gpu.device.queue.submit([encoder.finish()])
    await gpu.sync()
    await wait(1)
  }
}

const possible = () => gpu.facts.timestamps && gpu.facts.immediates
const long = 20_000

test.each([
  { name: 'a faster copy takes the place of the first', turns: long, copied: 100, replaced: 1 },
  { name: 'a slower copy does not', turns: 100, copied: long, replaced: 0 },
])('$name', async ({ turns, copied, replaced }) => {
  if (!possible()) return
  const kernel = spinning(turns, copied)
  const first = kernel.pipeline
  const copies = new SecondCopies(gpu.device, 0)
  const send = sender(kernel, copies)
  for (let i = 0; i < 100 && copies.compared === 0; i++) await send()
  expect(copies).toMatchObject({ compared: 1, replaced })
  expect(kernel.pipeline !== first).toBe(replaced === 1)
  const stays = kernel.pipeline
  for (let i = 0; i < 10; i++) await send()
  expect(copies.compared).toBe(1)
  expect(kernel.pipeline).toBe(stays)
  expect(new Set(await gpu.readF32(y, count))).toEqual(new Set([1]))
})

test('a kernel gets a copy when it has taken a while, and not before', async () => {
  if (!possible()) return
  const kernel = spinning(100, 100)
  let made = 0
  const counted = { ...kernel, copy: () => (made++, kernel.copy()) }
  const send = sender(counted, new SecondCopies(gpu.device, 1e6))
  for (let i = 0; i < 40; i++) await send()
  expect(made).toBe(0)
  const soon = sender(counted, new SecondCopies(gpu.device, 0))
  await soon()
  expect(made).toBe(0)
  for (let i = 0; i < 10; i++) await soon()
  expect(made).toBe(1)
})

test('a copy is a pipeline of its own with the same results, and one that cannot be made is done without', async () => {
  if (!possible()) return
  const kernel = gpu.kernel(path, { TURNS: 7 })
  const copy = await kernel.copy()
  expect(copy).not.toBe(kernel.pipeline)
  const copies = new SecondCopies(gpu.device, 0)
  const broken = { ...kernel, copy: () => Promise.reject(new Error('no memory')) }
  const send = sender(broken, copies)
  for (let i = 0; i < 10; i++) await send()
  expect([copies.compared, broken.pipeline]).toEqual([0, kernel.pipeline])
  kernel.pipeline = copy
  gpu.dispatch(kernel, [x, y], { count }, [64])
  expect(new Set(await gpu.readF32(y, count))).toEqual(new Set([1]))
})

test('they are for lavapipe on CPUs of AMD', () => {
  const facts = { ...gpu.facts, name: 'llvmpipe: Mesa 25.0.7', cpu: 'amd' as const, timestamps: true }
  expect(takesSecondCopies(facts)).toBe(cacheFault() === undefined)
  expect(takesSecondCopies({ ...facts, cpu: 'other' })).toBe(false)
  expect(takesSecondCopies({ ...facts, name: 'NVIDIA' })).toBe(false)
  expect(takesSecondCopies({ ...facts, timestamps: false })).toBe(false)
})
