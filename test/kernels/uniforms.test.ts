/** Where an adapter has no immediates, parameters go through a ring of uniform buffers: the same numbers must come out. */
import { afterAll, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { add } from '../../src/kernels/elementwise/elementwise.ts'
import { Bench, openBench, sameBits } from './harness.ts'
import { linearAndNorm } from './numbers.ts'

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

// The kernels of the device without subgroups on both, so that only the way of the parameters differs.
const numbers = (bench: Bench) => linearAndNorm(bench, 'ring', { software: false, subgroupSize: 0 })

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
