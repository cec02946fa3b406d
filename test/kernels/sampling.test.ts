import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { NEUTRAL } from '../../src/common/sampling.ts'
import { dispatchFlat } from '../../src/kernels/common/lanes.ts'
import {
  adjustLogits,
  drawTokens,
  maskLogits,
  packChanges,
  packSettings,
  type DrawSettings,
  type RowChanges,
} from '../../src/kernels/sampling/sampling.ts'
import { sliceRows } from '../../src/kernels/common/weight.ts'
import { withFacts } from '../facts.ts'
import { compare, isRun, modes, openBench } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

interface GoldenCase {
  params: DrawSettings
  prompt_ids: number[]
  output_ids: number[]
  logits: number[]
  probs: number[]
}
const golden: GoldenCase[] = JSON.parse(readFileSync(new URL('../fixtures/golden/misc/sampling.json', import.meta.url), 'utf8'))

/** The changes that penalties make: each token of prompt and output once, with how often the output has it. */
function penaltiesOf({ prompt_ids, output_ids }: { prompt_ids: number[]; output_ids: number[] }): RowChanges {
  const count = (id: number): number => output_ids.filter((o) => o === id).length
  return { entries: [...new Set([...prompt_ids, ...output_ids])].map((id) => [id, count(id), 0]) }
}

/** The lists of adjust.wgsl on the device. */
function upChanges(rows: RowChanges[]) {
  const { start, entries, maskAt, masks } = packChanges(rows)
  return { start: bench.up(start), entries: bench.up(entries), maskAt: bench.up(maskAt), masks: bench.up(masks) }
}

/** Tokens drawn for rows of logits; seeds are pairs (seed, position). */
async function draw(logits: Float32Array, settings: DrawSettings[], seeds: number[]): Promise<Uint32Array> {
  const rows = settings.length
  const t = {
    logits: bench.up(logits),
    settings: bench.up(packSettings(settings)),
    seeds: bench.up(Uint32Array.from(seeds)),
    drawn: bench.out(rows),
  }
  drawTokens(gpu, t, rows, logits.length / rows)
  return await bench.words(t.drawn, rows)
}

describe.each(modes.filter(isRun))('$name', ({ facts, needs }) => {
  const skip = needs === 'cpu' && !bench.cpu
  test.skipIf(skip)('the golden distributions, all rows in one batch', async () => {
    await bench.run('golden', facts, async () => {
      const [rows, vocabulary] = [golden.length, golden[0].logits.length]
      const t = {
        logits: bench.up(Float32Array.from(golden.flatMap((c) => c.logits))),
        settings: bench.up(packSettings(golden.map((c) => c.params))),
        seeds: bench.up(new Uint32Array(rows * 2)),
        drawn: bench.out(rows),
      }
      adjustLogits(gpu, { ...t, ...upChanges(golden.map(penaltiesOf)) }, rows, vocabulary)
      maskLogits(gpu, t, rows, vocabulary)
      const z = await bench.down(t.logits, rows * vocabulary)
      golden.forEach((c, r) => {
        const row = z.subarray(r * vocabulary, (r + 1) * vocabulary)
        const high = Math.max(...row)
        const weights = Array.from(row, (v) => Math.exp(v - high))
        const sum = weights.reduce((a, b) => a + b, 0)
        compare(
          `case ${r} ${JSON.stringify(c.params)}`,
          weights.map((w) => w / sum),
          c.probs,
          1e-5,
        )
        weights.forEach((w, v) => expect(w > 0, `case ${r}, token ${v}`).toBe(c.probs[v] > 0))
      })
    })
  })
  test.skipIf(skip)('draws follow the golden distributions', async () => {
    await bench.run('draws', facts, async () => {
      const draws = 3000
      for (const [i, c] of golden.entries()) {
        if (i % 5 !== 0) continue
        // From the golden probabilities themselves, through the filters, which must drop nothing more.
        const logits = Float32Array.from({ length: draws * c.probs.length }, (_, e) => {
          const probability = c.probs[e % c.probs.length]
          return probability > 0 ? Math.log(probability) * 0.8 : -1000
        })
        const seeds = Array.from({ length: 2 * draws }, (_, e) => (e % 2 === 0 ? 1234 + i : e / 2))
        const tokens = await draw(
          logits,
          Array.from({ length: draws }, () => ({ ...NEUTRAL, temperature: 0.8 })),
          seeds,
        )
        expectDistribution(tokens, c.probs)
      }
    })
  })
  // 2500 are more than draw.wgsl puts aside.
  test.skipIf(skip).each([1, 9, 700, 2500])('what top_k and top_p keep of %i tokens, beside float64', async (vocabulary) => {
    await bench.run(`kept ${vocabulary}`, facts, async () => {
      const filters = [1, 20, vocabulary - 1, vocabulary + 1, 0].flatMap((top_k) =>
        [1, 1e-6, 0.3, 0.8, 0.9999].map((top_p) => ({ ...NEUTRAL, temperature: 0.5, top_k, top_p })),
      )
      const settings = kinds.flatMap(() => filters)
      const logits = Float32Array.from(kinds.flatMap((kind) => filters.flatMap(() => [...kind(vocabulary)])))
      const rows = settings.length
      const t = {
        logits: bench.up(logits),
        settings: bench.up(packSettings(settings)),
        seeds: bench.up(bench.ids(2 * rows, 1000)),
        drawn: bench.out(rows),
      }
      drawTokens(gpu, t, rows, vocabulary)
      const tokens = await bench.words(t.drawn, rows)
      maskLogits(gpu, t, rows, vocabulary)
      const z = await bench.down(t.logits, rows * vocabulary)
      settings.forEach((s, r) => {
        const at = r * vocabulary
        const row = logits.subarray(at, at + vocabulary)
        const kept = z.subarray(at, at + vocabulary)
        const name = `row ${r}, kind ${Math.floor(r / filters.length)}, top_k ${s.top_k}, top_p ${s.top_p}`
        expect(wrongKept(row, kept, s), name).toEqual([])
        expect(kept[tokens[r]], `${name}: token ${tokens[r]}`).toBeGreaterThan(-1e38)
      })
    })
  })
  test.skipIf(skip)('greedy takes the largest, the first of equals', async () => {
    await bench.run('greedy', facts, async () => {
      const vocabulary = 1000
      const logits = bench.normals(4 * vocabulary)
      const want = [0, 1, 2, 3].map((r) => {
        const row = logits.subarray(r * vocabulary, (r + 1) * vocabulary)
        const ties = [17, 18, 300, 999].slice(r)
        ties.forEach((v) => (row[v] = 50))
        return ties[0]
      })
      const settings = [0, 1, 2, 3].map(() => ({ ...NEUTRAL, temperature: 0, top_p: 0.1, top_k: 3 }))
      expect([...(await draw(logits, settings, [1, 2, 3, 4, 5, 6, 7, 8]))]).toEqual(want)
    })
  })
})

/** Rows of logits that a search for a threshold may fail on. */
const kinds: ((length: number) => Float32Array)[] = [
  (n) => bench.normals(n, 3),
  (n) => bench.normals(n, 0.01),
  (n) => bench.normals(n, 1e4),
  (n) => bench.normals(n).map((x) => Math.round(2 * x)),
  (n) => bench.normals(n).map((x) => (x > 0 ? 0 : x > -1 ? -0 : x)),
  (n) => bench.normals(n).fill(-3.7),
  (n) => bench.normals(n).map((x, v) => (v % 3 === n % 3 || v === 0 ? x : -1e30)),
  (n) => bench.normals(n).map((x, v) => (v % 7 === n % 7 || v === 0 ? x : -Infinity)),
]

/** Tokens that are kept but should not be, or the other way round: all whose logits stand where rounding does not decide. */
function wrongKept(row: Float32Array, kept: Float32Array, { temperature, top_k, top_p }: DrawSettings): number[] {
  const order = row.toSorted((a, b) => b - a)
  const limit = top_k > 0 ? order[Math.min(top_k, order.length) - 1] : -Infinity
  const weight = (z: number): number => (z >= limit ? Math.exp((z - order[0]) / temperature) : 0)
  const total = order.reduce((sum, z) => sum + weight(z), 0)
  // Of each value: what larger ones weigh.
  const before = new Map<number, number>()
  order.reduce((sum, z) => (before.set(z, before.get(z) ?? sum / total), sum + weight(z)), 0)
  return [...row.keys()].filter((v) => {
    const larger = before.get(row[v])!
    const is = kept[v] > -1e38
    if (row[v] < limit || row[v] < -1e29) return is
    if (top_p < 1 && Math.abs(larger - top_p) < 1e-5) return false
    return is !== (top_p === 1 || larger < top_p)
  })
}

/** Chi-square of counts against probabilities; the bound is passed by one fair draw in about 100,000. */
function expectDistribution(tokens: Uint32Array, probs: ArrayLike<number>): void {
  const counts = new Float64Array(probs.length)
  for (const token of tokens) counts[token]++
  let [chi, cells, restCount, restExpected] = [0, 0, 0, 0]
  const add = (count: number, expected: number): void => {
    chi += (count - expected) ** 2 / expected
    cells++
  }
  for (let v = 0; v < probs.length; v++) {
    const expected = probs[v] * tokens.length
    if (expected === 0) expect(counts[v], `token ${v} has no probability`).toBe(0)
    else if (expected >= 5) add(counts[v], expected)
    else [restCount, restExpected] = [restCount + counts[v], restExpected + expected]
  }
  if (restExpected >= 5) add(restCount, restExpected)
  const freedom = Math.max(1, cells - 1)
  // Wilson and Hilferty: (chi / freedom)^(1/3) is nearly normal; 4.3 standard deviations.
  const z = ((chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / Math.sqrt(2 / (9 * freedom))
  expect(z, `chi-square ${chi} of ${freedom} degrees of freedom`).toBeLessThan(4.3)
}

test('a fair draw passes the chi-square and a skewed one does not', () => {
  const tokens = Uint32Array.from({ length: 3000 }, (_, i) => i % 4)
  expectDistribution(tokens, [0.25, 0.25, 0.25, 0.25])
  expect(() => expectDistribution(tokens, [0.3, 0.25, 0.25, 0.2])).toThrow('chi-square')
})

test('a large vocabulary: one token as likely as fifty thousand others', async () => {
  await bench.run('large', {}, async () => {
    const [vocabulary, rows] = [50_001, 400]
    const logits = new Float32Array(rows * vocabulary)
    for (let r = 0; r < rows; r++) logits[r * vocabulary + 777] = Math.log(vocabulary - 1)
    const seeds = Array.from({ length: 2 * rows }, (_, e) => (e % 2 === 0 ? 99 : e / 2))
    const tokens = await draw(
      logits,
      Array.from({ length: rows }, () => NEUTRAL),
      seeds,
    )
    // The other half falls evenly into eight parts of the vocabulary.
    const cells = Uint32Array.from(tokens, (v) => (v === 777 ? 8 : Math.floor((v * 8) / vocabulary)))
    expectDistribution(cells, [...Array.from({ length: 8 }, () => 1 / 16), 0.5])
  })
})

test('a workgroup a slice draws the tokens that a workgroup a row draws', async () => {
  // More slices than lanes that put them together; with 4 of the largest value and 3 of one that is nearly as large, in several slices; the first two
  // are the same lane's.
  const [rows, vocabulary] = [8, 33 * sliceRows + 5]
  const settings = [{ temperature: 0 }, {}, { temperature: 0.7 }, { top_k: 4 }, { min_p: 0.2 }, { top_k: 50, min_p: 1e-4 }, {}]
  const tokens: number[][] = []
  const kinds = [{ software: true }, { software: false, shuffled: true }, { software: false, subgroupSize: 0, shuffled: true }]
  for (const facts of kinds) {
    await bench.run('slices', {}, async () => {
      const logits = bench.normals(rows * vocabulary, 0.5)
      for (let r = 0; r < rows; r++) {
        for (const v of [12 * sliceRows, 32 * sliceRows, 32 * sliceRows + 1, vocabulary - 1]) logits[r * vocabulary + v] = 10
        for (const v of [5, 7 * sliceRows - 1, 7 * sliceRows]) logits[r * vocabulary + v] = 9.5
      }
      const packed = packSettings(
        settings.map((s) => ({ ...NEUTRAL, ...s })),
        rows,
        (r) => r === 6,
      )
      const t = {
        logits: bench.up(logits),
        settings: bench.up(packed),
        seeds: bench.up(Uint32Array.from({ length: 2 * rows }, (_, i) => i * 31 + 7)),
        drawn: bench.out(rows),
      }
      await withFacts(gpu, facts, async () => {
        drawTokens(gpu, t, rows, vocabulary)
        tokens.push([...(await bench.words(t.drawn, rows))])
      })
    })
  }
  expect(tokens[0][0]).toBe(12 * sliceRows)
  expect(tokens[0].slice(6)).toEqual([12 * 31 + 7, 0])
  expect(tokens[1]).toEqual(tokens[0])
  expect(tokens[2]).toEqual(tokens[0])
})

test('workgroups that share a row change its logits as one does', async () => {
  const [rows, vocabulary] = [3, 2 * sliceRows + 37]
  const results: Uint32Array[] = []
  for (const facts of [{ software: true }, { software: false, shuffled: true }]) {
    await bench.run('changes', {}, async () => {
      const logits = bench.up(bench.normals(rows * vocabulary))
      const changed = Array.from({ length: rows }, (_, r) => {
        const ids = bench.random.shuffle(Array.from({ length: vocabulary }, (__, v) => v)).slice(0, 700)
        const entries = ids.map((id): [number, number, number] => [id, bench.random.int(3), bench.random.normal()])
        return { entries, mask: r === 1 ? undefined : bench.ids(Math.ceil(vocabulary / 32), 2 ** 32) }
      })
      const settings = bench.up(
        packSettings(changed.map(() => ({ ...NEUTRAL, repetition_penalty: 1.2, presence_penalty: 0.3, frequency_penalty: 0.1 }))),
      )
      await withFacts(gpu, facts, async () => {
        adjustLogits(gpu, { logits, settings, ...upChanges(changed) }, rows, vocabulary)
        results.push(await bench.words(logits, rows * vocabulary))
      })
    })
  }
  const dropped = results[0].filter((word) => word === new Uint32Array(Float32Array.of(-1e30).buffer)[0])
  expect(dropped.length / (rows * vocabulary)).toBeCloseTo(1 / 3, 1)
  expect(results[1]).toEqual(results[0])
})

test('the same seed and position draw the same token in any batch, others differ', async () => {
  await bench.run('seeds', {}, async () => {
    const vocabulary = 300
    const row = bench.normals(vocabulary)
    const settings = { ...NEUTRAL, temperature: 1.3, top_k: 200, top_p: 0.98, min_p: 0.001 }
    const [alone] = await draw(row, [settings], [42, 7])
    for (const [rows, at] of [
      [2, 1],
      [9, 0],
      [33, 20],
    ]) {
      const logits = bench.normals(rows * vocabulary)
      logits.set(row, at * vocabulary)
      const all = Array.from({ length: rows }, (_, r) =>
        r === at ? settings : { ...NEUTRAL, temperature: 0.1 + r / 10, top_k: r },
      )
      const seeds = Array.from({ length: 2 * rows }, () => bench.random.int(1000))
      seeds.splice(2 * at, 2, 42, 7)
      expect((await draw(logits, all, seeds))[at]).toBe(alone)
    }
    const many = Array.from({ length: 200 }, () => settings)
    const repeated = Float32Array.from({ length: 200 * vocabulary }, (_, e) => row[e % vocabulary])
    const bySeed = await draw(
      repeated,
      many,
      Array.from({ length: 400 }, (_, e) => (e % 2 === 0 ? e / 2 : 7)),
    )
    const byPosition = await draw(
      repeated,
      many,
      Array.from({ length: 400 }, (_, e) => (e % 2 === 0 ? 42 : (e - 1) / 2)),
    )
    expect(new Set(bySeed).size).toBeGreaterThan(30)
    expect(new Set(byPosition).size).toBeGreaterThan(30)
    expect(byPosition[7]).toBe(alone)
    expect(bySeed[42]).toBe(alone)
  })
})

test('top_p keeps the same tokens wherever the logits lie, also where their exponentials overflow or are 0', async () => {
  await bench.run('far logits', {}, async () => {
    const shifts = [0, 100, -200]
    const t = {
      logits: bench.up(Float32Array.from(shifts.flatMap((shift) => [0, 0, -1, -5].map((z) => z + shift)))),
      settings: bench.up(packSettings(shifts.map(() => ({ ...NEUTRAL, top_p: 0.9 })))),
      seeds: bench.up(new Uint32Array(2 * shifts.length)),
      drawn: bench.out(shifts.length),
    }
    maskLogits(gpu, t, shifts.length, 4)
    const z = await bench.down(t.logits, 4 * shifts.length)
    expect([...z].map((v) => v > -1e38)).toEqual(shifts.flatMap(() => [true, true, true, false]))
  })
})

test('filters at their ends: top_k 1, a tiny top_p and min_p 1 leave the largest; ties at the k-th stay', async () => {
  await bench.run('ends', {}, async () => {
    const logits = Float32Array.of(1, 4, 3, 3, -2, 0)
    const settings = [{ top_k: 1 }, { top_p: 1e-6 }, { min_p: 1 }, { top_k: 2 }, { top_k: 6 }, { top_k: 100 }].map((s) => ({
      ...NEUTRAL,
      ...s,
    }))
    const rows = settings.length
    const t = {
      logits: bench.up(Float32Array.from({ length: rows * 6 }, (_, e) => logits[e % 6])),
      settings: bench.up(packSettings(settings)),
      seeds: bench.up(new Uint32Array(rows * 2)),
      drawn: bench.out(rows),
    }
    maskLogits(gpu, t, rows, 6)
    const z = await bench.down(t.logits, rows * 6)
    const kept = settings.map((_, r) => [...z.subarray(r * 6, r * 6 + 6)].flatMap((v, i) => (v > -1e38 ? [i] : [])))
    expect(kept).toEqual([[1], [1], [1], [1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
  })
})

test('0 and -0 are equal logits: both stay, and a largest of -0 is not below itself', async () => {
  await bench.run('zeros', {}, async () => {
    const settings = [{ top_k: 1 }, { top_p: 0.1 }, { min_p: 1 }, { min_p: 1 }].map((s) => ({ ...NEUTRAL, ...s }))
    const t = {
      logits: bench.up(Float32Array.of(0, -0, -1, -0, 0, -1, -0, 0, -1, -2, -0, -1)),
      settings: bench.up(packSettings(settings)),
      seeds: bench.up(new Uint32Array(8)),
      drawn: bench.out(4),
    }
    maskLogits(gpu, t, 4, 3)
    const z = await bench.down(t.logits, 12)
    const kept = settings.map((_, r) => [...z.subarray(3 * r, 3 * r + 3)].map((v) => v > -1e38))
    expect(kept).toEqual([...Array.from({ length: 3 }, () => [true, true, false]), [false, true, false]])
  })
})

test('a token that is given comes out as it is, and rows that draw do not change by it', async () => {
  await bench.run('given', {}, async () => {
    const [rows, vocabulary] = [5, 90]
    const t = {
      logits: bench.up(bench.normals(rows * vocabulary)),
      seeds: bench.up(Uint32Array.of(1, 2, 77, 0, 3, 4, 0, 0, 5, 6)),
    }
    const drawn = async (given: number[]) => {
      const settings = bench.up(
        packSettings(
          Array.from({ length: 4 }, () => NEUTRAL),
          rows,
          (r) => given.includes(r),
        ),
      )
      const out = bench.out(rows)
      drawTokens(gpu, { ...t, settings, drawn: out }, rows, vocabulary)
      return [...(await bench.words(out, rows))]
    }
    const [all, some] = [await drawn([]), await drawn([1, 3])]
    expect(some).toEqual([all[0], 77, all[2], 0, 0])
  })
})

test('Gumbel noise is exact in its far tails', async () => {
  await bench.run('gumbel', {}, async () => {
    const hashes = Uint32Array.from(
      { length: 600 },
      (_, i) => (i < 40 ? i << 9 : i < 80 ? 0xffffffff - (i << 9) : bench.random.int(2 ** 32)) >>> 0,
    )
    const noise = bench.out(hashes.length)
    const path = fileURLToPath(new URL('fixtures/gumbel.wgsl', import.meta.url))
    dispatchFlat(gpu, path, {}, [bench.up(hashes), noise], { count: hashes.length }, hashes.length)
    const got = await bench.down(noise, hashes.length)
    hashes.forEach((h, i) => {
      const d = ((h >>> 9) + 0.5) / 8388608
      expect(Math.abs(got[i] + Math.log(-Math.log1p(-d))), `hash ${h}`).toBeLessThan(1e-5)
    })
  })
})
