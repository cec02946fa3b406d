/** Scratch of plans: places that never meet, and what a plan may not do with it. */
import { fileURLToPath } from 'node:url'
import { afterAll, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { placePieces, ScratchTrace, type Piece } from '../../src/gpu/scratch.ts'
import { seed, seedWords } from '../seed.ts'

const path = fileURLToPath(new URL('fixtures/double.wgsl', import.meta.url))
const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const double = (x: GpuBuffer, y: GpuBuffer, count: number, offset = 0) =>
  gpu.dispatch(gpu.kernel(path), [x, y], { count, offset }, [Math.ceil(count / 64)])

const piece = (bytes: number, from: number, to: number): Piece => ({ bytes, from, to, apart: new Set() })
const total = (sizes: number[]) => sizes.reduce((sum, bytes) => sum + bytes, 0)

test('pieces that are in use at the same time never overlap, nor share a buffer where a command forbids it', () => {
  const random = new Random(seed)
  for (let round = 0; round < 60; round++) {
    const pieces = Array.from({ length: 1 + random.int(60) }, () => {
      const from = random.int(100)
      return piece(256 * (1 + random.int(random.int(3) === 0 ? 200 : 8)), from, from + 1 + random.int(40))
    })
    for (const one of pieces) {
      for (const other of pieces) {
        if (one === other || random.int(12) > 0) continue
        one.apart.add(other)
        other.apart.add(one)
      }
    }
    const known = Array.from({ length: random.int(4) }, () => 256 * (1 + random.int(100)))
    const { places, sizes } = placePieces(pieces, known)
    expect(sizes.slice(0, known.length)).toEqual(known)
    pieces.forEach((one, i) => {
      const a = places[i]
      expect(a.start % 256).toBe(0)
      expect(a.start + one.bytes).toBeLessThanOrEqual(sizes[a.buffer])
      for (const [j, other] of pieces.entries()) {
        const b = places[j]
        if (j <= i || a.buffer !== b.buffer || one.to < other.from || other.to < one.from) continue
        expect(one.apart.has(other), seedWords).toBe(false)
        expect(a.start + one.bytes <= b.start || b.start + other.bytes <= a.start, seedWords).toBe(true)
      }
    })
    let most = 0
    for (const { from } of pieces) {
      const live = pieces.filter((p) => p.from <= from && p.to >= from)
      most = Math.max(most, total(live.map(({ bytes }) => bytes)))
    }
    if (known.length === 0) expect(total(sizes)).toBeGreaterThanOrEqual(most)
    expect(total(sizes)).toBeLessThanOrEqual(total(known) + total(pieces.map(({ bytes }) => bytes)))
  }
})

test('what a command writes is kept apart from all that it uses, whichever of them gets its place first', () => {
  const trace = new ScratchTrace({} as GPUBuffer)
  const [read, written] = ['read', 'written'].map((label) => trace.take(256, label))
  trace.together([read, written], (index) => index === 1)
  for (const buffer of [read, written]) buffer.release()
  const [one, other] = trace.end()
  expect([one.apart.has(other), other.apart.has(one)]).toEqual([true, true])
})

test('what comes later lies where something larger was, several beside each other', () => {
  const [large, a, b, c] = [piece(4096, 0, 9), piece(1024, 10, 20), piece(2048, 12, 20), piece(1024, 15, 30)]
  expect(placePieces([a, large, b, c], []).sizes).toEqual([4096])
  a.apart.add(c)
  c.apart.add(a)
  expect(placePieces([a, large, b, c], []).sizes).toEqual([4096, 1024])
  expect(placePieces([a, b], [512, 4096]).sizes).toEqual([512, 4096])
})

test('a plan with parts of one buffer gives what eager commands give', async () => {
  const values = new Float32Array(1024).map((_, i) => i)
  const [x, y] = [gpu.upload(values, 'x'), gpu.pool.acquire(4096, 'y')]
  const run = () => {
    const large = gpu.pool.acquire(16384, 'large')
    gpu.clear(large)
    large.release()
    // Both lie in the place of the large one; the third, which is written where they are read, does not.
    const [a, b] = [gpu.pool.acquire(4096, 'a'), gpu.pool.acquire(2048, 'b')]
    double(x, a, 1024, 1)
    double(x, b, 512, 2)
    const c = gpu.pool.acquire(4096, 'c')
    double(a, c, 1024)
    double(b, c, 512)
    gpu.copy(c, 0, y, 0, 4096)
    for (const buffer of [a, b, c]) buffer.release()
  }
  run()
  const eager = await gpu.readF32(y, 1024)
  gpu.releasePlan(gpu.record(run))
  gpu.clear(y)
  const { bytesInUse, bytesReserved } = gpu.pool
  const plan = gpu.record(run)
  expect(plan.arena.map(({ bytes }) => bytes)).toEqual([16384, 4096])
  gpu.replay(plan)
  expect(await gpu.readF32(y, 1024)).toEqual(eager)
  const groups = gpu.bindGroups
  gpu.releasePlan(plan)
  expect([gpu.pool.bytesInUse, gpu.pool.bytesReserved]).toEqual([bytesInUse, bytesReserved])
  expect(gpu.bindGroups).toBe(groups - 4)
  x.release()
  y.release()
})

test('plans of one arena go on in what the first one took, and add what is missing', () => {
  const arena: GpuBuffer[] = []
  const use = (bytes: number[]) => () => {
    const held = bytes.map((n) => gpu.pool.acquire(n, 'scratch'))
    for (const buffer of held) buffer.release()
  }
  const plans = [gpu.record(use([8192, 512]), arena)]
  expect(arena.map(({ bytes }) => bytes)).toEqual([8192, 512])
  plans.push(gpu.record(use([4096, 4096, 512]), arena))
  expect(arena.length).toBe(2)
  plans.push(gpu.record(use([8192, 1024]), arena))
  expect(arena.map(({ bytes }) => bytes)).toEqual([8192, 512, 1024])
  for (const plan of plans) gpu.releasePlan(plan)
  gpu.pool.returnArena(arena)
})

test('plans of about the same sizes share places and bind groups, where scratch has a least size', () => {
  const x = gpu.upload(new Float32Array(1024), 'x')
  const run = (count: number) => () => {
    const [a, b] = [gpu.pool.acquire(count * 4, 'a'), gpu.pool.acquire(count * 4, 'b')]
    double(x, a, count)
    double(a, b, count)
    for (const buffer of [a, b]) buffer.release()
  }
  const groupsOf = (least: number): number[] => {
    const arena: GpuBuffer[] = []
    const before = gpu.bindGroups
    const plans = [1024, 700, 300, 20].map((count) => ({
      plan: gpu.record(run(count), arena, least),
      groups: gpu.bindGroups - before,
    }))
    for (const { plan } of plans) gpu.releasePlan(plan)
    gpu.pool.returnArena(arena)
    expect(gpu.bindGroups).toBe(before)
    return plans.map(({ groups }) => groups)
  }
  expect(groupsOf(0)).toEqual([2, 4, 6, 8])
  expect(groupsOf(4096)).toEqual([2, 2, 2, 2])
  // 4,096, 2,800 and 1,200 bytes, each its power of two or more.
  expect(groupsOf(1024)).toEqual([2, 2, 4, 6])
  x.release()
})

test('one plan may take what the next one gives back; nothing may outlive them, or be different the second time', async () => {
  const [x, y] = [gpu.upload(Float32Array.of(1, 2), 'x'), gpu.pool.acquire(8, 'y')]
  let held: GpuBuffer | undefined
  const take = () => {
    held = gpu.pool.acquire(8, 'held')
    double(x, held, 2)
  }
  const give = () => {
    double(held!, y, 2)
    held!.release()
  }
  const [first, second] = gpu.recordAll([take, give])
  gpu.replay(first)
  gpu.replay(second)
  expect([...(await gpu.readF32(y, 2))]).toEqual([4, 8])
  for (const plan of [first, second]) gpu.releasePlan(plan)
  const before = gpu.pool.bytesInUse
  expect(() => gpu.record(take)).toThrow("scratch 'held' of a plan was not given back")
  let bytes = 256
  expect(() => gpu.record(() => gpu.pool.acquire((bytes *= 2), 'more').release())).toThrow(
    "different scratch buffers the second time it is run: 'more'",
  )
  expect(gpu.pool.bytesInUse).toBe(before)
  x.release()
  y.release()
})
