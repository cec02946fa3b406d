/** The register tile of GPUs: every tile and every way to stage its operands has the same bits, and small outputs take small tiles. */
import { afterEach, expect, test } from 'vitest'
import { linear, linearBackwardInput, linearBackwardWeight } from '../../src/kernels/matmul/matmul.ts'
import { everyTile, holdsRegisterTile, tileConstants, tileFor } from '../../src/kernels/matmul/register-tile.ts'
import { defaultTiles, setTiles, tileCandidates, tileText, type Tile } from '../../src/kernels/matmul/tiles.ts'
import { withFacts } from '../facts.ts'
import { bounds, modes, openBench, sameBits } from './harness.ts'
import { product } from './matmul-cases.ts'

const bench = await openBench()
const { gpu } = bench
afterEach(() => setTiles(gpu, {}))
const facts = modes[1].facts

test('forward, in fours: each tile, as deep and as often as workgroup memory holds it', async () => {
  await bench.run('nt', facts, async () => {
    // Over two tiles of the largest in both directions, a last turn that is not full, and several turns.
    const [rows, n, k] = [131, 132, 76]
    const { weight, values } = bench.weight(n, k, true)
    const x = bench.normals(rows * k)
    const lent = { x: bench.up(x), y: bench.out(rows * n) }
    const want = product(rows, n, k, (i, t) => x[i * k + t], (j, t) => values[j * k + t]) // prettier-ignore
    linear(gpu, lent.x, rows, weight, lent.y)
    await bench.check('small', lent.y, want, bounds.sum)
    const first = await bench.down(lent.y, rows * n)
    const done = new Set<string>()
    const held = gpu.facts.limits.maxWorkgroupMemory
    for (const memory of [16_384, 32_768, 49_152]) {
      const limits = { ...gpu.facts.limits, maxWorkgroupMemory: memory }
      for (const tile of tileCandidates.tile) {
        await withFacts(gpu, { ...facts, limits }, async () => {
          const { KT } = tileConstants(gpu, tile)
          const name = `${tile.rows} x ${tile.columns}, ${KT} deep`
          if (done.has(name) || KT * (tile.rows + tile.columns) * 4 > held) return
          done.add(name)
          setTiles(gpu, { tile }, { always: true })
          const y = bench.out(rows * n)
          linear(gpu, lent.x, rows, weight, y)
          sameBits(name, await bench.down(y, rows * n), first)
        })
      }
    }
    expect(done.size).toBeGreaterThanOrEqual(tileCandidates.tile.length + 3)
  })
})

test('backward, in fours: each tile', async () => {
  await bench.run('nn, tn', facts, async () => {
    const [rows, n, k] = [130, 68, 132]
    const { weight } = bench.weight(n, k, true)
    const [x, dy] = [bench.up(bench.normals(rows * k)), bench.up(bench.normals(rows * n))]
    const both = async (): Promise<Float32Array[]> => {
      const [dx, dw] = [bench.out(rows * k), bench.out(n * k)]
      linearBackwardInput(gpu, dy, rows, weight, dx)
      linearBackwardWeight(gpu, dy, x, rows, n, k, dw, { accumulate: false })
      return [await bench.down(dx, rows * k), await bench.down(dw, n * k)]
    }
    const want = await both()
    for (const tile of tileCandidates.tile) {
      setTiles(gpu, { tile }, { always: true })
      const got = await both()
      got.forEach((values, i) => sameBits(`${i ? 'dW' : 'dX'}, ${tile.rows} x ${tile.columns}`, values, want[i]))
    }
  })
})

test('large outputs take the tuned tile, few rows and few workgroups smaller ones', () => {
  const taken = (rows: number, columns: number): number[] => {
    const tile = tileFor(gpu, rows, columns)
    return [tile.rows, tile.columns]
  }
  setTiles(gpu, {})
  expect(taken(4096, 4096)).toEqual([128, 128])
  expect(taken(16_384, 1024)).toEqual([128, 128])
  expect(taken(512, 1024)).toEqual([64, 64])
  for (const rows of [1, 32]) {
    for (const columns of [16, 1024, 6144]) expect(taken(rows, columns)).toEqual([32, 64])
    expect(taken(rows, 151_936)).toEqual([32, 64])
    const few = (columns: number) => tileFor(gpu, rows, columns, 1, true).columns
    expect([16, 1024, 4096, 6144, 151_936].map(few)).toEqual([16, 16, 32, 32, 64])
  }
  setTiles(gpu, { tile: { rows: 64, columns: 64 } })
  expect(taken(4096, 4096)).toEqual([64, 64])
})

test('few rows: tiles that tune may choose, with adapters of several ranks, have the bits of many rows', async () => {
  // The rest is held against the usual tile where tune is tested; a variant takes the software driver seconds to compile.
  const some = [
    {
      name: 'few',
      n: 132,
      k: 268,
      rank: 4,
      tiles: [defaultTiles.few, tileCandidates.few.find(({ columns }) => columns === 32)!],
    },
    { name: 'few', n: 132, k: 256, rank: 12, tiles: [defaultTiles.few] },
    { name: 'fewMore', n: 2052, k: 268, rank: 4, tiles: [defaultTiles.fewMore] },
    { name: 'fewWide', n: 4132, k: 268, rank: 4, tiles: [defaultTiles.fewWide, tileCandidates.fewWide.at(-1)!] },
  ]
  for (const { name, n, k, rank, tiles } of some) {
    await bench.run(`${name} ${n} ${rank}`, facts, async () => {
      const rows = 20
      const { weight } = bench.weight(n, k, true)
      const [x, xa, b] = [bench.normals(40 * k), bench.normals(40 * rank), bench.up(bench.normals(n * rank))]
      const first = async (count: number): Promise<Float32Array> => {
        const y = bench.out(count * n)
        const lora = { x: bench.up(xa.slice(0, count * rank)), matrix: b, rank }
        linear(gpu, bench.up(x.slice(0, count * k)), count, weight, y, { lora })
        return await bench.down(y, count * n)
      }
      const many = await first(40)
      for (const tile of tiles) {
        setTiles(gpu, { [name]: tile })
        expect(tileFor(gpu, rows, n, 1, true)).toEqual(tile)
        sameBits(`${tileText(tile)}, rank ${rank}`, await first(rows), many.slice(0, rows * n))
      }
    })
  }
})

test("a tile's threads are 8 or 16 across and down, as its operands lie in workgroup memory", () => {
  for (const tile of everyTile) {
    const { TM, TN, RM, RN, FEW, KT, THREADS } = tileConstants(gpu, tile)
    const name = tileText(tile)
    if (FEW) expect([((TM * KT) / 4) % THREADS, ((TN * KT) / 4) % THREADS], name).toEqual([0, 0])
    else expect([8, 16], name).toEqual(expect.arrayContaining([TM / RM, TN / RN]))
  }
})

test('a row has the bits among few rows that it has among many, whatever the number of columns', async () => {
  const k = 76
  for (const n of [20, 1028, 4132, 20_000]) {
    await bench.run(`few ${n}`, facts, async () => {
      const { weight } = bench.weight(n, k, true)
      const [x, xa, b] = [bench.normals(40 * k), bench.normals(40 * 8), bench.up(bench.normals(n * 8))]
      const [bias, residual] = [bench.up(bench.normals(n)), bench.normals(40 * n)]
      const first = async (rows: number): Promise<Float32Array> => {
        const y = bench.out(rows * n)
        const lora = { x: bench.up(xa.slice(0, rows * 8)), matrix: b, rank: 8 }
        const more = { lora, bias, residual: bench.up(residual.slice(0, rows * n)) }
        linear(gpu, bench.up(x.slice(0, rows * k)), rows, weight, y, more)
        return await bench.down(y, rows * n)
      }
      const many = await first(40)
      for (const rows of [1, 7, 32]) {
        expect(tileFor(gpu, rows, n, 1, true)).not.toEqual(tileFor(gpu, 40, n, 1, true))
        sameBits(`${rows} of ${n}`, await first(rows), many.slice(0, rows * n))
      }
    })
  }
})

test('the tuner tries what workgroup memory holds, and the usual tiles are held by the least that WebGPU promises', async () => {
  const held = async (memory: number, tiles: Tile[]): Promise<Tile[]> => {
    let found: Tile[] = []
    await withFacts(gpu, { ...facts, limits: { ...gpu.facts.limits, maxWorkgroupMemory: memory } }, async () => {
      found = tiles.filter((tile) => holdsRegisterTile(gpu, tile))
    })
    return found
  }
  expect(await held(32_768, everyTile)).toEqual(everyTile)
  expect(await held(16_384, everyTile)).toHaveLength(everyTile.length - 1)
  const usual = (['tile', 'few', 'fewMore', 'fewWide'] as const).map((name) => defaultTiles[name])
  expect(await held(16_384, usual)).toEqual(usual)
})
