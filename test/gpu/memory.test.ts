/** A device that has no memory left, and one that is gone: said by the device itself, and by names that a run can act on. */
import { expect, onTestFinished, test } from 'vitest'
import { withinMemory } from '../../src/gpu/device-errors.ts'
import { DeviceLostError, GpuMemoryError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'

async function open(): Promise<Gpu> {
  const gpu = await Gpu.open()
  onTestFinished(() => gpu.close())
  return gpu
}
const thrown = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  )

const probe = await Gpu.open()
/** The software driver promises a larger buffer than it makes; a real GPU would have to be filled for this. */
const tooLarge = (gpu: Gpu): GPUBuffer =>
  gpu.device.createBuffer({ size: gpu.facts.limits.maxBuffer, usage: GPUBufferUsage.STORAGE })
let refuses = false
if (probe.facts.software) {
  probe.device.pushErrorScope('out-of-memory')
  tooLarge(probe).destroy()
  refuses = (await probe.device.popErrorScope()) !== null
}
probe.close()

test.skipIf(!refuses)('what is asked for within a question fails alone, and the device goes on', async () => {
  const gpu = await open()
  const kept = gpu.upload(Float32Array.of(3, 4), 'kept')
  const error = await thrown(withinMemory(gpu.device, () => tooLarge(gpu)))
  expect(error).toBeInstanceOf(GpuMemoryError)
  expect((error as Error).message).toMatch(/^the GPU is out of memory: /)
  await withinMemory(gpu.device, () => gpu.pool.acquire(1024, 'small').release())
  expect([...(await gpu.readF32(kept, 2))]).toEqual([3, 4])
  expect(gpu.failure).toBeUndefined()
})

test.skipIf(!refuses)('what is asked for outside of one is heard of at the next wait', async () => {
  const gpu = await open()
  tooLarge(gpu)
  expect(await thrown(gpu.sync())).toBeInstanceOf(GpuMemoryError)
  expect(gpu.failure).toBeInstanceOf(GpuMemoryError)
  expect(gpu.lost).toBeUndefined()
})

test.skipIf(!refuses)('scratch that the device refused is not kept for smaller plans', async () => {
  const gpu = await open()
  const { device } = gpu
  const make = device.createBuffer.bind(device)
  // More than a MiB is asked for as the size that this driver refuses.
  device.createBuffer = (asked) => make(asked.size > 2 ** 20 ? { ...asked, size: gpu.facts.limits.maxBuffer } : asked)
  const arena: GpuBuffer[] = []
  const y = gpu.upload(Float32Array.of(0), 'y')
  const work = (bytes: number) => (): void => {
    const scratch = gpu.pool.acquire(bytes, 'large')
    gpu.clear(scratch)
    gpu.copy(scratch, 0, y, 0, 4)
    scratch.release()
  }
  const before = gpu.pool.bytesReserved
  expect(await thrown(gpu.makeRoom(() => [work(2 ** 21)], arena))).toBeInstanceOf(GpuMemoryError)
  expect(gpu.pool.bytesReserved).toBeLessThan(before + 1024)
  await gpu.makeRoom(() => [work(4096)], arena)
  gpu.write(y, Float32Array.of(7))
  gpu.replay(gpu.record(work(4096), arena))
  expect(await gpu.readF32(y, 1)).toEqual(Float32Array.of(0))
  expect(gpu.failure).toBeUndefined()
})

test('a device that is gone is told from one that has reported something else', async () => {
  const gpu = await open()
  expect(gpu.lost).toBeUndefined()
  gpu.device.destroy()
  expect(await thrown(gpu.sync())).toBeInstanceOf(DeviceLostError)
  expect(gpu.lost).toBeInstanceOf(DeviceLostError)
})

test('one that was closed is not lost', async () => {
  const gpu = await Gpu.open()
  gpu.close()
  await gpu.device.lost
  expect(gpu.lost).toBeUndefined()
})
