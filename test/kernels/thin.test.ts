/** LoRA's thin products on GPUs: against float64, and a row's bits whatever it runs with, on whatever lanes its sums are added up. */
import { describe, expect, test } from 'vitest'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { weightView, type Weight } from '../../src/kernels/common/weight.ts'
import {
  takesThinBack,
  takesThinForward,
  thinBack,
  thinConstants,
  thinForward,
  type ThinForward,
  type ThinTile,
} from '../../src/kernels/lora/thin.ts'
import { linear, linearBackwardInput } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { withFacts } from '../facts.ts'
import { bounds, compare, isRun, modes, openBench, sameBits } from './harness.ts'
import { product } from './matmul-cases.ts'

const bench = await openBench()
const { gpu } = bench

/** As many rows as there are shapes of a workgroup, and more that end within one. */
const counts = [1, 2, 33, 300, 1101]
/** Depth and rank: in one turn that is not full, in two of which one is not, in whole turns that go together and that do not. */
const shapes = [
  { depth: 36, rank: 8 },
  { depth: 576, rank: 24 },
  { depth: 1536, rank: 8 },
  { depth: 2560, rank: 16 },
]

interface Made {
  rows: number
  values: Float32Array
}
/** The rows `of` a product alone. */
const rowsOf = ({ values, rows }: Made, of: number): Float32Array => values.slice(0, (values.length / rows) * of)

/** The first rows of a product with each count, which have the same bits. */
async function sameForAll(rank: number, run: (rows: number) => Promise<Float32Array>): Promise<Float32Array> {
  const most = { rows: counts.at(-1)!, values: await run(counts.at(-1)!) }
  for (const rows of counts.slice(0, -1)) sameBits(`${rows} rows`, await run(rows), rowsOf(most, rows))
  expect(most.values.length).toBe(most.rows * rank)
  return most.values
}

/** Rows that are compared with float64: of so many, the first and the last few. */
const some = (rows: number): number[] => [0, 1, 2, 40, rows - 2, rows - 1]

async function check(kind: 'forward' | 'back', { depth, rank }: (typeof shapes)[number]): Promise<Float32Array> {
  const rows = counts.at(-1)!
  const [x, w] = [bench.normals(rows * depth), bench.normals(rank * depth, depth ** -0.5)]
  const [input, matrix] = [bench.up(x), bench.up(w)]
  const weight = kind === 'forward' ? weightView('A', matrix, rank, depth) : weightView('B', matrix, depth, rank)
  expect((kind === 'forward' ? takesThinForward : takesThinBack)(gpu, weight)).toBe(true)
  const got = await sameForAll(rank, async (count) => {
    const out = bench.out(count * rank)
    ;(kind === 'forward' ? linear : linearBackwardInput)(gpu, input, count, weight, out, { alpha: 1.5 })
    return bench.down(out, count * rank)
  })
  const of = some(rows)
  const at = kind === 'forward' ? (j: number, t: number) => w[j * depth + t] : (j: number, t: number) => w[t * rank + j]
  const want = product(of.length, rank, depth, (i, t) => 1.5 * x[of[i] * depth + t], at)
  compare(
    kind,
    of.flatMap((i) => Array.from(got.slice(i * rank, (i + 1) * rank))),
    want,
    bounds.sum,
  )
  return got
}

/** Adapters of GPUs: with lanes through workgroup memory, and with subgroups where these have a size. */
const gpus = modes.filter(({ facts }) => facts.software !== true).filter((mode) => isRun(mode))
const isGpu = ({ facts, needs }: (typeof modes)[number]): boolean =>
  needs === 'cpu' ? bench.cpu : facts.software === false || !gpu.facts.software

describe.each(gpus)('$name', (mode) => {
  test.skipIf(!isGpu(mode)).each(['forward', 'back'] as const)('%s: a row has its bits among any number', async (kind) => {
    for (const shape of shapes)
      await bench.run(`${kind} ${JSON.stringify(shape)}`, mode.facts, async () => void (await check(kind, shape)))
  })
})

test.runIf(bench.cpu && isRun(modes[1]))(
  'subgroups of any size, and none, have the same bits, and so has each shape of a workgroup',
  async () => {
    const [depth, rank, rows] = [776, 16, 5]
    const tiles: ThinTile[] = [
      { rows: 1, columns: 2, threads: 128, ahead: 4 },
      { rows: 2, columns: 16, threads: 128, ahead: 1 },
    ]
    for (const kind of ['forward', 'back'] as const) {
      await bench.run(`lanes ${kind}`, {}, async () => {
        const [x, w] = [bench.up(bench.normals(rows * depth)), bench.up(bench.normals(rank * depth))]
        const results: Float32Array[] = []
        const run = async (facts: Partial<GpuFacts>, tile?: ThinTile): Promise<void> => {
          // B comes in fours.
          if (kind === 'back' && tile && tile.columns < 4) return
          await withFacts(gpu, { software: false, ...facts }, async () => {
            const out = bench.out(rows * rank)
            const shape = { k: depth, rank, parts: [{ at: 0, scale: 1 }] }
            if (kind === 'forward') thinForward(gpu, x, rows, shape, w, { xa: out }, { tile })
            else thinBack(gpu, x, rows, { n: depth, rank, alpha: 1 }, w, out, tile)
            results.push(await bench.down(out, rows * rank))
          })
        }
        for (const facts of [{}, { subgroupSize: 0 }]) for (const tile of [undefined, ...tiles]) await run(facts, tile)
        for (const [i, result] of results.entries()) sameBits(`${kind}, ${i}`, result, results[0])
      })
    }
  },
)

test.runIf(bench.cpu && isRun(modes[1]))(
  'x is normalised on the way, and left in f16, with the bits of kernels of their own',
  async () => {
    const [rank, rows, eps] = [8, 5, 1e-5]
    // Whole turns, and some that are not; more rows than one a workgroup.
    const kinds: { depth: number; facts: Partial<GpuFacts>; tile?: ThinTile }[] = [
      { depth: 1024, facts: {} },
      { depth: 776, facts: { subgroupSize: 0 }, tile: { rows: 4, columns: 4, threads: 128, ahead: 2 } },
    ]
    for (const { depth, facts, tile } of kinds) {
      await bench.run(`leaves ${depth}`, { software: false, ...facts }, async () => {
        const input = bench.normals(rows * depth)
        // What f16 has no room for, and no number: the first is cut off, the second stays one.
        const [large, none] = [3, 2 * depth + 5]
        input[large] = 1e6
        input[none] = NaN
        const [x, gain] = [bench.up(input), bench.up(bench.normals(depth))]
        const bank = bench.up(bench.normals(3 * rank * depth))
        const shape = { k: depth, rank, parts: [0, 1, 2].map((s) => ({ at: s * rank * depth, scale: 1 + s })) }
        const stride = rows * rank
        const run = async (of: GpuBuffer, more: ThinForward) => {
          const xa = bench.out(3 * stride)
          thinForward(gpu, of, rows, shape, bank, { xa, stride }, { ...more, tile })
          return bench.down(xa, 3 * stride)
        }
        const half = bench.out((rows * depth) / 2)
        const expectHalf = async (kept: Float32Array) => {
          const want = Float16Array.from(kept, (v) => Math.max(-65504, Math.min(65504, v)))
          const halves = new Float16Array((await bench.down(half, (rows * depth) / 2)).buffer)
          expect(halves).toEqual(want)
          return halves
        }
        const plain = await run(x, {})
        sameBits('as it is', await run(x, { half }), plain)
        const halves = await expectHalf(input)
        expect([halves[large], halves[none]]).toEqual([65504, NaN])

        const [y, rstd, out] = [bench.out(rows * depth), bench.out(rows), bench.out(rows * depth)]
        rmsNorm(gpu, x, gain, y, rstd, rows, depth, eps)
        const normed = await bench.down(y, rows * depth)
        sameBits('normalised', await run(x, { half, norm: { gain, eps, out } }), await run(y, {}))
        sameBits('what it leaves', await bench.down(out, rows * depth), normed)
        await expectHalf(normed)
      })
    }
  },
)

test('a product goes this way by its shape alone, on GPUs', async () => {
  await bench.run('choice', { software: false }, async () => {
    const storage = bench.out(64)
    const of = (rows: number, columns: number): Weight => weightView('view', storage, rows, columns)
    expect([of(8, 64), of(128, 64), of(8, 66), of(12, 64)].map((w) => takesThinForward(gpu, w))).toEqual([
      true,
      true,
      false,
      false,
    ])
    // A of LoRA, on the way to x, is not thin.
    expect([of(64, 8), of(66, 64), of(512, 72), of(64, 12), of(8, 64)].map((w) => takesThinBack(gpu, w))).toEqual([
      true,
      true,
      false,
      false,
      false,
    ])
    const { weight } = bench.weight(64, 64, false)
    expect([takesThinForward(gpu, weight), takesThinBack(gpu, weight)]).toEqual([false, false])
    await withFacts(gpu, { software: true }, async () => {
      expect([takesThinForward(gpu, of(8, 64)), takesThinBack(gpu, of(64, 8))]).toEqual([false, false])
    })
    // Whole turns are taken so many at a time that none is left over.
    const tile: ThinTile = { rows: 1, columns: 4, threads: 128, ahead: 4 }
    expect(
      [256, 768, 512, 144, 640].map((steps) => thinConstants(gpu, tile, steps)).map(({ AHEAD, EXACT }) => [AHEAD, EXACT]),
    ).toEqual([
      [2, 1],
      [3, 1],
      [4, 1],
      [2, 0],
      [1, 1],
    ])
  })
})
