/** Rows of different adapters in one product: each has the bits of its own adapter alone, whatever is stacked beside it. */
import { describe, test } from 'vitest'
import type { BufferRange } from '../../src/gpu/gpu.ts'
import { weightView } from '../../src/kernels/common/weight.ts'
import { setColumns, stackedDown } from '../../src/kernels/lora/lora.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { bounds, isRun, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

interface Case {
  rows: number
  k: number
  n: number
  own: number
  width: number
  /** Adapters with a name. */
  named: number
  group: number
  bf16: boolean
}

const cases: Case[] = [
  { rows: 1, k: 64, n: 40, own: 8, width: 8, named: 1, group: 3, bf16: true },
  { rows: 2, k: 72, n: 20, own: 0, width: 16, named: 2, group: 2, bf16: false },
  { rows: 7, k: 40, n: 33, own: 16, width: 8, named: 3, group: 1, bf16: true },
  { rows: 20, k: 128, n: 96, own: 8, width: 0, named: 0, group: 3, bf16: true },
  { rows: 37, k: 576, n: 64, own: 8, width: 16, named: 4, group: 2, bf16: true },
  { rows: 5, k: 37, n: 13, own: 8, width: 8, named: 2, group: 2, bf16: false },
]

/** Some values in one buffer, each where it can be bound. */
function inOne(parts: Float32Array[]): BufferRange[] {
  const offsets = [0]
  for (const { length } of parts) offsets.push(offsets.at(-1)! + Math.ceil(length / 64) * 64)
  const all = new Float32Array(offsets.at(-1)!)
  parts.forEach((part, i) => all.set(part, offsets[i]))
  const buffer = bench.up(all)
  return parts.map(({ length }, i) => ({ buffer, offset: offsets[i] * 4, bytes: length * 4 }))
}

async function check(c: Case): Promise<void> {
  const { rows, k, n, own, width, named, group } = c
  const rank = own + width * named
  const count = 2 + named
  const placeOf = (r: number) => (r < own ? 0 : 2 + Math.floor((r - own) / width))
  const x = bench.normals(rows * k)
  const as = Array.from({ length: group }, () => bench.normals(rank * k, k ** -0.5))
  const bs = Array.from({ length: group }, () => bench.normals(n * rank))
  const scales = bench.normals(group * count)
  // An adapter whose products are no numbers must not reach the others' rows.
  const wild = named > 1 ? 3 : -1
  const places = Uint32Array.from({ length: rows }, (_, m) => (m < count ? count - 1 - m : bench.random.int(count)))
  for (let m = 0; m < rows; m++) if (places[m] === wild) places[m] = 1
  for (let r = 0; r < rank; r++) if (placeOf(r) === wild) as[0].fill(3e38, r * k, (r + 1) * k)
  const [input, at, aRanges, bRanges] = [bench.up(x), bench.up(places), inOne(as), inOne(bs)]
  const [scaleRange] = inOne([scales])
  const outs = as.map(() => bench.out(rows * rank))
  const parts = aRanges.map((a, i) => ({ a, out: outs[i] }))
  const layout = { own, width, places: at, scales: scaleRange, perProjection: count }
  stackedDown(gpu, input, rows, k, rank, parts, layout)
  const { weight } = bench.weight(n, k, c.bf16, k ** -0.5)
  const [bias, residual] = [bench.up(bench.normals(n)), bench.up(bench.normals(rows * n))]
  for (let g = 0; g < group; g++) {
    const want = Float64Array.from({ length: rows * rank }, (_, e) => {
      const [m, r] = [Math.floor(e / rank), e % rank]
      if (places[m] !== placeOf(r)) return 0
      let sum = 0
      for (let i = 0; i < k; i++) sum += x[m * k + i] * as[g][r * k + i]
      return sum * scales[g * count + places[m]]
    })
    const name = `projection ${g}`
    await bench.check(name, outs[g], want, bounds.sum)
    const y = bench.out(rows * n)
    linear(gpu, input, rows, weight, y, { bias, residual, lora: { x: outs[g], matrix: bRanges[g], rank } })
    const got = await bench.down(y, rows * n)
    // Each adapter alone, over all rows, of which its own are compared.
    for (let place = 0; place < count; place++) {
      const [from, size] = place === 0 ? [0, own] : [own + (place - 2) * width, place === 1 ? 0 : width]
      const alone = bench.out(rows * n)
      if (size === 0) linear(gpu, input, rows, weight, alone, { bias, residual })
      else {
        const [a] = inOne([as[g].slice(from * k, (from + size) * k)])
        const b = new Float32Array(n * size)
        for (let i = 0; i < n; i++) b.set(bs[g].subarray(i * rank + from, i * rank + from + size), i * size)
        const xa = bench.out(rows * size)
        linear(gpu, input, rows, weightView('A', a, size, k), xa, { alpha: scales[g * count + place] })
        linear(gpu, input, rows, weight, alone, { bias, residual, lora: { x: xa, matrix: bench.up(b), rank: size } })
      }
      const one = await bench.down(alone, rows * n)
      for (let m = 0; m < rows; m++) {
        if (places[m] !== place) continue
        sameBits(`${name}, row ${m}, place ${place}`, got.slice(m * n, (m + 1) * n), one.slice(m * n, (m + 1) * n))
      }
    }
  }
}

describe.each(modes.filter(isRun))('$name', ({ facts, needs }) => {
  test.skipIf(needs === 'cpu' && !bench.cpu)('rows of several adapters have the bits of each alone', async () => {
    for (const c of cases) await bench.run(JSON.stringify(c), facts, () => check(c))
  })
})

test('columns of a matrix are set from those of another, the rest of their width to 0', async () => {
  for (const [rows, stride, start, count, to, yStride, width] of [
    [1, 8, 0, 8, 0, 8, 8],
    [37, 9, 2, 5, 8, 40, 16],
    [1100, 6, 0, 6, 24, 33, 8],
  ]) {
    await bench.run(`columns ${rows} ${width}`, {}, async () => {
      const [x, before] = [bench.normals(rows * stride), bench.normals(rows * yStride)]
      const want = Float64Array.from(before)
      for (let n = 0; n < rows; n++) {
        for (let c = 0; c < width; c++) want[n * yStride + to + c] = c < count ? x[n * stride + start + c] : 0
      }
      const y = bench.upOut(before)
      const from = { data: bench.up(x), stride, column: start }
      setColumns(gpu, from, count, { data: y, stride: yStride, column: to }, rows, width)
      await bench.check('columns', y, want, bounds.exact)
    })
  }
})
