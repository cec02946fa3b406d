/** Where an adapter has no immediates, parameters go through a ring of uniform buffers: the same numbers must come out. */
import { afterAll, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { uploadWeight } from '../../src/kernels/common/weight.ts'
import { add } from '../../src/kernels/elementwise/elementwise.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { Bench, bf16Bits, openBench, sameBits, toBf16 } from './harness.ts'

const plain = await openBench()
process.env.DAWN_RL_IMMEDIATES = '0'
process.env.DAWN_RL_SUBGROUPS = '0'
const ring = new Bench(await Gpu.open({ checks: true }))
delete process.env.DAWN_RL_IMMEDIATES
delete process.env.DAWN_RL_SUBGROUPS
afterAll(() => ring.gpu.close())

test('the switches are taken when the device is opened', () => {
  expect(ring.gpu.facts.immediates).toBe(false)
  expect(ring.gpu.facts.subgroupSize).toBe(0)
  expect(plain.gpu.facts.immediates).toBe(true)
})

async function numbers(bench: Bench): Promise<Float32Array[]> {
  const results: Float32Array[] = []
  // The kernels of the device without subgroups on both, so that only the way of the parameters differs.
  await bench.run('ring', { software: false, subgroupSize: 0 }, async () => {
    const { gpu } = bench
    const weight = uploadWeight(gpu, 'w', 33, 40, bf16Bits(bench.normals(33 * 40).map(toBf16)))
    const [x, y, z, rstd] = [bench.up(bench.normals(9 * 40)), bench.out(9 * 33), bench.out(9 * 40), bench.out(9)]
    linear(gpu, x, 9, weight, y, { alpha: 0.3 })
    rmsNorm(gpu, x, bench.up(bench.normals(40)), z, rstd, 9, 40, 1e-5)
    results.push(await bench.down(y, 9 * 33), await bench.down(z, 9 * 40))
    ;(weight.slices[0].storage as { release(): void }).release()
  })
  return results
}

test('matmul and norm give the bits they give with immediates', async () => {
  const [a, b] = [await numbers(plain), await numbers(ring)]
  a.forEach((v, i) => sameBits(`result ${i}`, v, b[i]))
})

test('more dispatches in a submit, and in a plan, than a uniform buffer has room for', async () => {
  await ring.run('many', {}, async () => {
    const { gpu } = ring
    const n = 600
    const one = ring.up(new Float32Array(n).fill(1))
    const buffers = [ring.up(new Float32Array(n)), ring.up(new Float32Array(n))]
    // Dispatch i covers i + 1 values: wrong parameters would show.
    const run = (): void => {
      for (let i = 0; i < n; i++) add(gpu, buffers[i % 2], one, buffers[(i + 1) % 2], n)
      for (let i = 0; i < n; i++) add(gpu, buffers[0], one, buffers[1], i + 1)
    }
    run()
    expect((await ring.down(buffers[1], n)).every((v) => v === n + 1)).toBe(true)
    const plan = gpu.record(run)
    expect(plan.commands.length).toBe(2 * n)
    gpu.replay(plan)
    gpu.replay(plan)
    expect((await ring.down(buffers[1], n)).every((v) => v === 3 * n + 1)).toBe(true)
  })
})
