import { describe, expect, test } from 'vitest'
import { logitsBackward, scoreRows, statisticsWords, vocabularySlices } from '../../src/kernels/head/head.ts'
import { sliceRows } from '../../src/kernels/common/weight.ts'
import { bounds, compare, isRun, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

/** Log-probability of the target, entropy and lse of each row in float64. */
function reference(
  logits: Float32Array,
  rows: number,
  vocabulary: number,
  targets: Uint32Array,
  inverse: (row: number) => number,
): Float64Array[] {
  const [logprobs, entropy, lse] = [0, 1, 2].map(() => new Float64Array(rows))
  for (let t = 0; t < rows; t++) {
    const z = Array.from(logits.subarray(t * vocabulary, (t + 1) * vocabulary), (v) => v * inverse(t))
    const high = z.reduce((a, b) => Math.max(a, b), -Infinity)
    lse[t] = high + Math.log(z.reduce((s, v) => s + Math.exp(v - high), 0))
    logprobs[t] = z[targets[t]] - lse[t]
    entropy[t] = -z.reduce((s, v) => s + Math.exp(v - lse[t]) * (v - lse[t]), 0)
  }
  return [logprobs, entropy, lse]
}

interface Run {
  logits: Float32Array
  rows: number
  vocabulary: number
  targets: Uint32Array
  inverseTemperature: number
  /** Rows of results before the first. */
  first?: number
}

/** The head as the trainer runs it: one temperature, rows of logits a little wider than the vocabulary, results behind those of other rows. */
async function atOnce({ logits, rows, vocabulary, targets, inverseTemperature, first = 0 }: Run): Promise<Float32Array[]> {
  const stride = vocabulary + 5
  const wide = new Float32Array(rows * stride).fill(NaN)
  for (let t = 0; t < rows; t++) wide.set(logits.subarray(t * vocabulary, (t + 1) * vocabulary), t * stride)
  const [logprobs, entropy, lse] = [0, 1, 2].map(() => bench.up(new Float32Array(first + rows).fill(9)))
  const stats = bench.out(rows * statisticsWords(gpu, vocabulary))
  const t = { logits: bench.up(wide), targets: bench.up(targets), stats, logprobs, entropy, lse }
  scoreRows(gpu, t, { rows, vocabulary, stride, first, inverseTemperature })
  await bench.words(stats, rows * statisticsWords(gpu, vocabulary))
  const results: Float32Array[] = []
  for (const buffer of [logprobs, entropy, lse]) {
    const all = await bench.down(buffer, first + rows)
    expect(all.slice(0, first).every((v) => v === 9)).toBe(true)
    results.push(all.slice(first))
  }
  return results
}

/** The head as the engine runs it: a temperature a row, targets and log-probabilities in one buffer. */
async function byRow(
  { logits, rows, vocabulary, targets, inverseTemperature }: Run,
  inverses?: Float32Array,
): Promise<Float32Array[]> {
  const room = Math.ceil(rows / 64) * 64
  const both = bench.out(room + rows)
  gpu.write(both, targets)
  const logprobs = { buffer: both, offset: room * 4, bytes: rows * 4 }
  const [entropy, lse] = [0, 1].map(() => bench.out(rows))
  const stats = bench.out(rows * statisticsWords(gpu, vocabulary))
  const t = {
    logits: bench.up(logits),
    targets: { buffer: both, offset: 0, bytes: rows * 4 },
    stats,
    logprobs,
    entropy,
    lse,
  }
  const inverse = bench.up(inverses ?? new Float32Array(rows).fill(inverseTemperature))
  scoreRows(gpu, t, { rows, vocabulary, inverseTemperature: inverse })
  const found = (await bench.down(both, room + rows)).slice(room)
  return [found, await bench.down(entropy, rows), await bench.down(lse, rows)]
}

function fresh(rows: number, vocabulary: number, inverseTemperature: number): Run {
  return {
    logits: bench.normals(rows * vocabulary, 3),
    rows,
    vocabulary,
    inverseTemperature,
    targets: bench.ids(rows, vocabulary),
  }
}

describe.each(modes.filter(isRun))('$name', ({ facts, needs }) => {
  const skip = needs === 'cpu' && !bench.cpu
  test.skipIf(skip)('log-probabilities, entropies and lse, with one temperature and by row', async () => {
    for (const [rows, vocabulary, inverse] of [
      [1, 7, 1],
      [7, 151, 1 / 0.7],
      [3, sliceRows, 1],
      [5, 2 * sliceRows + 129, 1.25],
      [129, 33, 0.5],
      // More slices than lanes that put them together.
      [2, 33 * sliceRows + 1, 1],
    ]) {
      await bench.run(`head ${rows} ${vocabulary}`, facts, async () => {
        const run = { ...fresh(rows, vocabulary, inverse), first: 3 }
        // The kernels multiply by the float32 value.
        const want = reference(run.logits, rows, vocabulary, run.targets, () => Math.fround(inverse))
        const [a, b] = [await atOnce(run), await byRow(run)]
        ;['logprobs', 'entropy', 'lse'].forEach((name, i) => {
          compare(`${name} ${rows} x ${vocabulary}`, a[i], want[i], bounds.softmax)
          sameBits(`${name}: one temperature and by row`, a[i], b[i])
        })
      })
    }
  })
  test.skipIf(skip)('a row has the same bits alone', async () => {
    await bench.run('head rows', facts, async () => {
      const [rows, vocabulary] = [6, sliceRows + 100]
      const run = fresh(rows, vocabulary, 1.3)
      const all = await atOnce(run)
      for (const r of [0, 2, 5]) {
        const logits = run.logits.slice(r * vocabulary, (r + 1) * vocabulary)
        const alone = await atOnce({ ...run, logits, rows: 1, targets: run.targets.slice(r, r + 1) })
        alone.forEach((v, i) => sameBits(`row ${r}`, v, all[i].slice(r, r + 1)))
      }
    })
  })
  test.skipIf(skip)('each row by its own temperature; 0 leaves a row as it is', async () => {
    await bench.run('temperatures', facts, async () => {
      const run = fresh(5, 500, 1)
      const inverses = Float32Array.of(1, 2, 0, 0.25, 1 / 0.6)
      const want = reference(run.logits, 5, 500, run.targets, (t) => inverses[t])
      const used = (v: ArrayLike<number>) => Array.from(v).filter((_, t) => inverses[t] > 0)
      ;(await byRow(run, inverses)).forEach((v, i) => compare('by row', used(v), used(want[i]), bounds.softmax))
    })
  })
  test.skipIf(skip)('a token that is nearly sure, far logits, and slices of dropped tokens: no NaN', async () => {
    await bench.run('sure', facts, async () => {
      const run = fresh(3, sliceRows + 8, 1)
      const { vocabulary } = run
      run.logits.fill(-1000)
      run.logits[5] = 1000
      run.logits[vocabulary + sliceRows + 2] = 1000
      // As draw.wgsl leaves them.
      run.logits.fill(-3e38, 2 * vocabulary)
      run.logits[2 * vocabulary + sliceRows + 1] = 2
      run.logits[2 * vocabulary + sliceRows + 3] = 2
      run.targets = Uint32Array.of(5, 0, sliceRows + 3)
      const [logprobs, entropy] = await atOnce(run)
      expect([...logprobs.subarray(0, 2)]).toEqual([0, -2000])
      expect(logprobs[2]).toBeCloseTo(-Math.LN2, 6)
      expect([...entropy.subarray(0, 2)].map(Math.abs)).toEqual([0, 0])
      expect(entropy[2]).toBeCloseTo(Math.LN2, 6)
    })
  })
})

test('gradient of the logits', async () => {
  for (const [rows, vocabulary] of [
    [1, 7],
    [7, 151],
    [5, 264],
    [3, sliceRows + 129],
  ]) {
    const [firstRow, inverse] = [2, Math.fround(1 / 0.8)]
    const { logits, targets } = fresh(rows, vocabulary, inverse)
    // Of a token that is all but certain the gradient is a difference of nearly equal numbers, and a row may be all that there is.
    const first = logits.subarray(0, vocabulary)
    targets[0] = first.indexOf(first.toSorted()[0])
    const coefficient = bench.normals(rows + firstRow)
    const [, , lse] = reference(logits, rows, vocabulary, targets, () => inverse)
    for (const slice of vocabularySlices(vocabulary)) {
      const part = new Float32Array(rows * slice.rows)
      const want = new Float64Array(part.length)
      for (let e = 0; e < part.length; e++) {
        const [r, v] = [Math.floor(e / slice.rows), slice.row + (e % slice.rows)]
        part[e] = logits[r * vocabulary + v]
        want[e] = coefficient[firstRow + r] * inverse * (Number(v === targets[r]) - Math.exp(part[e] * inverse - lse[r]))
      }
      const results: Float32Array[] = []
      for (const software of [true, false]) {
        await bench.run(`dlogits ${rows} ${vocabulary}`, { software }, async () => {
          const t = {
            logits: bench.up(part),
            targets: bench.up(Uint32Array.of(0, 0, ...targets)),
            lse: bench.up(Float32Array.of(0, 0, ...lse)),
            coefficient: bench.up(coefficient),
          }
          logitsBackward(gpu, t, { rows, firstRow, slice, inverseTemperature: inverse })
          await bench.check('dlogits', t.logits, want, bounds.softmax)
          results.push(await bench.down(t.logits, part.length))
        })
      }
      sameBits('several values an invocation, or four an element', results[0], results[1])
    }
  }
})

test.each([1, 0.6])('the gradient with an entropy bonus, of what logits are made of times %d', async (scale) => {
  const [rows, vocabulary, firstRow, inverse, weight] = [5, 264, 2, Math.fround(1 / 0.8), 0.3]
  await bench.run('dlogits with entropy', {}, async () => {
    const { logits, targets } = fresh(rows, vocabulary, inverse)
    const coefficient = bench.normals(rows + firstRow)
    const [, entropy, lse] = reference(logits, rows, vocabulary, targets, () => inverse)
    const want = Float64Array.from(logits, (logit, e) => {
      const [r, v] = [Math.floor(e / vocabulary), e % vocabulary]
      const logp = logit * inverse - lse[r]
      const hit = coefficient[firstRow + r] * (Number(v === targets[r]) - Math.exp(logp))
      return scale * inverse * (hit + weight * Math.exp(logp) * (logp + entropy[r]))
    })
    for (const software of [true, false]) {
      await bench.run(`dlogits with entropy, ${software}`, { software }, async () => {
        const t = {
          logits: bench.up(logits),
          targets: bench.up(Uint32Array.of(0, 0, ...targets)),
          lse: bench.up(Float32Array.of(0, 0, ...lse)),
          coefficient: bench.up(coefficient),
        }
        const bonus = { weight, entropy: bench.up(Float32Array.of(0, 0, ...entropy)) }
        const at = { rows, firstRow, slice: { row: 0, rows: vocabulary }, inverseTemperature: inverse, scale }
        logitsBackward(gpu, t, at, bonus)
        await bench.check('dlogits', t.logits, want, bounds.softmax)
      })
    }
  })
})

test('slices cover the vocabulary once', () => {
  for (const vocabulary of [1, 7, sliceRows, sliceRows + 1, 49152, 151936]) {
    const slices = vocabularySlices(vocabulary)
    expect(slices.reduce((sum, s) => sum + s.rows, 0)).toBe(vocabulary)
    slices.forEach((s, i) => expect(s.row).toBe(i * sliceRows))
  }
})
