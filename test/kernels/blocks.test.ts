/** Products of the register tile that read a weight's blocks: the bits of those of its values in bf16, in one dispatch. */
import { describe, expect, test } from 'vitest'
import { releaseWeight, writeWeight, allocateTogether, type Weight } from '../../src/kernels/common/weight.ts'
import { groupTier, linearGated, linearGroup, normRows, type GroupMember } from '../../src/kernels/matmul/group.ts'
import { downRanges, downStride } from '../../src/kernels/matmul/group-tile.ts'
import { linear, linearBackwardInput } from '../../src/kernels/matmul/matmul.ts'
import { setTiles } from '../../src/kernels/matmul/tiles.ts'
import { allocateBlocks, allocateRooms, writeBlocks, type QuantisedFormat } from '../../src/kernels/quantised/quantised.ts'
import { roundToBf16 } from '../../src/model/bf16.ts'
import type { BlockFormat } from '../../src/model/gguf/dequant.ts'
import { quantisedFormats as formats, randomBlocks, widened } from '../model/blocks.ts'
import { modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const gpus = modes.filter(({ facts }) => facts.shuffled)
const [first] = gpus

/** Weights of one width that are read together, in blocks and in bf16. */
function weightsOf(kinds: { rows: number; format: BlockFormat }[], columns: number) {
  const parts = kinds.map(({ rows }, i) => ({ label: `${i}`, rows }))
  const rooms = allocateRooms(gpu, parts, columns)
  const plain = allocateTogether(gpu, parts, columns, true)
  const inBlocks = kinds.map(({ rows, format }, i) => {
    const weight = allocateBlocks(gpu, 'test', rooms.rooms[i], format.name as QuantisedFormat)
    const data = randomBlocks(format, (rows * columns) / format.values, bench.random, true)
    writeBlocks(gpu, weight.blocks!, data)
    writeWeight(gpu, plain.weights[i], roundToBf16(widened(format, data)))
    return weight
  })
  const release = () => {
    for (const { blocks } of inBlocks) blocks!.storage.release()
    for (const one of [...rooms.owned, ...plain.owned])
      if ('slices' in one) releaseWeight(one)
      else one.release()
  }
  return { inBlocks, plain: plain.weights, release }
}

function dispatchesOf(work: () => void): number {
  const before = gpu.dispatches
  work()
  return gpu.dispatches - before
}

/** Forward with everything that it can add, backward, and rows 4 .. of the weight alone. */
async function compare([blocks, plain]: Weight[], m: number, direct: boolean): Promise<void> {
  const { rows: n, columns: k } = blocks
  const [x, dy] = [bench.up(bench.normals(m * k)), bench.up(bench.normals(m * n))]
  const [xa, b] = [bench.up(bench.normals(m * 8)), bench.up(bench.normals(n * 8))]
  const [bias, residual] = [bench.up(bench.normals(n)), bench.up(bench.normals(m * n))]
  const some = { row: 4, rows: n - 8 }
  const products: { name: string; length: number; run: (weight: Weight, out: ReturnType<typeof bench.out>) => void }[] = [
    {
      name: 'forward',
      length: m * n,
      run: (weight, y) => linear(gpu, x, m, weight, y, { alpha: 0.7, lora: { x: xa, matrix: b, rank: 8 }, bias, residual }),
    },
    { name: 'rows of it', length: m * some.rows, run: (weight, y) => linear(gpu, x, m, weight, y, { slice: some }) },
    { name: 'backward', length: m * k, run: (weight, dx) => linearBackwardInput(gpu, dy, m, weight, dx) },
  ]
  for (const { name, length, run } of products) {
    const [got, want] = [bench.out(length), bench.out(length)]
    const dispatches = dispatchesOf(() => run(blocks, got))
    const others = dispatchesOf(() => run(plain, want))
    // The values stay for those that come after the first.
    expect(dispatches - others, `${name}, ${m} rows`).toBe(!direct && name === 'forward' ? 1 : 0)
    sameBits(`${name}, ${m} rows`, await bench.down(got, length), await bench.down(want, length))
  }
}

describe.each(gpus.filter(({ needs }) => needs !== 'cpu' || bench.cpu))('$name', ({ name: mode, facts }) => {
  const some = facts === first.facts ? formats : formats.filter(({ name }) => name === 'Q4_0')
  test.each(some)('$name: few rows read the blocks, many have them widened', async (format) => {
    await bench.run(`${mode} ${format.name}`, facts, async () => {
      // An odd number of blocks a row: with scales of two bytes, and columns that fill no tile.
      const { inBlocks, plain, release } = weightsOf([{ rows: 140, format }], format.values === 32 ? 160 : 768)
      for (const m of [1, 3, 33]) await compare([inBlocks[0], plain[0]], m, true)
      await compare([inBlocks[0], plain[0]], 70, false)
      release()
    })
  })
})

test.each([
  [128, 128],
  [128, 64],
  [64, 64],
  [32, 64],
])('a tile of %i x %i', async (rows, columns) => {
  setTiles(gpu, { tile: { rows, columns } }, { always: true })
  for (const name of ['Q4_1', 'Q6_K']) {
    await bench.run(`${rows} x ${columns} ${name}`, first.facts, async () => {
      const format = formats.find((one) => one.name === name)!
      const { inBlocks, plain, release } = weightsOf([{ rows: 132, format }], 512)
      const pair = [inBlocks[0], plain[0]]
      await compare(pair, 2 * rows, true)
      await compare(pair, 2 * rows + 1, false)
      release()
    })
  }
  setTiles(gpu, {})
})

test('rows that are not whole fours are widened', async () => {
  await bench.run('odd', first.facts, async () => {
    const { inBlocks, plain, release } = weightsOf([{ rows: 37, format: formats[0] }], 64)
    const x = bench.up(bench.normals(64))
    const [got, want] = [bench.out(37), bench.out(37)]
    linear(gpu, x, 1, inBlocks[0], got)
    linear(gpu, x, 1, plain[0], want)
    sameBits('y', await bench.down(got, 37), await bench.down(want, 37))
    release()
  })
})

describe('groups', () => {
  const named = (name: string) => formats.find((format) => format.name === name)!
  const kinds = (widths: number[], names: string[]) => widths.map((rows, i) => ({ rows, format: named(names[i % names.length]) }))

  async function group(widths: number[], names: string[], m: number, direct: boolean): Promise<void> {
    const { inBlocks, plain, release } = weightsOf(kinds(widths, names), 256)
    const gated = widths.length === 2
    const most = Math.max(...widths)
    const step = Math.ceil(most / 64) * 64
    const bank = bench.up(bench.normals(step * 8 * widths.length))
    const bs = widths.map((n, i) => ({ buffer: bank, offset: i * step * 32, bytes: n * 32 }))
    const xa = downRanges(bench.up(bench.normals(widths.length * downStride(m, 8))), m, 8, widths.length)
    const x = bench.up(bench.normals(m * 256))
    const norm = m <= normRows ? { gain: bench.up(bench.normals(256)), eps: 1e-6 } : undefined
    const outs = async (weights: Weight[]) => {
      const members = weights.map((weight, i): GroupMember => ({ weight, b: bs[i] }))
      expect(groupTier(gpu, members, gated)).toBe('tile')
      const ys = (gated ? [widths[0]] : widths).map((n) => ({ n, y: bench.out(m * n) }))
      const dispatches = dispatchesOf(() => {
        if (gated) linearGated(gpu, x, m, members, ys[0].y, { xa, rank: 8 }, { norm })
        else
          linearGroup(
            gpu,
            x,
            m,
            members,
            ys.map(({ y }) => y),
            { xa, rank: 8 },
            { norm },
          )
      })
      return { dispatches, values: await Promise.all(ys.map(({ n, y }) => bench.down(y, m * n))) }
    }
    const [got, want] = [await outs(inBlocks), await outs(plain)]
    expect(got.dispatches).toBe(direct ? want.dispatches : want.dispatches + widths.length)
    for (const [i, values] of got.values.entries()) sameBits(`${i}, ${m} rows`, values, want.values[i])
    release()
  }

  const room = { ...first.facts, limits: { ...gpu.facts.limits, maxStorageBuffers: 16 } }
  test('q, k and v, gate and up of one format are read together', async () => {
    for (const m of [1, 40]) {
      await bench.run(`three ${m}`, room, () => group([132, 36, 36], ['Q4_1'], m, true))
      await bench.run(`gated ${m}`, room, () => group([140, 140], ['Q4_K'], m, true))
    }
    await bench.run('many', room, () => group([140, 140], ['Q4_K'], 70, false))
  })
  test('of several formats, and where an adapter binds fewer buffers, are widened', async () => {
    await bench.run('mixed', room, () => group([132, 36, 36], ['Q4_1', 'Q4_1', 'Q5_1'], 1, false))
    const few = { ...room, limits: { ...room.limits, maxStorageBuffers: 8 } }
    await bench.run('few', few, () => group([132, 36, 36], ['Q4_1'], 40, false))
  })
})
