import { describe, expect, test } from 'vitest'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { attention, attentionBackward, decodeSplits, type HeadShape } from '../../src/kernels/attention/attention.ts'
import { tileOf } from '../../src/kernels/attention/tile.ts'
import { dot, groups, pack, reference, small, windowed, type Group } from './attention-cases.ts'
import { bounds, isRun, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

/** Random inputs, on the host too, and room for what both passes give. */
function tensorsOf(layout: ReturnType<typeof pack>, s: HeadShape, scaleOfQ = 1) {
  const { rows } = layout
  const [nq, nk] = [rows * s.heads * s.headDim, rows * s.kvHeads * s.headDim]
  const [q, k, v, dO] = [bench.normals(nq, scaleOfQ), bench.normals(nk), bench.normals(nk), bench.normals(nq)]
  const t = {
    q: bench.up(q),
    k: bench.up(k),
    v: bench.up(v),
    dO: bench.up(dO),
    info: bench.up(layout.info),
    keyEnd: bench.up(layout.keyEnd),
    o: bench.out(nq),
    lse: bench.out(rows * s.heads),
    soft: bench.out(rows * s.heads * 2),
    dq: bench.out(nq),
    dk: bench.out(nk),
    dv: bench.out(nk),
  }
  return { t, nq, nk, q, k, v, dO }
}

/** Whether each of these gives the same bits forward and backward, of the same inputs. */
async function sameInBothPasses(
  name: string,
  groups: Group[],
  ways: { facts: Partial<GpuFacts>; s: HeadShape }[],
): Promise<void> {
  const found: Record<string, Float32Array>[] = []
  for (const { facts, s } of ways) {
    await bench.run(name, facts, async () => {
      const layout = pack(groups)
      const { t, nq, nk } = tensorsOf(layout, s)
      attention(gpu, t, layout.rows, s, { neighbours: true })
      attentionBackward(gpu, t, layout.rows, s)
      const [o, dq] = [await bench.down(t.o, nq), await bench.down(t.dq, nq)]
      found.push({ o, dq, dk: await bench.down(t.dk, nk), dv: await bench.down(t.dv, nk) })
    })
  }
  for (const out of found.slice(1)) for (const [of, bits] of Object.entries(out)) sameBits(of, bits, found[0][of])
}

/**
 * @param of.alone whether this adapter has the lanes that the mode's kernels of a row at a time count on
 * @param of.backward whether the gradients are compared, too
 */
async function compareWithReference(groups: Group[], s: HeadShape, { alone = true, backward = true } = {}): Promise<void> {
  const layout = pack(groups)
  const { rows } = layout
  // Scores spread over several units, so that a wrong softmax shows.
  const { t, nq, q, k, v, dO } = tensorsOf(layout, s, 2)
  // As training does, where neighbouring rows go together, and row by row, as decode does.
  attention(gpu, t, rows, s, { neighbours: true })
  if (alone) {
    const [o, lse] = [bench.out(nq), bench.out(rows * s.heads)]
    attention(gpu, { ...t, o, lse }, rows, s)
    sameBits('o of rows together and alone', await bench.down(t.o, nq), await bench.down(o, nq))
    sameBits('lse of rows together and alone', await bench.down(t.lse, rows * s.heads), await bench.down(lse, rows * s.heads))
  }
  const want = reference(layout, s, q, k, v, dO)
  const name = JSON.stringify(s)
  await bench.check(`o ${name}`, t.o, want.o, bounds.softmax)
  await bench.check(`lse ${name}`, t.lse, want.lse, bounds.sum)
  if (!backward) return
  attentionBackward(gpu, t, rows, s)
  await bench.check(`dv ${name}`, t.dv, want.dv, bounds.softmax)
  await bench.check(`dq ${name}`, t.dq, want.dq, bounds.softmax)
  await bench.check(`dk ${name}`, t.dk, want.dk, bounds.softmax)
  await bench.down(t.soft, rows * s.heads * 2)
}

/** Adapters with lanes of both kinds; an odd number of heads and of rows in a tile; less workgroup memory, and a width that its vectors do not divide. */
const [, memoryLanes, subgroupLanes] = modes
const small16 = { ...memoryLanes, facts: { ...memoryLanes.facts, limits: { ...gpu.facts.limits, maxWorkgroupMemory: 16_384 } } }
const lanes64 = { ...memoryLanes, name: 'register tile, 64 lanes', facts: { ...memoryLanes.facts, subgroupSize: 64 } }
const own = gpu.facts.subgroupSize
const gpuCases = [
  { ...memoryLanes, s: { heads: 3, kvHeads: 1, headDim: 6 }, tiles: undefined },
  { ...memoryLanes, s: { heads: 4, kvHeads: 2, headDim: 64 }, tiles: 64 },
  { ...subgroupLanes, s: { heads: 6, kvHeads: 2, headDim: 24 }, tiles: 64 },
  { ...memoryLanes, s: { heads: 7, kvHeads: 1, headDim: 128 }, tiles: 64 },
  { ...memoryLanes, s: { heads: 1, kvHeads: 1, headDim: 256 }, tiles: 64 },
  { ...small16, s: { heads: 2, kvHeads: 2, headDim: 20 }, tiles: 32 },
  { ...lanes64, s: { heads: 4, kvHeads: 2, headDim: 32 }, tiles: 64 },
].map((c) => ({ ...c, title: `${JSON.stringify(c.s)} in tiles of ${c.tiles ?? 'one row'}` }))

describe('attention against float64', () => {
  test.each([
    { heads: 3, kvHeads: 3, headDim: 6 },
    { heads: 4, kvHeads: 2, headDim: 16 },
    { heads: 5, kvHeads: 1, headDim: 20 },
    { heads: 6, kvHeads: 1, headDim: 24 },
    { heads: 9, kvHeads: 3, headDim: 64 },
  ])('$heads heads, $kvHeads kv heads, width $headDim', async (s) => {
    await bench.run(JSON.stringify(s), {}, () => compareWithReference(groups, s))
  })
  test.each([
    { heads: 2, kvHeads: 1, headDim: 80 },
    { heads: 2, kvHeads: 1, headDim: 128 },
    { heads: 1, kvHeads: 1, headDim: 256 },
  ])('wide heads: $headDim', async (s) => {
    await bench.run(JSON.stringify(s), {}, () => compareWithReference(small, s))
  })
  // GPUs: many neighbouring rows go by tiles (tile_forward.wgsl), heads of other widths row by row.
  test.each(gpuCases.filter(isRun))('$name, $title', async ({ facts, s, tiles, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    await bench.run(JSON.stringify(s), facts, async () => {
      expect(tileOf(gpu, 'forward', s)?.RT).toBe(tiles)
      const alone = (facts.subgroupSize ?? own) === own || facts.subgroupSize === 0
      // Backward of the widest heads takes this adapter half a minute to compile, and is as that of others.
      await compareWithReference(groups, s, { alone, backward: s.headDim < 256 })
    })
  })
  const windows = [
    { ...modes[0], s: { heads: 4, kvHeads: 2, headDim: 16, window: 12, scale: 0.2 } },
    { ...modes[0], s: { heads: 3, kvHeads: 1, headDim: 6, window: 1 } },
    { ...modes[0], s: { heads: 2, kvHeads: 2, headDim: 64, window: 33 } },
    { ...modes[0], s: { heads: 6, kvHeads: 2, headDim: 32, window: 9, scale: 0.2 } },
    { ...memoryLanes, s: { heads: 4, kvHeads: 2, headDim: 16, window: 12 } },
    { ...subgroupLanes, s: { heads: 3, kvHeads: 1, headDim: 24, window: 33, scale: 0.2 } },
    { ...memoryLanes, s: { heads: 3, kvHeads: 1, headDim: 6, window: 5 } },
    { ...modes[3], s: { heads: 4, kvHeads: 2, headDim: 16, window: 9 } },
  ].filter(isRun)
  test.each(windows)('a window: $name, $s', async ({ facts, s, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    await bench.run(JSON.stringify(s), facts, () => compareWithReference(windowed, s))
  })
  test('a window that no sequence passes gives the bits of none', async () => {
    for (const { facts } of [modes[0], memoryLanes].filter(isRun)) {
      const ways = [undefined, 90].map((window) => ({ facts, s: { heads: 4, kvHeads: 2, headDim: 16, window } }))
      await sameInBothPasses('wide window', windowed, ways)
    }
  })
  // What a workgroup takes together follows a core's first cache (row-lanes.ts).
  test.each([64, 128])('first caches of any size give the same bits, heads of %i', async (headDim) => {
    const s = { heads: 4, kvHeads: 2, headDim }
    const ways = [2 ** 14, 2 ** 15, 2 ** 18].map((firstCache) => ({ facts: { firstCache, broadcasts: false }, s }))
    await sameInBothPasses(`first caches ${headDim}`, small, ways)
  })
  test.each([
    { heads: 4, kvHeads: 2, headDim: 32, window: 33 },
    { heads: 6, kvHeads: 2, headDim: 64 },
    { heads: 2, kvHeads: 1, headDim: 128 },
    { heads: 1, kvHeads: 1, headDim: 256 },
  ])('operands on the stack change no bit: width $headDim', async (s) => {
    const ways = [false, true].map((broadcasts) => ({ facts: { broadcasts }, s }))
    await sameInBothPasses(`held ${s.headDim}`, s.headDim < 128 ? windowed : small, ways)
  })
  test.runIf(isRun(modes[3]))('software without subgroups', async () => {
    await bench.run('memory lanes', modes[3].facts, () => compareWithReference(groups, { heads: 4, kvHeads: 2, headDim: 16 }))
  })
  // Rows that see other keys go through a neighbour's with weights of 0, and 0 times what is not finite is not a number.
  const mixed = [
    ...[...modes, { ...modes[0], facts: { broadcasts: false } }].map((m) => ({ ...m, s: { heads: 4, kvHeads: 2, headDim: 32 } })),
    { ...modes[0], s: { heads: 3, kvHeads: 1, headDim: 24 } },
    { ...modes[0], s: { heads: 2, kvHeads: 1, headDim: 64, window: 9 } },
  ].filter(isRun)
  test.each(mixed)('what is not finite stays in its sequence: $name, $facts, $s', async ({ facts, s, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    await bench.run(`not finite ${JSON.stringify(s)}`, facts, async () => {
      const layout = pack([...[5, 6].map((prompt) => ({ prompt, rollouts: [] })), { prompt: 20, rollouts: [3, 4, 5] }])
      const { t, nq, k, v } = tensorsOf(layout, s)
      const width = nq / layout.rows
      const run = async () => {
        attention(gpu, t, layout.rows, s, { neighbours: true })
        return await bench.down(t.o, nq)
      }
      const clean = await run()
      // A whole sequence, and one of the rollouts of a prompt.
      const places = { 5: 11, 34: 38 }
      for (const [first, end] of Object.entries(places).map(([from, to]) => [Number(from), to])) {
        for (const [of, data] of Object.entries({ k, v })) {
          const at = [first + 2, first + 3].map((row) => (row * data.length) / layout.rows)
          gpu.write(t[of as 'k' | 'v'], data.slice().fill(of === 'k' ? Infinity : NaN, ...at))
          const got = await run()
          expect(got.slice(first * width, end * width).some(Number.isNaN)).toBe(true)
          sameBits(`before ${of}`, got.slice(0, first * width), clean.slice(0, first * width))
          sameBits(`behind ${of}`, got.slice(end * width), clean.slice(end * width))
          gpu.write(t[of as 'k' | 'v'], data)
        }
      }
    })
  })
  test('scores of hundreds neither overflow nor vanish', async () => {
    await bench.run('large scores', {}, async () => {
      const s = { heads: 4, kvHeads: 2, headDim: 16 }
      const layout = pack(small)
      const [q, k, v] = [
        bench.normals(layout.rows * 64, 100),
        bench.normals(layout.rows * 32, 10),
        bench.normals(layout.rows * 32),
      ]
      const t = {
        q: bench.up(q),
        k: bench.up(k),
        v: bench.up(v),
        info: bench.up(layout.info),
        o: bench.out(layout.rows * 64),
        lse: bench.out(layout.rows * 4),
      }
      attention(gpu, t, layout.rows, s)
      // exp of a difference of scores near 1000, which float32 holds to 6e-5
      await bench.check('o', t.o, reference(layout, s, q, k, v, q).o, 1e-3)
    })
  })
})

describe('batch invariance', () => {
  const narrow = { heads: 4, kvHeads: 2, headDim: 16 }
  // On a CPU driver the second shape's keys lie in textures, and rows in lanes.
  const cases = [
    { name: 'as this adapter', facts: {}, s: narrow },
    { name: 'as this adapter, in textures', facts: {}, s: { heads: 6, kvHeads: 2, headDim: 32 } },
    { name: modes[1].name, facts: modes[1].facts, s: narrow },
    ...(bench.cpu ? [{ name: modes[2].name, facts: modes[2].facts, s: narrow }] : []),
  ].filter(isRun)
  const [ofGpus, ofSubgroups] = [cases.slice(2, 3), cases.slice(3)]
  const widthsOf = ({ heads, kvHeads, headDim }: HeadShape): [number, number] => [heads * headDim, kvHeads * headDim]
  test.each(cases)('a shared prefix gives the bits of an unshared one, $name', async ({ facts, s }) => {
    const [hq, hk] = widthsOf(s)
    await bench.run('shared', facts, async () => {
      const [P, R] = [13, 10]
      const [q, k, v] = [bench.normals((P + 2 * R) * hq), bench.normals((P + 2 * R) * hk), bench.normals((P + 2 * R) * hk)]
      const rowsOf = (t: Float32Array, width: number, first: number): Float32Array =>
        Float32Array.of(...t.slice(0, P * width), ...t.slice(first * width, (first + R) * width))
      const run = async (groupsOf: Group[], tensors: Float32Array[]): Promise<[Float32Array, Float32Array]> => {
        const layout = pack(groupsOf)
        const [o, lse] = [bench.out(layout.rows * hq), bench.out(layout.rows * s.heads)]
        const [qb, kb, vb] = tensors.map((t) => bench.up(t))
        attention(gpu, { q: qb, k: kb, v: vb, info: bench.up(layout.info), o, lse }, layout.rows, s, { neighbours: true })
        return [await bench.down(o, layout.rows * hq), await bench.down(lse, layout.rows * s.heads)]
      }
      const [o, lse] = await run([{ prompt: P, rollouts: [R, R] }], [q, k, v])
      for (const first of [P, P + R]) {
        const [alone, aloneLse] = await run(
          [{ prompt: P + R, rollouts: [] }],
          [rowsOf(q, hq, first), rowsOf(k, hk, first), rowsOf(v, hk, first)],
        )
        sameBits('prompt', alone.slice(0, P * hq), o.slice(0, P * hq))
        sameBits('rollout', alone.slice(P * hq), o.slice(first * hq, (first + R) * hq))
        sameBits('lse', aloneLse.slice(P * s.heads), lse.slice(first * s.heads, (first + R) * s.heads))
      }
    })
  })
  // Of the kernels for GPUs two of the four: they take this adapter long to compile.
  const pagedCases = cases
    .filter(({ s }) => s === narrow)
    .flatMap((c) => [4, 16].flatMap((size) => [false, true].map((f16) => ({ ...c, size, f16 }))))
    .filter(({ facts, size, f16 }) => facts.software !== false || (size === 4) === f16)
    .flatMap((c) => [undefined, ...((c.size === 4) === c.f16 ? [13] : [])].map((window) => ({ ...c, window })))
  test.each(pagedCases)(
    'pages of $size anywhere in a cache give the bits of rows one after the other, f16 $f16, window $window, $name',
    async (c) => {
      const { facts, size, f16 } = c
      const s = { ...narrow, window: c.window }
      const [hq, hk] = widthsOf(s)
      await bench.run('paged', facts, async () => {
        // Two sequences: of one the last 11 rows are a prompt's, of the other the last row is decoded.
        const lengths = [30, 41]
        const sum = lengths[0] + lengths[1]
        const round = (t: Float32Array): Float32Array => (f16 ? Float32Array.from(new Float16Array(t)) : t)
        const q = bench.normals(sum * hq)
        const [k, v] = [round(bench.normals(sum * hk)), round(bench.normals(sum * hk))]
        const layout = pack(lengths.map((prompt) => ({ prompt, rollouts: [] })))
        const [o, lse] = [bench.out(sum * hq), bench.out(sum * 4)]
        attention(gpu, { q: bench.up(q), k: bench.up(k), v: bench.up(v), info: bench.up(layout.info), o, lse }, sum, s)
        const [all, allLse] = [await bench.down(o, sum * hq), await bench.down(lse, sum * 4)]
        // Every page in another place, among values of other requests.
        const places = Array.from({ length: 24 }, (_, i) => (i * 7 + 5) % 24)
        const counts = lengths.map((n) => Math.ceil(n / size))
        const pages = bench.up(Uint32Array.from([23, ...places.slice(0, counts[0] + counts[1])]))
        const begins = [1, 1 + counts[0]]
        const rowOf = (i: number, j: number): number => places[begins[i] - 1 + Math.floor(j / size)] * size + (j % size)
        const cache = [k, v].map((t) => {
          const room = round(bench.normals(24 * size * hk))
          for (const [i, length] of lengths.entries()) {
            for (let j = 0; j < length; j++) room.set(t.subarray((i * 30 + j) * hk, (i * 30 + j + 1) * hk), rowOf(i, j) * hk)
          }
          return bench.up(f16 ? new Uint32Array(new Float16Array(room).buffer) : room)
        })
        const taken = [70, ...Array.from({ length: 11 }, (_, n) => 19 + n)]
        const info = taken.flatMap((row) => (row < 30 ? [begins[0], 1, 0, row] : [begins[1], 0, 0, row - 30]))
        const t = {
          q: bench.up(Float32Array.from(taken.flatMap((row) => Array.from(q.subarray(row * hq, (row + 1) * hq))))),
          k: cache[0],
          v: cache[1],
          info: bench.up(Uint32Array.from(info)),
          o: bench.out(taken.length * hq),
          lse: bench.out(taken.length * 4),
        }
        attention(gpu, t, taken.length, s, { paged: { pages, size, f16, prompts: true, longest: 41 } })
        const [some, someLse] = [await bench.down(t.o, taken.length * hq), await bench.down(t.lse, taken.length * 4)]
        taken.forEach((row, i) => {
          sameBits(`row ${row}`, some.slice(i * hq, (i + 1) * hq), all.slice(row * hq, (row + 1) * hq))
          sameBits(`lse ${row}`, someLse.slice(i * 4, (i + 1) * 4), allLse.slice(row * 4, (row + 1) * 4))
        })
      })
    },
  )
  test.each(cases)('decode of one row over a cache gives the bits of the whole sequence, $name', async ({ facts, s }) => {
    const [hq, hk] = widthsOf(s)
    await bench.run('decode', facts, async () => {
      const rows = 41
      const [q, k, v] = [bench.normals(rows * hq), bench.normals(rows * hk), bench.normals(rows * hk)]
      const layout = pack([{ prompt: rows, rollouts: [] }])
      const [o, lse] = [bench.out(rows * hq), bench.out(rows * s.heads)]
      attention(gpu, { q: bench.up(q), k: bench.up(k), v: bench.up(v), info: bench.up(layout.info), o, lse }, rows, s, {
        neighbours: true,
      })
      const all = await bench.down(o, rows * hq)
      // The cache: keys lie elsewhere (prefix rows from 60 on, own rows from 3 on), among values of other requests.
      const [prefix, own, P] = [60, 3, 19]
      const cache = [k, v].map((t) => {
        const room = bench.normals(100 * hk)
        room.set(t.subarray(0, P * hk), prefix * hk)
        room.set(t.subarray(P * hk), own * hk)
        return bench.up(room)
      })
      for (const r of [0, 7, 18, 19, 23, 24, 40]) {
        const info = bench.up(Uint32Array.of(prefix, P, own, r))
        const [one, oneLse] = [bench.out(hq), bench.out(s.heads)]
        attention(gpu, { q: bench.up(q.slice(r * hq, (r + 1) * hq)), k: cache[0], v: cache[1], info, o: one, lse: oneLse }, 1, s)
        sameBits(`row ${r}`, await bench.down(one, hq), all.slice(r * hq, (r + 1) * hq))
      }
    })
  })
  const splitCases: ((typeof cases)[number] & { f16: boolean; headDim: number; lengths: number[]; window?: number })[] = [
    { ...cases[0], f16: false, headDim: 16, lengths: [1, 255, 256, 257, 700, 512, 513, 16] },
    { ...cases[0], f16: true, headDim: 24, lengths: [257, 300] },
    { ...cases[0], f16: false, headDim: 32, lengths: [1, 255, 256, 257, 700, 512, 513, 16] },
    { ...cases[0], f16: false, headDim: 64, lengths: [300, 257, 30], window: 270 },
    ...ofGpus.map((c) => ({ ...c, f16: false, headDim: 16, lengths: [257, 3] })),
    { ...cases[0], f16: false, headDim: 16, lengths: [1, 255, 256, 257, 700, 512, 513, 16], window: 300 },
    ...ofGpus.map((c) => ({ ...c, f16: false, headDim: 16, lengths: [600, 3], window: 70 })),
    ...ofSubgroups.map((c) => ({ ...c, f16: true, headDim: 40, lengths: [300, 3, 258] })),
  ]
  test.each(splitCases)(
    'splits of long texts in workgroups of their own give the bits of one that goes through all, f16 $f16, width $headDim, window $window, $name',
    async ({ facts, f16, headDim, lengths, window }) => {
      await bench.run('splits', facts, async () => {
        const shape = { heads: 6, kvHeads: 2, headDim, window }
        const [wide, narrow] = [6 * headDim, 2 * headDim]
        const size = 16
        const longest = Math.max(...lengths)
        const counts = lengths.map((n) => Math.ceil(n / size))
        const all = counts.reduce((a, b) => a + b, 0)
        const places = Array.from({ length: all }, (_, i) => (i * 5 + 3) % all)
        const begins = counts.map((_, i) => 1 + counts.slice(0, i).reduce((a, b) => a + b, 0))
        const round = (t: Float32Array): Float32Array => (f16 ? Float32Array.from(new Float16Array(t)) : t)
        const [q, k, v] = [
          bench.normals(lengths.length * wide, 2),
          round(bench.normals(all * size * narrow)),
          round(bench.normals(all * size * narrow)),
        ]
        const cached = (t: Float32Array) => bench.up(f16 ? new Uint32Array(new Float16Array(t).buffer) : t)
        const pages = bench.up(Uint32Array.from([0, ...places]))
        const info = bench.up(Uint32Array.from(lengths.flatMap((n, i) => [begins[i], 0, 0, n - 1])))
        const base = { q: bench.up(q), k: cached(k), v: cached(v), info }
        const rows = lengths.length
        const paged = { pages, size, f16, prompts: false, longest }
        const whole = { ...base, o: bench.out(rows * wide), lse: bench.out(rows * 6) }
        attention(gpu, whole, rows, shape, { paged: { ...paged, splits: false } })
        const splits = decodeSplits(gpu, rows, shape, { ...paged, splits: true })
        expect(splits).toBe(Math.ceil(longest / 256))
        const scratch = { parts: bench.out(rows * 6 * splits * headDim), stats: bench.out(rows * 6 * splits * 2) }
        const apart = { ...base, ...scratch, o: bench.out(rows * wide), lse: bench.out(rows * 6) }
        attention(gpu, apart, rows, shape, { paged: { ...paged, splits: true } })
        sameBits('o', await bench.down(apart.o, rows * wide), await bench.down(whole.o, rows * wide))
        sameBits('lse', await bench.down(apart.lse, rows * 6), await bench.down(whole.lse, rows * 6))
        for (const splitting of gpu.facts.f16 ? [false, true] : []) {
          const halves = { ...base, ...scratch, o: bench.out((rows * wide) / 2), lse: bench.out(rows * 6) }
          attention(gpu, halves, rows, shape, { paged: { ...paged, splits: splitting }, half: true })
          const values = new Float16Array((await bench.down(halves.o, (rows * wide) / 2)).buffer)
          sameBits('in f16', Float32Array.from(values), (await bench.down(whole.o, rows * wide)).map(Math.f16round))
        }
        // And what they give is right: one text, laid out in a row, in float64.
        const [i, n] = [lengths.indexOf(longest), longest]
        const own = (t: Float32Array) =>
          Float32Array.from(
            Array.from({ length: n }, (_, j) => {
              const row = places[begins[i] - 1 + Math.floor(j / size)] * size + (j % size)
              return Array.from(t.subarray(row * narrow, (row + 1) * narrow))
            }).flat(),
          )
        const query = q.subarray(i * wide, (i + 1) * wide)
        const want = lastRow(shape, query, own(k), own(v))
        const got = (await bench.down(apart.o, rows * wide)).subarray(i * wide, (i + 1) * wide)
        const off = Math.sqrt(got.reduce((sum, x, e) => sum + (x - want[e]) ** 2, 0) / want.reduce((sum, x) => sum + x * x, 0))
        expect(off).toBeLessThan(bounds.softmax)
        if (f16) return
        // The training forward has the same splits.
        const layout = pack([{ prompt: n, rollouts: [] }])
        const queries = bench.normals(n * wide, 2)
        queries.set(query, (n - 1) * wide)
        const trained = { o: bench.out(n * wide), lse: bench.out(n * 6) }
        const packed = { q: bench.up(queries), k: bench.up(own(k)), v: bench.up(own(v)), info: bench.up(layout.info), ...trained }
        attention(gpu, packed, n, shape, { neighbours: true })
        sameBits('trained', (await bench.down(trained.o, n * wide)).slice((n - 1) * wide), got)
      })
    },
  )
})

test('splits of long texts stay together where what they leave is more than the adapter binds', async () => {
  const limits = { ...gpu.facts.limits, maxBinding: 128 << 20 }
  await bench.run('splits that are bound', { software: false, limits }, async () => {
    const shape = { heads: 16, kvHeads: 2, headDim: 128 }
    const paged = { pages: bench.out(1), size: 16, f16: false, prompts: false, longest: 65_536 }
    expect([1, 64, 65].map((rows) => decodeSplits(gpu, rows, shape, paged))).toEqual([256, 256, 1])
  })
})

/** o of the last row of a text, in float64. @param q (heads, D) @param k,v (keys, kv heads, D) */
function lastRow(
  { heads: H, kvHeads: KV, headDim: D, window = Infinity }: HeadShape,
  q: Float32Array,
  k: Float32Array,
  v: Float32Array,
): Float64Array {
  const o = new Float64Array(H * D)
  const rows = k.length / (KV * D)
  for (let h = 0; h < H; h++) {
    const at = (row: number) => (row * KV + Math.floor(h / (H / KV))) * D
    const scores = Array.from({ length: rows }, (_, j) =>
      j + window < rows ? -Infinity : dot(q, h * D, k, at(j), D) / Math.sqrt(D),
    )
    const high = Math.max(...scores)
    const sum = scores.reduce((t, z) => t + Math.exp(z - high), 0)
    for (let j = 0; j < rows; j++) for (let i = 0; i < D; i++) o[h * D + i] += (Math.exp(scores[j] - high) / sum) * v[at(j) + i]
  }
  return o
}
