import { describe, expect, test } from 'vitest'
import { fullGpu } from '../../src/kernels/common/lanes.ts'
import { sliceRows } from '../../src/kernels/common/weight.ts'
import { add, dropout, siluGate, siluGateBackward } from '../../src/kernels/elementwise/elementwise.ts'
import { embedding } from '../../src/kernels/embedding/embedding.ts'
import { addRowLists, copyRows, gatherRows } from '../../src/kernels/rows/rows.ts'
import { bounds, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const counts = [1, 7, 64, 129, 513, 5000]

test('silu gate and its backward', async () => {
  for (const n of counts) {
    await bench.run(`silu ${n}`, {}, async () => {
      const [g, u, dy] = [bench.normals(n, 4), bench.normals(n), bench.normals(n)]
      g[0] = -90 // exp(90) overflows nothing yet; silu is -7e-38
      const [y, dg, du] = [bench.out(n), bench.out(n), bench.out(n)]
      const [gb, ub] = [bench.up(g), bench.up(u)]
      siluGate(gpu, gb, ub, y, n)
      siluGateBackward(gpu, { dy: bench.up(dy), g: gb, u: ub, dg, du }, n)
      const s = Float64Array.from(g, (v) => 1 / (1 + Math.exp(-v)))
      await bench.check(
        'y',
        y,
        s.map((v, i) => g[i] * v * u[i]),
        bounds.sum,
      )
      await bench.check(
        'du',
        du,
        s.map((v, i) => dy[i] * g[i] * v),
        bounds.sum,
      )
      await bench.check(
        'dg',
        dg,
        s.map((v, i) => dy[i] * u[i] * v * (1 + g[i] * (1 - v))),
        bounds.sum,
      )
    })
  }
})

test('GELU gate, in its form with tanh, and its backward', async () => {
  const [c, b] = [Math.sqrt(2 / Math.PI), 0.044715]
  for (const n of counts) {
    await bench.run(`gelu ${n}`, {}, async () => {
      const [g, u, dy] = [bench.normals(n, 4), bench.normals(n), bench.normals(n)]
      g[0] = -5
      const [y, dg, du] = [bench.out(n), bench.out(n), bench.out(n)]
      const [gb, ub] = [bench.up(g), bench.up(u)]
      siluGate(gpu, gb, ub, y, n, 1, 'gelu')
      siluGateBackward(gpu, { dy: bench.up(dy), g: gb, u: ub, dg, du }, n, 1, 'gelu')
      const gelu = Float64Array.from(g, (v) => 0.5 * v * (1 + Math.tanh(c * (v + b * v ** 3))))
      const slope = Float64Array.from(g, (v) => {
        const t = Math.tanh(c * (v + b * v ** 3))
        return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * c * (1 + 3 * b * v * v)
      })
      await bench.check('y', y, gelu.map((v, i) => v * u[i]), bounds.sum) // prettier-ignore
      await bench.check('du', du, gelu.map((v, i) => dy[i] * v), bounds.sum) // prettier-ignore
      await bench.check('dg', dg, slope.map((v, i) => dy[i] * u[i] * v), bounds.sum) // prettier-ignore
    })
  }
})

test('four values an element have the bits of one, and many elements those of few', async () => {
  // The last are enough for workgroups of 256 (common/lanes.ts), with four values an element too.
  for (const n of [4, 132, 5000, 4 * (fullGpu + 65)]) {
    const [g, u, dy] = [bench.normals(n, 4), bench.normals(n), bench.normals(n)]
    const results: Float32Array[][] = []
    for (const facts of [{}, { software: false, shuffled: true }]) {
      for (const width of [4, 1]) {
        await bench.run(`fours ${n}`, facts, async () => {
          const outs = [0, 0, 0, 0, 0].map(() => bench.out(n))
          const [y, dg, du, sum, dropped] = outs
          const [gb, ub] = [bench.up(g), bench.up(u)]
          siluGate(gpu, gb, ub, y, n, width)
          siluGateBackward(gpu, { dy: bench.up(dy), g: gb, u: ub, dg, du }, n, width)
          for (const gate of ['silu', 'gelu', 'sigmoid'] as const) {
            const [made, again, dg2, du2] = [bench.out(n), bench.up(dy), bench.out(n), bench.out(n)]
            siluGate(gpu, gb, ub, made, n, width, gate)
            siluGateBackward(gpu, { dy: again, g: gb, u: ub, dg: dg2, du: du2 }, n, width, gate, true)
            await bench.check(`${gate} made again`, again, Float64Array.from(await bench.down(made, n)), bounds.sum)
            if (gate === 'silu') sameBits('its gradient', await bench.down(dg2, n), await bench.down(dg, n))
          }
          add(gpu, gb, ub, sum, n, width)
          dropout(gpu, gb, dropped, n, 0.3, 5, width)
          results.push(await Promise.all(outs.map((out) => bench.down(out, n))))
        })
      }
    }
    for (const other of results.slice(1)) other.forEach((out, i) => sameBits(`${n}, output ${i}`, results[0][i], out))
  }
})

test.each(['silu', 'gelu'] as const)('%s of very negative gates is zero, not NaN', async (gate) => {
  await bench.run(`${gate} far`, {}, async () => {
    const g = Float32Array.of(-100, -1000, 100, 0)
    const ones = new Float32Array(4).fill(1)
    const [y, dg, du] = [bench.out(4), bench.out(4), bench.out(4)]
    siluGate(gpu, bench.up(g), bench.up(ones), y, 4, 1, gate)
    siluGateBackward(gpu, { dy: bench.up(ones), g: bench.up(g), u: bench.up(ones), dg, du }, 4, 1, gate)
    const near = (values: Float32Array, want: number[]): void => want.forEach((w, i) => expect(values[i]).toBeCloseTo(w, 5))
    near(await bench.down(y, 4), [0, 0, 100, 0])
    near(await bench.down(dg, 4), [0, 0, 1, 0.5])
    near(await bench.down(du, 4), [0, 0, 100, 0])
  })
})

test('rows are copied inside two buffers', async () => {
  await bench.run('copy rows', {}, async () => {
    const [rows, width] = [20, 13]
    const before = [bench.normals(rows * width), bench.normals(rows * width)]
    const [a, b] = before.map((values) => bench.up(values))
    const pairs = [3, 0, 4, 19, 4, 7]
    copyRows(gpu, [a, b], bench.up(Uint32Array.from(pairs)), pairs.length / 2, width)
    for (const [i, buffer] of [a, b].entries()) {
      const want = before[i].slice()
      for (let p = 0; p < pairs.length; p += 2) want.copyWithin(pairs[p + 1] * width, pairs[p] * width, (pairs[p] + 1) * width)
      sameBits('rows', await bench.down(buffer, rows * width), want)
    }
  })
})

test('add', async () => {
  for (const n of counts) {
    await bench.run(`add ${n}`, {}, async () => {
      const [a, b, y] = [bench.normals(n), bench.normals(n), bench.out(n)]
      add(gpu, bench.up(a), bench.up(b), y, n)
      await bench.check(
        'sum',
        y,
        Float64Array.from(a, (v, i) => v + b[i]),
        bounds.elementwise,
      )
    })
  }
})

test('more than 65535 workgroups are folded into y', async () => {
  await bench.run('fold', { software: false }, async () => {
    const n = 65535 * 256 + 777
    const a = new Float32Array(n).map((_, i) => i % 1000)
    const y = bench.out(n)
    const buffer = bench.up(a)
    add(gpu, buffer, buffer, y, n)
    const got = await bench.down(y, n)
    for (const i of [0, 65535 * 256 - 1, 65535 * 256, n - 1]) expect(got[i]).toBe(2 * a[i])
    expect(got.findIndex((v, i) => v !== 2 * a[i])).toBe(-1)
  })
})

describe('dropout', () => {
  test('keeps the stated share, scales it up, and repeats with its seed', async () => {
    for (const rate of [0.1, 0.5]) {
      await bench.run(`dropout ${rate}`, {}, async () => {
        const n = 40_000
        const x = new Float32Array(n).fill(3)
        const [first, again, other] = [bench.out(n), bench.out(n), bench.out(n)]
        const buffer = bench.up(x)
        dropout(gpu, buffer, first, n, rate, 7)
        dropout(gpu, buffer, again, n, rate, 7)
        dropout(gpu, buffer, other, n, rate, 8)
        const [a, b, c] = [await bench.down(first, n), await bench.down(again, n), await bench.down(other, n)]
        sameBits('the same seed', a, b)
        const zeros = a.filter((v) => v === 0).length
        // Five standard deviations of a binomial
        expect(Math.abs(zeros - n * rate)).toBeLessThan(5 * Math.sqrt(n * rate * (1 - rate)))
        for (const v of a) if (v !== 0) expect(v).toBeCloseTo(3 / (1 - rate), 5)
        // Another seed drops independently: both dropped with probability rate squared.
        const both = a.filter((v, i) => v === 0 && c[i] === 0).length
        expect(Math.abs(both - n * rate * rate)).toBeLessThan(5 * Math.sqrt(n * rate * rate))
      })
    }
  })
  test('a value is dropped by its place alone', async () => {
    await bench.run('dropout place', {}, async () => {
      const x = bench.normals(1000)
      const [long, short] = [bench.out(1000), bench.out(300)]
      dropout(gpu, bench.up(x), long, 1000, 0.3, 99)
      dropout(gpu, bench.up(x), short, 300, 0.3, 99)
      sameBits('start', await bench.down(short, 300), (await bench.down(long, 1000)).slice(0, 300))
    })
  })
})

test('gather moves rows', async () => {
  for (const [rows, width] of [
    [1, 7],
    [7, 1],
    [129, 64],
    [13, 513],
  ]) {
    await bench.run(`rows ${rows} ${width}`, {}, async () => {
      const x = bench.normals((rows + 5) * width)
      const index = bench.ids(rows, rows + 5)
      const out = bench.out(rows * width)
      gatherRows(gpu, bench.up(x), bench.up(index), out, rows, width)
      await bench.check(
        'gather',
        out,
        Float64Array.from({ length: rows * width }, (_, e) => x[index[Math.floor(e / width)] * width + (e % width)]),
        bounds.exact,
      )
    })
  }
})

test('row lists are summed in order, added or written, to rows or to target rows', async () => {
  for (const [outs, sources, width] of [
    [1, 3, 7],
    [9, 40, 33],
    [129, 20, 8],
  ]) {
    for (const accumulate of [false, true]) {
      for (const targeted of [false, true]) {
        await bench.run(`lists ${outs} ${accumulate} ${targeted}`, {}, async () => {
          const x = bench.normals(sources * width)
          const start = [0]
          const source: number[] = []
          for (let o = 0; o < outs; o++) {
            for (let n = bench.random.int(5); n > 0; n--) source.push(bench.random.int(sources))
            start.push(source.length)
          }
          const all = outs + 10
          const target = bench.random.shuffle(Array.from({ length: all }, (_, i) => i)).slice(0, outs)
          // A slice of the target: rows 3 .. all - 2; others stay as they are.
          const [firstRow, limit] = targeted ? [3, all - 2] : [0, 0xffffffff]
          const height = targeted ? limit - firstRow : outs
          const before = bench.normals(height * width)
          const out = bench.up(before)
          const lists = { start: bench.up(Uint32Array.from(start)), source: bench.up(Uint32Array.from([...source, 0])), outs }
          const options = targeted ? { accumulate, target: bench.up(Uint32Array.from(target)), firstRow, limit } : { accumulate }
          addRowLists(gpu, bench.up(x), lists, out, width, options)
          const want = Float64Array.from(before)
          for (let o = 0; o < outs; o++) {
            const row = (targeted ? target[o] : o) - firstRow
            if (row < 0 || row >= height) continue
            for (let c = 0; c < width; c++) {
              let sum = accumulate ? before[row * width + c] : 0
              for (let i = start[o]; i < start[o + 1]; i++) sum += x[source[i] * width + c]
              want[row * width + c] = sum
            }
          }
          await bench.check('lists', out, want, bounds.elementwise)
        })
      }
    }
  }
})

describe.each(modes)('embedding, $name', ({ facts, needs }) => {
  const limits = gpu.facts.limits
  test.skipIf(needs === 'cpu' && !bench.cpu)('rows of a weight, widened exactly', async () => {
    for (const [rows, n, k] of [
      [1, 5, 8],
      [7, 100, 64],
      [129, 33, 30],
      [9, 51, 7],
      [4, 2 * sliceRows + 5, 8],
    ]) {
      for (const bf16 of [true, false]) {
        const small = n > sliceRows ? { ...facts, limits: { ...limits, maxBinding: sliceRows * k * (bf16 ? 2 : 4) } } : facts
        await bench.run(`embedding ${rows} ${n} ${k} ${bf16}`, small, async () => {
          const { weight, values } = bench.weight(n, k, bf16)
          if (n > sliceRows) expect(weight.slices.length).toBe(3)
          const ids = bench.ids(rows, n)
          ids[0] = n - 1
          const y = bench.out(rows * k)
          embedding(gpu, bench.up(ids), weight, y, rows)
          const scaled = bench.out(rows * k)
          embedding(gpu, bench.up(ids), weight, scaled, rows, 25.25)
          const plain = await bench.down(y, rows * k)
          sameBits(
            'scaled',
            await bench.down(scaled, rows * k),
            plain.map((value) => value * 25.25),
          )
          await bench.check(
            'embedding',
            y,
            Float64Array.from({ length: rows * k }, (_, e) => values[ids[Math.floor(e / k)] * k + (e % k)]),
            bounds.exact,
          )
        })
      }
    }
  })
})
