/** A new `Gpu` for each test, without compiling each kernel again for it. */
import { afterAll } from 'vitest'
import { openDevice, type OpenDevice } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'

let opened: Promise<OpenDevice> | undefined
/** Kept, as Dawn returns the pipeline that it has for a kernel's text only while that one is in use. */
const made: Gpu[] = []

afterAll(async () => (await opened)?.device.destroy())

/**
 * A `Gpu` with a pool, caches and plans of its own, with Dawn's checks, over the one device of a test file. `close` leaves the device open. Not for tests
 * of a device that is lost or runs out of memory.
 */
export async function freshGpu(): Promise<Gpu> {
  opened ??= openDevice({ checks: true })
  const gpu = new Gpu(await opened)
  gpu.close = () => gpu.pool.trim()
  made.push(gpu)
  return gpu
}
