import { describe, expect, test } from 'vitest'
import { attentionTakesUnits } from '../../src/bench/attention.ts'
import { hasUnits } from '../../src/bench/matmul.ts'
import { releaseWeight, writeWeight } from '../../src/kernels/common/weight.ts'
import { embedding } from '../../src/kernels/embedding/embedding.ts'
import { thinForward } from '../../src/kernels/lora/thin.ts'
import { linear, linearBackwardInput } from '../../src/kernels/matmul/matmul.ts'
import { defaultTiles, setTiles, tileCandidates, tilesOf, tileText } from '../../src/kernels/matmul/tiles.ts'
import { tuneMatmul, type TuneRow } from '../../src/kernels/matmul/tune.ts'
import { shapeFor, takesHalf } from '../../src/kernels/matmul/units.ts'
import { checkF16Range, gradientScaleFor, useMatrixUnits } from '../../src/kernels/common/matrix-units.ts'
import { roundWeight } from '../../src/kernels/optimizer/optimizer.ts'
import { allocateBlocks, allocateRooms, writeBlocks, type QuantisedFormat } from '../../src/kernels/quantised/quantised.ts'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import { withFacts } from '../facts.ts'
import { quantisedFormats, randomBlocks, widened } from '../model/blocks.ts'
import { bf16Bits, bounds, compare, openBench, sameBits, toBf16 } from './harness.ts'
import { product, type Case } from './matmul-cases.ts'
import { withUnits } from './units.ts'

const bench = await openBench()
const { gpu } = bench
/** scripts/newer-mesa.sh has a software driver that shows some. */
const none =
  gpu.facts.matrixUnits.length === 0 ? ' (skipped: this adapter shows no matrix units that multiply f16 into float32)' : ''

/** What rounding activations to f16 does to a product: 2^-11 at most of each term, of random sign; about 2e-4 of the whole. */
const rounding = 4e-4
const half = (values: Float32Array): Float32Array => values.map((v) => Math.f16round(v))

const cases: (Case & { accumulate?: boolean })[] = [
  { rows: 1, n: 8, k: 8 },
  { rows: 5, n: 36, k: 40, rank: 8, bias: true, alpha: 0.3 },
  { rows: 33, n: 68, k: 72, residual: true, alpha: 0.5 },
  { rows: 70, n: 132, k: 136, rank: 16, bias: true, residual: true, accumulate: true },
  { rows: 131, n: 264, k: 72, accumulate: true, alpha: 2 },
  { rows: 9, n: 100, k: 64, slice: { row: 36, rows: 40 }, rank: 8 },
]

describe(`matrix units${none}`, () => {
  test.skipIf(none)('activations that another kernel has left in f16 give the bits of those that are staged', async () => {
    for (const rows of [5, 70]) {
      await withUnits(bench, `left in f16, ${rows} rows`, async () => {
        const [n, k, rank] = [40, 512, 8]
        const { weight } = bench.weight(n, k, true)
        expect([takesHalf(gpu, weight), takesHalf(gpu, bench.weight(n, k - 8, true).weight)]).toEqual([true, false])
        const [x, bank, b] = [rows * k, rank * k, n * rank].map((count) => bench.up(bench.normals(count)))
        const [xa, half] = [bench.out(rows * rank), bench.out((rows * k) / 2)]
        thinForward(gpu, x, rows, { k, rank, parts: [{ at: 0, scale: 1 }] }, bank, { xa }, { half })
        const lora = { x: xa, matrix: b, rank }
        const [y, staged] = [bench.out(rows * n), bench.out(rows * n)]
        const before = gpu.dispatches
        linear(gpu, x, rows, weight, y, { lora, half })
        expect(gpu.dispatches - before).toBe(1)
        linear(gpu, x, rows, weight, staged, { lora })
        expect(gpu.dispatches - before).toBe(3)
        sameBits(`${rows}`, await bench.down(y, rows * n), await bench.down(staged, rows * n))
      })
    }
  })

  test.skipIf(none)('weights lie in f16, and whatever reads or writes them goes by their values', async () => {
    // 36 rows are the units' own, 37 the register tile's, which reads some of either value by value.
    for (const n of [36, 37]) {
      await withUnits(bench, `weights in f16, ${n} rows`, async () => {
        const k = 72
        const { weight, values } = bench.weight(n, k, true)
        expect([weight.f16, bench.weight(n, k, false).weight.f16, bench.weight(n, 7, true).weight.f16]).toEqual([
          true,
          false,
          false,
        ])
        const read = async (): Promise<Float32Array> => {
          const [ids, rows] = [bench.up(Uint32Array.from({ length: n }, (_, i) => i)), bench.out(n * k)]
          embedding(gpu, ids, weight, rows, n)
          return await bench.down(rows, n * k)
        }
        sameBits('uploaded', await read(), half(values))
        const other = bench.normals(n * k)
        writeWeight(gpu, weight, bf16Bits(other.map(toBf16)))
        sameBits('written again', await read(), half(other.map(toBf16)))
        const master = bench.normals(n * k)
        roundWeight(gpu, bench.up(master), weight, 0, n)
        const trained = half(master.map(toBf16))
        sameBits('trained', await read(), trained)
        useMatrixUnits(gpu, false)
        const [x, dy, y, dx] = [bench.normals(5 * k), bench.normals(5 * n), bench.out(5 * n), bench.out(5 * k)]
        linear(gpu, bench.up(x), 5, weight, y)
        linearBackwardInput(gpu, bench.up(dy), 5, weight, dx)
        const at = (data: Float32Array, width: number) => (i: number, t: number) => data[i * width + t]
        await bench.check('y', y, product(5, n, k, at(x, k), at(trained, k)), bounds.sum)
        await bench.check(
          'dx',
          dx,
          product(5, k, n, at(dy, n), (j, t) => trained[t * k + j]),
          bounds.sum,
        )
      })
    }
  })
  test.skipIf(none)('weights in blocks are widened to f16', async () => {
    await withUnits(bench, 'blocks in f16', async () => {
      const [format] = quantisedFormats
      const [n, k] = [40, format.values * 2]
      const { rooms, owned } = allocateRooms(gpu, [{ label: 'room', rows: n }], k)
      const weight = allocateBlocks(gpu, 'blocks', rooms[0], format.name as QuantisedFormat)
      const data = randomBlocks(format, (n * k) / format.values, bench.random, true)
      writeBlocks(gpu, weight.blocks!, data)
      const values = half(widenBf16(roundToBf16(widened(format, data))))
      // So many rows of x that no tile reads the blocks itself.
      const [x, y] = [bench.normals(70 * k), bench.out(70 * n)]
      linear(gpu, bench.up(x), 70, weight, y)
      const at = (data: Float32Array) => (i: number, t: number) => data[i * k + t]
      await bench.check('y', y, product(70, n, k, at(half(x)), at(values)), bounds.sum)
      weight.blocks!.storage.release()
      for (const one of owned) {
        if ('slices' in one) releaseWeight(one)
        else one.release()
      }
    })
  })

  test.skipIf(none)('forward: the product of rounded operands, and near that of float32', async () => {
    for (const c of cases) {
      await withUnits(bench, `units nt ${JSON.stringify(c)}`, async () => {
        const { rows, n, k, rank = 0, alpha = 1, slice = { row: 0, rows: n } } = c
        const { weight, values } = bench.weight(n, k, true)
        const [x, xa, b] = [bench.normals(rows * k), bench.normals(rows * rank), bench.normals(n * rank)]
        const [bias, residual] = [bench.normals(n), bench.normals(rows * slice.rows)]
        const y = bench.out(rows * slice.rows)
        linear(gpu, bench.up(x), rows, weight, y, {
          alpha,
          slice: c.slice,
          lora: rank ? { x: bench.up(xa), matrix: bench.up(b), rank } : undefined,
          bias: c.bias ? bench.up(bias) : undefined,
          residual: c.residual ? bench.up(residual) : undefined,
        })
        const got = await bench.down(y, rows * slice.rows)
        const want = (operand: Float32Array): Float64Array => {
          const at = (data: Float32Array, width: number) => (i: number, t: number) => data[i * width + t]
          const of_w = (data: Float32Array, width: number) => (j: number, t: number) => data[(slice.row + j) * width + t]
          const sum = product(rows, slice.rows, k, at(operand, k), of_w(values, k))
          const low = product(rows, slice.rows, rank, at(xa, rank), of_w(b, rank))
          return sum.map((v, e) => {
            const biased = v + low[e] + (c.bias ? bias[slice.row + (e % slice.rows)] : 0)
            return biased * alpha + (c.residual ? residual[e] : 0)
          })
        }
        compare('rounded', got, want(half(x)), bounds.sum)
        if (rows === 1) return // too few outputs for a mean
        compare('float32', got, want(x), rounding)
        // As far from float32 as f16 is: the units did run
        expect(() => compare('float32', got, want(x), bounds.sum)).toThrow('relative error')
      })
    }
  })
  test.skipIf(none)('the rows of a chunk of the head have the bits of few and of many, in tiles of their own', async () => {
    await withUnits(bench, 'head', async () => {
      const [n, k] = [32_776, 8]
      const tiles = [16, 40, 65].map((rows) => shapeFor(gpu, rows, n)).map(({ TM, TN }) => [TM, TN])
      expect(tiles[1]).toEqual([64, 128])
      expect(new Set(tiles.map(String)).size).toBe(3)
      await withFacts(gpu, { limits: { ...gpu.facts.limits, maxWorkgroupMemory: 16_384 } }, async () => {
        expect(shapeFor(gpu, 40, n)).toMatchObject({ TM: 64, TN: 64 })
      })
      const { weight } = bench.weight(n, k, true)
      const x = bench.normals(65 * k)
      const of = async (rows: number): Promise<Float32Array> => {
        const y = bench.out(rows * n)
        linear(gpu, bench.up(x.slice(0, rows * k)), rows, weight, y)
        return await bench.down(y, rows * n)
      }
      const [few, chunk, many] = [await of(16), await of(40), await of(65)]
      sameBits('few', few, chunk.slice(0, few.length))
      sameBits('many', chunk, many.slice(0, chunk.length))
    })
  })
  test.skipIf(none)('backward to the input: small gradients keep their bits, large ones are cut off', async () => {
    for (const c of cases) {
      for (const size of [1, 1e-6]) {
        await withUnits(bench, `units nn ${size} ${JSON.stringify(c)}`, async () => {
          const { rows, n, k, rank = 0, alpha = 1, accumulate = false, slice = { row: 0, rows: n } } = c
          const { weight, values } = bench.weight(n, k, true)
          const dy = bench.normals(rows * slice.rows, size)
          const [dxa, a, before] = [bench.normals(rows * rank, size), bench.normals(rank * k), bench.normals(rows * k, size)]
          const dx = accumulate ? bench.upOut(before) : bench.out(rows * k)
          const lora = rank ? { x: bench.up(dxa), matrix: bench.up(a), rank } : undefined
          linearBackwardInput(gpu, bench.up(dy), rows, weight, dx, { alpha, lora, accumulate, slice: c.slice })
          const want = (operand: Float32Array): Float64Array => {
            const at = (data: Float32Array, width: number) => (i: number, t: number) => data[i * width + t]
            const sum = product(rows, k, slice.rows, at(operand, slice.rows), (j, t) => values[(slice.row + t) * k + j])
            const low = product(rows, k, rank, at(dxa, rank), (j, t) => a[t * k + j])
            return sum.map((v, e) => (v + low[e]) * alpha + (accumulate ? before[e] : 0))
          }
          const got = await bench.down(dx, rows * k)
          const scaled = half(dy.map((v) => v * 1024)).map((v) => v / 1024)
          compare('rounded', got, want(scaled), bounds.sum)
          if (rows > 1) compare('float32', got, want(dy), rounding)
        })
      }
    }
    await withUnits(bench, 'units nn large', async () => {
      const { weight } = bench.weight(8, 8, true)
      const dx = bench.out(64)
      linearBackwardInput(gpu, bench.up(new Float32Array(64).fill(1e6)), 8, weight, dx)
      for (const value of await bench.down(dx, 64)) expect(Number.isFinite(value)).toBe(true)
    })
  })
  test.skipIf(none)('what is no number stays none, and is not taken for the end of the range', async () => {
    await withUnits(bench, 'units NaN', async () => {
      const { weight } = bench.weight(8, 8, true)
      const values = Float32Array.from({ length: 16 }, (_, i) => (i === 3 ? NaN : i))
      const [y, dx] = [bench.out(16), bench.out(16)]
      linear(gpu, bench.up(values), 2, weight, y)
      linearBackwardInput(gpu, bench.up(values), 2, weight, dx)
      for (const out of [y, dx]) {
        const got = await bench.down(out, 16)
        expect([...got].map(Number.isNaN)).toEqual(Array.from({ length: 16 }, (_, i) => i < 8))
      }
    })
  })
  test.skipIf(none)('a row has the same bits in every batch and every tile', async () => {
    // Depths of an odd number of turns and of fragments, and of several turns of the deepest tile.
    for (const k of [136, 1056])
      await withUnits(bench, `units bits ${k}`, async () => {
        const [rows, n] = [131, 72]
        const { weight } = bench.weight(n, k, true)
        const [x, dy] = [bench.normals(rows * k), bench.normals(rows * n)]
        const at = async (from: number, count: number): Promise<Float32Array[]> => {
          const [y, dx] = [bench.out(count * n), bench.out(count * k)]
          linear(gpu, bench.up(x.slice(from * k, (from + count) * k)), count, weight, y)
          linearBackwardInput(gpu, bench.up(dy.slice(from * n, (from + count) * n)), count, weight, dx)
          return [await bench.down(y, count * n), await bench.down(dx, count * k)]
        }
        const [y, dx] = await at(0, rows)
        const check = async (from: number, count: number, name: string): Promise<void> => {
          const got = await at(from, count)
          sameBits(`y ${name}`, got[0], y.slice(from * n, (from + count) * n))
          sameBits(`dx ${name}`, got[1], dx.slice(from * k, (from + count) * k))
        }
        for (const [from, count] of [
          [0, 1],
          [130, 1],
          [17, 32],
          [40, 64],
        ]) {
          await check(from, count, `rows from ${from}`)
        }
        for (const tile of tileCandidates.units) {
          setTiles(gpu, { units: tile })
          await check(0, rows, tileText(tile))
        }
        for (const tile of tileCandidates.fewUnits) {
          setTiles(gpu, { fewUnits: tile })
          await check(0, 1, tileText(tile))
          await check(99, 32, tileText(tile))
        }
      })
  })
})

test('tune measures the kernels of each kind of adapter, and leaves matrix units off', async () => {
  const kinds = [
    {},
    { software: false },
    { software: false, matrixUnits: [] },
    // Those that it shows are too large for these kernels.
    { software: false, timestamps: false, matrixUnits: [{ m: 64, n: 64, k: 64 }] },
  ]
  for (const facts of kinds) {
    await bench.run(`tune ${JSON.stringify(facts)}`, facts, async () => {
      const rows: TuneRow[] = []
      const tiles = await tuneMatmul(gpu, { size: [64, 128, 64], seconds: 0.1, report: (row) => rows.push(row) })
      const onGpus = ['tile', 'few', 'fewMore', 'fewWide']
      const names =
        bench.cpu && !('software' in facts)
          ? ['ntCpu', 'nnCpu']
          : none || 'matrixUnits' in facts
            ? onGpus
            : [...onGpus, 'units', 'fewUnits']
      expect(Object.keys(tiles)).toEqual(names)
      expect(rows.filter((row) => row.chosen).map((row) => row.name)).toEqual(names)
      for (const row of rows) expect(row.gflops).toBeGreaterThan(0)
      expect(tilesOf(gpu)).toEqual({ ...defaultTiles, ...tiles })
      setTiles(gpu, {})
    })
  }
})

const unfit = [{ matrixUnits: [] }, { matrixUnits: [{ m: 64, n: 64, k: 64 }] }]
test.each(unfit)('matrix units are refused, and not measured, where none fits: $matrixUnits', async (facts) => {
  await bench.run('none', facts, async () => {
    expect(() => useMatrixUnits(gpu)).toThrow('Leave matrix units off')
    expect(hasUnits(gpu, 64)).toBe(false)
    expect(attentionTakesUnits(gpu, { heads: 2, kvHeads: 1, headDim: 64 })).toBe(false)
  })
})

test('weights outside of f16 are refused by name', () => {
  checkF16Range('w', Float32Array.of(65504, -65504, 1e-30))
  checkF16Range('w', Uint16Array.of(0x477f, 0xc77f, 0x8000))
  expect(() => checkF16Range('layers.3.down', Float32Array.of(1, 70000))).toThrow('layers.3.down holds 70000')
  expect(() => checkF16Range('w', Uint16Array.of(0x4780))).toThrow('w holds 65536')
  expect(() => checkF16Range('w', Float32Array.of(NaN))).toThrow('NaN')
  expect(() => checkF16Range('w', Uint16Array.of(0, 0xff80, 1))).toThrow('-Infinity')
  expect(() => checkF16Range('w', Uint16Array.of(0x7fc0))).toThrow('NaN')
})

test('the factor of gradients is a power of two that takes the largest to between 16 and 32', () => {
  for (const largest of [3e-9, 0.7, 1, 1e-5, 300]) {
    const scale = gradientScaleFor(largest)
    expect(Number.isInteger(Math.log2(scale))).toBe(true)
    expect(largest * scale).toBeGreaterThan(16)
    expect(largest * scale).toBeLessThanOrEqual(32)
  }
  for (const none of [0, NaN, Infinity]) expect(gradientScaleFor(none)).toBe(1024)
})
