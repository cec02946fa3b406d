/** A decoder in float64 on the host, straight from the definition: what a whole forward pass is held against. Slow on purpose: plain loops. */
import type { ModelTensors } from '../model/decoder-load.ts'
import { widenBf16 } from '../model/bf16.ts'
import { inverseFrequencies } from '../model/rope.ts'
import { linearPath, type LinearModule } from '../model/shapes.ts'
import type { ModelConfig } from '../model/types.ts'

/** Whether a model is of what is written here: attention over all tokens before, rotated in every layer, and SiLU's gate. Gemma 3, Qwen3.5 and SmolLM3 have other layers. */
export function referenceKnows({ gemma, qwen35, layersWithoutRope }: ModelConfig): boolean {
  return !gemma && !qwen35 && !layersWithoutRope
}

/**
 * Log-probability of each token but the first, by a model as `loadDecoder` would load it with `round`.
 * `referenceKnows` says of which models.
 * @param ids a few tokens: a token costs two operations a weight
 * @returns ids.length - 1 values
 */
export async function referenceLogprobs({ config, tensors }: ModelTensors, ids: readonly number[]): Promise<Float64Array> {
  const { hiddenSize: H, heads, kvHeads, headDim: D, rmsNormEps } = config
  const rows = ids.length - 1
  const read = async (name: string): Promise<Float32Array> => {
    const { dtype, data } = await tensors.read(name, { round: true })
    return dtype === 'bf16' ? widenBf16(data) : data
  }
  const embedding = await read('model.embed_tokens.weight')
  let x = matrix(rows, H)
  for (let t = 0; t < rows; t++) for (let c = 0; c < H; c++) x[t][c] = embedding[ids[t] * H + c]

  for (let layer = 0; layer < config.layers; layer++) {
    const path = `model.layers.${layer}`
    const linear = async (module: LinearModule, input: Float64Array[]): Promise<Float64Array[]> => {
      const name = linearPath(layer, module)
      const bias = tensors.has(`${name}.bias`) ? await read(`${name}.bias`) : undefined
      return multiply(input, await read(`${name}.weight`), bias)
    }
    const normed = norm(x, await read(`${path}.input_layernorm.weight`), rmsNormEps)
    let [q, k] = [await linear('q_proj', normed), await linear('k_proj', normed)]
    const v = await linear('v_proj', normed)
    if (config.qkNorm) {
      q = norm(q, await read(`${path}.self_attn.q_norm.weight`), rmsNormEps)
      k = norm(k, await read(`${path}.self_attn.k_norm.weight`), rmsNormEps)
    }
    const inverse = inverseFrequencies(config)
    for (const part of [q, k]) part.forEach((row, position) => rotate(row, D, inverse, position))
    const mixed = matrix(rows, heads * D)
    for (let t = 0; t < rows; t++) {
      for (let h = 0; h < heads; h++) {
        const kv = Math.floor(h / (heads / kvHeads)) * D
        const scores = k.slice(0, t + 1).map((row) => dot(q[t], h * D, row, kv, D) / Math.sqrt(D))
        const high = Math.max(...scores)
        const weights = scores.map((z) => Math.exp(z - high))
        const sum = weights.reduce((a, b) => a + b, 0)
        weights.forEach((w, j) => {
          for (let c = 0; c < D; c++) mixed[t][h * D + c] += (w / sum) * v[j][kv + c]
        })
      }
    }
    x = plus(x, await linear('o_proj', mixed))
    const wide = norm(x, await read(`${path}.post_attention_layernorm.weight`), rmsNormEps)
    const [gate, up] = [await linear('gate_proj', wide), await linear('up_proj', wide)]
    const inner = gate.map((row, t) => row.map((g, c) => (g / (1 + Math.exp(-g))) * up[t][c]))
    x = plus(x, await linear('down_proj', inner))
  }
  const last = norm(x, await read('model.norm.weight'), rmsNormEps)
  const logits = multiply(last, config.tieWordEmbeddings ? embedding : await read('lm_head.weight'))
  return Float64Array.from(logits, (row, t) => {
    const high = row.reduce((a, b) => Math.max(a, b), -Infinity)
    return row[ids[t + 1]] - high - Math.log(row.reduce((sum, z) => sum + Math.exp(z - high), 0))
  })
}

const matrix = (rows: number, columns: number): Float64Array[] => Array.from({ length: rows }, () => new Float64Array(columns))
const plus = (a: Float64Array[], b: Float64Array[]): Float64Array[] => a.map((row, t) => row.map((v, c) => v + b[t][c]))

function dot(a: ArrayLike<number>, i: number, b: ArrayLike<number>, j: number, n: number): number {
  let sum = 0
  for (let t = 0; t < n; t++) sum += a[i + t] * b[j + t]
  return sum
}

/** x Wᵀ + bias, W (outputs, inputs). */
function multiply(x: Float64Array[], weight: Float32Array, bias?: Float32Array): Float64Array[] {
  const inputs = x[0].length
  const outputs = weight.length / inputs
  return x.map((row) =>
    Float64Array.from({ length: outputs }, (_, o) => dot(row, 0, weight, o * inputs, inputs) + (bias?.[o] ?? 0)),
  )
}

/** RMSNorm of rows, or of each part of a row that is as long as the gain (the heads of q and k). */
function norm(x: Float64Array[], gain: Float32Array, eps: number): Float64Array[] {
  const n = gain.length
  return x.map((row) => {
    const out = new Float64Array(row.length)
    for (let at = 0; at < row.length; at += n) {
      const scale = 1 / Math.sqrt(dot(row, at, row, at, n) / n + eps)
      for (let c = 0; c < n; c++) out[at + c] = row[at + c] * scale * gain[c]
    }
    return out
  })
}

/** Rotary embedding in place: halves of each head are the two coordinates. */
function rotate(row: Float64Array, headDim: number, inverse: Float32Array, position: number): void {
  const half = headDim / 2
  for (let at = 0; at < row.length; at += headDim) {
    for (let i = 0; i < half; i++) {
      const angle = position * inverse[i]
      const [a, b] = [row[at + i], row[at + half + i]]
      row[at + i] = a * Math.cos(angle) - b * Math.sin(angle)
      row[at + half + i] = b * Math.cos(angle) + a * Math.sin(angle)
    }
  }
}
