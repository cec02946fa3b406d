/** Attention benchmarks: forward and backward over one packed sequence, and decode of many sequences over a cache. */
import { Random } from '../common/random.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { attention, attentionBackward, decodeSplits, type HeadShape } from '../kernels/attention/attention.ts'
import { unitsOf, type UnitShape } from '../kernels/attention/units.ts'
import { kvConstants, kvTextures, type CacheData } from '../kernels/common/kv-texture.ts'
import { useMatrixUnits } from '../kernels/common/matrix-units.ts'
import type { KernelCase, OpenCase } from './case.ts'
import { checkPoints, tolerances } from './check.ts'
import { poisoned, randomFloats } from './data.ts'
import { hasUnits } from './matmul.ts'
import { dot } from './reference-math.ts'

export const attentionForms = ['forward', 'backward', 'decode'] as const
type AttentionForm = (typeof attentionForms)[number]

/**
 * Attention of one sequence of `length` tokens (forward, backward), or of one token in each of `sequences` with `length` keys (decode). Counts the
 * products that the result needs: two forward, five backward, of heads x head size x keys seen.
 * @param units run the backward pass on the adapter's matrix units, in its own shape or in a given one
 */
export function attentionCase(
  form: AttentionForm,
  length: number,
  s: HeadShape,
  of: string,
  { sequences = 1, units }: { sequences?: number; units?: boolean | UnitShape } = {},
): KernelCase {
  const decode = form === 'decode'
  const rows = decode ? sequences : length
  const keys = decode ? sequences * length : (length * (length + 1)) / 2
  const [q, kv] = [s.heads * s.headDim, s.kvHeads * s.headDim]
  const keyRows = decode ? sequences * inPages(length) : length
  const shape = decode ? `${sequences} x ${length} keys` : `${length}`
  const name = `attention ${form} ${shape} (${of})`
  return {
    group: 'attention',
    name: form,
    shape,
    of,
    flops: (form === 'backward' ? 10 : 4) * s.heads * s.headDim * keys,
    bytes: 4 * (form === 'backward' ? 4 * rows * q + 4 * keyRows * kv : 2 * rows * q + 2 * keyRows * kv),
    binding: 4 * Math.max(rows * q, keyRows * kv),
    ...(units ? { units: true } : {}),
    open: (gpu) => open(gpu, name, form, { rows, length, keyRows }, s, units),
  }
}

/** Shapes of the backward pass on matrix units to measure beside the adapter's own, which on a GPU is the first. */
export const unitShapes: UnitShape[] = [64, 32].flatMap((RT) =>
  [32, 16].flatMap((KT) => [1, 0].map((HOLD) => ({ RT, KT, HOLD }))),
)

/** Whether the backward pass can use matrix units for such heads here, with this shape of its kernels. */
export function attentionTakesUnits(gpu: Gpu, s: HeadShape, shape?: UnitShape): boolean {
  if (!hasUnits(gpu, s.headDim)) return false
  useMatrixUnits(gpu)
  const kernels = [unitsOf(gpu, 'q', s, shape), unitsOf(gpu, 'kv', s, shape)]
  useMatrixUnits(gpu, false)
  return kernels.every(Boolean)
}

/** The rows of one sequence, or the last token of many sequences, each with its own keys: where a row's keys begin, and its position. */
interface Layout {
  rows: number
  length: number
  keyRows: number
}

/** Rows of a cache page, as in engines; below, the rows of the pages that hold `length` keys. */
const pageSize = 16
const inPages = (length: number): number => Math.ceil(length / pageSize) * pageSize

/**
 * A cache of these keys and values as an engine on this adapter has it, page after page, in textures or in buffers; also buffers for the partial
 * results of the splits of a row's keys.
 */
function cacheOf(
  gpu: Gpu,
  t: Record<'k' | 'v', GpuBuffer> & Record<'hk' | 'hv', Float32Array>,
  { rows, length, keyRows }: Layout,
  s: HeadShape,
) {
  const count = keyRows / pageSize
  const pages = gpu.upload(
    Uint32Array.from({ length: count }, (_, page) => page),
    'pages',
  )
  const paged = { pages, size: pageSize, f16: false, prompts: false, longest: length }
  const splits = decodeSplits(gpu, rows, s, paged)
  const textures = kvTextures(gpu, 2, { pages: count, pageSize }, { ...s, rotaryDim: s.headDim }, 'attention')
  const data: Record<'k' | 'v', CacheData> = { k: t.k, v: t.v }
  textures?.forEach((texture, i) => {
    const { KV_FOLD, KV_WIDTH } = kvConstants(texture)
    const texels = KV_FOLD * pageSize * KV_WIDTH
    const height = Math.ceil(count / KV_FOLD)
    const values = new Float32Array(height * texels * 4)
    values.set(byHeads(i === 0 ? t.hk : t.hv, s))
    const from = gpu.upload(values, 'attention')
    gpu.copyToTexture(from, texture, { bytesPerRow: texels * 16, rows: height, texels })
    gpu.flush()
    from.release()
    data[i === 0 ? 'k' : 'v'] = texture
  })
  const sums = gpu.pool.acquire(splits > 1 ? rows * s.heads * splits * s.headDim * 4 : 16, 'attention')
  const stats = gpu.pool.acquire(splits > 1 ? rows * s.heads * splits * 8 : 16, 'attention')
  return { paged, tensors: { ...data, parts: sums, stats }, held: [pages, sums, stats, ...(textures ?? [])] }
}

/** Rows of a cache, (rows, kv heads, D), in the order of a texture: within a page, the rows of a head follow each other (kv-texture.ts). */
function byHeads(values: Float32Array, { kvHeads, headDim: D }: HeadShape): Float32Array {
  const out = new Float32Array(values.length)
  for (let at = 0; at < values.length; at += D) {
    const [row, head] = [Math.floor(at / D / kvHeads), (at / D) % kvHeads]
    const [page, inPage] = [Math.floor(row / pageSize), row % pageSize]
    out.set(values.subarray(at, at + D), ((page * kvHeads + head) * pageSize + inPage) * D)
  }
  return out
}

function open(
  gpu: Gpu,
  name: string,
  form: AttentionForm,
  { rows, length, keyRows }: Layout,
  s: HeadShape,
  units?: boolean | UnitShape,
): OpenCase {
  const decode = form === 'decode'
  const { heads: H, kvHeads: KV, headDim: D } = s
  const [hq, hk, hv, hdO] = [
    randomFloats(rows * H * D, 'q', 2),
    randomFloats(keyRows * KV * D, 'k'),
    randomFloats(keyRows * KV * D, 'v'),
    randomFloats(rows * H * D, 'dO'),
  ]
  const [q, k, v, dO] = [hq, hk, hv, hdO].map((data) => gpu.upload(data, 'attention'))
  const first = (row: number): number => (decode ? row * inPages(length) : 0)
  const position = (row: number): number => (decode ? length - 1 : row)
  const infoWords = new Uint32Array(rows * 4)
  for (let row = 0; row < rows; row++)
    infoWords.set(decode ? [first(row) / pageSize, 0, 0, position(row)] : [0, 0, 0, row], row * 4)
  const info = gpu.upload(infoWords, 'info')
  const keyEnd = gpu.upload(new Uint32Array(rows).fill(rows), 'key ends')
  const o = poisoned(gpu, rows * H * D, 'o')
  const lse = poisoned(gpu, rows * H, 'lse')
  const held: { release(): void }[] = [q, k, v, dO, info, keyEnd, o, lse]
  const cache = decode ? cacheOf(gpu, { k, v, hk, hv }, { rows, length, keyRows }, s) : undefined
  held.push(...(cache?.held ?? []))
  const forward = () => attention(gpu, { q, k, v, info, o, lse, ...cache?.tensors }, rows, s, { neighbours: !decode, ...cache })

  /** Probabilities of a row's keys for one head, in float64, and where each key begins. */
  const softmax = (row: number, head: number) => {
    const at = (row * H + head) * D
    const ka = Array.from({ length: position(row) + 1 }, (_, j) => ((first(row) + j) * KV + Math.floor(head / (H / KV))) * D)
    const scores = ka.map((key) => dot(hq, at, hk, key, D) / Math.sqrt(D))
    const high = scores.reduce((a, b) => Math.max(a, b), -Infinity)
    const weights = scores.map((z) => Math.exp(z - high))
    const sum = weights.reduce((a, b) => a + b, 0)
    return { at, ka, p: weights.map((w) => w / sum) }
  }
  const random = new Random(2)
  const points = Math.max(24, Math.min(400, Math.ceil(200_000 / length)))
  if (form !== 'backward') {
    return {
      run: forward,
      async check() {
        const want = (index: number) => {
          const { ka, p } = softmax(Math.floor(index / (H * D)), Math.floor(index / D) % H)
          return { value: p.reduce((sum, w, j) => sum + w * hv[ka[j] + (index % D)], 0), size: 1 }
        }
        return checkPoints(name, await gpu.readF32(o, rows * H * D), want, { random, tolerance: tolerances.softmax, points })
      },
      release: () => held.forEach((one) => one.release()),
    }
  }
  forward()
  const soft = poisoned(gpu, rows * H * 2, 'soft')
  const dq = poisoned(gpu, rows * H * D, 'dq')
  const [dk, dv] = [0, 1].map(() => poisoned(gpu, keyRows * KV * D, 'dk, dv'))
  held.push(soft, dq, dk, dv)
  /** Gradients of the scores of a row's keys for one head. */
  const dScores = (row: number, head: number) => {
    const { at, ka, p } = softmax(row, head)
    const dp = ka.map((key) => dot(hdO, at, hv, key, D))
    const delta = p.reduce((sum, w, j) => sum + w * dp[j], 0)
    return { at, ka, p, ds: p.map((w, j) => (w * (dp[j] - delta)) / Math.sqrt(D)) }
  }
  return {
    run() {
      if (units) useMatrixUnits(gpu)
      const chosen = typeof units === 'object' ? units : undefined
      attentionBackward(gpu, { q, k, v, info, keyEnd, o, lse, dO, soft, dq, dk, dv }, rows, s, chosen)
      if (units) useMatrixUnits(gpu, false)
    },
    async check() {
      const wantQ = (index: number) => {
        const { ka, ds } = dScores(Math.floor(index / (H * D)), Math.floor(index / D) % H)
        return { value: ds.reduce((sum, g, j) => sum + g * hk[ka[j] + (index % D)], 0), size: 1 }
      }
      const few = { random, tolerance: units ? tolerances.softmaxF16 : tolerances.softmax, points: Math.min(points, 100) }
      const worst = [checkPoints(`${name} dq`, await gpu.readF32(dq, rows * H * D), wantQ, few)]
      // A key's gradient is a sum over all rows that see it, so the sample has late keys, which few rows see, and the first key.
      const sampled = [0, keyRows - 1, ...Array.from({ length: 6 }, () => keyRows - 1 - random.int(Math.min(keyRows, 32)))]
      if (keyRows > 600) sampled.shift()
      for (const [part, buffer] of [
        ['dk', dk],
        ['dv', dv],
      ] as const) {
        const got = await gpu.readF32(buffer, keyRows * KV * D)
        for (const key of sampled) {
          const column = random.int(KV * D)
          const value = keyGradient(key, column, part)
          const size = Math.max(1, Math.sqrt(rows - key))
          const pick = Float32Array.of(got[key * KV * D + column])
          worst.push(checkPoints(`${name} ${part} of key ${key}`, pick, () => ({ value, size }), { ...few, points: 1 }))
        }
      }
      return Math.max(...worst)
    },
    release: () => held.forEach((buffer) => buffer.release()),
  }

  function keyGradient(key: number, column: number, part: 'dk' | 'dv'): number {
    const group = H / KV
    let sum = 0
    for (let row = key; row < rows; row++) {
      for (let g = 0; g < group; g++) {
        const head = Math.floor(column / D) * group + g
        const { at, p, ds } = dScores(row, head)
        sum += part === 'dv' ? p[key] * hdO[at + (column % D)] : ds[key] * hq[at + (column % D)]
      }
    }
    return sum
  }
}
