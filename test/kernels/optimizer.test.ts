import { describe, expect, test } from 'vitest'
import {
  adamw,
  adamw8bit,
  gradientNorm,
  roundWeight,
  sumSquares,
  sumSquaresBlocks,
} from '../../src/kernels/optimizer/optimizer.ts'
import { sliceRows, type Weight } from '../../src/kernels/common/weight.ts'
import { embedding } from '../../src/kernels/embedding/embedding.ts'
import { bf16Bits, bounds, compare, modes, openBench, sameBits, toBf16 } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

test.each([{}, { software: false }])('AdamW follows PyTorch over several steps, on a part of a bank, %o', async (facts) => {
  for (const [total, first, count] of [
    [1, 0, 1],
    [513, 0, 513],
    [700, 129, 500],
    [700, 128, 500],
  ]) {
    await bench.run(`adamw ${total} ${first}`, facts, async () => {
      const settings = { learningRate: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.1 }
      const start = bench.normals(total)
      // Of a lone value near 0, the relative error says how near.
      if (total === 1) start[0] += Math.sign(start[0])
      const [w, m, v] = [Float64Array.from(start), new Float64Array(total), new Float64Array(total)]
      const t = {
        parameters: bench.up(start),
        gradients: bench.out(total),
        m: bench.up(new Float32Array(total)),
        v: bench.up(new Float32Array(total)),
        norm: bench.up(new Float32Array(3)),
      }
      // What a lone first moment is a sum of, whose signs may cancel.
      let terms = 0
      for (let step = 1; step <= 5; step++) {
        const gradient = bench.normals(total, step === 3 ? 1e-6 : 0.5)
        const clip = step === 2 ? 0.25 : 1
        gpu.write(t.gradients, gradient)
        gpu.write(t.norm, Float32Array.of(9, clip, 1))
        adamw(gpu, t, { first, count }, { ...settings, step })
        // torch.optim.AdamW, single tensor, as documented: decay, then moments, then the step.
        for (let i = first; i < first + count; i++) {
          const g = gradient[i] * clip
          terms = Math.hypot(settings.beta1 * terms, (1 - settings.beta1) * g)
          w[i] *= 1 - settings.learningRate * settings.weightDecay
          m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g
          v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g
          const [mHat, vHat] = [m[i] / (1 - settings.beta1 ** step), v[i] / (1 - settings.beta2 ** step)]
          w[i] -= (settings.learningRate * mHat) / (Math.sqrt(vHat) + settings.eps)
        }
      }
      await bench.check('w', t.parameters, w, bounds.elementwise)
      await bench.check('m', t.m, m, bounds.sum, total === 1 ? terms : undefined)
      await bench.check('v', t.v, v, bounds.sum)
      // The move itself, not hidden behind the size of w
      const moved = (await bench.down(t.parameters, total)).map((x, i) => x - start[i])
      compare(
        'w - start',
        moved,
        w.map((x, i) => x - start[i]),
        1e-4,
      ) // w near 1 is rounded to 6e-8 in each step, the move is 0.05
    })
  }
})

test.each([false, true])(
  'without a first moment a gradient far smaller than the one before it is not lost, in 8 bits: %s',
  async (in8bit) => {
    await bench.run('beta1 of 0', {}, async () => {
      const settings = { learningRate: 0.125, beta1: 0, beta2: 0, eps: 1e-30, weightDecay: 0 }
      const signs = Float32Array.from({ length: 256 }, () => (bench.random.next() < 0.5 ? -1 : 1))
      const t = {
        parameters: bench.up(new Float32Array(256)),
        gradients: bench.out(256),
        m: bench.up(in8bit ? new Uint32Array(64).fill(0x7f7f7f7f) : new Float32Array(256)),
        v: bench.up(new Uint32Array(256)),
        scale: bench.up(new Float32Array(2)),
        norm: bench.up(Float32Array.of(9, 1, 1)),
      }
      for (const [i, size] of [1e4, 1e-6].entries()) {
        const scaled = signs.map((sign) => sign * size)
        gpu.write(t.gradients, scaled)
        if (in8bit) adamw8bit(gpu, t, 256, { ...settings, step: i + 1 })
        else adamw(gpu, t, { first: 0, count: 256 }, { ...settings, step: i + 1 })
      }
      const want = signs.map((sign) => sign * -0.25)
      compare('each step is the learning rate', await bench.down(t.parameters, 256), want, 1e-6)
    })
  },
)

describe.each(modes)('sum of squares, $name', ({ facts, needs }) => {
  test.skipIf(needs === 'cpu' && !bench.cpu)('per block, not finite where a value is not', async () => {
    for (const count of [1, 7, 513, 16384, 16385, 40_000]) {
      await bench.run(`squares ${count}`, facts, async () => {
        const x = bench.normals(count)
        const blocks = sumSquaresBlocks(count)
        const partial = bench.out(blocks)
        sumSquares(gpu, bench.up(x), partial, count)
        const want = new Float64Array(blocks)
        x.forEach((v, i) => (want[Math.floor(i / 16384)] += v * v))
        await bench.check('squares', partial, want, bounds.sum)
        for (const bad of [NaN, Infinity]) {
          x[count - 1] = bad
          const spoiled = bench.out(blocks)
          sumSquares(gpu, bench.up(x), spoiled, count)
          const got = await bench.down(spoiled, blocks)
          expect(Number.isFinite(got[blocks - 1])).toBe(false)
          expect(got.slice(0, -1).every(Number.isFinite)).toBe(true)
        }
      })
    }
  })
})

test('sums of squares are the same bits whatever the lanes', async () => {
  const runs: Float32Array[] = []
  const count = 3 * 16384 + 1025
  for (const { facts, needs } of modes) {
    if (needs === 'cpu' && !bench.cpu) continue
    await bench.run('squares, same bits', facts, async () => {
      const partial = bench.out(4)
      sumSquares(gpu, bench.up(bench.normals(count)), partial, count)
      runs.push(await bench.down(partial, 4))
    })
  }
  expect(runs.length).toBeGreaterThan(1)
  for (const other of runs.slice(1)) sameBits('squares', runs[0], other)
})

describe('the norm of several banks', () => {
  /** (norm, clip, finite) of banks, of which one is longer than a run of partial sums. */
  async function normOf(banks: Float32Array[], most: number): Promise<number[]> {
    const counts = banks.map((bank) => bank.length)
    const blocks = counts.map(sumSquaresBlocks)
    const all = blocks.reduce((a, b) => a + b)
    const [partial, norm] = [bench.out(all), bench.out(3)]
    banks.forEach((bank, i) => {
      const at = blocks.slice(0, i).reduce((a, b) => a + b, 0)
      sumSquares(gpu, bench.up(bank), partial, counts[i], at)
    })
    gradientNorm(gpu, partial, all, most, norm)
    return [...(await bench.down(norm, 3))]
  }
  const exact = (banks: Float32Array[]) => Math.sqrt(banks.reduce((sum, x) => x.reduce((s, v) => s + v * v, sum), 0))

  test.each<[string, (i: number) => number]>([
    ['random values', () => bench.random.normal()],
    ['one value, so that every addition is rounded alike', () => 0.0123],
    ['over 15 powers of ten', () => 10 ** (bench.random.next() * 15 - 12)],
    ['as small as gradients are', () => bench.random.normal() * 1e-9],
  ])('within 1e-6 of float64: %s', async (name, value) => {
    await bench.run(`norm ${name}`, {}, async () => {
      const banks = [300_001, 7, 2_000_000].map((count) => Float32Array.from({ length: count }, (_, i) => value(i)))
      const want = exact(banks)
      const [norm, clip, isFinite] = await normOf(banks, want / 4)
      expect(Math.abs(norm / want - 1)).toBeLessThan(1e-6)
      expect(Math.abs(clip / (want / 4 / (want + 1e-6)) - 1)).toBeLessThan(2e-6)
      expect(isFinite).toBe(1)
    })
  })

  test('more blocks than one run of the finishing kernel', async () => {
    await bench.run('norm, many blocks', {}, async () => {
      const parts = bench.normals(9001).map(Math.abs)
      const norm = bench.out(3)
      gradientNorm(gpu, bench.up(parts), 9001, 1, norm)
      const want = Math.sqrt(parts.reduce((a, b) => a + b, 0))
      expect(Math.abs((await bench.down(norm, 3))[0] / want - 1)).toBeLessThan(1e-6)
    })
  })

  test('clips only what is longer, and tells what is not finite', async () => {
    await bench.run('norm, ends', {}, async () => {
      expect(await normOf([new Float32Array(1000)], 1)).toEqual([0, 1, 1])
      expect((await normOf([bench.normals(100, 0.01)], 1))[1]).toBe(1)
      for (const bad of [NaN, Infinity, -Infinity, 3e19]) {
        const x = bench.normals(20_000)
        x[17_000] = bad
        const [norm, , isFinite] = await normOf([bench.normals(64), x], 1)
        expect([Number.isFinite(norm), isFinite]).toEqual([false, 0])
      }
    })
  })
})

test('AdamW leaves everything as it is where the norm is not finite', async () => {
  await bench.run('adamw, not finite', {}, async () => {
    const [w, g, m, v] = [0, 1, 2, 3].map(() => bench.normals(300))
    g[5] = NaN
    const t = {
      parameters: bench.up(w),
      gradients: bench.up(g),
      m: bench.up(m),
      v: bench.up(v),
      norm: bench.up(Float32Array.of(NaN, NaN, 0)),
    }
    adamw(gpu, t, { first: 0, count: 300 }, { learningRate: 1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0.1, step: 1 })
    for (const [buffer, want] of [[t.parameters, w], [t.m, m], [t.v, v]] as const) sameBits('kept', await bench.down(buffer, 300), want) // prettier-ignore
  })
})

/** What kernels read from a weight: all its rows through the embedding kernel. */
async function valuesOf(weight: Weight): Promise<Float32Array> {
  const y = bench.out(weight.rows * weight.columns)
  embedding(gpu, bench.up(Uint32Array.from({ length: weight.rows }, (_, i) => i)), weight, y, weight.rows)
  return await bench.down(y, weight.rows * weight.columns)
}

describe.each(modes)('the working copy of a master, $name', ({ facts, needs }) => {
  const { limits } = gpu.facts
  test.skipIf(needs === 'cpu' && !bench.cpu)('is rounded to bf16, ties to even, or copied', async () => {
    for (const [rows, k] of [
      [1, 8],
      [7, 24],
      [9, 7],
      [5, 6],
      [130, 64],
    ]) {
      for (const bf16 of [true, false]) {
        await bench.run(`round ${rows} ${k} ${bf16}`, facts, async () => {
          const { weight } = bench.weight(rows, k, bf16)
          const master = bench.normals(rows * k)
          // Ties both ways, a carry into the exponent, and just past a tie
          master.set([1 + 2 ** -8, 1 + 3 * 2 ** -8, -0, 2 - 2 ** -9, -(1 + 2 ** -8 + 2 ** -20), 1e30])
          roundWeight(gpu, bench.up(master), weight, 0, rows)
          compare('rounded', await valuesOf(weight), master.map(bf16 ? toBf16 : (v) => v), bounds.exact)
        })
      }
    }
  })
  test.skipIf(needs === 'cpu' && !bench.cpu)('over several storages, and from a part of the rows', async () => {
    const [rows, k] = [2 * sliceRows + 6, 8]
    await bench.run('round slices', { ...facts, limits: { ...limits, maxBinding: sliceRows * 16 } }, async () => {
      const { weight, values } = bench.weight(rows, k, true)
      expect(weight.slices.length).toBe(3)
      Object.assign(gpu.facts, { limits }) // the limit was for the weight alone
      const [from, count] = [100, rows - 103]
      const master = bench.normals(count * k)
      roundWeight(gpu, bench.up(master), weight, from, count)
      const want = Float64Array.from(values)
      want.set(master.map(toBf16), from * k)
      compare('part', await valuesOf(weight), want, bounds.exact)
    })
  })
})

test('rows of bf16 that would split a word are refused', async () => {
  await bench.run('split', { software: false }, async () => {
    const { weight } = bench.weight(4, 7, true)
    expect(() => roundWeight(gpu, bench.up(bench.normals(7)), weight, 1, 1)).toThrow('inside a word')
    roundWeight(gpu, bench.up(bench.normals(14)), weight, 2, 2)
    expect((await valuesOf(weight)).every(Number.isFinite)).toBe(true)
  })
})

test('a NaN of the master stays a NaN', async () => {
  await bench.run('nan', {}, async () => {
    const { weight } = bench.weight(1, 8, true)
    const master = new Float32Array(new Uint32Array(8).fill(0x7fffffff).buffer)
    roundWeight(gpu, bench.up(master), weight, 0, 1)
    expect((await valuesOf(weight)).every(Number.isNaN)).toBe(true)
    expect(bf16Bits(Float32Array.of(1))).toEqual(Uint16Array.of(0x3f80))
  })
})
