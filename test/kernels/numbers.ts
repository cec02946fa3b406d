/** What a product and a norm give: to hold one way of opening the device against another. */
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { uploadWeight } from '../../src/kernels/common/weight.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { type Bench, bf16Bits, toBf16 } from './harness.ts'

/** @param name of the run, from which its values come @param facts whose kernels are taken */
export async function linearAndNorm(bench: Bench, name: string, facts: Partial<GpuFacts>): Promise<Float32Array[]> {
  const results: Float32Array[] = []
  await bench.run(name, facts, async () => {
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
