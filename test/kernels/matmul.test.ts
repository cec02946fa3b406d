import { describe, expect, test } from 'vitest'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { allocateWeight, slicesOf, sliceRows, uploadWeight, weightView, type Weight } from '../../src/kernels/common/weight.ts'
import { linear, linearBackwardInput } from '../../src/kernels/matmul/matmul.ts'
import { bf16Bits, bounds, modes, openBench, sameBits } from './harness.ts'
import { casesOf, product, type Case } from './matmul-cases.ts'

const bench = await openBench()
const { gpu } = bench

const { forward, backwardInput, backwardWeight } = casesOf(bench)

const flagCases: Case[] = []
for (let f = 0; f < 8; f++)
  flagCases.push({
    rows: 17,
    n: 72,
    k: 40,
    rank: f & 1 ? 16 : 0,
    bias: !!(f & 2),
    residual: !!(f & 4),
    alpha: f === 7 ? 0.25 : 1,
  })

/** Sizes that end inside a tile in every direction; 1, 4, 8 and more rows take different row tiles. */
const shapes: Case[] = [
  { rows: 1, n: 7, k: 8 },
  { rows: 3, n: 33, k: 136 },
  { rows: 5, n: 129, k: 64 },
  { rows: 8, n: 32, k: 512 },
  { rows: 129, n: 65, k: 72 },
  { rows: 33, n: 513, k: 24 },
  { rows: 6, n: 10, k: 30, rank: 8, bias: true, alpha: 0.3 },
  { rows: 70, n: 67, k: 65, residual: true },
  { rows: 2, n: 5, k: 1 },
]

describe.each(modes)('$name', ({ facts, needs }) => {
  const skip = needs === 'cpu' && !bench.cpu
  test.skipIf(skip)('linear: every combination of LoRA, bias and residual', async () => {
    for (const c of flagCases) await bench.run(`nt ${JSON.stringify(c)}`, facts, () => forward(c))
  })
  test.skipIf(skip)('linear: shapes, in bf16 and float32, texture or buffer', async () => {
    for (const c of shapes) {
      await bench.run(`nt bf16 ${JSON.stringify(c)}`, facts, () => forward(c))
      await bench.run(`nt f32 ${JSON.stringify(c)}`, facts, () => forward({ ...c, bf16: false }))
      await bench.run(`nt view ${JSON.stringify(c)}`, facts, () => forward({ ...c, bf16: false, buffer: true }))
    }
  })
  test.skipIf(skip)('linear: only some rows of the weight, with their bias and LoRA rows', async () => {
    const c = { rows: 9, n: 100, k: 24, rank: 8, bias: true, residual: true, slice: { row: 37, rows: 41 } }
    await bench.run('nt slice', facts, () => forward(c))
  })
  test.skipIf(skip)('backward to the input: flags and shapes', async () => {
    for (let f = 0; f < 4; f++) {
      const c = { rows: 19, n: 36, k: 72, rank: f & 1 ? 8 : 0, accumulate: !!(f & 2), alpha: f === 3 ? 0.5 : 1 }
      await bench.run(`nn ${JSON.stringify(c)}`, facts, () => backwardInput(c))
      await bench.run(`nn f32 ${JSON.stringify(c)}`, facts, () => backwardInput({ ...c, bf16: false, buffer: true }))
    }
    for (const c of shapes) await bench.run(`nn ${JSON.stringify(c)}`, facts, () => backwardInput({ ...c, rank: 0 }))
    await bench.run('nn f32 texture', facts, () => backwardInput({ rows: 4, n: 12, k: 16, bf16: false }))
    await bench.run('nn slice', facts, () => backwardInput({ rows: 9, n: 100, k: 24, slice: { row: 37, rows: 41 } }))
    await bench.run('nn slice 4', facts, () => backwardInput({ rows: 9, n: 100, k: 24, slice: { row: 36, rows: 40 } }))
    // As narrow as LoRA's rank: the CPU kernels turn round for them
    for (const c of [
      { rows: 1, n: 36, k: 8 },
      { rows: 33, n: 64, k: 16 },
      { rows: 17, n: 5, k: 8 },
      { rows: 17, n: 20, k: 8, slice: { row: 8, rows: 8 } },
      { rows: 17, n: 20, k: 8, accumulate: true, alpha: 2 },
    ]) {
      await bench.run(`nn thin ${JSON.stringify(c)}`, facts, () =>
        backwardInput({ alpha: -0.5, ...c, bf16: false, buffer: true }),
      )
    }
    await bench.run('nn odd n with LoRA', facts, () => backwardInput({ rows: 21, n: 151, k: 64, rank: 8, accumulate: true }))
  })
  test.skipIf(skip)('backward to the weight: flags, shapes and parts of a matrix', async () => {
    const parts = [
      { rows: 5, n: 8, k: 12, row: 3, dyStride: 24, dyColumn: 8 },
      { rows: 5, n: 7, k: 12, row: 2, dyStride: 23, dyColumn: 9 },
    ]
    const thin: Case[] = [
      { rows: 13, n: 8, k: 40 },
      { rows: 13, n: 40, k: 8 },
      { rows: 9, n: 100, k: 16 },
      { rows: 9, n: 16, k: 100 },
      { rows: 1, n: 36, k: 4 },
      // On GPUs of parts of 1024 rows.
      { rows: 1025, n: 8, k: 40 },
      { rows: 3100, n: 33, k: 7 },
    ]
    const offset = [{ rows: 7, n: 36, k: 8, row: 5, dyStride: 44, dyColumn: 8 }]
    for (const c of [...shapes, ...parts, ...thin, ...offset]) {
      await bench.run(`tn ${JSON.stringify(c)}`, facts, () => backwardWeight(c))
      await bench.run(`tn + ${JSON.stringify(c)}`, facts, () => backwardWeight({ ...c, accumulate: true, alpha: -2 }))
    }
  })
})

test.each(modes)(
  'backward through a vocabulary, $name: in parts, so that what nearly cancels stays right',
  async ({ facts, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    await bench.run('long sum', facts, async () => {
      const [n, k] = [32_768, 64]
      // As of a head: every token's probability takes a little of the rows' common part away, and the target gives it back.
      const values = bench.normals(n * k).map((x) => 1 + 0.05 * x)
      const dy = new Float32Array(n).fill(-1 / n)
      dy[n - 5] += 1
      const dx = bench.out(k)
      const weight = { ...weightView('vocabulary', bench.up(values), n, k), lowRank: false }
      linearBackwardInput(gpu, bench.up(dy), 1, weight, dx)
      const want = product(1, k, n, (_, t) => dy[t], (j, t) => values[t * k + j]) // prettier-ignore
      await bench.check('dx', dx, want, 5e-6) // one running sum: 5e-5
    })
  },
)

test('backward through a vocabulary on a GPU: parts side by side have the bits of one after the other', async () => {
  // Of 512 rows of 512 values not all parts are made at once; of 513 rows they follow each other.
  for (const [rows, n, k] of [
    [512, 16_484, 512],
    [513, 16_484, 33],
  ]) {
    await bench.run(`side by side ${k}`, { software: false, subgroupSize: 0 }, async () => {
      const { weight } = bench.weight(n, k, true, 0.05)
      const dy = bench.normals(rows * n)
      const before = bench.normals(rows * k)
      const run = async (count: number, accumulate: boolean): Promise<Float32Array> => {
        const dx = bench.upOut(before.slice(0, count * k))
        linearBackwardInput(gpu, bench.up(dy.subarray(0, count * n)), count, weight, dx, { accumulate, alpha: 0.5 })
        return await bench.down(dx, count * k)
      }
      for (const accumulate of k === 33 ? [false, true] : [true])
        sameBits(`${k}, ${accumulate}`, await run(7, accumulate), (await run(rows, accumulate)).slice(0, 7 * k))
    })
  }
})

describe('weights in several storages', () => {
  const limits = { ...gpu.facts.limits }
  test('a matrix over the binding limit is walked in slices that the adapter binds', async () => {
    for (const facts of [{}, { software: false, subgroupSize: 0 }]) {
      // 4096 rows of 16 bf16 values are 128 KiB: three storages
      const small = { ...facts, limits: { ...limits, maxBinding: sliceRows * 32 } }
      await bench.run('slices', small, async () => {
        const n = 2 * sliceRows + 37
        const { weight, values } = bench.weight(n, 16, true)
        expect(weight.slices.map((s) => s.rows)).toEqual([sliceRows, sliceRows, 37])
        const x = bench.normals(3 * 16)
        const y = bench.out(3 * n)
        linear(gpu, bench.up(x), 3, weight, y)
        const want = product(
          3,
          n,
          16,
          (i, t) => x[i * 16 + t],
          (j, t) => values[j * 16 + t],
        )
        await bench.check('nt over slices', y, want, bounds.sum)
        const dy = bench.normals(3 * n)
        const dx = bench.out(3 * 16)
        linearBackwardInput(gpu, bench.up(dy), 3, weight, dx)
        const back = product(
          3,
          16,
          n,
          (i, t) => dy[i * n + t],
          (j, t) => values[t * 16 + j],
        )
        await bench.check('nn over slices', dx, back, 1e-5) // sums of 8229 terms
      })
    }
  })
  test('rows so wide that fewer than 4096 fit are sliced finer', async () => {
    await bench.run('wide', { limits: { ...limits, maxBinding: 4096 } }, async () => {
      const { weight } = bench.weight(100, 64, true)
      for (const slice of weight.slices) expect(slice.rows * 64 * 2).toBeLessThanOrEqual(4096)
    })
    for (const facts of [{}, { software: false, subgroupSize: 0 }]) {
      const small = { ...facts, limits: { ...limits, maxBinding: 4096 } }
      for (const c of [
        { rows: 5, n: 100, k: 64 },
        { rows: 2, n: 70, k: 64, slice: { row: 30, rows: 25 } },
      ]) {
        // Only the weight is small here: the limit would refuse the other buffers of the pool.
        await bench.run('wide nt', small, () => forward(c))
        await bench.run('wide nn', small, () => backwardInput(c))
      }
    }
  })
  test.runIf(bench.cpu)('folded textures: more rows than a texture is high', async () => {
    // Panels of 8 rows two side by side (of 16, one), panels of one row where 8 are wider than a texture, and widths of two panels that do not fit: slices.
    for (const [maxTexture, n, k] of [
      [48, 450, 16],
      [24, 70, 32],
      [20, 170, 16],
    ]) {
      const folded = { limits: { ...limits, maxTexture } }
      for (const bf16 of [true, false]) {
        await bench.run('folded', folded, () => forward({ rows: 5, n, k, bf16 }))
        await bench.run('folded back', folded, () => backwardInput({ rows: 5, n, k, bf16 }))
      }
    }
    await bench.run('folds', { limits: { ...limits, maxTexture: 48 } }, async () => {
      const weight = allocateWeight(gpu, 'folds', 450, 16, true)
      const folds = cpuLanes(gpu).LANES === 16 ? [450, 29, 16] : [450, 48, 8]
      expect(weight.slices.map((s) => [s.rows, s.fold, s.panel])).toEqual([folds])
      weight.slices.forEach((s) => (s.storage as { release(): void }).release())
    })
  })
  test('slicesOf finds the parts of a range of rows', () => {
    const weight = {
      slices: [
        { row: 0, rows: 10 },
        { row: 10, rows: 10 },
        { row: 20, rows: 3 },
      ],
      rows: 23,
    } as unknown as Weight
    expect(slicesOf(weight, 8, 13).map(({ row, rows }) => [row, rows])).toEqual([
      [8, 2],
      [10, 10],
      [20, 1],
    ])
  })
})

describe('a row has the same bits in every batch', () => {
  test.each(modes)('linear, $name', async ({ facts, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    for (const [rank, n, k] of [
      [0, 45, 72],
      [8, 45, 72],
      [8, 141, 128],
    ]) {
      await bench.run(`batch ${rank} ${k}`, facts, async () => {
        const rows = 70
        const { weight } = bench.weight(n, k, true)
        const [x, xa, b, residual] = [
          bench.normals(rows * k),
          bench.normals(rows * rank),
          bench.up(bench.normals(n * Math.max(1, rank))),
          bench.normals(rows * n),
        ]
        const bias = bench.up(bench.normals(n))
        const at = async (from: number, count: number): Promise<Float32Array> => {
          const y = bench.out(count * n)
          const lora = rank ? { x: bench.up(xa.slice(from * rank, (from + count) * rank)), matrix: b, rank } : undefined
          linear(gpu, bench.up(x.slice(from * k, (from + count) * k)), count, weight, y, {
            lora,
            bias,
            residual: bench.up(residual.slice(from * n, (from + count) * n)),
            alpha: 0.7,
          })
          return await bench.down(y, count * n)
        }
        const all = await at(0, rows)
        for (const [from, count] of [
          [0, 1],
          [69, 1],
          [30, 2],
          [13, 4],
          [13, 11],
          [13, 7],
          [3, 16],
          [20, 33],
          [1, 64],
        ]) {
          sameBits(`rows ${from} .. ${from + count}`, await at(from, count), all.slice(from * n, (from + count) * n))
        }
      })
    }
  })
  test('backward to the input', async () => {
    await bench.run('batch nn', {}, async () => {
      const { weight } = bench.weight(44, 72, true)
      const dy = bench.normals(40 * 44)
      const at = async (from: number, count: number): Promise<Float32Array> => {
        const dx = bench.out(count * 72)
        linearBackwardInput(gpu, bench.up(dy.slice(from * 44, (from + count) * 44)), count, weight, dx)
        return await bench.down(dx, count * 72)
      }
      const all = await at(0, 40)
      for (const [from, count] of [
        [7, 1],
        [5, 8],
        [11, 20],
      ])
        sameBits(`rows from ${from}`, await at(from, count), all.slice(from * 72, (from + count) * 72))
    })
  })
  test('the same inputs give the same bits twice', async () => {
    await bench.run('twice', {}, async () => {
      const { weight } = bench.weight(50, 64, true)
      const x = bench.up(bench.normals(20 * 64))
      const [first, second] = [bench.out(1000), bench.out(1000)]
      linear(gpu, x, 20, weight, first)
      linear(gpu, x, 20, weight, second)
      sameBits('twice', await bench.down(first, 1000), await bench.down(second, 1000))
    })
  })
})

test('a weight is uploaded bit for bit', async () => {
  await bench.run('bits', { software: false }, async () => {
    const values = Uint16Array.from({ length: 3 * 7 }, () => bench.random.int(65536))
    const weight = uploadWeight(gpu, 'bits', 3, 7, values)
    const back = new Uint16Array(await gpu.read(weight.slices[0].storage as never))
    expect(back.slice(0, 21)).toEqual(values)
    ;(weight.slices[0].storage as { release(): void }).release()
    expect(bf16Bits(Float32Array.of(1, -2))).toEqual(Uint16Array.of(0x3f80, 0xc000))
  })
})
