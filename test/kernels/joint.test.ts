/** The way back of projections of one input as if they were one: held against float64, and against each by itself. */
import { describe, expect, test, vi } from 'vitest'
import { ParameterStore } from '../../src/autograd/parameters.ts'
import { linear, type Projection } from '../../src/autograd/ops/linear.ts'
import { linears } from '../../src/autograd/ops/linears.ts'
import { Tape } from '../../src/autograd/tape.ts'
import { Tensor } from '../../src/autograd/tensor.ts'
import { allocateTogether, allocateWeight, releaseWeight, writeWeight, type Weight } from '../../src/kernels/common/weight.ts'
import { jointBackwardInput, jointBackwardWeight, takesJoint } from '../../src/kernels/matmul/joint.ts'
import { linearBackwardWeight } from '../../src/kernels/matmul/matmul.ts'
import { bf16Bits, bounds, openBench, sameBits, toBf16 } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

function together(widths: number[], k: number, bf16 = true): { weights: Weight[]; values: Float32Array[]; release: () => void } {
  const parts = widths.map((rows, i) => ({ label: `${i}`, rows }))
  const { weights, owned } = allocateTogether(gpu, parts, k, bf16)
  const values = widths.map((n) => bench.normals(n * k, k ** -0.5).map((v) => (bf16 ? toBf16(v) : v)))
  weights.forEach((weight, i) => writeWeight(gpu, weight, bf16 ? bf16Bits(values[i]) : values[i]))
  return { weights, values, release: () => owned.forEach(releaseWeight) }
}

describe.runIf(bench.cpu)('layers that go back together', () => {
  test.each([
    { rows: 37, widths: [128, 64, 64], k: 128, bf16: true, accumulate: true },
    { rows: 70, widths: [192, 192], k: 64, bf16: false, accumulate: false },
    // More rows than are staged at once.
    { rows: 1030, widths: [64, 64], k: 64, bf16: true, accumulate: false },
  ])('dX is the sum of all, dW each its own: $rows rows, $widths to $k', async ({ rows, widths, k, bf16, accumulate }) => {
    await bench.run(`joint ${rows} ${widths.join()} ${k}`, {}, async () => {
      const { weights, values, release } = together(widths, k, bf16)
      expect(takesJoint(gpu, weights)).toBe(true)
      const data = widths.map((n) => bench.normals(rows * n))
      const dys = data.map((dy) => bench.up(dy))
      const [x, before] = [bench.up(bench.normals(rows * k)), bench.normals(rows * k)]
      const dx = bench.up(before)
      jointBackwardInput(gpu, { dys, rows, weights }, dx, accumulate)
      const want = accumulate ? Float64Array.from(before) : new Float64Array(rows * k)
      widths.forEach((n, w) => {
        for (let m = 0; m < rows; m++)
          for (let i = 0; i < n; i++) for (let c = 0; c < k; c++) want[m * k + c] += data[w][m * n + i] * values[w][i * k + c]
      })
      await bench.check('dx', dx, want, bounds.sum)
      const total = widths.reduce((sum, n) => sum + n, 0)
      const first = bench.normals(total * k)
      const [bank, apart, alone] = [0, 1, 2].map(() => bench.up(first))
      let row = 0
      const ranges = widths.map((n) => ({ offset: (row += n) * k * 4 - n * k * 4, bytes: n * k * 4 }))
      const into = (buffer: typeof bank) => ranges.map((range) => ({ buffer, ...range }))
      jointBackwardWeight(gpu, { dys, rows, weights }, x, into(bank))
      // Not in order: a dispatch each.
      const reversed = { dys: dys.toReversed(), rows, weights: weights.toReversed() }
      jointBackwardWeight(gpu, reversed, x, into(apart).toReversed())
      into(alone).forEach((dw, i) => linearBackwardWeight(gpu, dys[i], x, rows, widths[i], k, dw))
      const wanted = await bench.down(alone, total * k)
      sameBits('one range', await bench.down(bank, total * k), wanted)
      sameBits('ranges apart', await bench.down(apart, total * k), wanted)
      release()
    })
  })

  test('only in whole panels of one storage, no more columns than are staged of the most rows', async () => {
    await bench.run('takes', {}, async () => {
      const takes = (widths: number[], k: number): boolean => {
        const { weights, release } = together(widths, k)
        release()
        return takesJoint(gpu, weights)
      }
      expect([takes([576, 192, 192], 576), takes([512, 512], 64), takes([512, 576], 64)]).toEqual([true, true, false])
      expect([takes([128, 72], 128), takes([64], 64), takes([64, 64], 72)]).toEqual([false, false, false])
      const alone = [64, 64].map((rows) => allocateWeight(gpu, 'alone', rows, 64, true))
      expect(takesJoint(gpu, alone)).toBe(false)
      alone.forEach(releaseWeight)
    })
  })

  test('on a tape: the gradients of one after the other, and of all parameters', async () => {
    await bench.run('tape', {}, async () => {
      const [rows, k, widths] = [21, 128, [128, 64, 64]]
      const { weights, values, release } = together(widths, k)
      const alone = widths.map((n) => allocateWeight(gpu, 'alone', n, k, true))
      alone.forEach((weight, i) => writeWeight(gpu, weight, bf16Bits(values[i])))
      const [xData, dyData] = [bench.normals(rows * k), widths.map((n) => bench.normals(rows * n))]
      const results: Float32Array[][] = []
      const dispatches: number[] = []
      for (const [own, run] of [
        [weights, linears],
        [alone, (tape: Tape, x: Tensor, all: Projection[]) => all.map((one) => linear(tape, x, one))],
      ] as const) {
        const store = new ParameterStore(gpu)
        const projections = own.map((weight, i): Projection => {
          const trained = {
            store,
            weight: store.declare(`${i}`, weight.rows, k),
            bias: store.declare(`b${i}`, 1, weight.rows, { decay: false }),
          }
          return { name: `${i}`, weight, trained }
        })
        store.allocate()
        const tape = new Tape(gpu, true)
        const x = new Tensor(bench.up(xData), rows, k, true)
        const ys = run(tape, x, projections, {})
        ys.forEach((y, i) => tape.giveGrad(y, new Tensor(bench.up(dyData[i]), rows, widths[i], false)))
        const sent = vi.spyOn(gpu, 'dispatch')
        tape.backward()
        dispatches.push(sent.mock.calls.length)
        sent.mockRestore()
        const gradients = await Promise.all(store.parameters.map(async (p) => await store.read(p, 'gradients')))
        results.push([await gpu.readF32(x.grad!.buffer, rows * k), ...gradients])
        tape.done(...ys, x.grad!)
        store.release()
      }
      // Of three layers a dW, a dX and a bias each; together one of either and the biases.
      expect(dispatches).toEqual([5, 9])
      const [[dx, ...gradients], [wantX, ...want]] = results
      const error = Math.hypot(...dx.map((v, i) => v - wantX[i])) / Math.hypot(...wantX)
      expect(error).toBeLessThan(bounds.sum)
      want.forEach((values, i) => sameBits(`parameter ${i}`, gradients[i], values))
      alone.forEach(releaseWeight)
      release()
    })
  })
})
