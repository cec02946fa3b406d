/**
 * The layers that mix tokens in the float64 reference (reference.ts): attention, the Gated DeltaNets of Qwen3.5, and the gated convolutions of LFM2.
 */
import { headShape } from '../model/decoder/attention-layer.ts'
import { inverseFrequencies, rotaryFactor } from '../model/decoder/rope.ts'
import { mixerOf, type LinearModule } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { dot, matrix, rotate, sigmoid, silu, softplus } from './reference-math.ts'

/** One layer of the model, and functions that read its weights. */
export interface ReferenceLayer {
  config: ModelConfig
  index: number
  /** Applies one of its linear layers. */
  linear: (module: LinearModule, input: Float64Array[]) => Promise<Float64Array[]>
  /**
   * Applies the norm whose weight has this name below the layer. @param fromOne whether its factors are 1 + that weight; default: as in the model's
   * norms
   */
  norm: (name: string, input: Float64Array[], fromOne?: boolean) => Promise<Float64Array[]>
  /** The values of a tensor below the layer, as they are in the files. */
  values: (name: string) => Promise<Float32Array>
}

/** What the layer adds to x before its MLP, (rows, hidden), computed from the normalised rows. */
export async function mixed(layer: ReferenceLayer, x: Float64Array[]): Promise<Float64Array[]> {
  const mixers = { attention, delta: deltaNet, conv: gatedConv }
  return await mixers[mixerOf(layer.config, layer.index)](layer, x)
}

async function attention({ config, index, linear, norm }: ReferenceLayer, x: Float64Array[]): Promise<Float64Array[]> {
  const { heads, kvHeads, headDim: D, localRopeTheta, attentionScale: scale = D ** -0.5 } = config
  let [q, k] = [await linear('q_proj', x), await linear('k_proj', x)]
  const v = await linear('v_proj', x)
  // Qwen3.5's q_proj gives for each head first q, then its gate.
  const gate = config.qwen35 && partOfHeads(q, heads, D, 1)
  if (gate) q = partOfHeads(q, heads, D, 0)
  if (config.qkNorm) [q, k] = [await norm('self_attn.q_norm', q), await norm('self_attn.k_norm', k)]

  const { window = x.length } = headShape(config, index)
  if (!config.layersWithoutRope?.includes(index)) {
    const local = localRopeTheta !== undefined &&
      config.slidingLayers?.includes(index) && {
        ropeTheta: localRopeTheta,
        ropeScaling: { type: 'default' as const },
      }
    const turning = { ...config, ...local }
    const [inverse, factor] = [inverseFrequencies(turning), rotaryFactor(turning.ropeScaling)]
    for (const part of [q, k]) part.forEach((row, position) => rotate(row, D, inverse, position, factor))
  }
  const out = matrix(x.length, heads * D)
  for (let t = 0; t < x.length; t++) {
    const first = Math.max(0, t + 1 - window)
    for (let h = 0; h < heads; h++) {
      const kv = Math.floor(h / (heads / kvHeads)) * D
      const scores = k.slice(first, t + 1).map((row) => dot(q[t], h * D, row, kv, D) * scale)
      const high = Math.max(...scores)
      const weights = scores.map((z) => Math.exp(z - high))
      const sum = weights.reduce((a, b) => a + b, 0)
      weights.forEach((w, j) => {
        for (let c = 0; c < D; c++) out[t][h * D + c] += (w / sum) * v[first + j][kv + c]
      })
    }
  }
  if (gate) out.forEach((row, t) => row.forEach((value, c) => (row[c] = value * sigmoid(gate[t][c]))))
  return await linear('o_proj', out)
}

/** In each head of a row, which has parts of D channels one after the other, takes part number `part`. */
function partOfHeads(x: Float64Array[], heads: number, D: number, part: number): Float64Array[] {
  const each = x[0].length / heads
  return x.map((row) => Float64Array.from({ length: heads * D }, (_, c) => row[Math.floor(c / D) * each + part * D + (c % D)]))
}

/** The gated delta rule (arXiv 2412.06464), token by token, with a state of (keyDim, valueDim) per head. */
async function deltaNet({ config, linear, norm, values }: ReferenceLayer, x: Float64Array[]): Promise<Float64Array[]> {
  const { keyHeads, valueHeads, keyDim: K, valueDim: V, taps } = config.qwen35!
  const [qkv, z] = [await linear('in_proj_qkv', x), await linear('in_proj_z', x)]
  const [a, b] = [await linear('in_proj_a', x), await linear('in_proj_b', x)]
  const [conv, aLog, dtBias] = [await values('linear_attn.conv1d.weight'), await values('linear_attn.A_log'), await values('linear_attn.dt_bias')] // prettier-ignore
  const convolved = qkv.map((row, t) =>
    row.map((_, c) => {
      let sum = 0
      for (let j = 0; j < Math.min(taps, t + 1); j++) sum += conv[(c + 1) * taps - 1 - j] * qkv[t - j][c]
      return silu(sum)
    }),
  )
  const read = matrix(x.length, valueHeads * V)
  for (let h = 0; h < valueHeads; h++) {
    const key = Math.floor(h / (valueHeads / keyHeads)) * K
    const state = new Float64Array(K * V)
    convolved.forEach((row, t) => {
      const [q, k] = [0, keyHeads * K].map((begin) => unit(row.subarray(begin + key, begin + key + K)))
      const v = row.subarray(2 * keyHeads * K + h * V, 2 * keyHeads * K + (h + 1) * V)
      const keeps = Math.exp(-Math.exp(aLog[h]) * softplus(a[t][h] + dtBias[h]))
      const step = sigmoid(b[t][h])
      for (let c = 0; c < V; c++) {
        let found = 0
        for (let i = 0; i < K; i++) found += k[i] * (state[i * V + c] *= keeps)
        for (let i = 0; i < K; i++) {
          state[i * V + c] += k[i] * step * (v[c] - found)
          read[t][h * V + c] += (q[i] * state[i * V + c]) / Math.sqrt(K)
        }
      }
    })
  }
  const normed = await norm('linear_attn.norm', read, false)
  const gated = normed.map((row, t) => row.map((value, c) => value * silu(z[t][c])))
  return await linear('out_proj', gated)
}

async function gatedConv({ config, linear, values }: ReferenceLayer, x: Float64Array[]): Promise<Float64Array[]> {
  const { hiddenSize: H, shortConv } = config
  const { taps } = shortConv!
  const gates = await linear('in_proj', x)
  const conv = await values('conv.conv.weight')
  const out = gates.map((row, t) =>
    Float64Array.from({ length: H }, (_, c) => {
      let sum = 0
      for (let j = 0; j < Math.min(taps, t + 1); j++)
        sum += conv[(c + 1) * taps - 1 - j] * gates[t - j][c] * gates[t - j][2 * H + c]
      return row[H + c] * sum
    }),
  )
  return await linear('out_proj', out)
}

const unit = (x: Float64Array): Float64Array => {
  const length = Math.sqrt(dot(x, 0, x, 0, x.length) + 1e-6)
  return x.map((value) => value / length)
}
