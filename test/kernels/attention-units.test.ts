import { describe, expect, test, vi } from 'vitest'
import { attention, attentionBackward, type HeadShape } from '../../src/kernels/attention/attention.ts'
import { checkUnits, holdUnits } from '../../src/kernels/attention/units-check.ts'
import { trustUnits, unitsOf, type UnitShape } from '../../src/kernels/attention/units.ts'
import { gradientScale } from '../../src/kernels/common/matrix-units.ts'
import { dot, groups, keysOf, pack, reference, windowed, type Group } from './attention-cases.ts'
import { compare, openBench, sameBits } from './harness.ts'
import { withUnits } from './units.ts'

const bench = await openBench()
const { gpu } = bench
const none = gpu.facts.matrixUnits.length === 0 ? ' (skipped: this adapter shows no matrix units)' : ''

/** What float32 sums, and values that fall on the other side of a rounding to f16, leave of the same arithmetic in float64; a dropped term is 1e-2. */
const sums = 1e-4
/** What rounding q, k, v, dO, P and dS to f16 does to the gradients: 2^-11 of each at most, of random sign, and what an error of a score makes of its weight. */
const rounding = 3e-3

interface Inputs {
  q: Float32Array
  k: Float32Array
  v: Float32Array
  dO: Float32Array
}

function inputs(rows: number, { heads, kvHeads, headDim }: HeadShape, gradient = 1): Inputs {
  const [nq, nk] = [rows * heads * headDim, rows * kvHeads * headDim]
  return { q: bench.normals(nq, 2), k: bench.normals(nk), v: bench.normals(nk), dO: bench.normals(nq, gradient) }
}

/** dq, dk, dv as the trainer has them made. @param chosen a shape of the kernels other than the adapter's */
async function gradients(groupsOf: Group[], s: HeadShape, { q, k, v, dO }: Inputs, chosen?: UnitShape): Promise<Float32Array[]> {
  const { rows, info, keyEnd } = pack(groupsOf)
  const [o, dq, dk, dv] = [q, q, k, v].map(({ length }) => bench.out(length))
  const [lse, soft] = [1, 2].map((n) => bench.out(rows * s.heads * n))
  const t = { q: bench.up(q), k: bench.up(k), v: bench.up(v), info: bench.up(info), o, lse }
  attention(gpu, t, rows, s, { neighbours: true })
  attentionBackward(gpu, { ...t, keyEnd: bench.up(keyEnd), dO: bench.up(dO), soft, dq, dk, dv }, rows, s, chosen)
  return [await bench.down(dq, q.length), await bench.down(dk, k.length), await bench.down(dv, v.length)]
}

/** The kernels' arithmetic in float64: operands and weights rounded to f16, statistics of what was not. */
function rounded(groupsOf: Group[], s: HeadShape, full: Inputs): Float64Array[] {
  const layout = pack(groupsOf)
  const { heads: H, kvHeads: KV, headDim: D } = s
  const { o, lse } = reference(layout, s, full.q, full.k, full.v, full.dO)
  const half = (values: Float32Array, scale = 1): Float32Array => values.map((x) => Math.f16round(x * scale))
  const [q, k, v, dO] = [half(full.q), half(full.k), half(full.v), half(full.dO, gradientScale)]
  const [dq, dk, dv] = [q, k, v].map(({ length }) => new Float64Array(length))
  const scale = s.scale ?? 1 / Math.sqrt(D)
  for (let r = 0; r < layout.rows; r++) {
    for (let h = 0; h < H; h++) {
      const qa = (r * H + h) * D
      let delta = 0
      for (let i = 0; i < D; i++) delta += o[qa + i] * full.dO[qa + i] * gradientScale
      for (const row of keysOf(layout, r, s.window)) {
        const ka = (row * KV + Math.floor(h / (H / KV))) * D
        const p = Math.exp(scale * dot(q, qa, k, ka, D) - lse[r * H + h])
        const [w, ds] = [Math.f16round(p), Math.f16round(p * (dot(dO, qa, v, ka, D) - delta))]
        for (let i = 0; i < D; i++) {
          dq[qa + i] += (ds * k[ka + i] * scale) / gradientScale
          dk[ka + i] += (ds * q[qa + i] * scale) / gradientScale
          dv[ka + i] += (w * dO[qa + i]) / gradientScale
        }
      }
    }
  }
  return [dq, dk, dv]
}

const names = ['dq', 'dk', 'dv']

describe(`attention's backward on matrix units${none}`, () => {
  test.skipIf(none).each([
    { heads: 4, kvHeads: 2, headDim: 32 },
    { heads: 2, kvHeads: 1, headDim: 80 },
    { heads: 2, kvHeads: 1, headDim: 128 },
    { heads: 1, kvHeads: 1, headDim: 256 },
    { heads: 3, kvHeads: 1, headDim: 64, scale: 0.2, window: 33 },
  ])('$heads heads, $kvHeads kv heads, width $headDim, window $window', async (s) => {
    await withUnits(bench, JSON.stringify(s), async () => {
      expect([unitsOf(gpu, 'q', s)?.D, unitsOf(gpu, 'kv', s)?.D]).toEqual([s.headDim, s.headDim])
      const batch = s.headDim > 64 ? groups : windowed
      const layout = pack(batch)
      // Gradients as small as those of a loss over thousands of tokens.
      const given = inputs(layout.rows, s, 1e-3)
      const got = await gradients(batch, s, given)
      rounded(batch, s, given).forEach((want, i) => compare(`${names[i]} of rounded operands`, got[i], want, sums))
      const { dq, dk, dv } = reference(layout, s, given.q, given.k, given.v, given.dO)
      for (const [i, want] of [dq, dk, dv].entries()) compare(`${names[i]} beside float64`, got[i], want, rounding)
    })
  })

  test.skipIf(none)('more than a fragment a subgroup, and rows that stay in registers', async () => {
    await withUnits(bench, 'shapes', async () => {
      const s = { heads: 2, kvHeads: 1, headDim: 16 }
      const given = inputs(pack(windowed).rows, s)
      const got = await gradients(windowed, s, given, { RT: 64, KT: 32, HOLD: 1 })
      rounded(windowed, s, given).forEach((want, i) => compare(names[i], got[i], want, sums))
    })
  })

  test.skipIf(none)("a row's dq has the same bits wherever its sequence stands in the batch", async () => {
    await withUnits(bench, 'places', async () => {
      const s = { heads: 2, kvHeads: 1, headDim: 32 }
      const own: Group = { prompt: 9, rollouts: [30, 41] }
      const rows = 80
      const given = inputs(rows, s)
      const [alone] = await gradients([own], s, given)
      for (const before of [1, 37, 70]) {
        const others = inputs(before, s)
        const joined = (name: keyof Inputs): Float32Array => Float32Array.of(...others[name], ...given[name])
        const all = { q: joined('q'), k: joined('k'), v: joined('v'), dO: joined('dO') }
        const [together] = await gradients([{ prompt: before, rollouts: [] }, own], s, all)
        sameBits(`behind ${before} rows`, together.slice(before * 64), alone)
      }
    })
  })

  test.skipIf(none)('are held against float32, and left where they do not agree', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    await withUnits(bench, 'check', async () => {
      const s = { heads: 4, kvHeads: 2, headDim: 32 }
      const error = await checkUnits(gpu, s)
      expect(error).toBeGreaterThan(1e-6)
      expect(error).toBeLessThan(rounding)
      await holdUnits(gpu, s)
      expect([unitsOf(gpu, 'q', s)?.D, warn.mock.calls.length]).toEqual([32, 0])
      await holdUnits(gpu, s, 1e-6)
      expect(unitsOf(gpu, 'q', s)).toBeUndefined()
      expect(warn.mock.lastCall![0]).toMatch(
        /attention's gradients on matrix units are off float32's by 0.00\d+ of their size, so attention stays in float32/,
      )
      trustUnits(gpu, true)
      expect(await checkUnits(gpu, { ...s, headDim: 20 })).toBeUndefined()
    })
  })

  test.skipIf(none)('heads that no fragment divides, and memory that holds no tile, take the kernels of float32', async () => {
    await withUnits(bench, 'others', async () => {
      expect(unitsOf(gpu, 'q', { heads: 2, kvHeads: 1, headDim: 20 })).toBeUndefined()
      const { limits } = gpu.facts
      const s = { heads: 2, kvHeads: 1, headDim: 256 }
      expect(unitsOf(gpu, 'kv', s)).toMatchObject({ KT: 16, HOLD: 0 })
      gpu.facts.limits = { ...limits, maxWorkgroupMemory: 16_384 }
      try {
        expect(unitsOf(gpu, 'kv', s)).toBeUndefined()
      } finally {
        gpu.facts.limits = limits
      }
    })
    expect(unitsOf(gpu, 'q', { heads: 2, kvHeads: 1, headDim: 64 })).toBeUndefined()
  })
})
