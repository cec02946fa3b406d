/** Projections of one input in one dispatch: the bits of a matmul for each, and of SwiGLU's gate after two. */
import { expect, test } from 'vitest'
import { allocateTogether, allocateWeight, releaseWeight, writeWeight, type Weight } from '../../src/kernels/common/weight.ts'
import { siluGate } from '../../src/kernels/elementwise/elementwise.ts'
import { linearGated, linearGroup, takesGroup, type GroupMember } from '../../src/kernels/matmul/group.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { roundWeight } from '../../src/kernels/optimizer/optimizer.ts'
import { setTiles, tileCandidates } from '../../src/kernels/matmul/tiles.ts'
import { bf16Bits, openBench, sameBits, toBf16 } from './harness.ts'

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

async function check(c: Case): Promise<void> {
  const { rows, k, widths, rank = 0 } = c
  const { alone, together, release } = weightsOf(c)
  const x = bench.up(bench.normals(rows * k))
  const biases = c.bias ? inBank(widths) : []
  const bs = rank ? inBank(widths.map((n) => n * rank)) : []
  const xa = rank ? widths.map(() => bench.up(bench.normals(rows * rank))) : []
  const members = together.map((weight, i): GroupMember => ({ weight, bias: biases[i], b: bs[i] }))
  expect(takesGroup(gpu, members)).toBe(true)
  const want = widths.map((n) => bench.out(rows * n))
  alone.forEach((weight, i) => {
    const lora = rank ? { x: xa[i], matrix: bs[i], rank } : undefined
    linear(gpu, x, rows, weight, want[i], { bias: biases[i], lora })
  })
  const lora = rank ? { xa, rank } : undefined
  if (widths.length === 3) {
    const ys = widths.map((n) => bench.out(rows * n))
    linearGroup(gpu, x, rows, members, ys, lora)
    for (const [i, y] of ys.entries()) {
      sameBits(`projection ${i}`, await bench.down(y, rows * widths[i]), await bench.down(want[i], rows * widths[i]))
    }
  } else {
    const count = rows * widths[0]
    const [product, y] = [bench.out(count), bench.out(count)]
    siluGate(gpu, want[0], want[1], product, count)
    linearGated(gpu, x, rows, members, y, lora)
    sameBits('gated', await bench.down(y, count), await bench.down(product, count))
  }
  release()
}

const cases: Case[] = [1, 2, 3, 20, 33].flatMap((rows, i) => [
  { rows, k: 128, widths: [96, 48, 48], rank: 8 + 8 * (i % 2), bias: i % 2 === 0 },
  { rows, k: 72, widths: [133, 20, 7], bf16: i % 2 === 0, bias: true },
  { rows, k: 128, widths: [200, 200], rank: 8, bias: i % 2 === 1 },
  { rows, k: 40, widths: [13, 13], bf16: i % 2 === 0 },
])
cases.push({ rows: 4, k: 576, widths: [576, 192, 192], rank: 8 }, { rows: 4, k: 576, widths: [1536, 1536], rank: 8 })

cpu('each of a group has the bits of its own matmul', async () => {
  for (const c of cases) await bench.run(JSON.stringify(c), {}, () => check(c))
})

cpu('with any tile, in folded textures, and with more rows than go through a texture at once', async () => {
  const some: Case[] = [
    { rows: 67, k: 128, widths: [133, 48, 40], rank: 8 },
    { rows: 67, k: 128, widths: [133, 133], rank: 8 },
  ]
  for (const c of some) {
    for (const tile of tileCandidates.ntCpu.filter(({ rows, columns }) => rows !== 16 || columns !== 48)) {
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

test('weights that lie apart, and biases or B that do, are no group', async () => {
  await bench.run('apart', {}, async () => {
    const { alone, together, release } = weightsOf({ rows: 1, k: 64, widths: [8, 16, 16] })
    expect(
      takesGroup(
        gpu,
        alone.map((weight) => ({ weight })),
      ),
    ).toBe(false)
    expect(
      takesGroup(
        gpu,
        together.map((weight) => ({ weight })),
      ),
    ).toBe(bench.cpu)
    expect(
      takesGroup(
        gpu,
        together.map((weight) => ({ weight, bias: bench.out(16) })),
      ),
    ).toBe(false)
    const b = () => ({ buffer: bench.out(128), offset: 0, bytes: 512 })
    expect(
      takesGroup(
        gpu,
        together.map((weight) => ({ weight, b: b() })),
      ),
    ).toBe(false)
    release()
  })
})
