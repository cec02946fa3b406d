/** KV caches in textures: every kernel that writes or reads one has the bits that it has with a cache in buffers. */
import { describe, expect, test } from 'vitest'
import type { GpuBuffer, GpuTexture } from '../../src/gpu/pool.ts'
import { attention } from '../../src/kernels/attention/attention.ts'
import { blocksOf, mostBlocks, type SharedBeginning } from '../../src/kernels/attention/shared.ts'
import { kvConstants, kvTextures } from '../../src/kernels/common/kv-texture.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { allocateTogether, releaseWeight, writeWeight } from '../../src/kernels/common/weight.ts'
import { linearGroup, takesRotary } from '../../src/kernels/matmul/group.ts'
import { candidatesOf, setTiles } from '../../src/kernels/matmul/tiles.ts'
import { normRopeIntoCache, ropeIntoCache, takesNormRope } from '../../src/kernels/rope/rope.ts'
import { copyCacheRows } from '../../src/kernels/rows/rows.ts'
import { bf16Bits, openBench, sameBits, toBf16 } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const skipped = bench.cpu ? '' : ' (skipped: caches lie in textures on CPU drivers alone)'

interface Layout {
  pages: number
  pageSize: number
  kvHeads: number
  headDim: number
  /** Widest and highest texture, where it is not the adapter's. */
  most?: number
}
/** In one row of pages; in pages that do not hold whole tiles of keys; folded, as a texture may be only so high. */
const layouts: Layout[] = [
  { pages: 5, pageSize: 16, kvHeads: 3, headDim: 64 },
  { pages: 9, pageSize: 4, kvHeads: 2, headDim: 32 },
  { pages: 9, pageSize: 8, kvHeads: 1, headDim: 16, most: 128 },
  { pages: 300, pageSize: 8, kvHeads: 1, headDim: 16, most: 128 },
]

const sizeOf = ({ pages, pageSize, kvHeads, headDim }: Layout): number => pages * pageSize * kvHeads * headDim

/** Where texel e of row r lies among those of the texture: told here in another way than in kv_place.wgsl. */
function texelOf({ pageSize, kvHeads, headDim }: Layout, r: number, e: number): number {
  const texels = headDim / 4
  const [page, inPage] = [Math.floor(r / pageSize), r % pageSize]
  const [head, inHead] = [Math.floor(e / texels), e % texels]
  return ((page * kvHeads + head) * pageSize + inPage) * texels + inHead
}

/** Values by rows of the cache, (rows, kvHeads * headDim), in the order that they have in the texture, or back. */
function ordered(layout: Layout, values: Float32Array, back = false): Float32Array {
  const width = layout.kvHeads * layout.headDim
  const out = new Float32Array(values.length)
  for (let i = 0; i < values.length; i += 4) {
    const at = 4 * texelOf(layout, Math.floor(i / width), (i % width) / 4)
    out.set(back ? values.subarray(at, at + 4) : values.subarray(i, i + 4), back ? i : at)
  }
  return out
}

function textureOf(layout: Layout): GpuTexture {
  const textures = kvTextures(gpu, 1, layout, { ...layout, rotaryDim: layout.headDim }, 'test')
  if (!textures) throw new Error('this cache lies in buffers')
  return textures[0]
}

/** A cache with these values. */
function upTexture(layout: Layout, values: Float32Array): GpuTexture {
  const texture = textureOf(layout)
  const { width, height } = texture.raw
  const all = new Float32Array(width * height * 4)
  all.set(ordered(layout, values))
  gpu.device.queue.writeTexture({ texture: texture.raw }, all, { bytesPerRow: width * 16 }, [width, height])
  return texture
}

async function downTexture(layout: Layout, { raw }: GpuTexture): Promise<Float32Array> {
  const bytes = Math.ceil((raw.width * 16) / 256) * 256
  const back = gpu.pool.acquire(bytes * raw.height, 'back')
  gpu.flush()
  const encoder = gpu.device.createCommandEncoder()
  encoder.copyTextureToBuffer({ texture: raw }, { buffer: back.raw, bytesPerRow: bytes }, [raw.width, raw.height])
  gpu.device.queue.submit([encoder.finish()])
  const values = await gpu.readF32(back, (bytes / 4) * raw.height)
  back.release()
  const rows = Array.from({ length: raw.height }, (_, y) => [
    ...values.subarray((y * bytes) / 4, (y * bytes) / 4 + raw.width * 4),
  ])
  return ordered(layout, Float32Array.from(rows.flat()).subarray(0, sizeOf(layout)), true)
}

/** Cache rows for `rows` rows, each another, and positions. */
function slotsOf({ pages, pageSize }: Layout, rows: number): Uint32Array {
  const to = bench.random.shuffle(Array.from({ length: pages * pageSize }, (_, i) => i))
  return Uint32Array.from({ length: 2 * rows }, (_, i) => (i % 2 ? bench.random.int(40) : to[i / 2]))
}

/** What `write` puts into a cache in textures, and into the same in buffers, what was there before included; and its other outputs. */
async function compareCaches(
  layout: Layout,
  write: (k: GpuBuffer | GpuTexture, v: GpuBuffer | GpuTexture) => { buffer: GpuBuffer; length: number }[],
): Promise<void> {
  const before = [0, 1].map(() => bench.normals(sizeOf(layout)))
  const buffers = before.map((values) => bench.upOut(values))
  const textures = before.map((values) => upTexture(layout, values))
  const outputs = [buffers, textures].map(([k, v]) => write(k, v))
  for (const [i, { buffer, length }] of outputs[0].entries())
    sameBits(`output ${i}`, await bench.down(outputs[1][i].buffer, length), await bench.down(buffer, length))
  for (const [i, name] of ['keys', 'values'].entries()) {
    const want = await bench.down(buffers[i], sizeOf(layout))
    expect(want).not.toEqual(before[i])
    sameBits(name, await downTexture(layout, textures[i]), want)
    textures[i].release()
  }
}

/** Runs on an adapter whose textures have the layout's size at most. */
async function withLayout(name: string, layout: Layout, fn: () => Promise<void>): Promise<void> {
  const { limits } = gpu.facts
  const facts = { limits: { ...limits, maxTexture: layout.most ?? limits.maxTexture } }
  await bench.run(`${name} ${JSON.stringify(layout)}`, facts, fn)
}

describe.skipIf(!bench.cpu)(`a KV cache in textures${skipped}`, () => {
  test('is folded where it would be too high, and lies in buffers where its heads or its rows do not fit, and on GPUs', async () => {
    const folds: number[] = []
    for (const layout of layouts) {
      await withLayout('fold', layout, async () => {
        const texture = textureOf(layout)
        folds.push(kvConstants(texture).KV_FOLD)
        expect(texture.raw.width).toBeLessThanOrEqual(gpu.facts.limits.maxTexture)
        expect(texture.raw.height).toBeLessThanOrEqual(gpu.facts.limits.maxTexture)
        texture.release()
      })
    }
    expect(folds).toEqual([1, 1, 1, 4])
    expect(kvConstants(bench.out(4))).toEqual({})
    const given = (change: object, rotaryDim = 64, pages = 5) => {
      const made = kvTextures(gpu, 2, { pages, pageSize: 16 }, { kvHeads: 3, headDim: 64, rotaryDim, ...change }, 'test')
      made?.forEach((texture) => texture.release())
      return made !== undefined
    }
    expect([given({}), given({ headDim: 60 }), given({}, 12), given({ kvHeads: 4096 })]).toEqual([true, false, false, false])
    await bench.run('gpu', { software: false }, async () => expect(given({})).toBe(false))
  })

  test.each(layouts)('rows copied inside it, pages of $pageSize, $headDim', async (layout) => {
    await withLayout('copy', layout, async () => {
      const pairs = bench.up(Uint32Array.of(3, 0, 4, 19, 4, 7, 31, 2))
      const width = layout.kvHeads * layout.headDim
      // At once, or in turns of three.
      for (const room of [4, 3]) {
        const between = gpu.pool.acquire(room * width * 8, 'between', { exact: true })
        await compareCaches(layout, (k, v) => {
          copyCacheRows(gpu, { k, v }, pairs, 4, width, between)
          return []
        })
        between.release()
      }
    })
  })

  test.each(layouts)('RoPE into it, with norms and without, pages of $pageSize, $headDim', async (layout) => {
    await withLayout('rope', layout, async () => {
      const [rows, heads] = [21, 3]
      const { kvHeads, headDim } = layout
      const shape = { heads, kvHeads, headDim }
      const [slots, table] = [bench.up(slotsOf(layout, rows)), bench.up(bench.normals(40 * headDim))]
      const [q, k, v] = [heads, kvHeads, kvHeads].map((n) => bench.normals(rows * n * headDim))
      const norms = [1e-6, 1e-3].map((eps) => ({ gain: bench.up(bench.normals(headDim)), eps }))
      // A lane has both values of a pair.
      const takes = (headDim / gpu.facts.subgroupSize) % 2 === 0
      expect(takesNormRope(gpu, headDim)).toBe(takes)
      for (const normed of [false, ...(takes ? [true] : [])]) {
        await compareCaches(layout, (kCache, vCache) => {
          const t = { q: bench.up(q), k: bench.up(k), v: bench.up(v), slots, table, kCache, vCache }
          if (normed) normRopeIntoCache(gpu, t, norms, rows, shape)
          else ropeIntoCache(gpu, t, rows, shape)
          return [{ buffer: t.q, length: q.length }]
        })
      }
    })
  })

  // One row, two, fewer than a tile has, and several tiles; the last with a tile of 48 columns, of which a lane has three pairs; with 16 lanes of 32 columns, one pair each.
  const projected = [
    ...layouts.map((layout, i) => ({ layout, rows: [1, 2, 7, 36][i], columns: 64, lora: i % 2 === 0 })),
    { layout: layouts[0], rows: 33, columns: cpuLanes(bench.gpu).WIDE ? 32 : 48, lora: true },
  ]
  test.each(projected)('q, k, v into it, $rows rows, tiles of $columns', async ({ layout, rows, columns, lora }) => {
    await withLayout(`project ${rows} ${columns}`, layout, async () => {
      const { kvHeads, headDim } = layout
      const [k, rank, widths] = [72, 8, [3, kvHeads, kvHeads].map((n) => n * headDim)]
      const made = allocateTogether(
        gpu,
        widths.map((n, i) => ({ label: `${i}`, rows: n })),
        k,
        true,
      )
      for (const weight of made.weights) writeWeight(gpu, weight, bf16Bits(bench.normals(weight.rows * k, k ** -0.5).map(toBf16)))
      const bank = bench.up(bench.normals(3 * 256 * rank))
      const members = made.weights.map((weight, i) => {
        const b = lora ? { buffer: bank, offset: i * 256 * rank * 4, bytes: weight.rows * rank * 4 } : undefined
        return { weight, b }
      })
      expect(takesRotary(gpu, 'cpu', members, headDim)).toBe(true)
      const xa = lora ? { xa: widths.map(() => bench.up(bench.normals(rows * rank))), rank } : undefined
      const [x, table] = [bench.up(bench.normals(rows * k)), bench.up(bench.normals(40 * headDim))]
      const places = bench.up(slotsOf(layout, rows))
      setTiles(gpu, { ntCpu: candidatesOf(gpu, 'ntCpu').find((tile) => tile.columns === columns)! }, { always: true })
      await compareCaches(layout, (keys, values) => {
        const q = bench.out(rows * widths[0])
        linearGroup(gpu, x, rows, members, [q, keys, values], xa, { rotary: { places, perRow: 1, table, headDim } })
        return [{ buffer: q, length: rows * widths[0] }]
      })
      setTiles(gpu, {})
      made.owned.forEach(releaseWeight)
    })
  })

  const attended = layouts.flatMap((layout) => [undefined, 11].map((window) => ({ layout, window })))
  test.each(attended)('attention over it, $layout.headDim, window $window', async ({ layout, window }) => {
    await withLayout(`attend ${window}`, layout, async () => {
      const { kvHeads, headDim, pages: count, pageSize } = layout
      const shape = { heads: kvHeads * 3, kvHeads, headDim, window }
      // Rows alone, of which two see the same keys, and neighbours of a prompt; texts of 30 tokens in two tables of pages.
      const each = Math.ceil(30 / pageSize)
      const order = bench.random.shuffle(Array.from({ length: count }, (_, i) => i))
      const table = bench.up(Uint32Array.from({ length: 2 * each }, (_, i) => order[i % count]))
      const places = [
        ...[29, 0, 17, 29].map((at, i) => [(i % 2) * each, 0, at]),
        ...[9, 10, 11, 12, 13].map((at) => [each, 1, at]),
      ]
      const info = bench.up(Uint32Array.from(places.flatMap(([first, prompt, at]) => [first, prompt, 0, at])))
      const rows = places.length
      const q = bench.up(bench.normals(rows * shape.heads * headDim))
      const values = [0, 1].map(() => bench.normals(sizeOf(layout)))
      const textures = values.map((v) => upTexture(layout, v))
      for (const prompts of [true, false]) {
        const results = [values.map((v) => bench.up(v)), textures].map(([k, v]) => {
          const [o, lse] = [bench.out(rows * shape.heads * headDim), bench.out(rows * shape.heads)]
          const paged = { pages: table, size: pageSize, f16: false, prompts, longest: 30 }
          attention(gpu, { q, k, v, info, o, lse }, rows, shape, { paged })
          return { o, lse }
        })
        const [want, got] = results
        sameBits(
          'o',
          await bench.down(got.o, rows * shape.heads * headDim),
          await bench.down(want.o, rows * shape.heads * headDim),
        )
        sameBits('lse', await bench.down(got.lse, rows * shape.heads), await bench.down(want.lse, rows * shape.heads))
      }
      textures.forEach((texture) => texture.release())
    })
  })

  // Heads of one part of a subgroup and of two; one, two and three of them to a head of keys; beginnings of less than a split of the keys, one, and more; few rows and more than a block.
  test.each([
    { heads: 9, kvHeads: 3, headDim: 64 },
    { heads: 2, kvHeads: 2, headDim: 128 },
    { heads: 4, kvHeads: 2, headDim: 32 },
  ])('rows that go through common keys together have the bits of rows alone, %j', async (shape) => {
    const { LANES } = cpuLanes(gpu)
    const texts = [
      { count: 5, keys: 48, own: 7 },
      { count: 1, keys: 0, own: 300 },
      { count: LANES + 3, keys: 288, own: 0 },
      { count: 3, keys: 256, own: 270 },
    ]
    const pageSize = 16
    const pagesOf = (own: number): number => Math.floor(own / pageSize) + 1
    const pageCount = texts.reduce((sum, { count, keys, own }) => sum + keys / pageSize + count * pagesOf(own + count), 0)
    const free = bench.random.shuffle(Array.from({ length: pageCount }, (_, page) => page))
    const layout = { pages: pageCount, pageSize, kvHeads: shape.kvHeads, headDim: shape.headDim }
    const [pages, info]: number[][] = [[], []]
    const beginnings: SharedBeginning[] = []
    for (const { count, keys, own } of texts) {
      const common = free.splice(0, keys / pageSize)
      const [table, first] = [pages.length, info.length / 4]
      for (let i = 0; i < count; i++) {
        info.push(pages.length, 0, keys, keys + own + i)
        pages.push(...common, ...free.splice(0, pagesOf(own + i)))
      }
      // In another order than the batch's.
      if (keys > 0) beginnings.push({ table, keys, rows: Array.from({ length: count }, (_, i) => first + count - 1 - i) })
    }
    const rows = info.length / 4
    const width = shape.heads * shape.headDim
    await bench.run(`shared ${JSON.stringify(shape)}`, {}, async () => {
      const [k, v] = [0, 1].map(() => upTexture(layout, bench.normals(sizeOf(layout))))
      const bound = { q: bench.up(bench.normals(rows * width)), k, v, info: bench.up(Uint32Array.from(info)) }
      const sharing = { lanes: LANES, group: shape.heads / shape.kvHeads }
      const shared = { blocks: bench.up(blocksOf(beginnings, rows, sharing)), count: mostBlocks(rows, sharing) }
      const table = bench.up(Uint32Array.from(pages))
      const paged = { pages: table, size: pageSize, f16: false, prompts: false, longest: 600 }
      const [alone, together] = [undefined, shared].map((those) => {
        const out = { o: bench.out(rows * width), lse: bench.out(rows * shape.heads) }
        attention(gpu, { ...bound, ...out }, rows, shape, { paged: { ...paged, shared: those } })
        return out
      })
      sameBits('o', await bench.down(together.o, rows * width), await bench.down(alone.o, rows * width))
      sameBits('lse', await bench.down(together.lse, rows * shape.heads), await bench.down(alone.lse, rows * shape.heads))
      for (const texture of [k, v]) texture.release()
    })
  })
})
