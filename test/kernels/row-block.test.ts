/** A layer's two kernels for blocks of rows: the bits of its kernels one by one. */
import { expect, test } from 'vitest'
import type { BufferRange } from '../../src/gpu/gpu.ts'
import type { GpuTexture } from '../../src/gpu/pool.ts'
import { kvTextures } from '../../src/kernels/common/kv-texture.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { allocateTogether, releaseWeight, weightView, writeWeight, type Weight } from '../../src/kernels/common/weight.ts'
import { siluGate } from '../../src/kernels/elementwise/elementwise.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import { blockRows, mlpBlock, qkvBlock, rowBlocks, type BlockProjection } from '../../src/kernels/row-block/row-block.ts'
import { normRopeIntoCache, ropeIntoCache } from '../../src/kernels/rope/rope.ts'
import { bf16Bits, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const here = test.skipIf(cpuLanes(gpu).LANES !== 8)

interface Shape {
  hidden: number
  inner: number
  heads: number
  kvHeads: number
  headDim: number
  rank: number
  /** Whether heads have norms. */
  headNorms: boolean
  gate: 'silu' | 'gelu'
}
const tiny: Shape = { hidden: 128, inner: 384, heads: 4, kvHeads: 2, headDim: 32, rank: 8, headNorms: true, gate: 'silu' }
const narrow: Shape = { hidden: 64, inner: 96, heads: 8, kvHeads: 4, headDim: 16, rank: 0, headNorms: true, gate: 'gelu' }
const wide: Shape = { hidden: 192, inner: 160, heads: 1, kvHeads: 1, headDim: 64, rank: 16, headNorms: false, gate: 'silu' }
const shapes: Shape[] = [tiny, narrow, wide]
/** Rows, those of a block, of which the last is not whole, and whether the CPU multiplies with an operand that it broadcasts from memory. */
const counts = [
  { rows: 3, height: 4, broadcasts: true },
  { rows: 9, height: 8, broadcasts: false },
  { rows: 29, height: 16, broadcasts: true },
]

const release: (() => void)[] = []
const released = (): void => release.splice(0).forEach((fn) => fn())

/** Random projections of one input, and room for their adapters in `bank`. */
function projectionsOf(widths: number[], k: number, rank: number, bank: (length: number) => BufferRange): BlockProjection[] {
  const parts = widths.map((rows, i) => ({ label: `${i}`, rows }))
  const { weights, owned } = allocateTogether(gpu, parts, k, true)
  release.push(() => owned.forEach(releaseWeight))
  return weights.map((weight) => {
    writeWeight(gpu, weight, bf16Bits(bench.normals(weight.rows * k, k ** -0.5)))
    if (rank === 0) return { weight }
    return { weight, lora: { a: bank(rank * k), b: bank(weight.rows * rank), rank, scale: 0.5 + bench.random.next() } }
  })
}

/** Ranges of one buffer, apart. */
function bankOf(values: number): (length: number) => BufferRange {
  const buffer = bench.up(bench.normals(values, 0.3))
  let at = 256
  return (length) => {
    const range = { buffer, offset: at, bytes: length * 4 }
    at += Math.ceil(length / 64) * 256 + 256
    return range
  }
}

function layerOf({ hidden, inner, heads, kvHeads, headDim, rank }: Shape): BlockProjection[][] {
  const [width, kvWidth] = [heads * headDim, kvHeads * headDim]
  const bank = bankOf(64 * (hidden + inner + width) * Math.max(8, rank))
  const of = (widths: number[], k: number) => projectionsOf(widths, k, rank, bank)
  return [of([width, kvWidth, kvWidth], hidden), of([hidden], width), of([inner, inner], hidden), of([hidden], inner)]
}

const out = (length: number) => bench.out(length)
const normOf = (channels: number) => ({ gain: bench.up(bench.normals(channels)), eps: 1e-6 })

/** One projection by itself, with its adapter. */
function project(x: ReturnType<typeof out>, rows: number, { weight, lora }: BlockProjection, residual?: typeof x) {
  const y = out(rows * weight.rows)
  if (!lora) {
    linear(gpu, x, rows, weight, y, { residual })
    return y
  }
  const xa = out(rows * lora.rank)
  linear(gpu, x, rows, weightView('A', lora.a, lora.rank, weight.columns), xa, { alpha: lora.scale })
  linear(gpu, x, rows, weight, y, { residual, lora: { x: xa, matrix: lora.b, rank: lora.rank } })
  return y
}

function normalise(x: ReturnType<typeof out>, rows: number, channels: number, norm: ReturnType<typeof normOf>) {
  const [y, rstd] = [out(rows * channels), out(rows)]
  rmsNorm(gpu, x, norm.gain, y, rstd, rows, channels, norm.eps)
  return y
}

/** Caches of keys and values, and all that is in one. */
function cachesOf({ kvHeads, headDim }: Shape): GpuTexture[] {
  const size = { pages: 4, pageSize: 16 }
  const textures = kvTextures(gpu, 2, size, { kvHeads, headDim, rotaryDim: headDim }, 'test')!
  release.push(() => textures.forEach((texture) => texture.release()))
  return textures
}
async function texelsOf({ raw }: GpuTexture): Promise<Float32Array> {
  const bytesPerRow = Math.ceil((raw.width * 16) / 256) * 256
  const back = gpu.pool.acquire(bytesPerRow * raw.height, 'back')
  gpu.flush()
  const encoder = gpu.device.createCommandEncoder()
  encoder.copyTextureToBuffer({ texture: raw }, { buffer: back.raw, bytesPerRow }, [raw.width, raw.height])
  gpu.device.queue.submit([encoder.finish()])
  const values = await gpu.readF32(back, (bytesPerRow / 4) * raw.height)
  back.release()
  return values
}

/** Runs a kernel, whose operand lies on the stack (held_cpu.wgsl) where that pays, and nowhere else: the bits do not tell. */
async function holdsOperand(broadcasts: boolean, run: () => void): Promise<void> {
  const [{ label }] = await gpu.profile(async () => run())
  expect(label).toContain(`,HELD=${Number(broadcasts)},`)
}

here.each(shapes)('before attention: $hidden wide, rank $rank', async (shape) => {
  const { hidden, heads, kvHeads, headDim } = shape
  for (const { rows, height, broadcasts } of counts) {
    await bench.run(`qkv ${hidden} ${rows}`, { broadcasts }, async () => {
      const [projections] = layerOf(shape)
      const norm = normOf(hidden)
      const x = bench.up(bench.normals(rows * hidden))
      const to = bench.random.shuffle(Array.from({ length: 64 }, (_, i) => i))
      const slots = bench.up(Uint32Array.from({ length: 2 * rows }, (_, i) => (i % 2 ? bench.random.int(40) : to[i / 2])))
      const table = bench.up(bench.normals(40 * headDim))
      const norms = shape.headNorms ? [normOf(headDim), normOf(headDim)] : undefined
      const [[kCache, vCache], [kWant, vWant]] = [cachesOf(shape), cachesOf(shape)]
      const input = normalise(x, rows, hidden, norm)
      const [qWant, k, v] = projections.map((projection) => project(input, rows, projection))
      const into = { q: qWant, k, v, slots, table, kCache: kWant, vCache: vWant }
      if (norms) normRopeIntoCache(gpu, into, norms, rows, { heads, kvHeads, headDim })
      else ropeIntoCache(gpu, into, rows, { heads, kvHeads, headDim })
      const [q, ...between] = projections.map(({ weight }) => out(rows * weight.rows))
      const block = {
        height,
        x,
        norm,
        projections,
        norms,
        q,
        between: between as [typeof q, typeof q],
        slots,
        table,
        kCache,
        vCache,
        headDim,
      }
      await holdsOperand(broadcasts, () => qkvBlock(gpu, rows, block))
      const count = rows * heads * headDim
      sameBits(`q of ${rows} rows`, await bench.down(q, count), await bench.down(qWant, count))
      sameBits(`keys of ${rows} rows`, await texelsOf(kCache), await texelsOf(kWant))
      sameBits(`values of ${rows} rows`, await texelsOf(vCache), await texelsOf(vWant))
      released()
    })
  }
})

here.each(shapes)('behind attention: $hidden wide, rank $rank', async (shape) => {
  const { hidden, inner, heads, headDim, gate: activation } = shape
  for (const { rows, height, broadcasts } of counts) {
    await bench.run(`mlp ${hidden} ${rows}`, { broadcasts }, async () => {
      const [, [o], [gate, up], [down]] = layerOf(shape)
      const norm = normOf(hidden)
      const [attended, residual] = [heads * headDim, hidden].map((width) => bench.up(bench.normals(rows * width)))
      const middle = project(attended, rows, o, residual)
      const input = normalise(middle, rows, hidden, norm)
      const [g, u] = [gate, up].map((projection) => project(input, rows, projection))
      const product = out(rows * inner)
      siluGate(gpu, g, u, product, rows * inner, 1, activation)
      const want = project(product, rows, down, middle)
      const [y, gated] = [out(rows * hidden), out(rows * inner)]
      const block = { height, attended, residual, norm, projections: [o, gate, up, down], gate: activation, y, gated }
      await holdsOperand(broadcasts, () => mlpBlock(gpu, rows, block))
      const name = `${rows} rows`
      sameBits(name, await bench.down(y, rows * hidden), await bench.down(want, rows * hidden))
      sameBits(`${name}, the product`, await bench.down(gated, rows * inner), await bench.down(product, rows * inner))
      released()
    })
  }
})

here('which layers they take', async () => {
  await bench.run('takes', {}, async () => {
    const [cache] = cachesOf(tiny)
    const takes = (groups: BlockProjection[][], headDim = 32, into: typeof cache | ReturnType<typeof out> = cache) =>
      rowBlocks(gpu, 8, groups, { headDim, cache: into }) !== undefined
    for (const shape of shapes) expect(takes(layerOf(shape), shape.headDim)).toBe(true)
    const layer = layerOf(tiny)
    const without = (group: number, change: (one: BlockProjection) => BlockProjection) =>
      layer.map((ones, i) => (i === group ? ones.map(change) : ones))
    const view = (weight: Weight): Weight => weightView('w', out(weight.rows * weight.columns), weight.rows, weight.columns)
    const others: Record<string, BlockProjection[][]> = {
      'no adapter on one': without(3, ({ weight }) => ({ weight })),
      'of another rank': without(1, ({ weight, lora }) => ({ weight, lora: { ...lora!, rank: 16 } })),
      'a weight of float32': without(1, ({ weight, lora }) => ({ weight: view(weight), lora })),
      'gate and up apart': without(2, ({ weight, lora }) => ({ weight: { ...weight, slices: layer[1][0].weight.slices }, lora })),
      'a rank of 24': layerOf({ ...tiny, rank: 24 }),
      'too large': layerOf({ ...tiny, inner: 4096 }),
      'too wide': layerOf({ ...tiny, hidden: 448, inner: 32 }),
      'no whole tiles': layerOf({ ...tiny, kvHeads: 1 }),
    }
    for (const [name, groups] of Object.entries(others)) expect(takes(groups), name).toBe(false)
    expect(takes(layer, 32, out(64))).toBe(false)
    expect(takes(layer, 24)).toBe(false)
    released()
  })
})

test('blocks are as high as lets the threads end first, where that is faster than to share each product', () => {
  const tinys = 330_000
  expect([1, 4, 8, 16, 24, 32, 40, 64, 1000].map((rows) => blockRows(rows, tinys, 2))).toEqual([4, 4, 4, 8, 16, 16, 8, 16, 16])
  expect([8, 64, 1000].map((rows) => blockRows(rows, tinys, 16))).toEqual([4, 4, 16])
  // One row keeps one of many threads at work.
  expect([2, 8, 16].map((threads) => blockRows(1, 1_200_000, threads))).toEqual([4, undefined, undefined])
  expect([2, 8, 16].map((threads) => blockRows(64, 1_200_000, threads))).toEqual([16, 8, 4])
})
