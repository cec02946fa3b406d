/** LoRA's first product for several projections at once: the bits of a matmul for each. */
import { expect, test } from 'vitest'
import { weightView } from '../../src/kernels/common/weight.ts'
import { loraDown, takesLoraDown } from '../../src/kernels/lora/lora.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { bounds, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

test.skipIf(!bench.cpu)('each projection of a group has the bits of its own matmul', async () => {
  for (const [rows, k, rank, group] of [
    [1, 8, 8, 1],
    [3, 64, 8, 3],
    [7, 72, 16, 2],
    [33, 576, 8, 3],
    [129, 40, 24, 2],
  ]) {
    await bench.run(`lora ${rows} ${k} ${rank} ${group}`, {}, async () => {
      const x = bench.normals(rows * k)
      const size = Math.ceil((rank * k) / 64) * 64
      // Apart in the bank, and not in its order.
      const values = bench.normals((2 * group + 1) * size)
      const bank = bench.up(values)
      const at = Array.from({ length: group }, (_, g) => (2 * (group - g) - 1) * size)
      const parts = at.map((offset, g) => ({
        a: { buffer: bank, offset: offset * 4, bytes: rank * k * 4 },
        scale: 1.5 - g,
        out: bench.out(rows * rank),
      }))
      const matrices = parts.map(({ a }) => a)
      expect(takesLoraDown(gpu, k, matrices)).toBe(true)
      expect(takesLoraDown(gpu, k, [...matrices, { ...matrices[0], buffer: bench.up(values) }])).toBe(false)
      const input = bench.up(x)
      loraDown(gpu, input, rows, k, rank, parts)
      for (const [g, { a, scale, out }] of parts.entries()) {
        const want = Float64Array.from({ length: rows * rank }, (_, e) => {
          const [m, r] = [Math.floor(e / rank), e % rank]
          let sum = 0
          for (let c = 0; c < k; c++) sum += x[m * k + c] * values[at[g] + r * k + c]
          return sum * scale
        })
        await bench.check(`projection ${g}`, out, want, bounds.sum)
        const alone = bench.out(rows * rank)
        linear(gpu, input, rows, weightView('A', a, rank, k), alone, { alpha: scale })
        sameBits(`projection ${g}`, await bench.down(out, rows * rank), await bench.down(alone, rows * rank))
      }
    })
  }
})

test.skipIf(!bench.cpu)('a norm on the way: the bits of the norm and then the products', async () => {
  for (const [rows, k, rank, group] of [
    [1, 576, 8, 3],
    [2, 64, 16, 1],
    [5, 72, 8, 2],
    [32, 576, 8, 3],
    [33, 200, 24, 1],
    [64, 1024, 16, 2],
  ]) {
    await bench.run(`norm and lora ${rows} ${k} ${rank} ${group}`, {}, async () => {
      const [input, gain] = [bench.up(bench.normals(rows * k, 3)), bench.up(bench.normals(k))]
      const bank = bench.up(bench.normals(group * rank * k))
      const ranges = Array.from({ length: group }, (_, g) => ({ buffer: bank, offset: g * rank * k * 4, bytes: rank * k * 4 }))
      const partsOf = () => ranges.map((a, g) => ({ a, scale: 1.5 - g, out: bench.out(rows * rank) }))
      const [normed, alone, rstd] = [bench.out(rows * k), bench.out(rows * k), bench.out(rows)]
      const [parts, after] = [partsOf(), partsOf()]
      loraDown(gpu, input, rows, k, rank, parts, { norm: { gain, eps: 1e-5, out: normed } })
      rmsNorm(gpu, input, gain, alone, rstd, rows, k, 1e-5)
      loraDown(gpu, alone, rows, k, rank, after)
      sameBits('norm', await bench.down(normed, rows * k), await bench.down(alone, rows * k))
      for (let g = 0; g < group; g++) {
        const [one, two] = await Promise.all([parts, after].map((of) => bench.down(of[g].out, rows * rank)))
        sameBits(`projection ${g}`, one, two)
      }
    })
  }
})
