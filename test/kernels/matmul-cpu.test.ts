import { describe, expect, test, vi } from 'vitest'
import { GpuMemoryError } from '../../src/gpu/errors.ts'
import type { GpuTexture } from '../../src/gpu/pool.ts'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { apartOf, cpuLanes } from '../../src/kernels/common/lanes.ts'
import { forwardTile } from '../../src/kernels/matmul/cpu.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../../src/kernels/matmul/matmul.ts'
import { candidatesOf, setTiles, tileCandidates, tilesOf, usualTiles, type TileName } from '../../src/kernels/matmul/tiles.ts'
import { add } from '../../src/kernels/elementwise/elementwise.ts'
import { withFacts } from '../facts.ts'
import { isRun, modes, openBench, sameBits } from './harness.ts'
import { casesOf, type Case } from './matmul-cases.ts'

const bench = await openBench()
const { gpu } = bench
const { forward, backwardInput, backwardWeight } = casesOf(bench)

/** Sizes whose operands a CPU driver has staged in textures. */
const staged: Case[] = [
  { rows: 5, n: 128, k: 128 },
  { rows: 12, n: 133, k: 64, rank: 8 },
  { rows: 20, n: 192, k: 128, bias: true, residual: true, alpha: 0.3 },
  { rows: 97, n: 256, k: 192, rank: 16, residual: true, alpha: 0.5 },
]

describe.each(modes.filter(isRun))('$name', ({ facts, needs }) => {
  const skip = needs === 'cpu' && !bench.cpu
  test.skipIf(skip)('operands in textures', async () => {
    for (const c of staged) {
      const name = JSON.stringify(c)
      await bench.run(`nt ${name}`, facts, () => forward(c))
      await bench.run(`nn ${name}`, facts, () => backwardInput({ ...c, accumulate: c.rows === 20 }))
      await bench.run(`tn ${name}`, facts, () => backwardWeight({ ...c, accumulate: c.rows === 20 }))
    }
  })
  test.skipIf(skip)('parts of wider operands', async () => {
    const slice = { row: 36, rows: 128 }
    await bench.run('nt slice', facts, () => forward({ rows: 9, n: 192, k: 128, slice, rank: 8, bias: true }))
    await bench.run('nn slice', facts, () => backwardInput({ rows: 9, n: 192, k: 128, slice }))
    for (const c of [
      { rows: 21, n: 128, k: 192, row: 3, dyStride: 256, dyColumn: 64 },
      { rows: 8, n: 132, k: 128, row: 1, dyStride: 192, dyColumn: 4 },
      { rows: 21, n: 134, k: 128, row: 2, dyStride: 192, dyColumn: 4 },
    ]) {
      await bench.run(`tn ${JSON.stringify(c)}`, facts, () => backwardWeight({ ...c, accumulate: true, alpha: -2 }))
    }
  })
})

type CpuFacts = Pick<GpuFacts, 'fused' | 'vectorRegisters' | 'broadcasts' | 'cpu'>

test.runIf(bench.cpu)(
  'for drivers that fuse multiply-adds, for AMD and for AVX-512: rows whose code stands apart, wide tiles and operands on the stack change no bit',
  async () => {
    const shapes = [
      [5, 128, 128],
      [16, 1152, 64],
      [20, 192, 576],
      [33, 200, 128],
      [64, 1088, 64],
    ]
    for (const [rows, n, k] of shapes) {
      await bench.run(`apart ${rows} ${n} ${k}`, {}, async () => {
        const { weight } = bench.weight(n, k, true)
        const [x, dy, xa, b] = [rows * k, rows * n, rows * 8, n * 8].map((length) => bench.up(bench.normals(length)))
        const products = async (facts: CpuFacts): Promise<Float32Array[]> => {
          const [y, dx] = [bench.out(rows * n), bench.out(rows * k)]
          await withFacts(gpu, facts, async () => {
            expect(apartOf(gpu, 4).GUARDED).toBe(Number(facts.fused))
            linear(gpu, x, rows, weight, y, { lora: { x: xa, matrix: b, rank: 8 } })
            linearBackwardInput(gpu, dy, rows, weight, dx)
          })
          return [await bench.down(y, rows * n), await bench.down(dx, rows * k)]
        }
        const usual = { fused: false, vectorRegisters: 16, broadcasts: false, cpu: 'other' } as const
        const together = await products(usual)
        for (const [cpu, facts] of Object.entries<CpuFacts>({
          '16 registers': { ...usual, fused: true },
          '32 registers': { ...usual, fused: true, vectorRegisters: 32, cpu: 'amd' },
          'AVX-512': { ...usual, vectorRegisters: 32, broadcasts: true },
          'Zen 4': { ...usual, vectorRegisters: 32, broadcasts: true, cpu: 'zen4' },
          'Zen 4, fused': { fused: true, vectorRegisters: 32, broadcasts: true, cpu: 'zen4' },
        })) {
          const apart = await products(facts)
          for (const [i, name] of ['y', 'dx'].entries()) sameBits(`${name}, ${cpu}`, apart[i], together[i])
        }
      })
      // A weight's gradient takes more rows a turn on some, which is another order of the sum.
      for (const cpu of ['other', 'amd', 'zen4'] as const) {
        for (const broadcasts of [false, true]) {
          await bench.run(
            `tn ${rows} ${n} ${k}, ${cpu}, ${broadcasts}`,
            { fused: true, vectorRegisters: 16, broadcasts, cpu },
            () => backwardWeight({ rows, n, k, accumulate: rows === 20 }),
          )
        }
      }
    }
  },
)

test.runIf(bench.cpu)('fewer rows take a texture that was made for more', async () => {
  await bench.run('nt 40', {}, () => forward({ rows: 40, n: 136, k: 448 }))
  const made = vi.spyOn(gpu.pool, 'staging')
  for (const rows of [40, 9, 33]) {
    await bench.run(`nt ${rows}`, {}, () => forward({ rows, n: 136, k: 448, residual: rows === 9 }))
  }
  expect(made).not.toHaveBeenCalled()
  made.mockRestore()
})

test.runIf(bench.cpu)('a buffer takes the room of textures that no plan has, and those are made again', async () => {
  await bench.run('room', {}, async () => {
    const [rows, n, k] = [40, 136, 832]
    const { weight } = bench.weight(n, k, true)
    const [x, y, again] = [bench.up(bench.normals(rows * k)), bench.out(rows * n), bench.out(rows * n)]
    const { pool } = gpu
    pool.trim()
    const before = { used: pool.bytesInUse, reserved: pool.bytesReserved }
    const made = vi.spyOn(pool, 'staging')
    linear(gpu, x, rows, weight, y)
    const want = await bench.down(y, rows * n)
    const [texture] = made.mock.results.map((result) => result.value as GpuTexture)
    expect(texture.bytes).toBe(64 * k * 4)
    expect(pool.bytesReserved - before.reserved).toBe(texture.bytes)
    const ask = (): void => {
      pool.limitBytes = pool.bytesReserved + 64
      try {
        pool.acquire(4096, 'more than is left', { exact: true }).release()
      } finally {
        pool.limitBytes = Infinity
      }
    }
    const [plan, other] = [0, 1].map(() => gpu.record(() => linear(gpu, x, rows, weight, again)))
    expect(made).toHaveBeenCalledTimes(1)
    // Once, however many plans have it.
    expect(pool.bytesInUse - before.used).toBe(texture.bytes)
    gpu.releasePlan(other)
    expect(pool.bytesInUse - before.used).toBe(texture.bytes)
    expect(ask).toThrow(GpuMemoryError)
    gpu.replay(plan)
    sameBits('a plan keeps what it has', await bench.down(again, rows * n), want)
    gpu.releasePlan(plan)
    expect(pool.bytesInUse).toBe(before.used)
    ask()
    // It is forgotten then, and not destroyed again.
    pool.trim()
    expect(texture.released).toBe(true)
    expect([pool.bytesInUse, pool.bytesReserved]).toEqual([before.used, before.reserved])
    linear(gpu, x, rows, weight, again)
    sameBits('made again', await bench.down(again, rows * n), want)
    expect(made).toHaveBeenCalledTimes(2)
    made.mockRestore()
  })
})

test.runIf(bench.cpu)('more rows than go through a texture at once', async () => {
  const facts = { limits: { ...gpu.facts.limits, maxTexture: 40 } }
  await bench.run('nt turns', facts, () => forward({ rows: 97, n: 136, k: 128, residual: true, rank: 8 }))
  await bench.run('nn turns', facts, () => backwardInput({ rows: 97, n: 128, k: 136, rank: 8 }))
  await bench.run('tn turns', facts, () => backwardWeight({ rows: 97, n: 128, k: 128, alpha: 0.5 }))
})

test.runIf(bench.cpu)('a gradient takes its operands by slices of their columns', async () => {
  // 1,024 rows of 1,024 columns go into a texture at once.
  for (const c of [
    { rows: 1030, n: 1092, k: 64 },
    { rows: 600, n: 64, k: 1092, alpha: 0.5 },
  ])
    await bench.run(`tn ${JSON.stringify(c)}`, {}, () => backwardWeight({ ...c, accumulate: c.n > c.k }))
})

test.runIf(bench.cpu)('dX reads dy where dW has put it, with the same bits, and not once dy has changed', async () => {
  await bench.run('panels', {}, async () => {
    const [rows, n, k] = [37, 192, 128]
    const { weight } = bench.weight(n, k, true)
    const [dyData, later] = [bench.normals(rows * n), bench.normals(rows * n)]
    const [dy, x, dw] = [bench.up(dyData), bench.up(bench.normals(rows * k)), bench.out(n * k)]
    const dxOf = async (): Promise<Float32Array> => {
      const dx = bench.out(rows * k)
      linearBackwardInput(gpu, dy, rows, weight, dx)
      return await bench.down(dx, rows * k)
    }
    const copies = vi.spyOn(gpu, 'copyToTexture')
    const alone = await dxOf()
    expect(copies).toHaveBeenCalledTimes(1)
    linearBackwardWeight(gpu, dy, x, rows, n, k, dw, { accumulate: false })
    expect(copies.mock.calls.length).toBe(1 + n / 64 + k / 64)
    sameBits('behind dW', await dxOf(), alone)
    expect(copies.mock.calls.length).toBe(1 + n / 64 + k / 64)
    gpu.write(dy, later)
    const changed = await dxOf()
    expect(copies.mock.calls.length).toBe(2 + n / 64 + k / 64)
    copies.mockRestore()
    linearBackwardWeight(gpu, dy, x, rows, n, k, dw, { accumulate: false })
    sameBits('behind dW, changed', await dxOf(), changed)
  })
})

test.runIf(bench.cpu)("LoRA's thin products: dy from a texture or a buffer, rows that are no multiple of a turn", async () => {
  for (const c of [
    { rows: 517, n: 128, k: 8 },
    { rows: 18, n: 192, k: 16 },
    { rows: 9, n: 132, k: 8 },
  ]) {
    const name = JSON.stringify(c)
    await bench.run(`dxa ${name}`, {}, () => backwardInput({ ...c, bf16: false, buffer: true, alpha: 2 }))
    await bench.run(`dB ${name}`, {}, () => backwardWeight({ ...c, accumulate: c.rows === 18 }))
    await bench.run(`dA ${name}`, {}, () => backwardWeight({ ...c, n: c.k, k: c.n, accumulate: true, alpha: 2 }))
  }
})

test('backward through a vocabulary, in parts: the same bits where it is added to zeros, and in every batch', async () => {
  await bench.run('vocabulary', {}, async () => {
    const [rows, n, k] = [19, 16_448, 136]
    const { weight } = bench.weight(n, k, true, 0.05)
    const [dy, dxa, a] = [bench.normals(rows * n), bench.normals(rows * 8), bench.up(bench.normals(8 * k))]
    const at = async (from: number, count: number, accumulate: boolean): Promise<Float32Array> => {
      const dx = bench.upOut(new Float32Array(count * k))
      const lora = { x: bench.up(dxa.slice(from * 8, (from + count) * 8)), matrix: a, rank: 8 }
      const some = bench.up(dy.slice(from * n, (from + count) * n))
      linearBackwardInput(gpu, some, count, weight, dx, { lora, accumulate })
      return await bench.down(dx, count * k)
    }
    const all = await at(0, rows, false)
    sameBits('added to zeros', await at(0, rows, true), all)
    sameBits('five rows', await at(7, 5, false), all.slice(7 * k, 12 * k))
  })
  await bench.run('vocabulary sums', {}, () => backwardInput({ rows: 19, n: 16_421, k: 136, slice: { row: 3, rows: 16_416 } }))
})

test('what a texture holds is copied again when its buffer has changed: by the host, a copy, a kernel, or before a plan', async () => {
  await bench.run('stale', {}, async () => {
    const [rows, n, k] = [8, 128, 128]
    const { weight } = bench.weight(n, k, true)
    const [first, second] = [bench.normals(rows * k), bench.normals(rows * k)]
    const fresh = async (data: Float32Array): Promise<Float32Array> => {
      const y = bench.out(rows * n)
      linear(gpu, bench.up(data), rows, weight, y)
      return await bench.down(y, rows * n)
    }
    const sum = first.map((v, i) => v + second[i])
    const want = { first: await fresh(first), second: await fresh(second), sum: await fresh(sum) }
    const [x, other, y] = [bench.up(first), bench.up(second), bench.out(rows * n)]
    const check = async (name: keyof typeof want, step: string): Promise<void> => {
      linear(gpu, x, rows, weight, y)
      sameBits(step, await bench.down(y, rows * n), want[name])
    }
    await check('first', 'at first')
    await check('first', 'unchanged')
    gpu.write(x, second)
    await check('second', 'written by the host')
    gpu.write(other, first)
    gpu.copy(other, 0, x, 0, rows * k * 4)
    await check('first', 'copied into')
    gpu.write(other, second)
    const into = bench.up(first)
    add(gpu, into, other, x, rows * k)
    await check('sum', 'written by a kernel')
    const plan = gpu.record(() => linear(gpu, x, rows, weight, y))
    gpu.write(x, first)
    gpu.replay(plan)
    sameBits('a replay sees what is there', await bench.down(y, rows * n), want.first)
    gpu.write(x, second)
    await check('second', 'after a replay')
    gpu.releasePlan(plan)
  })
})

test('the tile changes no bit', async () => {
  for (const { name, facts } of modes.filter(isRun).filter((mode) => mode.needs !== 'cpu' || bench.cpu)) {
    await bench.run(name, facts, async () => {
      const [rows, n, k] = [67, 150, 192]
      const { weight } = bench.weight(n, k, true)
      const [x, dy] = [bench.up(bench.normals(rows * k)), bench.up(bench.normals(rows * n))]
      const lora = { x: bench.up(bench.normals(rows * 8)), matrix: bench.up(bench.normals(n * 8)), rank: 8 }
      const both = async (): Promise<Float32Array[]> => {
        const [y, dx] = [bench.out(rows * n), bench.out(rows * k)]
        linear(gpu, x, rows, weight, y, { lora })
        linearBackwardInput(gpu, dy, rows, weight, dx)
        return [await bench.down(y, rows * n), await bench.down(dx, rows * k)]
      }
      const want = await both()
      for (const key of Object.keys(tileCandidates) as TileName[]) {
        for (const tile of candidatesOf(gpu, key)) {
          setTiles(gpu, { [key]: tile }, { always: true })
          expect(tilesOf(gpu)[key]).toEqual(tile)
          const got = await both()
          got.forEach((values, i) => sameBits(`${name}, ${key} ${tile.rows} x ${tile.columns}`, values, want[i]))
        }
      }
      setTiles(gpu, {})
    })
  }
})

test('tiles that are no candidates are not taken', () => {
  const [known] = candidatesOf(gpu, 'nnCpu')
  setTiles(gpu, { ntCpu: { rows: 17, columns: 3 }, nnCpu: known })
  expect(tilesOf(gpu).ntCpu).toEqual(usualTiles(gpu).ntCpu)
  expect(tilesOf(gpu).nnCpu).toEqual(known)
  setTiles(gpu, {})
})

test.runIf(cpuLanes(gpu).WIDE)('forward tiles of 512 bits cover rows and columns without much left over', async () => {
  setTiles(gpu, {})
  await withFacts(gpu, { fused: false, cpu: 'other' }, async () => {
    for (const columns of [576, 1536, 384, [576, 192, 192]]) expect(forwardTile(gpu, 32, columns)).toEqual({ MT: 32, NT: 4 })
    // 96 are 3 x 32 and not 2 x 64
    expect(forwardTile(gpu, 64, 96)).toEqual({ MT: 16, NT: 2 })
    setTiles(gpu, { ntCpu: { rows: 64, columns: 32 } })
    for (const columns of [96, 160]) expect(forwardTile(gpu, 64, columns)).toEqual({ MT: 64, NT: 2 })
    setTiles(gpu, {})
    expect(forwardTile(gpu, 20, 576)).toEqual({ MT: 12, NT: 4 })
    expect(forwardTile(gpu, 5, 16)).toEqual({ MT: 8, NT: 1 })
  })
  // On AMD's CPUs 16 rows of 96, or with fours of columns a lane of 64; but for few rows, and a tile that was tuned
  await withFacts(gpu, { fused: false, cpu: 'amd' }, async () => {
    for (const columns of [576, 1536, 384, [576, 192, 192]]) expect(forwardTile(gpu, 32, columns)).toEqual({ MT: 16, NT: 6 })
    expect(forwardTile(gpu, 64, 128)).toEqual({ MT: 16, NT: 8 })
    expect(forwardTile(gpu, 32, 576, true)).toEqual({ MT: 16, NT: 4 })
    expect(forwardTile(gpu, 20, 576)).toEqual({ MT: 12, NT: 4 })
    setTiles(gpu, { ntCpu: { rows: 64, columns: 32 } })
    expect(forwardTile(gpu, 64, 576)).toEqual({ MT: 64, NT: 2 })
    setTiles(gpu, {})
  })
  // On a Zen 4 32 rows of 128, or of what divides the columns
  for (const fused of [false, true])
    await withFacts(gpu, { fused, cpu: 'zen4' }, async () => {
      for (const columns of [1536, 1024, 128]) expect(forwardTile(gpu, 32, columns)).toEqual({ MT: 32, NT: 8 })
      expect(forwardTile(gpu, 32, 576)).toEqual({ MT: 32, NT: 6 })
      expect(forwardTile(gpu, 32, 576, true)).toEqual({ MT: 32, NT: 4 })
      expect(forwardTile(gpu, 32, 3072, true)).toEqual({ MT: 32, NT: 8 })
      expect(forwardTile(gpu, 16, 1536)).toEqual({ MT: 16, NT: 8 })
    })
  // The widest that divides the columns where multiply-adds are one instruction, or 96 on AMD's
  await withFacts(gpu, { fused: true, cpu: 'amd' }, async () => {
    expect(forwardTile(gpu, 32, 1536)).toEqual({ MT: 32, NT: 6 })
    expect(forwardTile(gpu, 32, 1024)).toEqual({ MT: 32, NT: 6 })
    expect(forwardTile(gpu, 32, 128)).toEqual({ MT: 32, NT: 4 })
  })
  await withFacts(gpu, { fused: true, cpu: 'other' }, async () => {
    expect(forwardTile(gpu, 32, 1536)).toEqual({ MT: 32, NT: 8 })
    expect(forwardTile(gpu, 32, 576)).toEqual({ MT: 32, NT: 6 })
    expect(forwardTile(gpu, 32, 576, true)).toEqual({ MT: 32, NT: 4 })
    expect(forwardTile(gpu, 16, [576, 192, 192], true)).toEqual({ MT: 16, NT: 4 })
    expect(forwardTile(gpu, 5, 1536)).toEqual({ MT: 8, NT: 6 })
    expect(forwardTile(gpu, 4, 3072, true)).toEqual({ MT: 4, NT: 8 })
    expect(forwardTile(gpu, 20, 1536)).toEqual({ MT: 12, NT: 4 })
    setTiles(gpu, { ntCpu: { rows: 64, columns: 32 } })
    expect(forwardTile(gpu, 64, 1536)).toEqual({ MT: 64, NT: 2 })
    setTiles(gpu, {})
  })
})

test.skipIf(!bench.cpu || cpuLanes(gpu).WIDE)('forward tiles cover rows and columns without much left over', () => {
  setTiles(gpu, {})
  // 64 columns where they divide the weight, or each of those that go together, and where 48 would save little
  for (const columns of [576, 1536, 384, [576, 192, 192]]) expect(forwardTile(gpu, 32, columns)).toEqual({ MT: 16, NT: 8 })
  // else 48: 3 x 64 is a third more than 144
  expect(forwardTile(gpu, 64, 144)).toEqual({ MT: 16, NT: 6 })
  // and the other way about with a tuned tile of 48: 3 x 48 is an eighth more than 128, and of three members a third
  setTiles(gpu, { ntCpu: { rows: 32, columns: 48 } })
  for (const columns of [576, 1536, [576, 192, 192]]) expect(forwardTile(gpu, 32, columns)).toEqual({ MT: 32, NT: 6 })
  for (const columns of [128, 256, [128, 64, 64]]) expect(forwardTile(gpu, 64, columns)).toEqual({ MT: 16, NT: 8 })
  setTiles(gpu, {})
  // 20 rows are 12 + 8
  expect(forwardTile(gpu, 20, 576)).toEqual({ MT: 12, NT: 8 })
  expect(forwardTile(gpu, 5, 8)).toEqual({ MT: 8, NT: 1 })
})
