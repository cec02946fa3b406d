/** Packed batches for tests of attention, and what its kernels should make of them, in float64. */
import type { HeadShape } from '../../src/kernels/attention/attention.ts'

/** A prompt and the rollouts that share it, all in one packed batch. */
export interface Group {
  prompt: number
  rollouts: number[]
}
export interface Layout {
  info: Uint32Array
  keyEnd: Uint32Array
  rows: number
}

/** Packs groups as the trainer does: a prompt's rows, then its rollouts' rows, one after another. */
export function pack(groups: Group[]): Layout {
  const [info, keyEnd]: number[][] = [[], []]
  for (const { prompt, rollouts } of groups) {
    const start = keyEnd.length
    const end = start + prompt + rollouts.reduce((sum, n) => sum + n, 0)
    for (let i = 0; i < prompt; i++) {
      info.push(start, 0, start, i)
      keyEnd.push(end)
    }
    for (const length of rollouts) {
      const own = keyEnd.length
      for (let i = 0; i < length; i++) {
        info.push(start, prompt, own, prompt + i)
        keyEnd.push(own + length)
      }
    }
    // Prompt rows of a group without a rollout end where the prompt ends: `end` is that already.
  }
  return { info: Uint32Array.from(info), keyEnd: Uint32Array.from(keyEnd), rows: keyEnd.length }
}

/** Rows of the keys that row r sees, in logical order: the last `window` of them. */
export function keysOf({ info }: { info: Uint32Array }, r: number, window = Infinity): number[] {
  const [prefix, length, own, position] = info.subarray(4 * r, 4 * r + 4)
  return Array.from({ length: position + 1 }, (_, j) => (j < length ? prefix + j : own + j - length)).slice(
    Math.max(0, position + 1 - window),
  )
}

interface Result {
  o: Float64Array
  lse: Float64Array
  dq: Float64Array
  dk: Float64Array
  dv: Float64Array
}

/** Attention and its backward in float64, straight from the definition. */
export function reference(
  layout: Layout,
  s: HeadShape,
  q: Float32Array,
  k: Float32Array,
  v: Float32Array,
  dO: Float32Array,
): Result {
  const { heads: H, kvHeads: KV, headDim: D } = s
  const [o, dq, dk, dv] = [q, q, k, v].map((t) => new Float64Array(t.length))
  const lse = new Float64Array(layout.rows * H)
  const scale = s.scale ?? 1 / Math.sqrt(D)
  for (let r = 0; r < layout.rows; r++) {
    const keys = keysOf(layout, r, s.window)
    for (let h = 0; h < H; h++) {
      const qa = (r * H + h) * D
      const ka = keys.map((row) => (row * KV + Math.floor(h / (H / KV))) * D)
      const scores = ka.map((at) => scale * dot(q, qa, k, at, D))
      const high = Math.max(...scores)
      const sum = scores.reduce((t, z) => t + Math.exp(z - high), 0)
      lse[r * H + h] = high + Math.log(sum)
      const p = scores.map((z) => Math.exp(z - high) / sum)
      p.forEach((w, j) => {
        for (let i = 0; i < D; i++) o[qa + i] += w * v[ka[j] + i]
      })
      const dp = ka.map((at) => dot(dO, qa, v, at, D))
      const delta = p.reduce((t, w, j) => t + w * dp[j], 0)
      p.forEach((w, j) => {
        const ds = w * (dp[j] - delta) * scale
        for (let i = 0; i < D; i++) {
          dq[qa + i] += ds * k[ka[j] + i]
          dk[ka[j] + i] += ds * q[qa + i]
          dv[ka[j] + i] += w * dO[qa + i]
        }
      })
    }
  }
  return { o, lse, dq, dk, dv }
}

export function dot(a: Float32Array, i: number, b: Float32Array, j: number, n: number): number {
  let sum = 0
  for (let t = 0; t < n; t++) sum += a[i + t] * b[j + t]
  return sum
}

/** Groups, single sequences, a prompt of one token, a rollout of one token; 58 rows. */
export const groups: Group[] = [
  { prompt: 11, rollouts: [7, 1, 9] },
  { prompt: 1, rollouts: [5, 3] },
  { prompt: 17, rollouts: [] },
  { prompt: 1, rollouts: [] },
  { prompt: 2, rollouts: [1] },
]
export const small: Group[] = [
  { prompt: 5, rollouts: [3, 6] },
  { prompt: 9, rollouts: [] },
]

/** Prompts longer and shorter than a window of 12 or 33 and than tiles, and what is shared of them seen from some rollouts' rows alone. */
export const windowed: Group[] = [...groups, { prompt: 50, rollouts: [40, 3, 13] }, { prompt: 70, rollouts: [] }]
