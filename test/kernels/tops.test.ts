import { describe, expect, test } from 'vitest'
import { scoreRows, statisticsWords } from '../../src/kernels/head/head.ts'
import {
  adjustLogits,
  maskLogits,
  mostTop,
  none,
  packChanges,
  packSettings,
  readTop,
  topTokens,
  topWords,
} from '../../src/kernels/sampling/sampling.ts'
import { plainSampling } from '../../src/bench/data.ts'
import { modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

/** Ids of a row by falling value, of equals the smaller id first. */
const ranked = (z: ArrayLike<number>): number[] => Array.from(z, (_, v) => v).toSorted((a, b) => z[b] - z[a] || a - b)

/** The most likely tokens on the device, and the log-probability that the head gives the targets. */
async function tops(logits: Float32Array, targets: Uint32Array, inverse: Float32Array, wanted: (number | undefined)[]) {
  const rows = targets.length
  const vocabulary = logits.length / rows
  const t = {
    logits: bench.up(logits),
    stats: bench.out(rows * statisticsWords(gpu, vocabulary)),
    targets: bench.up(targets),
    inverseTemperatures: bench.up(inverse),
  }
  const [entropy, lse, logprobs, records] = [rows, rows, rows, rows * topWords].map((n) => bench.out(n))
  scoreRows(gpu, { ...t, logprobs, entropy, lse }, { rows, vocabulary, inverseTemperature: t.inverseTemperatures })
  const asked = Uint32Array.from(wanted, (count) => 1 + (count ?? -1))
  topTokens(gpu, { ...t, wanted: bench.up(asked), records }, rows, vocabulary)
  const words = await bench.words(records, rows * topWords)
  return { logprobs: await bench.down(logprobs, rows), words, read: (row: number) => readTop(words, row, wanted[row]!) }
}

describe.each(modes)('$name', ({ facts, needs }) => {
  const skip = needs === 'cpu' && !bench.cpu
  test.skipIf(skip)('the most likely tokens and the rank, at any size, with ties', async () => {
    await bench.run('tops', facts, async () => {
      for (const vocabulary of [3, 90, 255, 256, 257, 5003]) {
        const wanted = [mostTop, 0, 5, 1, undefined, 7]
        const rows = wanted.length
        const logits = bench.normals(rows * vocabulary, 3)
        const inverse = Float32Array.of(1, 0.8, 1.25, 2, 1, 0)
        // Row 2 is full of equal values, some of the largest in one part of the vocabulary; in row 3 all are equal.
        for (let v = 0; v < vocabulary; v++) {
          logits[2 * vocabulary + v] = v % 256 === 3 ? 20 : Math.round(logits[2 * vocabulary + v])
          logits[3 * vocabulary + v] = 0.5
        }
        const targets = bench.ids(rows, vocabulary)
        const { logprobs, words, read } = await tops(logits, targets, inverse, wanted)
        for (let r = 0; r < 4; r++) {
          const z = logits.subarray(r * vocabulary, (r + 1) * vocabulary).map((x) => x * inverse[r])
          const high = Math.max(...z)
          const total = Math.log(z.reduce((sum, x) => sum + Math.exp(x - high), 0))
          const { ids, logprobs: values, rank } = read(r)
          expect(ids, `row ${r} of ${vocabulary}`).toEqual(ranked(z).slice(0, wanted[r]))
          expect(rank).toBe(1 + z.filter((x) => x > z[targets[r]]).length)
          ids.forEach((id, i) => expect(Math.abs(values[i] - (z[id] - high - total))).toBeLessThan(3e-5))
          // The same bits as the head's own, where it is the token that stands there.
          const at = ids.indexOf(targets[r])
          if (at >= 0) expect(values[at]).toBe(logprobs[r])
        }
        // Rows that asked for nothing, or are left out, are not written.
        const poison = words.at(-1)!
        expect(words.subarray(4 * topWords).every((word) => word === poison)).toBe(true)
      }
    })
  })
  test.skipIf(skip)('mask, biases and penalties in one pass, and rows without any keep their bits', async () => {
    await bench.run('adjust', facts, async () => {
      const [rows, vocabulary] = [4, 77]
      const logits = bench.normals(rows * vocabulary, 3)
      const odd = new Uint32Array(3).fill(0xaaaaaaaa)
      const penalty = { ...plainSampling, repetition_penalty: 1.5, presence_penalty: 0.25, frequency_penalty: 0.5 }
      const changes = [
        { mask: odd, entries: [[4, none, 9], [5, none, -2], [7, 2, 1]] },
        { entries: [] },
        { entries: [[0, none, 100], [70, 0, 0.5], [76, 3, 0]] },
        { mask: odd, entries: [] },
      ] satisfies { mask?: Uint32Array; entries: [number, number, number][] }[] // prettier-ignore
      const packed = packChanges(changes)
      const t = {
        logits: bench.up(logits),
        settings: bench.up(packSettings(changes.map(() => penalty))),
        start: bench.up(packed.start),
        entries: bench.up(packed.entries),
        maskAt: bench.up(packed.maskAt),
        masks: bench.up(packed.masks),
      }
      adjustLogits(gpu, t, rows, vocabulary)
      const got = await bench.down(t.logits, rows * vocabulary)
      sameBits('plain row', got.subarray(vocabulary, 2 * vocabulary), logits.subarray(vocabulary, 2 * vocabulary))
      changes.forEach(({ mask, entries }, r) => {
        const want = [...logits.subarray(r * vocabulary, (r + 1) * vocabulary)]
        for (const [token, count, bias] of entries) {
          want[token] += bias
          if (count === none) continue
          want[token] = want[token] > 0 ? want[token] / 1.5 : want[token] * 1.5
          want[token] -= 0.5 * count + (count > 0 ? 0.25 : 0)
        }
        want.forEach((value, v) => {
          const z = got[r * vocabulary + v]
          if (mask && v % 2 === 0) expect(z).toBeLessThan(-9e29)
          else expect(Math.abs(z - value), `row ${r}, token ${v}`).toBeLessThan(1e-5 * (1 + Math.abs(value)))
        })
      })
    })
  })
})

test('of a row with few tokens left, these alone are the most likely ones', async () => {
  await bench.run('left', {}, async () => {
    const [rows, vocabulary] = [2, 1000]
    const logits = bench.normals(rows * vocabulary)
    const mask = new Uint32Array(Math.ceil(vocabulary / 32))
    const kept = [3, 500, 999]
    for (const id of kept) mask[id >> 5] |= 1 << (id & 31)
    const lists = packChanges([{ mask, entries: [] }, { entries: [] }])
    const settings = [
      { ...plainSampling, temperature: 40 },
      { ...plainSampling, temperature: 0.5, top_k: 2 },
    ]
    const t = {
      logits: bench.up(logits),
      settings: bench.up(packSettings(settings)),
      seeds: bench.up(new Uint32Array(4)),
      drawn: bench.out(rows),
    }
    const { start, entries, maskAt, masks } = lists
    const up = { start: bench.up(start), entries: bench.up(entries), maskAt: bench.up(maskAt), masks: bench.up(masks) }
    adjustLogits(gpu, { ...t, ...up }, rows, vocabulary)
    maskLogits(gpu, t, rows, vocabulary)
    const z = await bench.down(t.logits, rows * vocabulary)
    const { read } = await tops(z, Uint32Array.of(500, 0), Float32Array.of(1, 1), [5, 5])
    expect(read(0).ids.toSorted((a, b) => a - b)).toEqual(kept)
    expect(read(1).ids).toEqual(ranked(logits.subarray(vocabulary)).slice(0, 2))
    for (const row of [0, 1]) expect(read(row).logprobs.reduce((sum, l) => sum + Math.exp(l), 0)).toBeCloseTo(1, 5)
  })
})
