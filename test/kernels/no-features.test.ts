/** A device with none of the features that kernels may use: those that are not asked to use them compile, whatever their comments speak of. */
import { afterAll, expect, test } from 'vitest'
import { openDevice } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { ropeIntoCache } from '../../src/kernels/rope/rope.ts'
import { Bench, poison } from './harness.ts'

const opened = await openDevice({ checks: true })
opened.device.destroy()
const adapter = await opened.gpu.requestAdapter()
const device = await adapter!.requestDevice()
const none = { f16: false, subgroupSize: 0, timestamps: false, immediates: false }
const bench = new Bench(new Gpu({ ...opened, device, facts: { ...opened.facts, ...none } }))
afterAll(() => bench.gpu.close())

test.each([false, true])('a cache takes keys and values, of f16: %s', async (f16) => {
  await bench.run(`f16 ${f16}`, {}, async () => {
    const shape = { heads: 2, kvHeads: 1, headDim: 8 }
    const [q, k, v, table] = [16, 8, 8, 8].map((length) => bench.up(bench.normals(length)))
    const [kCache, vCache] = [bench.out(8), bench.out(8)]
    ropeIntoCache(bench.gpu, { q, k, v, slots: bench.up(new Uint32Array(2)), table, kCache, vCache }, 1, shape, f16)
    expect(await bench.words(vCache, f16 ? 4 : 8)).not.toContain(poison)
  })
})
