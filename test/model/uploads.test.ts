/** What waits on the device while a model is loaded is bounded. */
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Uploads } from '../../src/model/uploads.ts'

const model = join(import.meta.dirname, '../../models/SmolLM2-135M-Instruct.Q4_1.gguf')

describe('uploads', () => {
  let gpu: Gpu
  beforeAll(async () => {
    gpu = await Gpu.open()
  })
  afterAll(() => gpu.close())

  test('are waited for once they are many, not before', async () => {
    const sync = vi.spyOn(gpu, 'sync')
    const uploads = new Uploads(gpu)
    uploads.add(10 * 2 ** 20)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(0)
    uploads.add(10 * 2 ** 20)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(1)
    await uploads.room()
    expect(sync).toHaveBeenCalledTimes(1)
    sync.mockRestore()
  })

  // With 64 MB waiting it is 104 to 180.
  test.runIf(process.platform === 'linux' && existsSync(model))(
    'let a model be loaded in little more memory than it then has',
    () => {
      const script = join(import.meta.dirname, 'loaded-memory.ts')
      const { most, now } = JSON.parse(execFileSync(process.execPath, [script, model], { encoding: 'utf8', timeout: 120_000 }))
      expect(now).toBeGreaterThan(300)
      expect(most - now).toBeLessThan(70)
    },
  )
})
