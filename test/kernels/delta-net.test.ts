/** What stands around the delta rule in a layer of Qwen3.5: convolution, gates, halves of heads, heads that are turned in part. */
import { expect, test } from 'vitest'
import {
  causalConv,
  causalConvGate,
  causalConvInput,
  causalConvWeight,
  keepInputs,
} from '../../src/kernels/causal-conv/causal-conv.ts'
import {
  deltaDecay,
  deltaDecayBackward,
  sigmoid,
  sigmoidBackward,
  siluGate,
  siluGateBackward,
} from '../../src/kernels/elementwise/elementwise.ts'
import { rope, ropeIntoCache } from '../../src/kernels/rope/rope.ts'
import { splitHeads } from '../../src/kernels/rows/rows.ts'
import { bounds, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const silu = (z: number) => z / (1 + Math.exp(-z))
const logistic = (z: number) => 1 / (1 + Math.exp(-z))

/** Where each row's sequence begins and ends, for sequences one after the other. */
function placesOf(lengths: number[]) {
  const starts = lengths.map((_, i) => lengths.slice(0, i).reduce((a, b) => a + b, 0))
  const rows = lengths.reduce((a, b) => a + b, 0)
  const start = lengths.flatMap((length, i) => Array<number>(length).fill(starts[i]))
  const end = lengths.flatMap((length, i) => Array<number>(length).fill(starts[i] + length))
  const info = Uint32Array.from(start.flatMap((begin, row) => [begin, 0, begin, row - begin]))
  return { rows, starts, start, keyEnd: Uint32Array.from(end), info }
}

test.each([modes[0], modes[1]])('convolution, forward and backward: $name', async ({ facts }) => {
  for (const { lengths, widths, taps } of [
    { lengths: [1, 7, 2, 3, 12], widths: [8, 8, 20], taps: 4 },
    { lengths: [300, 280], widths: [4], taps: 3 },
  ]) {
    await bench.run(`convolution ${lengths.length} ${taps}`, facts, async () => {
      const { rows, start, keyEnd, info } = placesOf(lengths)
      const channels = widths.reduce((a, b) => a + b, 0)
      const shape = { channels, taps }
      const [x, weight, dy] = [bench.normals(rows * channels), bench.normals(channels * taps), bench.normals(rows * channels)]
      const z = new Float64Array(rows * channels)
      const [dx, dweight] = [new Float64Array(x.length), new Float64Array(weight.length)]
      for (let t = 0; t < rows; t++)
        for (let c = 0; c < channels; c++)
          for (let j = 0; j < taps && t - j >= start[t]; j++)
            z[t * channels + c] += weight[c * taps + taps - 1 - j] * x[(t - j) * channels + c]
      const dz = z.map((value, i) => dy[i] * logistic(value) * (1 + value * (1 - logistic(value))))
      for (let t = 0; t < rows; t++)
        for (let c = 0; c < channels; c++)
          for (let j = 0; j < taps && t - j >= start[t]; j++) {
            dx[(t - j) * channels + c] += weight[c * taps + taps - 1 - j] * dz[t * channels + c]
            dweight[c * taps + taps - 1 - j] += x[(t - j) * channels + c] * dz[t * channels + c]
          }

      const [xb, wb, infoBuffer] = [bench.up(x), bench.up(weight), bench.up(info)]
      const gradient = bench.out(rows * channels)
      for (const [i, width] of widths.entries()) {
        const range = { first: widths.slice(0, i).reduce((a, b) => a + b, 0), width }
        const part = (values: ArrayLike<number>) =>
          Float64Array.from(
            { length: rows * width },
            (_, e) => values[Math.floor(e / width) * channels + range.first + (e % width)],
          )
        const y = bench.out(rows * width)
        causalConv(gpu, { x: xb, weight: wb, y }, { info: infoBuffer }, rows, shape, range)
        await bench.check('y', y, part(z.map(silu)), bounds.sum)
        const given = { x: xb, weight: wb, dy: bench.up(Float32Array.from(part(dy))), dz: gradient, info: infoBuffer }
        causalConvGate(gpu, given, rows, shape, range)
      }
      await bench.check('dz', gradient, dz, bounds.sum)
      const back = bench.out(rows * channels)
      causalConvInput(gpu, { dz: gradient, weight: wb, keyEnd: bench.up(keyEnd), dx: back }, rows, shape)
      await bench.check('dx', back, dx, bounds.sum)
      const before = bench.normals(weight.length)
      const sums = bench.upOut(before)
      causalConvWeight(gpu, { x: xb, dz: gradient, info: infoBuffer, dweight: sums }, rows, shape)
      await bench.check('dweight', sums, dweight.map((value, i) => value + before[i]), bounds.sum) // prettier-ignore
    })
  }
})

test('convolution over a cache, in pieces of any size, has the bits of whole sequences', async () => {
  await bench.run('convolution over a cache', {}, async () => {
    const lengths = [9, 1, 5]
    const { rows, starts, info } = placesOf(lengths)
    const shape = { channels: 8, taps: 4 }
    const range = { first: 0, width: 8 }
    const [x, weight] = [bench.normals(rows * 8), bench.up(bench.normals(32))]
    const whole = bench.out(rows * 8)
    causalConv(gpu, { x: bench.up(x), weight, y: whole }, { info: bench.up(info) }, rows, shape, range)
    const want = await bench.down(whole, rows * 8)
    const inputs = bench.out(5 * 3 * 8)
    // Of each pass: which sequence has how many tokens, and its slot.
    const passes = [[[2, 1, 0], [0, 4, 3]], [[0, 1, 3], [1, 1, 4], [2, 2, 0]], [[0, 2, 3], [2, 1, 0]], [[2, 1, 0], [0, 2, 3]]] // prettier-ignore
    const done = lengths.map(() => 0)
    for (const pass of passes) {
      const runs: number[] = []
      const sources: number[] = []
      for (const [sequence, count, slot] of pass) {
        const first = sources.length
        for (let t = 0; t < count; t++) {
          runs.push(slot, first, count, Number(done[sequence] > 0))
          sources.push(starts[sequence] + done[sequence] + t)
        }
        done[sequence] += count
      }
      const part = bench.up(Float32Array.from(sources.flatMap((row) => [...x.subarray(row * 8, row * 8 + 8)])))
      const cache = { runs: bench.up(Uint32Array.from(runs)), inputs }
      const y = bench.out(sources.length * 8)
      causalConv(gpu, { x: part, weight, y }, cache, sources.length, shape, range)
      keepInputs(gpu, part, cache, sources.length, shape)
      const got = await bench.down(y, sources.length * 8)
      sources.forEach((row, i) => sameBits(`row ${row}`, got.slice(i * 8, i * 8 + 8), want.slice(row * 8, row * 8 + 8)))
    }
    expect(done).toEqual(lengths)
  })
})

test('decay and step size, forward and backward, also where exp overflows', async () => {
  await bench.run('gates', {}, async () => {
    const [rows, heads] = [23, 5]
    const a = bench.normals(rows * heads, 3)
    a.set([-200, -20, -7, 30, 200])
    const [aLog, dtBias, dy] = [bench.normals(heads), bench.normals(heads), bench.normals(rows * heads)]
    const z = Float64Array.from(a, (value, i) => value + dtBias[i % heads])
    const rate = Float64Array.from(aLog, (value) => -Math.exp(value))
    const softplus = z.map((value) => Math.max(value, 0) + Math.log1p(Math.exp(-Math.abs(value))))
    const want = softplus.map((value, i) => rate[i % heads] * value)
    const buffers = { a: bench.up(a), aLog: bench.up(aLog), dtBias: bench.up(dtBias) }
    const [y, da, dlog] = [bench.out(a.length), bench.out(a.length), bench.out(a.length)]
    deltaDecay(gpu, { ...buffers, y }, a.length, heads)
    await bench.check('decay', y, want, bounds.softmax)
    deltaDecayBackward(gpu, { ...buffers, dy: bench.up(dy), da, dlog }, a.length, heads)
    await bench.check('da', da, z.map((value, i) => dy[i] * rate[i % heads] * logistic(value)), bounds.softmax) // prettier-ignore
    await bench.check('dlog', dlog, want.map((value, i) => value * dy[i]), bounds.softmax) // prettier-ignore

    const s = Float64Array.from(a, logistic)
    const [step, dx] = [bench.out(a.length), bench.out(a.length)]
    sigmoid(gpu, buffers.a, step, a.length)
    await bench.check('sigmoid', step, s, bounds.softmax)
    sigmoidBackward(gpu, bench.up(dy), step, dx, a.length)
    await bench.check('d sigmoid', dx, s.map((value, i) => dy[i] * value * (1 - value)), bounds.softmax) // prettier-ignore

    const u = bench.normals(a.length)
    const [gated, dg, du] = [bench.out(a.length), bench.out(a.length), bench.out(a.length)]
    siluGate(gpu, buffers.a, bench.up(u), gated, a.length, heads, 'sigmoid')
    await bench.check('gate', gated, s.map((value, i) => value * u[i]), bounds.softmax) // prettier-ignore
    siluGateBackward(gpu, { dy: bench.up(dy), g: buffers.a, u: bench.up(u), dg, du }, a.length, heads, 'sigmoid')
    await bench.check('du', du, s.map((value, i) => value * dy[i]), bounds.softmax) // prettier-ignore
    await bench.check('dg', dg, s.map((value, i) => dy[i] * u[i] * value * (1 - value)), bounds.softmax) // prettier-ignore
  })
})

test('halves of heads come apart and together again', async () => {
  for (const headDim of [3, 8]) {
    await bench.run(`halves of ${headDim}`, {}, async () => {
      const [rows, heads] = [7, 3]
      const x = bench.normals(rows * heads * 2 * headDim)
      const [a, b] = [bench.out(x.length / 2), bench.out(x.length / 2)]
      splitHeads(gpu, { x: bench.up(x), a, b }, rows, { heads, headDim })
      const half = (second: number) => Float64Array.from({ length: x.length / 2 }, (_, i) => x[(2 * Math.floor(i / headDim) + second) * headDim + (i % headDim)]) // prettier-ignore
      await bench.check('first halves', a, half(0), bounds.exact)
      await bench.check('second halves', b, half(1), bounds.exact)
      const again = bench.out(x.length)
      splitHeads(gpu, { x: again, a, b }, rows, { heads, headDim }, true)
      await bench.check('together', again, Float64Array.from(x), bounds.exact)
    })
  }
})

test('a part of each head is turned, and the rest passes, also into a cache of float32 and of f16', async () => {
  for (const [headDim, rotaryDim] of [
    [16, 4],
    [32, 8],
    [32, 16],
    [24, 24],
  ] as const)
    // prettier-ignore
    await bench.run(`part of a head ${headDim} ${rotaryDim}`, {}, async () => {
      const [rows, heads, kvHeads, positions] = [6, 3, 2, 20]
      const position = bench.ids(rows, positions)
      const info = bench.up(Uint32Array.from([...position].flatMap((at) => [0, 0, 0, at])))
      const angles = bench.normals((positions * rotaryDim) / 2, 3)
      const table = bench.up(Float32Array.from([...angles].flatMap((angle) => [Math.cos(angle), Math.sin(angle)])))
      const [q, k, v] = [heads, kvHeads, kvHeads].map((n) => bench.normals(rows * n * headDim))
      const turned = (x: Float32Array, n: number) =>
        Float64Array.from(x, (value, e) => {
          const [row, i] = [Math.floor(e / (n * headDim)), e % headDim]
          if (i >= rotaryDim) return value
          const half = rotaryDim / 2
          const angle = angles[position[row] * half + (i % half)]
          const [c, s] = [Math.fround(Math.cos(angle)), Math.fround(Math.sin(angle))]
          return i < half ? value * c - x[e + half] * s : value * c + x[e - half] * s
        })
      const buffer = bench.up(q)
      rope(gpu, buffer, info, table, rows, heads, headDim, false, rotaryDim)
      await bench.check('rope', buffer, turned(q, heads), bounds.elementwise)
      const inPlace = await bench.down(buffer, q.length)
      rope(gpu, buffer, info, table, rows, heads, headDim, true, rotaryDim)
      await bench.check('back', buffer, Float64Array.from(q), bounds.elementwise)

      const slots = Uint32Array.from({ length: rows * 2 }, (_, i) => (i % 2 === 0 ? rows - 1 - i / 2 : position[(i - 1) / 2]))
      for (const f16 of rotaryDim % 8 === 0 ? [false, true] : [false]) {
        const size = rows * kvHeads * headDim
        const [kCache, vCache] = [0, 1].map(() => bench.out(f16 ? size / 2 : size))
        const t = { q: bench.up(q), k: bench.up(k), v: bench.up(v), slots: bench.up(slots), table, kCache, vCache }
        ropeIntoCache(gpu, t, rows, { heads, kvHeads, headDim }, f16, rotaryDim)
        sameBits('q', await bench.down(t.q, q.length), inPlace)
        const upsideDown = (x: Float64Array) =>
          x.map((_, e) => x[(rows - 1 - Math.floor(e / (kvHeads * headDim))) * kvHeads * headDim + (e % (kvHeads * headDim))])
        const wanted = [upsideDown(turned(k, kvHeads)), upsideDown(Float64Array.from(v))]
        for (const [i, cache] of [kCache, vCache].entries()) {
          if (!f16) await bench.check('cache', cache, wanted[i], bounds.elementwise)
          else {
            const halves = new Float16Array((await bench.words(cache, size / 2)).buffer)
            expect(Math.max(...wanted[i].map((value, e) => Math.abs(value - halves[e])))).toBeLessThan(4e-3)
          }
        }
      }
    })
})
