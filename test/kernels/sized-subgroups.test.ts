/** Where a driver chooses the size of subgroups by itself, kernels ask for one (DAWN_RL_SUBGROUPS): the same numbers must come out. Here it is the size that they have anyway. */
import { afterAll, describe, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { uploadWeight } from '../../src/kernels/common/weight.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { Bench, bf16Bits, openBench, sameBits, toBf16 } from './harness.ts'

const plain = await openBench()
const { subgroupSize } = plain.gpu.facts
const open = async (asked: string): Promise<Gpu> => {
  process.env.DAWN_RL_SUBGROUPS = asked
  try {
    return await Gpu.open({ checks: true })
  } finally {
    delete process.env.DAWN_RL_SUBGROUPS
  }
}

describe.runIf(subgroupSize > 0)('an adapter with subgroups', async () => {
  const sized = subgroupSize > 0 ? new Bench(await open(String(subgroupSize))) : plain
  afterAll(() => sized.gpu.close())

  async function numbers(bench: Bench): Promise<Float32Array[]> {
    const results: Float32Array[] = []
    for (const software of [true, false])
      await bench.run(`sized ${software}`, { software }, async () => {
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

  test('kernels that ask for a size give the bits of those that do not', async () => {
    expect(sized.gpu.facts).toMatchObject({ subgroupSize, sizedSubgroups: true })
    expect(plain.gpu.facts.sizedSubgroups).toBe(false)
    const [a, b] = [await numbers(plain), await numbers(sized)]
    a.forEach((v, i) => sameBits(`result ${i}`, v, b[i]))
  })

  test.each(['3', '512', 'many'])('%s lanes are refused in a sentence', async (asked) => {
    await expect(open(asked)).rejects.toThrow(
      new RegExp(
        `^DAWN_RL_SUBGROUPS=${asked}: this adapter's subgroups have .* lanes.*\\. Leave it out; 0 is for kernels without subgroups\\.$`,
      ),
    )
  })
})
