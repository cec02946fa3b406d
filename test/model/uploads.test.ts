/** What waits on the device while a model is loaded is bounded, and nothing of it stays on the host. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import type { TensorSource } from '../../src/model/types.ts'
import { Uploads } from '../../src/model/decoder/uploads.ts'
import { smollm2, withoutSmollm2 } from './helpers.ts'

const tiny = join(import.meta.dirname, '../../models/tiny')

describe('uploads', () => {
  let gpu: Gpu
  beforeAll(async () => {
    gpu = await Gpu.open()
  })
  afterAll(() => gpu.close())

  test('are waited for once they are many, not before', async () => {
    const sync = vi.spyOn(gpu, 'sync')
    const uploads = new Uploads(gpu)
    uploads.add(3 * 2 ** 20)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(0)
    uploads.add(3 * 2 ** 20)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(1)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(1)
    sync.mockRestore()
  })

  test('of a model that is trained whole hold nothing of its files once it is loaded', async () => {
    const files = await openModel(tiny)
    const read: WeakRef<object>[] = []
    const tensors: TensorSource = {
      names: () => files.tensors.names(),
      has: (name) => files.tensors.has(name),
      shape: (name) => files.tensors.shape(name),
      read: async (name, options) => {
        const found = await files.tensors.read(name, options)
        read.push(new WeakRef(found.data))
        return found
      },
      close: () => files.close(),
    }
    const decoder = await loadDecoder(gpu, { name: files.name, config: files.config, tensors }, { full: true })
    setFlagsFromString('--expose-gc')
    const collect = runInNewContext('gc') as () => void
    await sleep(0)
    collect()
    expect(read.length).toBeGreaterThan(10)
    expect(read.filter((data) => data.deref() !== undefined)).toEqual([])
    decoder.release()
    files.close()
  })

  // With 64 MB waiting it is 104 to 180.
  test.runIf(process.platform === 'linux' && !withoutSmollm2)(
    'let a model be loaded in little more memory than it then has',
    () => {
      const script = join(import.meta.dirname, 'loaded-memory.ts')
      const { most, now } = JSON.parse(execFileSync(process.execPath, [script, smollm2], { encoding: 'utf8', timeout: 120_000 }))
      expect(now).toBeGreaterThan(300)
      expect(most - now).toBeLessThan(70)
    },
  )
})
