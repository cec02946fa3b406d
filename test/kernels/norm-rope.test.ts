import { describe, expect, test } from 'vitest'
import { cpuLanes, fullGpu, lanes } from '../../src/kernels/common/lanes.ts'
import { addColumnSums, rmsNorm, rmsNormBackward, rmsNormGain, takesGain, takesTurn } from '../../src/kernels/norm/norm.ts'
import { normRopeIntoCache, rope, ropeIntoCache, takesNormRope } from '../../src/kernels/rope/rope.ts'
import { bounds, isRun, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

const sizes = [
  [1, 7],
  [7, 64],
  [129, 33],
  [3, 576],
  [2, 1],
  [513, 8],
  [19, 32],
  [33, 128],
]
/** As many as a long micro-batch has heads: their sums are of parts, and of parts of these. */
const many = [70_000, 3]
/** On a GPU of so many lanes: as many channels as a lane holds at most, and so many heads that a workgroup takes eight (norm.ts). */
const forGpus = (LANES: number) => [
  [5, 32 * LANES],
  [(2 * fullGpu) / LANES + 3, LANES],
]

describe.each(modes.filter(isRun))('RMSNorm, $name', ({ facts, needs }) => {
  test.skipIf((needs === 'cpu' && !bench.cpu) || !gpu.facts.f16)(
    'in f16, for matrix units: the same values, rounded',
    async () => {
      for (const [rows, channels] of [
        [3, 64],
        [5, 256],
        [2, 1024],
        [33, 2560],
      ]) {
        await bench.run(`in f16, ${rows} x ${channels}`, facts, async () => {
          const [x, gain] = [bench.up(bench.normals(rows * channels)), bench.up(bench.normals(channels))]
          const [y, half, rstd] = [bench.out(rows * channels), bench.out((rows * channels) / 2), bench.out(rows)]
          rmsNorm(gpu, x, gain, y, rstd, rows, channels, 1e-6)
          rmsNorm(gpu, x, gain, half, rstd, rows, channels, 1e-6, { half: true })
          const halves = new Float16Array((await bench.down(half, (rows * channels) / 2)).buffer)
          sameBits('halves', Float32Array.from(halves), (await bench.down(y, rows * channels)).map(Math.f16round))
        })
      }
    },
  )

  test.skipIf(needs === 'cpu' && !bench.cpu)('forward, backward and gain', async () => {
    const LANES = facts.subgroupSize === 0 ? 32 : gpu.facts.subgroupSize
    for (const [rows, channels] of [...sizes, many, ...(facts.software === false ? forGpus(LANES) : [])]) {
      await bench.run(`norm ${rows} ${channels}`, facts, async () => {
        const eps = 1e-5
        const [x, gain, dy, skip, before] = [rows * channels, channels, rows * channels, rows * channels, channels].map((n) =>
          bench.normals(n),
        )
        const [y, rstd, dx, dxSkip] = [
          bench.out(rows * channels),
          bench.out(rows),
          bench.out(rows * channels),
          bench.out(rows * channels),
        ]
        const [xb, gb, dyb, dgain] = [x, gain, dy, before].map((t) => bench.up(t))
        rmsNorm(gpu, xb, gb, y, rstd, rows, channels, eps)
        rmsNormBackward(gpu, { dy: dyb, x: xb, gain: gb, rstd, dx }, rows, channels)
        rmsNormBackward(gpu, { dy: dyb, x: xb, gain: gb, rstd, dx: dxSkip, skip: bench.up(skip) }, rows, channels)
        rmsNormGain(gpu, dyb, xb, rstd, dgain, rows, channels)
        const [wantY, wantX, wantSkip] = [0, 1, 2].map(() => new Float64Array(rows * channels))
        const [wantR, wantG] = [new Float64Array(rows), Float64Array.from(before)]
        let summed = before.reduce((total, value) => total + value ** 2, 0)
        for (let t = 0; t < rows; t++) {
          let [squares, mix] = [0, 0]
          for (let c = 0; c < channels; c++) squares += x[t * channels + c] ** 2
          const r = 1 / Math.sqrt(squares / channels + eps)
          wantR[t] = r
          for (let c = 0; c < channels; c++) mix += dy[t * channels + c] * gain[c] * x[t * channels + c] * r
          for (let c = 0; c < channels; c++) {
            const i = t * channels + c
            wantY[i] = x[i] * r * gain[c]
            wantX[i] = r * (dy[i] * gain[c] - (x[i] * r * mix) / channels)
            wantSkip[i] = wantX[i] + skip[i]
            wantG[c] += dy[i] * x[i] * r
            summed += (dy[i] * x[i] * r) ** 2
          }
        }
        await bench.check('y', y, wantY, bounds.elementwise)
        await bench.check('rstd', rstd, wantR, bounds.elementwise)
        // With one channel dx is the difference of two equal numbers: only eps is left of it.
        if (channels > 1) {
          await bench.check('dx', dx, wantX, bounds.sum)
          await bench.check('dx with skip', dxSkip, wantSkip, bounds.sum)
        }
        // Of few sums all may be small beside what was summed.
        const size = channels < 7 ? Math.sqrt(summed) : undefined
        await bench.check('dgain', dgain, wantG, bounds.sum, size)
        if (!takesGain(gpu, channels)) return
        const [dxToo, dgainToo] = [bench.out(rows * channels), bench.up(before)]
        const t = { dy: dyb, x: xb, gain: gb, rstd, dx: dxToo, skip: bench.up(skip), dgain: dgainToo }
        rmsNormBackward(gpu, t, rows, channels)
        sameBits('dx with dgain', await bench.down(dxToo, rows * channels), await bench.down(dxSkip, rows * channels))
        await bench.check('dgain with dx', dgainToo, wantG, bounds.sum)
      })
    }
  })
  test.skipIf(needs === 'cpu' && !bench.cpu)('a row has the same bits alone', async () => {
    await bench.run('norm rows', facts, async () => {
      const [rows, channels] = [9, 100]
      const x = bench.normals(rows * channels)
      const gain = bench.up(bench.normals(channels))
      const at = async (from: number, count: number): Promise<Float32Array> => {
        const [y, rstd] = [bench.out(count * channels), bench.out(count)]
        rmsNorm(gpu, bench.up(x.slice(from * channels, (from + count) * channels)), gain, y, rstd, count, channels, 1e-6)
        return await bench.down(y, count * channels)
      }
      const all = await at(0, rows)
      for (let r = 0; r < rows; r++) sameBits(`row ${r}`, await at(r, 1), all.slice(r * channels, (r + 1) * channels))
    })
  })
})

// Lanes of 16 are summed in an order of their own on CPU drivers.
test.skipIf(!bench.cpu || cpuLanes(gpu).WIDE === 1)(
  'rows that a GPU holds in registers have the bits of those that a CPU driver goes through twice',
  async () => {
    for (const [rows, channels] of [
      [3, 136],
      [21, 256],
    ]) {
      const n = rows * channels
      const [x, gain, dy, skip] = [n, channels, n, n].map((count) => bench.normals(count))
      const results: Float32Array[][] = []
      for (const software of [true, false]) {
        await bench.run(`norm ${rows} ${channels}`, { software }, async () => {
          const [y, rstd, dx, dxSkip] = [n, rows, n, n].map((count) => bench.out(count))
          const [xb, gb, dyb] = [x, gain, dy].map((t) => bench.up(t))
          rmsNorm(gpu, xb, gb, y, rstd, rows, channels, 1e-6)
          rmsNormBackward(gpu, { dy: dyb, x: xb, gain: gb, rstd, dx }, rows, channels)
          rmsNormBackward(gpu, { dy: dyb, x: xb, gain: gb, rstd, dx: dxSkip, skip: bench.up(skip) }, rows, channels)
          results.push([
            await bench.down(y, n),
            await bench.down(rstd, rows),
            await bench.down(dx, n),
            await bench.down(dxSkip, n),
          ])
        })
      }
      results[0].forEach((held, i) => sameBits(`${rows} x ${channels}, output ${i}`, held, results[1][i]))
    }
  },
)

test('column sums are added to what is there', async () => {
  for (const [rows, columns] of [...sizes, many]) {
    await bench.run(`columns ${rows} ${columns}`, {}, async () => {
      const [x, before] = [bench.normals(rows * columns), bench.normals(columns)]
      const out = bench.up(before)
      addColumnSums(gpu, bench.up(x), out, rows, columns)
      const want = Float64Array.from(before, (v, c) => {
        for (let t = 0; t < rows; t++) v += x[t * columns + c]
        return v
      })
      await bench.check('column sums', out, want, bounds.sum)
    })
  }
})

test('rope turns by the position of the row, and its inverse turns back', async () => {
  for (const [rows, heads, headDim] of [
    [1, 1, 2],
    [7, 3, 6],
    [129, 2, 16],
    [5, 9, 64],
  ]) {
    await bench.run(`rope ${rows} ${heads} ${headDim}`, {}, async () => {
      const half = headDim / 2
      const positions = 40
      const angle = (position: number, i: number): number => position / 10000 ** (i / half)
      const table = Float32Array.from({ length: positions * headDim }, (_, e) => {
        const a = angle(Math.floor(e / headDim), Math.floor((e % headDim) / 2))
        return e % 2 === 0 ? Math.cos(a) : Math.sin(a)
      })
      const info = Uint32Array.from({ length: rows * 4 }, () => bench.random.int(positions))
      const x = bench.normals(rows * heads * headDim)
      const buffer = bench.up(x)
      const [infoBuffer, tableBuffer] = [bench.up(info), bench.up(table)]
      rope(gpu, buffer, infoBuffer, tableBuffer, rows, heads, headDim)
      const want = new Float64Array(x.length)
      for (let e = 0; e < x.length; e++) {
        const i = e % headDim
        const a = angle(info[Math.floor(e / (heads * headDim)) * 4 + 3], i % half)
        want[e] = i < half ? x[e] * Math.cos(a) - x[e + half] * Math.sin(a) : x[e] * Math.cos(a) + x[e - half] * Math.sin(a)
      }
      await bench.check('rope', buffer, want, bounds.elementwise)
      rope(gpu, buffer, infoBuffer, tableBuffer, rows, heads, headDim, true)
      await bench.check('inverse', buffer, Float64Array.from(x), bounds.elementwise)
    })
  }
})

test('into a cache: q and k are turned as by rope, to the bit, and k and v go to their rows', async () => {
  for (const [rows, heads, kvHeads, headDim] of [
    [1, 1, 1, 2],
    [7, 3, 1, 6],
    [129, 4, 2, 16],
    [5, 9, 3, 64],
  ]) {
    await bench.run(`rope into cache ${rows} ${heads} ${headDim}`, {}, async () => {
      const [width, cacheRows] = [kvHeads * headDim, rows + 5]
      const positions = bench.ids(rows * 4, 40)
      const [table, info] = [bench.up(bench.normals(40 * headDim)), bench.up(positions)]
      const slots = bench.random.shuffle(Array.from({ length: cacheRows }, (_, i) => i)).slice(0, rows)
      const [q, k, v] = [heads, kvHeads, kvHeads].map((n) => bench.normals(rows * n * headDim))
      const before = [0, 1].map(() => bench.normals(cacheRows * width))
      const [kCache, vCache] = before.map((data) => bench.up(data))
      const [qBuffer, kTurned] = [bench.up(q), bench.up(k)]
      const t = {
        q: qBuffer,
        k: bench.up(k),
        v: bench.up(v),
        slots: bench.up(Uint32Array.from(slots.flatMap((slot, r) => [slot, positions[4 * r + 3]]))),
        table,
        kCache,
        vCache,
      }
      ropeIntoCache(gpu, t, rows, { heads, kvHeads, headDim })
      const qTurned = bench.up(q)
      rope(gpu, qTurned, info, table, rows, heads, headDim)
      rope(gpu, kTurned, info, table, rows, kvHeads, headDim)
      sameBits('q', await bench.down(qBuffer, q.length), await bench.down(qTurned, q.length))
      for (const [i, rowsOf] of [await bench.down(kTurned, k.length), v].entries()) {
        slots.forEach((to, r) => before[i].set(rowsOf.subarray(r * width, (r + 1) * width), to * width))
        sameBits(i === 0 ? 'keys' : 'values', await bench.down([kCache, vCache][i], cacheRows * width), before[i])
      }
      if (headDim % 8 !== 0) return
      // As f16: two values to a word.
      const halves = [1, 2].map(() => bench.up(new Uint32Array((cacheRows * width) / 2)))
      ropeIntoCache(gpu, { ...t, q: bench.up(q), kCache: halves[0], vCache: halves[1] }, rows, { heads, kvHeads, headDim }, true)
      for (const [i, rowsOf] of [await bench.down(kTurned, k.length), v].entries()) {
        const want = new Float16Array(cacheRows * width)
        slots.forEach((to, r) => want.set(rowsOf.subarray(r * width, (r + 1) * width), to * width))
        const got = new Float16Array((await bench.down(halves[i], (cacheRows * width) / 2)).buffer)
        sameBits(i === 0 ? 'f16 keys' : 'f16 values', Float32Array.from(got), Float32Array.from(want))
      }
    })
  }
})

test.each(modes.slice(0, 3).filter(isRun))(
  'heads are normalised and turned with the bits of one after the other, and back, $name',
  async ({ facts, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    const LANES = facts.subgroupSize === 0 ? 32 : gpu.facts.subgroupSize
    // The last are enough for eight heads a workgroup (norm.ts).
    for (const [tokens, heads, each] of [
      [7, 3, 2],
      [19, 2, 8],
      [fullGpu / 8 / LANES + 3, 16, 2],
    ]) {
      await bench.run(`norm and turn ${tokens}`, facts, async () => {
        const headDim = each * lanes(gpu).LANES
        expect(takesTurn(gpu, headDim)).toBe(true)
        const [rows, n] = [tokens * heads, tokens * heads * headDim]
        const [x, dy, skip] = [0, 1, 2].map(() => bench.up(bench.normals(n)))
        const gain = bench.up(bench.normals(headDim))
        const info = bench.up(bench.ids(tokens * 4, 40))
        const table = bench.up(bench.normals(40 * headDim))
        const [y, wantY, back, dx, wantX, dxSkip, wantSkip] = Array.from({ length: 7 }, () => bench.out(n))
        const [rstd, wantR] = [bench.out(rows), bench.out(rows)]
        const turn = { info, table, heads }
        rmsNorm(gpu, x, gain, y, rstd, rows, headDim, 1e-5, { turn })
        rmsNorm(gpu, x, gain, wantY, wantR, rows, headDim, 1e-5)
        rope(gpu, wantY, info, table, tokens, heads, headDim)
        rmsNormBackward(gpu, { dy, x, gain, rstd, dx }, rows, headDim, turn)
        rmsNormBackward(gpu, { dy, x, gain, rstd, dx: dxSkip, skip }, rows, headDim, turn)
        gpu.copy(dy, 0, back, 0, n * 4)
        rope(gpu, back, info, table, tokens, heads, headDim, true)
        rmsNormBackward(gpu, { dy: back, x, gain, rstd, dx: wantX }, rows, headDim)
        rmsNormBackward(gpu, { dy: back, x, gain, rstd, dx: wantSkip, skip }, rows, headDim)
        const [dgain, wantGain] = [0, 1].map(() => bench.up(new Float32Array(headDim)))
        const [dxGain, withGain] = [bench.out(n), takesGain(gpu, headDim)]
        if (withGain) {
          rmsNormBackward(gpu, { dy, x, gain, rstd, dx: dxGain, dgain }, rows, headDim, turn)
          rmsNormBackward(gpu, { dy: back, x, gain, rstd, dx, dgain: wantGain }, rows, headDim)
        }
        for (const [name, a, b, length] of [
          ...(withGain
            ? ([
                ['dx with gain', dxGain, wantX, n],
                ['dgain', dgain, wantGain, headDim],
              ] as const)
            : []),
          ['y', y, wantY, n],
          ['rstd', rstd, wantR, rows],
          ['dx', dx, wantX, n],
          ['dx with skip', dxSkip, wantSkip, n],
        ] as const)
          sameBits(`${name} ${tokens}`, await bench.down(a, length), await bench.down(b, length))
      })
    }
  },
)

test.each(modes.slice(0, 3).filter(isRun))(
  'heads are normalised, turned and put into a cache with the bits of one after the other, $name',
  async ({ facts, needs }) => {
    if (needs === 'cpu' && !bench.cpu) return
    await bench.run('norms into cache', facts, async () => {
      const [rows, heads, kvHeads, headDim] = [19, 3, 2, 64]
      const { LANES } = lanes(gpu)
      const binds = gpu.facts.limits.maxStorageBuffers >= 9
      expect([1, 2, 8, 16].map((n) => takesNormRope(gpu, n * LANES))).toEqual([false, binds, binds, false])
      if (!takesNormRope(gpu, headDim)) return
      const width = kvHeads * headDim
      const [table, slots] = [
        bench.up(bench.normals(40 * headDim)),
        bench.up(Uint32Array.from({ length: 2 * rows }, (_, i) => (i % 2 ? bench.random.int(40) : rows - i / 2))),
      ]
      const norms = [1e-6, 1e-3].map((eps) => ({ gain: bench.up(bench.normals(headDim)), eps }))
      const [q, k, v] = [heads, kvHeads, kvHeads].map((n) => bench.normals(rows * n * headDim))
      const results = [true, false].map((fused) => {
        const [kCache, vCache] = [0, 1].map(() => bench.up(new Float32Array((rows + 1) * width)))
        const [qIn, kIn, vIn] = [q, k, v].map((data) => bench.up(data))
        const t = { q: qIn, k: kIn, v: vIn, slots, table, kCache, vCache }
        if (fused) {
          normRopeIntoCache(gpu, t, norms, rows, { heads, kvHeads, headDim })
          return [qIn, kCache, vCache]
        }
        const [qn, kn] = [heads, kvHeads].map((n, i) => {
          const y = bench.out(rows * n * headDim)
          rmsNorm(gpu, [qIn, kIn][i], norms[i].gain, y, bench.out(rows * n), rows * n, headDim, norms[i].eps)
          return y
        })
        ropeIntoCache(gpu, { ...t, q: qn, k: kn }, rows, { heads, kvHeads, headDim })
        return [qn, kCache, vCache]
      })
      for (const [i, n] of [q.length, (rows + 1) * width, (rows + 1) * width].entries()) {
        const [a, b] = await Promise.all(results.map((buffers) => bench.down(buffers[i], n)))
        sameBits(['q', 'keys', 'values'][i], a, b)
      }
    })
  },
)
