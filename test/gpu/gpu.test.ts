import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { limitsOf } from '../../src/gpu/adapter.ts'
import { GpuError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { collectAll } from '../../src/gpu/heap.ts'
import { sizeClass, type GpuBuffer } from '../../src/gpu/pool.ts'
import { ReadBuffers } from '../../src/gpu/read-buffers.ts'
import { releaseWeight, uploadWeight } from '../../src/kernels/common/weight.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'

const path = (name: string): string => fileURLToPath(new URL(`fixtures/${name}.wgsl`, import.meta.url))
const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const floats = (...values: number[]): Float32Array => Float32Array.from(values)

function double(on: Gpu, x: GpuBuffer, y: GpuBuffer, count: number, offset = 0): void {
  on.dispatch(on.kernel(path('double')), [x, y], { count, offset }, [Math.ceil(count / 64)])
}

describe('buffers', () => {
  test('are counted while they are held, and used again when released', () => {
    const { bytesInUse, bytesReserved, buffersMade } = gpu.pool
    const a = gpu.pool.acquire(1000, 'a')
    expect(a.bytes).toBe(1024)
    expect(gpu.pool.bytesInUse).toBe(bytesInUse + 1024)
    a.release()
    expect(gpu.pool.bytesInUse).toBe(bytesInUse)
    expect(gpu.pool.bytesReserved).toBe(bytesReserved + 1024)
    const b = gpu.pool.acquire(1020, 'b')
    expect(b).toBe(a)
    expect(b.label).toBe('b')
    expect(gpu.pool.buffersMade).toBe(buffersMade + 1)
    expect(gpu.pool.peakBytes).toBeGreaterThanOrEqual(bytesInUse + 1024)
    b.release()
    gpu.pool.trim()
    expect(gpu.pool.bytesReserved).toBe(bytesReserved)
  })
  test('made to measure are destroyed on release', () => {
    const { bytesReserved, bytesInUse } = gpu.pool
    const exact = gpu.pool.acquire(1001, 'exact', { exact: true })
    expect(exact.bytes).toBe(1008)
    exact.release()
    expect([gpu.pool.bytesReserved, gpu.pool.bytesInUse]).toEqual([bytesReserved, bytesInUse])
  })
  test('released twice are a fault, buffers and textures', () => {
    const a = gpu.pool.acquire(16, 'twice')
    a.release()
    expect(() => a.release()).toThrow("buffer 'twice' is released twice")
    const texture = gpu.pool.texture(4, 4, 'rgba32uint', 'image')
    expect(texture.bytes).toBe(256)
    texture.release()
    expect(() => texture.release()).toThrow("texture 'image' is released twice")
  })
  test('of work that fails are released, unless it released them itself or they have its exact size', () => {
    const { pool } = gpu
    const { bytesInUse } = pool
    let exact!: GpuBuffer
    const work = (error?: Error) => {
      pool.orNothing(() => {
        const [first, second] = ['first', 'second'].map((label) => pool.acquire(1000, label))
        first.release()
        pool.acquire(1000, 'first, again')
        exact = pool.acquire(16, 'exact', { exact: true })
        pool.acquire(5000, 'not needed any more').release()
        if (error) throw error
        second.release()
      })
    }
    expect(() => work(new Error('no more'))).toThrow('no more')
    expect(pool.bytesInUse).toBe(bytesInUse + 16)
    exact.release()
    work()
    expect(pool.bytesInUse).toBe(bytesInUse + 1024 + 16)
    exact.release()
  })
  test('that are free make room within the limit once the commands that use them are submitted', async () => {
    const { pool } = gpu
    const [x, y] = [gpu.upload(floats(3), 'x'), pool.acquire(4, 'y')]
    pool.trim()
    const between = pool.acquire(4096, 'between')
    double(gpu, x, between, 1)
    double(gpu, between, y, 1)
    between.release()
    pool.limitBytes = pool.bytesReserved
    const exact = pool.acquire(4096, 'in its room', { exact: true })
    pool.limitBytes = Infinity
    expect(await gpu.readF32(y, 1)).toEqual(floats(12))
    for (const buffer of [x, y, exact]) buffer.release()
  })
  test('that their owner can make again make room too', () => {
    const { pool } = gpu
    pool.trim()
    const held = pool.acquire(4096, 'can be made again')
    const give = () => held.release()
    pool.relief.add(give)
    pool.limitBytes = pool.bytesReserved
    const exact = pool.acquire(4096, 'in its room', { exact: true })
    pool.limitBytes = Infinity
    pool.relief.delete(give)
    expect(held.released).toBe(true)
    exact.release()
  })
  test('used after release are caught', () => {
    const [x, y] = [gpu.upload(floats(1), 'x'), gpu.pool.acquire(4, 'gone')]
    double(gpu, x, y, 1) // its bind group is cached now, and must not hide the mistake
    y.release()
    expect(() => double(gpu, x, y, 1)).toThrow(/double uses 'gone' after it was released/)
    expect(() => gpu.write(y, floats(1))).toThrow("'gone' after it was released")
    expect(() => gpu.clear(y)).toThrow("'gone' after it was released")
    expect(() => gpu.copy(x, 0, y, 0, 4)).toThrow("'gone' after it was released")
    x.release()
  })
  test('are bound by 4 GiB at most, which kernels count in 32 bits, whatever the adapter binds', () => {
    const { limits } = gpu.device
    const metal = new Proxy(limits, {
      get: (_, key) => (key === 'maxStorageBufferBindingSize' ? 2 ** 36 : Reflect.get(limits, key)),
    })
    expect(limitsOf(metal)).toEqual({ ...gpu.facts.limits, maxBinding: 2 ** 32 - 4 })
    expect(limitsOf(limits)).toEqual(gpu.facts.limits)
  })
  test('over the adapter limit are refused with their name', () => {
    expect(() => gpu.pool.acquire(2 ** 45, 'huge')).toThrow(/buffer 'huge' needs \d+ bytes; this adapter/)
  })
  test('size classes waste at most a seventh and hold what was asked', () => {
    for (let bytes = 1; bytes < 1e9; bytes = Math.ceil(bytes * 1.37)) {
      const size = sizeClass(bytes)
      expect(size).toBeGreaterThanOrEqual(bytes)
      if (bytes > 2048) expect(size / bytes).toBeLessThan(8 / 7)
      expect(size % 256).toBe(0)
    }
  })
})

describe('caches', () => {
  test('a kernel is compiled once a variant, a bind group is made once', async () => {
    const [x, y] = [gpu.upload(floats(1, 2), 'x'), gpu.pool.acquire(8, 'y')]
    double(gpu, x, y, 2)
    const [kernels, groups, made] = [gpu.kernels.size, gpu.bindGroups, gpu.pool.buffersMade]
    for (let i = 0; i < 5; i++) double(gpu, x, y, 2, i)
    expect([gpu.kernels.size, gpu.bindGroups, gpu.pool.buffersMade]).toEqual([kernels, groups, made])
    expect([...(await gpu.readF32(y, 2))]).toEqual([6, 8])
    expect(gpu.kernel(path('double'), { A: 1 })).not.toBe(gpu.kernel(path('double')))
    expect(gpu.kernel(path('double'), { A: 1 })).toBe(gpu.kernel(path('double'), { A: 1 }))
    x.release()
    y.release()
  })
  test("a kernel's text is let go once it is compiled: those of all kernels are megabytes", async () => {
    const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-kernels-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const long = join(folder, 'long.wgsl')
    writeFileSync(long, `${readFileSync(path('double'), 'utf8')}#for i in 0..LINES\n// $(i)${'.'.repeat(1000)}\n#end\n`)
    const heap = async (): Promise<number> => {
      await gpu.sync()
      collectAll()
      return process.memoryUsage().heapUsed
    }
    const before = await heap()
    for (let i = 0; i < 4; i++) expect(gpu.kernel(long, { LINES: 5000 + i }).pipeline).toBeDefined()
    // 5 MB each; regular expressions remember the last one.
    expect((await heap()) - before).toBeLessThan(1e7)
  })
  test('kernels of two folders that are called alike are two', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-kernels-'))
    const [x, y] = [gpu.upload(floats(1, 2), 'x'), gpu.pool.acquire(8, 'y')]
    for (const factor of ['2.0', '3.0']) {
      const own = join(folder, factor, 'kernels')
      mkdirSync(own, { recursive: true })
      writeFileSync(join(own, 'times.wgsl'), readFileSync(path('double'), 'utf8').replace('2.0 *', `${factor} *`))
      gpu.dispatch(gpu.kernel(join(own, 'times.wgsl')), [x, y], { count: 2, offset: 0 }, [1])
      expect([...(await gpu.readF32(y, 2))]).toEqual([Number(factor), 2 * Number(factor)])
    }
    for (const buffer of [x, y]) buffer.release()
    rmSync(folder, { recursive: true })
  })
  test('room for plans: their kernels are compiled before they are recorded, several callers at once', async () => {
    const variants = [1, 2, 3].map((OTHER) => gpu.kernels.get(path('double'), { OTHER }, true))
    expect(variants.map(({ pipeline }) => pipeline)).toEqual([undefined, undefined, undefined])
    const [x, y] = [gpu.upload(floats(3), 'x'), gpu.pool.acquire(4, 'y')]
    const work = () => gpu.dispatch(gpu.kernel(path('double'), { OTHER: 4 }), [x, y], { count: 1, offset: 0 }, [1])
    const asked = gpu.kernel(path('double'), { OTHER: 2 })
    expect(asked).toBe(variants[1])
    expect(asked.pipeline).toBeDefined()
    await Promise.all([gpu.makeRoom(() => [work], []), gpu.kernels.compile()])
    const all = [...variants, gpu.kernels.get(path('double'), { OTHER: 4 }, true)]
    expect(all.every(({ pipeline }) => pipeline !== undefined)).toBe(true)
    work()
    expect(await gpu.readF32(y, 1)).toEqual(floats(6))
    for (const buffer of [x, y]) buffer.release()
  })
  test('bind groups of destroyed buffers and textures are forgotten', () => {
    const groups = gpu.bindGroups
    const [x, y] = [gpu.upload(new Float32Array(64), 'x'), gpu.pool.acquire(256, 'y')]
    for (let i = 0; i < 3; i++) {
      const exact = gpu.upload(floats(1), 'exact', { exact: true })
      const weight = uploadWeight(gpu, 'w', 4, 8, new Float32Array(32))
      double(gpu, exact, y, 1)
      linear(gpu, x, 1, weight, y)
      expect(gpu.bindGroups).toBe(groups + 2)
      gpu.flush()
      exact.release()
      releaseWeight(weight)
      expect(gpu.bindGroups).toBe(groups)
    }
    double(gpu, x, y, 1)
    gpu.flush()
    x.release()
    y.release()
    gpu.pool.trim()
    expect(gpu.bindGroups).toBeLessThanOrEqual(groups)
  })
  test('a buffer that stays keeps no names of all that was ever bound beside it', async () => {
    const y = gpu.pool.acquire(256, 'y')
    const heapAfter = async (times: number): Promise<number> => {
      for (let i = 0; i < times; i++) {
        const exact = gpu.pool.acquire(16, 'exact', { exact: true })
        double(gpu, exact, y, 1)
        gpu.flush()
        exact.release()
        if (i % 500 === 0) await gpu.sync()
      }
      // What objects of the driver held is let go in a turn of its own.
      for (let i = 0; i < 3; i++) {
        await gpu.sync()
        await new Promise((resolve) => setImmediate(resolve))
        collectAll()
      }
      return process.memoryUsage().heapUsed
    }
    const before = await heapAfter(2000)
    const after = await heapAfter(10_000)
    expect(after - before).toBeLessThan(350_000)
    y.release()
  })
  test('ranges of one buffer are bound apart', async () => {
    const bank = gpu.upload(
      new Float32Array(256).map((_, i) => i),
      'bank',
    )
    const y = gpu.pool.acquire(512, 'y')
    for (const offset of [0, 256, 512]) {
      gpu.dispatch(gpu.kernel(path('double')), [{ buffer: bank, offset, bytes: 16 }, y], { count: 4, offset: 0 }, [1])
      expect([...(await gpu.readF32(y, 4))]).toEqual([0, 1, 2, 3].map((i) => 2 * (offset / 4 + i)))
    }
    bank.release()
    y.release()
  })
})

describe('commands', () => {
  test('writes, copies, clears and kernels run in the order they were given', async () => {
    const [x, y] = [gpu.pool.acquire(16, 'x'), gpu.pool.acquire(16, 'y')]
    gpu.write(x, floats(1, 2, 3, 4))
    double(gpu, x, y, 4)
    gpu.write(x, floats(10), 4)
    double(gpu, x, y, 2, 1)
    gpu.copy(y, 0, x, 8, 8)
    gpu.clear({ buffer: x, offset: 0, bytes: 4 })
    expect([...(await gpu.readF32(x, 4))]).toEqual([0, 10, 3, 21])
    expect([...(await gpu.readF32(y, 4))]).toEqual([3, 21, 6, 8])
    x.release()
    y.release()
  })
  test('many dispatches go out in few submits', async () => {
    const [x, y] = [gpu.upload(floats(1), 'x'), gpu.pool.acquire(4, 'y')]
    await gpu.sync()
    const [submits, dispatches] = [gpu.submits, gpu.dispatches]
    for (let i = 0; i < 1100; i++) double(gpu, x, y, 1, i)
    expect((await gpu.readF32(y, 1))[0]).toBe(2 + 1099)
    expect(gpu.dispatches - dispatches).toBe(1100)
    expect(gpu.submits - submits).toBe(3)
    x.release()
    y.release()
  })
  test('reads of odd lengths and parts, and writes of odd lengths', async () => {
    const x = gpu.upload(Uint8Array.of(1, 2, 3, 4, 5), 'bytes')
    expect([...new Uint8Array(await gpu.read({ buffer: x, offset: 0, bytes: 5 }))]).toEqual([1, 2, 3, 4, 5])
    expect([...new Uint8Array(await gpu.read({ buffer: x, offset: 4, bytes: 2 }))]).toEqual([5, 0])
    const many = await Promise.all([1, 2, 3].map((bytes) => gpu.read({ buffer: x, offset: 0, bytes })))
    expect(many.map((b) => b.byteLength)).toEqual([1, 2, 3])
    x.release()
  })
})

describe('plans', () => {
  test('of what is read, large buffers are not kept for the next read', async () => {
    const [small, large] = [256, 5 * 2 ** 20].map((bytes) => gpu.pool.acquire(bytes, 'read', { exact: true }))
    const buffers = new ReadBuffers(gpu.device)
    const taken = [small, large].map(({ bytes }) => buffers.take(bytes))
    for (const buffer of taken) buffers.give(buffer)
    await taken[0].mapAsync(GPUMapMode.READ)
    taken[0].unmap()
    gpu.device.pushErrorScope('validation')
    await expect(taken[1].mapAsync(GPUMapMode.READ)).rejects.toThrow()
    expect((await gpu.device.popErrorScope())?.message).toMatch(/destroyed/)
    await gpu.read(small)
    await gpu.read(large)
    const before = gpu.readBuffersMade
    await gpu.read(small)
    expect(gpu.readBuffersMade).toBe(before)
    await gpu.read(large)
    expect(gpu.readBuffersMade).toBe(before + 1)
    for (const buffer of [small, large]) buffer.release()
  })
  test('replay gives what eager commands give, makes nothing, and sees new contents of buffers', async () => {
    const [x, y, z] = [gpu.upload(floats(1, 2), 'x'), gpu.pool.acquire(8, 'y'), gpu.pool.acquire(8, 'z')]
    const run = (): void => {
      double(gpu, x, y, 2, 1)
      gpu.copy(y, 0, z, 4, 4)
      double(gpu, y, z, 1)
    }
    run()
    const eager = [...(await gpu.readF32(z, 2))]
    const plan = gpu.record(run)
    expect(plan.commands.length).toBe(3)
    gpu.clear(z)
    expect([...(await gpu.readF32(z, 2))]).toEqual([0, 0]) // recording ran nothing
    const [made, groups, submits] = [gpu.pool.buffersMade, gpu.bindGroups, gpu.submits]
    gpu.replay(plan)
    gpu.replay(plan)
    gpu.flush()
    expect([gpu.pool.buffersMade, gpu.bindGroups, gpu.submits]).toEqual([made, groups, submits + 1])
    expect([...(await gpu.readF32(z, 2))]).toEqual(eager)
    gpu.write(x, floats(10, 20))
    gpu.replay(plan)
    expect([...(await gpu.readF32(z, 2))]).toEqual([42, 21])
    for (const b of [x, y, z]) b.release()
  })
  test('keeps its scratch to itself, and gives it back when it is released', async () => {
    const [x, z] = [gpu.upload(floats(21), 'x'), gpu.pool.acquire(4, 'z')]
    const before = gpu.pool.bytesInUse
    const plan = gpu.record(() => {
      const scratch = gpu.pool.acquire(4, 'scratch')
      double(gpu, x, scratch, 1)
      double(gpu, scratch, z, 1)
      scratch.release()
    })
    // Without an arena the next buffer of this size would be the plan's scratch, and its replay would overwrite it.
    const mine = gpu.upload(floats(7), 'mine')
    gpu.replay(plan)
    expect([...(await gpu.readF32(z, 1)), ...(await gpu.readF32(mine, 1))]).toEqual([84, 7])
    mine.release()
    expect(gpu.pool.bytesInUse).toBeGreaterThan(before)
    gpu.releasePlan(plan)
    expect(gpu.pool.bytesInUse).toBe(before)
    x.release()
    z.release()
  })
  test('may be longer than a submit, and may write while they are recorded', async () => {
    const [x, y] = [gpu.pool.acquire(4, 'x'), gpu.pool.acquire(4, 'y')]
    const plan = gpu.record(() => {
      gpu.write(x, floats(3))
      for (let i = 0; i < 1300; i++) double(gpu, x, y, 1, i)
      gpu.flush()
    })
    expect(plan.commands.length).toBe(1300)
    gpu.replay(plan)
    expect((await gpu.readF32(y, 1))[0]).toBe(6 + 1299)
    x.release()
    y.release()
  })
  test('cannot read back, nest, or leave commands behind when they fail', async () => {
    const [x, y] = [gpu.upload(floats(1), 'x'), gpu.upload(floats(0), 'y')]
    let reading: Promise<unknown> | undefined
    gpu.record(() => void (reading = gpu.read(x)))
    await expect(reading).rejects.toThrow('has not run')
    expect(() => gpu.record(() => void gpu.record(() => {}))).toThrow('recorded already')
    expect(() =>
      gpu.record(() => {
        double(gpu, x, y, 1, 5)
        throw new Error('halfway')
      }),
    ).toThrow('halfway')
    expect((await gpu.readF32(y, 1))[0]).toBe(0)
    x.release()
    y.release()
  })
})

test('profile names kernels, counts calls, and gives times', async () => {
  if (!gpu.facts.timestamps) return
  const [x, y] = [gpu.upload(new Float32Array(4096), 'x'), gpu.pool.acquire(16384, 'y')]
  // More than a query set holds
  const times = await gpu.profile(async () => {
    for (let i = 0; i < 2100; i++) double(gpu, x, y, 4096)
    await gpu.sync()
  })
  expect(times.map(({ label, calls }) => [label.replace(/^.*fixtures\//, ''), calls])).toEqual([['double', 2100]])
  expect(times[0].milliseconds).toBeGreaterThan(0)
  const again = await gpu.profile(async () => double(gpu, x, y, 64))
  expect(again[0].calls).toBe(1)
  expect(again[0].milliseconds).toBeLessThan(times[0].milliseconds)
  x.release()
  y.release()
})

describe('mistakes are GpuErrors that name the kernel', () => {
  // A reported error stays with its device: a device for each.
  let own: Gpu
  let x: GpuBuffer
  let y: GpuBuffer
  beforeEach(async () => {
    own = await Gpu.open({ checks: true })
    x = own.upload(floats(1, 2, 3, 4), 'x')
    y = own.pool.acquire(16, 'y')
  })
  afterEach(() => own.close())
  const thrown = async (fn: () => unknown): Promise<Error> => {
    try {
      await fn()
    } catch (error) {
      return error as Error
    }
    throw new Error('nothing was thrown')
  }

  test('a kernel that does not compile: its name, the compiler words, the line', async () => {
    const error = await thrown(async () => {
      own.dispatch(own.kernel(path('broken')), [y], { count: 1 }, [1])
      await own.readF32(y, 1)
    })
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(
      /kernel '.*broken' does not compile[\s\S]*unresolved[\s\S]*nothing[\s\S]*line \d+: y\[lane\] = nothing;/,
    )
    // It stays: later work on a broken device is refused.
    expect(await thrown(() => double(own, x, y, 1))).toBe(error)
  })
  test('the same where pipelines are made ahead on threads of their own, as on a GPU; others are made all the same', async () => {
    // One object for the device and all that looks at its facts.
    Object.assign(own.facts, { software: false })
    const asked = { sync: 0, soon: 0 }
    const { device } = own
    const [sync, soon] = [device.createComputePipeline.bind(device), device.createComputePipelineAsync.bind(device)]
    device.createComputePipeline = (of) => (asked.sync++, sync(of))
    device.createComputePipelineAsync = (of) => (asked.soon++, soon(of))
    await own.makeRoom(() => [() => double(own, x, y, 4)], [])
    double(own, x, y, 4)
    expect(Array.from(await own.readF32(y, 4))).toEqual([2, 4, 6, 8])
    expect(asked).toEqual({ sync: 0, soon: 1 })
    const error = await thrown(async () => {
      await own.makeRoom(() => [() => own.dispatch(own.kernel(path('broken')), [y], { count: 1 }, [1])], [])
      double(own, x, y, 4)
    })
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/kernel '.*broken' does not compile[\s\S]*unresolved[\s\S]*line \d+: y\[lane\] = nothing;/)
    // Nor is it tried again with what comes next.
    device.createShaderModule = () => expect.fail('a kernel that was reported is compiled again')
    await own.kernels.compile()
  })
  test('a binding over the limit: its name and both sizes', async () => {
    Object.assign(own.facts.limits, { maxBinding: 128 })
    const error = await thrown(() => double(own, x, y, 1))
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/double: 'x' is 256 bytes; this adapter binds at most 128/)
  })
  test('a wrong number of bindings', async () => {
    const error = await thrown(() => own.dispatch(own.kernel(path('double')), [x], { count: 1, offset: 0 }, [1]))
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/double takes 2 bindings, got 1/)
    const scratch = () => {
      const z = own.pool.acquire(16, 'z')
      own.dispatch(own.kernel(path('double')), [x, y, z], { count: 1, offset: 0 }, [1])
      z.release()
    }
    expect((await thrown(() => own.record(scratch))).message).toMatch(/double takes 2 bindings, got 3/)
  })
  test('a missing parameter', async () => {
    const error = await thrown(() => own.dispatch(own.kernel(path('double')), [x, y], { count: 1 }, [1]))
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/double: parameter 'offset' is missing/)
  })
  test('too many workgroups; none at all is no mistake', async () => {
    const error = await thrown(() => own.dispatch(own.kernel(path('double')), [x, y], { count: 1, offset: 0 }, [65536]))
    expect(error.message).toMatch(/double: 65536 x 1 x 1 workgroups are too many/)
    own.dispatch(own.kernel(path('double')), [x, y], { count: 1, offset: 0 }, [0])
    expect(own.dispatches).toBe(0)
  })
  test.each([
    ['a texture where a buffer belongs', () => [own.pool.texture(4, 4, 'rgba32uint', 'image'), y]],
    ['an offset that cannot be bound', () => [{ buffer: x, offset: 4, bytes: 8 }, y]],
    ['one buffer read and written by one dispatch', () => [x, x]],
  ])('%s', async (_, bindings) => {
    const error = await thrown(async () => {
      own.dispatch(own.kernel(path('double')), bindings(), { count: 1, offset: 0 }, [1])
      await own.sync()
    })
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toContain('double')
  })
  test('a copy past the end of a buffer names the commands of its submit', async () => {
    const error = await thrown(async () => {
      double(own, x, y, 1)
      own.copy(x, 0, y, 0, 100_000)
      await own.sync()
    })
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/in a submit of: .*double, copy/)
  })
  test('a device that is gone', async () => {
    const reading = own.read(x)
    own.device.destroy()
    const error = await thrown(async () => {
      await reading
      await own.read(x)
    })
    expect(error).toBeInstanceOf(GpuError)
    expect(error.message).toMatch(/lost|does not answer/)
  })
})
