/** Projections of one input in one dispatch: the bits of a matmul for each, and of SwiGLU's gate after two. */
import { describe, expect, test } from 'vitest'
import { allocateTogether, allocateWeight, releaseWeight, weightView, writeWeight } from '../../src/kernels/common/weight.ts'
import type { Weight } from '../../src/kernels/common/weight.ts'
import { useMatrixUnits } from '../../src/kernels/common/matrix-units.ts'
import { siluGate } from '../../src/kernels/elementwise/elementwise.ts'
import { downRanges, downStride, groupDown, takesDown } from '../../src/kernels/matmul/group-tile.ts'
import { groupTier, linearGated, linearGroup, normRows, takesNorm, takesRotary } from '../../src/kernels/matmul/group.ts'
import type { GroupMember, GroupRotary, GroupTier, InputNorm } from '../../src/kernels/matmul/group.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { rmsNorm } from '../../src/kernels/norm/norm.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { roundWeight } from '../../src/kernels/optimizer/optimizer.ts'
import { candidatesOf, setTiles, tileCandidates, type Tiles } from '../../src/kernels/matmul/tiles.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { rope, ropeIntoCache } from '../../src/kernels/rope/rope.ts'
import { stackedDown } from '../../src/kernels/lora/lora.ts'
import { bf16Bits, isRun, modes, openBench, sameBits, toBf16 } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const cpu = test.skipIf(!bench.cpu)

interface Case {
  rows: number
  k: number
  widths: number[]
  bf16?: boolean
  rank?: number
  bias?: boolean
  /** Default: two of them are. */
  gated?: boolean
}

/** The same values alone, each in a storage of its own, and together. */
function weightsOf({ k, widths, bf16 = true }: Case): { alone: Weight[]; together: Weight[]; release: () => void } {
  const values = widths.map((n) => bench.normals(n * k, k ** -0.5))
  const data = values.map((v) => (bf16 ? bf16Bits(v.map(toBf16)) : v))
  const alone = widths.map((n) => allocateWeight(gpu, 'alone', n, k, bf16))
  const { weights: together, owned } = allocateTogether(
    gpu,
    widths.map((rows, i) => ({ label: `${i}`, rows })),
    k,
    bf16,
  )
  data.forEach((d, i) => [alone[i], together[i]].forEach((weight) => writeWeight(gpu, weight, d)))
  return { alone, together, release: () => [...alone, ...owned].forEach(releaseWeight) }
}

/** Vectors or matrices in one buffer, apart and not in order, where each can be bound. */
function inBank(sizes: number[]) {
  const step = Math.ceil(Math.max(...sizes) / 64) * 64
  const bank = bench.up(bench.normals(2 * step * sizes.length))
  return sizes.map((size, i) => ({ buffer: bank, offset: (2 * (sizes.length - i) - 1) * step * 4, bytes: size * 4 }))
}

/** Products of random matrices: in buffers of their own for CPU drivers, else in one. */
function products(rows: number, rank: number, count: number) {
  if (cpuLanes(gpu).LANES > 0) return Array.from({ length: count }, () => bench.up(bench.normals(rows * rank)))
  return downRanges(bench.up(bench.normals(count * downStride(rows, rank))), rows, rank, count)
}
async function check(c: Case, tier = 'cpu'): Promise<void> {
  const { rows, k, widths, rank = 0 } = c
  const { alone, together, release } = weightsOf(c)
  const x = bench.up(bench.normals(rows * k))
  const biases = c.bias ? inBank(widths) : []
  const bs = rank ? inBank(widths.map((n) => n * rank)) : []
  const xa = rank ? products(rows, rank, widths.length) : []
  const members = together.map((weight, i): GroupMember => ({ weight, bias: biases[i], b: bs[i] }))
  const gated = c.gated ?? widths.length === 2
  expect(groupTier(gpu, members, gated)).toBe(tier)
  const norm = takesNorm(gpu, groupTier(gpu, members, gated)!, members, rows, { gated }) ? gainOf(k) : undefined
  const input = norm ? normed(x, rows, k, norm) : x
  const want = widths.map((n) => bench.out(rows * n))
  alone.forEach((weight, i) => {
    const lora = rank ? { x: xa[i], matrix: bs[i], rank } : undefined
    linear(gpu, input, rows, weight, want[i], { bias: biases[i], lora })
  })
  const lora = rank ? { xa, rank } : undefined
  if (!gated) {
    const ys = widths.map((n) => bench.out(rows * n))
    linearGroup(gpu, x, rows, members, ys, lora, { norm })
    for (const [i, y] of ys.entries()) {
      sameBits(`projection ${i}`, await bench.down(y, rows * widths[i]), await bench.down(want[i], rows * widths[i]))
    }
  } else {
    const count = rows * widths[0]
    const [product, y] = [bench.out(count), bench.out(count)]
    for (const gate of ['silu', 'gelu'] as const) {
      siluGate(gpu, want[0], want[1], product, count, 1, gate)
      linearGated(gpu, x, rows, members, y, lora, { norm, gate })
      sameBits(gate, await bench.down(y, count), await bench.down(product, count))
      if (tier !== 'cpu') continue
      const kept = [bench.out(count), bench.out(count)]
      linearGated(gpu, x, rows, members, y, lora, { norm, gate, kept })
      sameBits(`${gate}, the rest kept`, await bench.down(y, count), await bench.down(product, count))
      for (const i of [0, 1]) sameBits(`kept ${i}`, await bench.down(kept[i], count), await bench.down(want[i], count))
    }
  }
  release()
}

const gainOf = (k: number) => ({ gain: bench.up(bench.normals(k)), eps: 1e-6 })
function normed(x: GpuBuffer, rows: number, k: number, { gain, eps }: InputNorm): GpuBuffer {
  const y = bench.out(rows * k)
  rmsNorm(gpu, x, gain, y, bench.out(rows), rows, k, eps)
  return y
}

const cases: Case[] = [1, 2, 3, 20, 33].flatMap((rows, i) => [
  { rows, k: 128, widths: [96, 48, 48], rank: 8 + 8 * (i % 2), bias: i % 2 === 0 },
  { rows, k: 72, widths: [133, 20, 7], bf16: i % 2 === 0, bias: true },
  { rows, k: 128, widths: [200, 200], rank: 8, bias: i % 2 === 1 },
  { rows, k: 40, widths: [13, 13], bf16: i % 2 === 0 },
])
cases.push({ rows: 4, k: 576, widths: [576, 192, 192], rank: 8 }, { rows: 4, k: 576, widths: [1536, 1536], rank: 8 })
// Together no wider than a lane's column each.
cases.push({ rows: 5, k: 40, widths: [4, 4], rank: 8 }, { rows: 1, k: 40, widths: [1, 1] }, { rows: 3, k: 40, widths: [2, 1, 1] })

cpu('each of a group has the bits of its own matmul', async () => {
  for (const c of cases) await bench.run(JSON.stringify(c), {}, () => check(c))
})

cpu('with any tile, in folded textures, and with more rows than go through a texture at once', async () => {
  const some: Case[] = [
    { rows: 67, k: 128, widths: [133, 48, 40], rank: 8 },
    { rows: 67, k: 128, widths: [133, 133], rank: 8 },
  ]
  for (const c of some) {
    for (const tile of candidatesOf(gpu, 'ntCpu').filter(({ rows, columns }) => rows !== 16 || columns !== 48)) {
      setTiles(gpu, { ntCpu: tile })
      await bench.run(`${tile.rows} x ${tile.columns} ${JSON.stringify(c)}`, {}, () => check(c))
    }
    setTiles(gpu, {})
    const facts = { limits: { ...gpu.facts.limits, maxTexture: 80 } }
    await bench.run(`folded ${JSON.stringify(c)}`, facts, () => check({ ...c, rows: 97 }))
  }
})

cpu('a member is refreshed from its master without touching its neighbours', async () => {
  await bench.run('refreshed', {}, async () => {
    const c: Case = { rows: 9, k: 64, widths: [24, 40, 16] }
    const { alone, together, release } = weightsOf(c)
    const master = bench.up(bench.normals(40 * 64))
    for (const weights of [alone, together]) roundWeight(gpu, master, weights[1], 0, 40)
    const x = bench.up(bench.normals(9 * 64))
    for (const [i, n] of c.widths.entries()) {
      const [a, b] = [bench.out(9 * n), bench.out(9 * n)]
      linear(gpu, x, 9, alone[i], a)
      linear(gpu, x, 9, together[i], b)
      sameBits(`${i}`, await bench.down(b, 9 * n), await bench.down(a, 9 * n))
    }
    release()
  })
})

/** Each takes seconds to compile on a software adapter, so these are few: with and without everything, one tile and another. */
const onGpus: Case[] = [
  { rows: 1, k: 128, widths: [96, 48, 48], rank: 8, bias: true },
  { rows: 20, k: 136, widths: [133, 133], rank: 16 },
  { rows: 67, k: 72, widths: [133, 20, 200], bf16: false },
  { rows: 131, k: 40, widths: [140, 140], rank: 8, bias: true },
]

/** With RMSNorm of the input where a group takes it; its lanes are another adapter's in each mode. */
describe.each(modes.slice(1).filter(isRun))('$name', ({ facts, needs }) => {
  const some = facts === modes[1].facts ? onGpus : onGpus.slice(needs ? 1 : 0, needs ? 2 : 1)
  test.skipIf(needs === 'cpu' && !bench.cpu)(
    'each of a group has the bits of its own matmul, its input normalised before',
    async () => {
      for (const c of some) {
        setTiles(gpu, { tile: { rows: 128, columns: c.rows > 100 ? 128 : 64 } }, { always: c.rows > 32 })
        await bench.run(JSON.stringify(c), facts, () => check(c, 'tile'))
      }
      setTiles(gpu, {})
    },
  )
})

test.runIf(isRun(modes[1]))(
  "LoRA's first products of a group have the bits of a matmul for each, also of rows with different adapters",
  async () => {
    // Of a thin kernel with few rows and with many, also where it adds up over the lanes of subgroups; and of the register tile.
    for (const [facts, rows, k, count] of [
      [modes[1].facts, 7, 72, 3],
      [modes[1].facts, 150, 516, 2],
      [{ software: false }, 150, 72, 3],
      [modes[1].facts, 7, 70, 3],
    ] as const)
      await bench.run(`down ${rows} ${k}`, facts, () => checkDown(rows, k, { own: 16, width: 8, named: 3, count }))
  },
)

async function checkDown(rows: number, k: number, c: { own: number; width: number; named: number; count: number }) {
  const { own, width, named, count } = c
  const rank = own + width * named
  const as = inBank(Array.from({ length: count }, () => rank * k))
  expect(takesDown(gpu, k, as)).toBe(true)
  const parts = as.map((a, i) => ({ a, scale: 1.5 - i }))
  const x = bench.up(bench.normals(rows * k))
  const compare = async (stacked: Parameters<typeof stackedDown>[6] | undefined) => {
    const xa = bench.out(count * downStride(rows, rank))
    gpu.write(xa, new Float32Array(count * downStride(rows, rank)))
    groupDown(gpu, x, rows, { k, rank, parts }, xa, { stacked })
    const got = await bench.down(xa, count * downStride(rows, rank))
    const outs = parts.map(({ a, scale }) => ({ a, scale, out: bench.out(rows * rank) }))
    if (stacked) stackedDown(gpu, x, rows, k, rank, outs, stacked)
    else for (const { a, scale, out } of outs) linear(gpu, x, rows, weightView('A', a, rank, k), out, { alpha: scale })
    for (const [i, { offset }] of downRanges(xa, rows, rank, count).entries()) {
      const own = got.slice(offset / 4, offset / 4 + rows * rank)
      sameBits(`${i}`, own, await bench.down(outs[i].out, rows * rank))
    }
  }
  await compare(undefined)
  const places = bench.up(Uint32Array.from({ length: rows }, () => bench.random.int(2 + named)))
  const [scales] = inBank([count * (2 + named)])
  await compare({ own, width, places, scales, perProjection: 2 + named })
}

interface RotaryCase extends Case {
  heads: number
  kvHeads: number
  headDim: number
}
const rotaryCases: RotaryCase[] = [
  { heads: 9, kvHeads: 3, headDim: 16, rows: 1, rank: 8 },
  { heads: 4, kvHeads: 2, headDim: 32, rows: 7, bf16: false },
  { heads: 5, kvHeads: 1, headDim: 48, rows: 36, rank: 16, bias: true },
].map((c) => ({ ...c, k: 72, widths: [c.heads, c.kvHeads, c.kvHeads].map((n) => n * c.headDim) }))

/** q and k turned by the group's kernel, and put into a cache or not, and by the kernels one after the other. */
async function checkRotary(c: RotaryCase, tier: GroupTier, cached: boolean): Promise<void> {
  const { rows, k, widths, rank = 0, headDim } = c
  const { together, release } = weightsOf(c)
  const x = bench.up(bench.normals(rows * k))
  const biases = c.bias ? inBank(widths) : []
  const bs = rank ? inBank(widths.map((n) => n * rank)) : []
  const lora = rank ? { xa: products(rows, rank, widths.length), rank } : undefined
  const members = together.map((weight, i): GroupMember => ({ weight, bias: biases[i], b: bs[i] }))
  expect([groupTier(gpu, members, members.length === 2), takesRotary(gpu, tier, members, headDim)]).toEqual([tier, true])
  const norm = takesNorm(gpu, tier, members, rows, { rotary: true }) ? gainOf(k) : undefined
  const room = cached ? rows + 5 : rows
  const to = bench.random.shuffle(Array.from({ length: room }, (_, i) => i))
  const info = bench.ids(4 * rows, 40)
  const slots = Uint32Array.from({ length: 2 * rows }, (_, i) => (i % 2 ? info[2 * i + 1] : to[i / 2]))
  const [places, table] = [bench.up(cached ? slots : info), bench.up(bench.normals(40 * headDim))]
  const results = [true, false].map((fused) => {
    const [q, ...ends] = [rows, room, room].map((n, i) => bench.out(n * widths[i]))
    for (const [i, end] of ends.entries()) gpu.write(end, new Float32Array(room * widths[1 + i]))
    const [keys, values] = fused || !cached ? ends : [1, 2].map((i) => bench.out(rows * widths[i]))
    const rotary: GroupRotary | undefined = fused ? { places, perRow: cached ? 1 : 2, table, headDim } : undefined
    linearGroup(gpu, x, rows, members, [q, keys, values], lora, { norm, rotary })
    if (!fused && cached) {
      ropeIntoCache(gpu, { q, k: keys, v: values, slots: places, table, kCache: ends[0], vCache: ends[1] }, rows, c)
    } else if (!fused) {
      rope(gpu, q, places, table, rows, c.heads, headDim)
      rope(gpu, keys, places, table, rows, c.kvHeads, headDim)
    }
    return [q, ...ends]
  })
  for (const [i, n] of [rows, room, room].entries()) {
    const [a, b] = await Promise.all(results.map((buffers) => bench.down(buffers[i], n * widths[i])))
    sameBits(['q', 'keys', 'values'][i], a, b)
  }
  release()
}

describe.each(modes.slice(0, 2).filter(isRun))('RoPE of q and k, $name', ({ facts }) => {
  const tier = facts === modes[0].facts ? 'cpu' : 'tile'
  // The register tile takes its norm along.
  const some = tier === 'cpu' ? rotaryCases : [{ ...rotaryCases[2], rows: 20 }]
  test.skipIf(tier === 'cpu' && !bench.cpu)('has the bits of the kernels one after the other', async () => {
    for (const c of some) await bench.run(JSON.stringify(c), facts, () => checkRotary(c, tier, true))
    await bench.run('own rows', facts, () => checkRotary(some[0], tier, false))
  })
})

test('RoPE goes along where heads are whole vectors or fragments, and an adapter binds as much', async () => {
  await bench.run('rotary', {}, async () => {
    const { together, release } = weightsOf({ rows: 1, k: 64, widths: [96, 48, 48] })
    const plain = together.map((weight): GroupMember => ({ weight }))
    const [bs, biases] = [inBank([768, 384, 384]), inBank([96, 48, 48])]
    const withBias = plain.map((member, i) => ({ ...member, bias: biases[i] }))
    const most = (members: GroupMember[], maxStorageBuffers: number) => {
      Object.assign(gpu, { facts: { ...gpu.facts, limits: { ...gpu.facts.limits, maxStorageBuffers } } })
      return takesRotary(gpu, 'tile', members, 24)
    }
    expect([most(plain, 7), most(plain, 6), most(withBias, 8), most(withBias, 7)]).toEqual([true, false, true, false])
    expect(
      [8, 9, 10].map((n) =>
        most(
          withBias.map((member, i) => ({ ...member, b: bs[i] })),
          n,
        ),
      ),
    ).toEqual([false, false, true])
    expect([48, 24, 16, 32].map((headDim) => takesRotary(gpu, 'cpu', plain, headDim))).toEqual([true, false, true, false])
    release()
  })
})

const none = gpu.facts.matrixUnits.length === 0 ? ' (skipped: this adapter shows no matrix units)' : ''
test.skipIf(none)(`matrix units: each of a group has the bits of its own matmul${none}`, async () => {
  const some: (Case | RotaryCase)[] = [
    onGpus[0],
    { ...rotaryCases[0], bias: true },
    { rows: 20, k: 136, widths: [132, 132], rank: 16, bias: true },
    { rows: 33, k: 72, widths: [68, 20], gated: false },
    { rows: 70, k: 40, widths: [68, 68] },
  ]
  for (const c of some) {
    const deep = tileCandidates.units.find((tile) => tile.depth)!
    const narrow = tileCandidates.fewUnits.find((tile) => tile.columns < 32)!
    const tiles: Partial<Tiles>[] = [{}, c.rows > 32 ? { units: deep } : { fewUnits: narrow }]
    for (const own of tiles) {
      await bench.run(`units ${JSON.stringify(own)} ${JSON.stringify(c)}`, { software: false }, async () => {
        setTiles(gpu, { units: tileCandidates.units[0], ...own })
        useMatrixUnits(gpu)
        try {
          if ('headDim' in c) await checkRotary(c, 'units', true)
          else await check(c, 'units')
        } finally {
          useMatrixUnits(gpu, false)
          setTiles(gpu, {})
        }
      })
    }
  }
})

test('RMSNorm goes along where rows are few, a tier of GPUs takes them and the adapter binds its gain too', async () => {
  await bench.run('norm', { software: false }, async () => {
    const c: Case = { rows: 1, k: 64, widths: [8, 16, 16] }
    const { together, release } = weightsOf(c)
    const takes = (members: GroupMember[], rows: number, most = 8) => {
      Object.assign(gpu, { facts: { ...gpu.facts, limits: { ...gpu.facts.limits, maxStorageBuffers: most } } })
      return takesNorm(gpu, 'tile', members, rows)
    }
    const plain = together.map((weight): GroupMember => ({ weight }))
    const [bs, biases] = [inBank([64, 128, 128]), inBank(c.widths)]
    const whole = plain.map((member, i) => ({ ...member, b: bs[i], bias: biases[i] }))
    expect([takes(plain, normRows), takes(plain, normRows + 1), takes(whole, 1), takes(whole, 1, 9)]).toEqual([
      true,
      false,
      false,
      true,
    ])
    expect(takes(whole.slice(1), 1)).toBe(true)
    expect(takesNorm(gpu, 'cpu', plain, 1)).toBe(false)
    release()
  })
})

test('weights that lie apart, and biases or B that do, are no group', async () => {
  await bench.run('apart', {}, async () => {
    const { alone, together, release } = weightsOf({ rows: 1, k: 64, widths: [8, 16, 16] })
    const tier = (weights: Weight[], more: () => Partial<GroupMember> = () => ({})) => {
      const members = weights.map((weight) => ({ weight, ...more() }))
      return groupTier(gpu, members, false)
    }
    expect(tier(alone)).toBeUndefined()
    expect(tier(together)).toBeDefined()
    expect(tier(together, () => ({ bias: bench.out(16) }))).toBeUndefined()
    expect(tier(together, () => ({ b: { buffer: bench.out(128), offset: 0, bytes: 512 } }))).toBeUndefined()
    release()
  })
})
