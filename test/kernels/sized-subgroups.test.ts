/** Where a driver chooses the size of subgroups by itself, kernels ask for one (DAWN_RL_SUBGROUPS): the same numbers must come out. Here it is the size that they have anyway. */
import { afterAll, describe, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Bench, openBench, sameBits } from './harness.ts'
import { linearAndNorm } from './numbers.ts'

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

  const numbers = async (bench: Bench) => [
    ...(await linearAndNorm(bench, 'sized true', { software: true })),
    ...(await linearAndNorm(bench, 'sized false', { software: false })),
  ]

  test('kernels that ask for a size give the bits of those that do not', async () => {
    expect(sized.gpu.facts).toMatchObject({ subgroupSize, sizedSubgroups: true })
    expect(plain.gpu.facts.sizedSubgroups).toBe(false)
    const [a, b] = [await numbers(plain), await numbers(sized)]
    a.forEach((v, i) => sameBits(`result ${i}`, v, b[i]))
  })

  test.each(['3', '512', 'many'])('%s lanes are refused in a sentence', async (asked) => {
    await expect(open(asked)).rejects.toThrow(
      new RegExp(
        `^DAWN_RL_SUBGROUPS=${asked}: this adapter's subgroups have .* lanes.*\\. Unset it, or set it to 0 for kernels without subgroups\\.$`,
      ),
    )
  })
})
