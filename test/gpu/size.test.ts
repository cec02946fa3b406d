/** Counts that a plan leaves open: what they come to, and plans that are replayed with other numbers. */
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { GpuError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { capacityOf, groupsOf, map, Size, times, within, type Count } from '../../src/gpu/size.ts'
import { perRow } from '../../src/kernels/common/lanes.ts'
import { seed, seedWords } from '../seed.ts'

const path = fileURLToPath(new URL('fixtures/double.wgsl', import.meta.url))
const real = (count: Count, value: number): number => (typeof count === 'number' ? count : count.at(value))

describe('a size', () => {
  test('is at each value what a number is, and its capacity is what it is at the variable’s', () => {
    const random = new Random(seed)
    for (let i = 0; i < 200; i++) {
      const capacity = 1 + random.int(200_000)
      const [value, factor, size, first, most] = [capacity, 9, 70, capacity, 500].map((n) => random.int(n) + 1)
      const both = <T>(fn: (n: Count) => T): [T, T] => [fn(Size.of('n', capacity)), fn(value)]
      for (const fn of [
        (n: Count) => times(n, factor),
        (n: Count) => groupsOf(n, size),
        (n: Count) => within(n, first, most),
        (n: Count) => groupsOf(within(times(n, factor), first, most), size),
        (n: Count) => map(n, (x) => x + 3),
        (n: Count) => perRow(n)[0],
        (n: Count) => perRow(n)[1],
      ]) {
        const [open, number] = both(fn)
        expect(real(open, value), `${fn.toString()} ${seedWords}`).toBe(number)
        expect(capacityOf(open)).toBe(fn(capacity))
        expect(capacityOf(open)).toBeGreaterThanOrEqual(number as number)
      }
    }
  })

  test('that starts behind the count is 0', () => {
    expect(real(within(Size.of('n', 100), 64, 64), 64)).toBe(0)
    expect(real(within(Size.of('n', 100), 64, 64), 10)).toBe(0)
    expect(real(within(Size.of('n', 100), 64, 64), 65)).toBe(1)
    expect(capacityOf(within(Size.of('n', 100), 64, 64))).toBe(36)
  })
})

describe('plans with open counts', async () => {
  const gpu = await Gpu.open({ checks: true })
  afterAll(() => gpu.close())
  const double = (x: GpuBuffer, y: GpuBuffer, count: Count, offset: Count = 0) =>
    gpu.dispatch(gpu.kernel(path), [x, y], { count, offset }, [groupsOf(count, 64)])
  const numbers = (n: number) => Float32Array.from({ length: n }, (_, i) => i + 1)

  test('do as much as the numbers of each replay say, and make nothing', async () => {
    const capacity = 300
    const [x, y, z] = [gpu.upload(numbers(capacity), 'x'), gpu.pool.acquire(1200, 'y'), gpu.pool.acquire(1200, 'z')]
    const n = Size.of('n', capacity)
    const shift = map(Size.of('shift'), (s) => s / 2)
    const plan = gpu.record(() => {
      const scratch = gpu.pool.acquire(1200, 'scratch')
      double(x, scratch, n, shift)
      gpu.copy(scratch, 0, y, 0, times(n, 4))
      double(scratch, z, within(n, 128, 128))
      scratch.release()
    })
    const made = () => [gpu.pool.buffersMade, gpu.bindGroups, gpu.kernels.size]
    const before = made()
    for (const [count, s] of [
      [300, 1],
      [7, 3],
      [129, 0],
      [0, 5],
      [256, 2],
    ]) {
      for (const buffer of [y, z]) gpu.clear(buffer)
      const dispatches = gpu.dispatches
      gpu.replay(plan, { n: count, shift: s, unused: 1 })
      // What has nothing to do is left out.
      expect(gpu.dispatches - dispatches).toBe(Number(count > 0) + Number(count > 128))
      const first = numbers(capacity).map((v, i) => (i < count ? 2 * v + s / 2 : 0))
      expect(await gpu.readF32(y, capacity)).toEqual(first)
      const some = Math.max(0, Math.min(128, count - 128))
      expect(await gpu.readF32(z, capacity)).toEqual(first.map((v, i) => (i < some ? 2 * v : 0)))
    }
    expect(made()).toEqual(before)
    gpu.releasePlan(plan)
    for (const b of [x, y, z]) b.release()
  })

  test('replayed twice before anything is sent, each has its own numbers', async () => {
    const [x, y] = [gpu.upload(numbers(100), 'x'), gpu.pool.acquire(400, 'y')]
    gpu.clear(y)
    const plan = gpu.record(() => double(x, y, Size.of('n', 100), Size.of('shift')))
    gpu.replay(plan, { n: 100, shift: 1 })
    gpu.replay(plan, { n: 10, shift: 50 })
    expect(await gpu.readF32(y, 100)).toEqual(numbers(100).map((v, i) => 2 * v + (i < 10 ? 50 : 1)))
    gpu.releasePlan(plan)
    x.release()
    y.release()
  })

  test('rows of a copy into a texture', async () => {
    const texture = gpu.pool.texture(16, 8, 'rgba32float', 'rows')
    const x = gpu.upload(numbers(512), 'x')
    const zeros = gpu.upload(new Float32Array(512), 'zeros')
    const layout = { bytesPerRow: 256, texels: 16 }
    const plan = gpu.record(() => gpu.copyToTexture(x, texture, { ...layout, rows: Size.of('rows', 8) }))
    for (const rows of [8, 3, 0]) {
      gpu.copyToTexture(zeros, texture, { ...layout, rows: 8 })
      gpu.replay(plan, { rows })
      gpu.flush()
      const back = gpu.pool.acquire(2048, 'back')
      const encoder = gpu.device.createCommandEncoder()
      encoder.copyTextureToBuffer({ texture: texture.raw }, { buffer: back.raw, bytesPerRow: 256 }, [16, 8])
      gpu.device.queue.submit([encoder.finish()])
      expect(await gpu.readF32(back, 512)).toEqual(numbers(512).map((v, i) => (i < rows * 64 ? v : 0)))
      back.release()
    }
    gpu.releasePlan(plan)
    for (const held of [texture, x, zeros]) held.release()
  })

  test('a number that is missing, too large or none at all, and a size where nothing is recorded, are refused', () => {
    const [x, y] = [gpu.upload(numbers(100), 'x'), gpu.pool.acquire(400, 'y')]
    const n = Size.of('n', 100)
    const plan = gpu.record(() => double(x, y, n))
    const thrown = (fn: () => void) => {
      try {
        fn()
      } catch (error) {
        expect(error).toBeInstanceOf(GpuError)
        return (error as Error).message
      }
      throw new Error('nothing was thrown')
    }
    expect(thrown(() => gpu.replay(plan))).toBe("a plan is replayed without a value for 'n'")
    expect(thrown(() => gpu.replay(plan, { n: 101 }))).toBe("a plan for 100 'n' is replayed with 101")
    expect(thrown(() => gpu.replay(plan, { n: NaN }))).toContain('replayed with NaN')
    expect(thrown(() => double(x, y, n))).toContain("'n' has no value yet")
    expect(thrown(() => gpu.copy(x, 0, y, 0, times(n, 4)))).toContain("'n' has no value yet")
    const other = () => {
      double(x, y, n)
      double(x, y, Size.of('n', 50))
    }
    expect(thrown(() => gpu.record(other))).toBe("a plan uses two capacities of 'n': 100 and 50")
    gpu.releasePlan(plan)
    x.release()
    y.release()
  })
})
