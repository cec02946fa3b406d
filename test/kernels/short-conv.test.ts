/** The gated convolution of LFM2, C * conv(B * x): against float64, and over a cache. */
import { expect, test } from 'vitest'
import {
  causalConv,
  causalConvGate,
  causalConvInput,
  causalConvWeight,
  keepInputs,
} from '../../src/kernels/causal-conv/causal-conv.ts'
import { bounds, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

/** Where each row's sequence begins and ends, for sequences one after the other. */
function placesOf(lengths: number[]) {
  const rows = lengths.reduce((a, b) => a + b, 0)
  const starts = lengths.map((_, i) => lengths.slice(0, i).reduce((a, b) => a + b, 0))
  const of = (value: (i: number) => number) => lengths.flatMap((length, i) => Array<number>(length).fill(value(i)))
  const start = of((i) => starts[i])
  const info = Uint32Array.from(start.flatMap((begin, row) => [begin, 0, begin, row - begin]))
  return { rows, starts, start, info, keyEnd: Uint32Array.from(of((i) => starts[i] + lengths[i])) }
}

test.each([modes[0], modes[1]])('forward and backward: $name', async ({ facts }) => {
  for (const { lengths, channels, taps } of [
    { lengths: [1, 7, 2, 3, 12], channels: 20, taps: 3 },
    { lengths: [300, 280], channels: 4, taps: 4 },
    { lengths: [5], channels: 8, taps: 2 },
  ]) {
    await bench.run(`gated convolution ${lengths.length} ${taps}`, facts, async () => {
      const { rows, start, keyEnd, info } = placesOf(lengths)
      const shape = { channels, taps, gated: true }
      const range = { first: 0, width: channels }
      const [x, weight, dy] = [bench.normals(rows * 3 * channels), bench.normals(channels * taps), bench.normals(rows * channels)]
      const [y, dz] = [new Float64Array(rows * channels), new Float64Array(rows * channels)]
      const [dx, dweight] = [new Float64Array(x.length), new Float64Array(weight.length)]
      const places: { t: number; c: number; e: number; b: number; gate: number; value: number }[] = []
      for (let t = 0; t < rows; t++)
        for (let c = 0; c < channels; c++) {
          const b = t * 3 * channels + c
          places.push({ t, c, e: t * channels + c, b, gate: b + channels, value: b + 2 * channels })
        }
      for (const { t, c, e, gate } of places) {
        dz[e] = dy[e] * x[gate]
        let z = 0
        for (let j = 0; j < taps && t - j >= start[t]; j++) {
          const { b, value } = places[e - j * channels]
          z += weight[c * taps + taps - 1 - j] * x[b] * x[value]
          dweight[c * taps + taps - 1 - j] += x[b] * x[value] * dz[e]
          dx[b] += weight[c * taps + taps - 1 - j] * x[value] * dz[e]
          dx[value] += weight[c * taps + taps - 1 - j] * x[b] * dz[e]
        }
        y[e] = x[gate] * z
        dx[gate] = dy[e] * z
      }

      const [xb, wb, infoBuffer] = [bench.up(x), bench.up(weight), bench.up(info)]
      const [out, ofConvolved, back] = [bench.out(y.length), bench.out(dz.length), bench.out(dx.length)]
      causalConv(gpu, { x: xb, weight: wb, y: out }, { info: infoBuffer }, rows, shape, range)
      await bench.check('y', out, y, bounds.sum)
      const given = { x: xb, weight: wb, dy: bench.up(dy), dz: ofConvolved, info: infoBuffer, dx: back }
      causalConvGate(gpu, given, rows, shape, range)
      await bench.check('dz', ofConvolved, dz, bounds.elementwise)
      causalConvInput(gpu, { dz: ofConvolved, weight: wb, keyEnd: bench.up(keyEnd), dx: back, x: xb }, rows, shape)
      await bench.check('dx', back, dx, bounds.sum)
      const before = bench.normals(weight.length)
      const sums = bench.upOut(before)
      causalConvWeight(gpu, { x: xb, dz: ofConvolved, info: infoBuffer, dweight: sums }, rows, shape)
      await bench.check('dweight', sums, dweight.map((value, i) => value + before[i]), bounds.sum) // prettier-ignore
    })
  }
})

test('over a cache, in pieces of any size, it has the bits of whole sequences', async () => {
  await bench.run('gated convolution over a cache', {}, async () => {
    const lengths = [9, 1, 5]
    const { rows, starts, info } = placesOf(lengths)
    const shape = { channels: 8, taps: 3, gated: true }
    const range = { first: 0, width: 8 }
    const [x, weight] = [bench.normals(rows * 24), bench.up(bench.normals(24))]
    const whole = bench.out(rows * 8)
    causalConv(gpu, { x: bench.up(x), weight, y: whole }, { info: bench.up(info) }, rows, shape, range)
    const want = await bench.down(whole, rows * 8)
    const inputs = bench.out(5 * 2 * 8)
    // Of each pass: which sequence has how many tokens, and its slot.
    const passes = [[[2, 1, 0], [0, 4, 3]], [[0, 1, 3], [1, 1, 4], [2, 2, 0]], [[0, 2, 3], [2, 1, 0]], [[2, 1, 0], [0, 2, 3]]] // prettier-ignore
    const done = lengths.map(() => 0)
    for (const pass of passes) {
      const [runs, sources]: [number[], number[]] = [[], []]
      for (const [sequence, count, slot] of pass) {
        const first = sources.length
        for (let t = 0; t < count; t++) {
          runs.push(slot, first, count, Number(done[sequence] > 0))
          sources.push(starts[sequence] + done[sequence] + t)
        }
        done[sequence] += count
      }
      const part = bench.up(Float32Array.from(sources.flatMap((row) => [...x.subarray(row * 24, row * 24 + 24)])))
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
