/**
 * A decoder in float64 on the host, written straight from the definition, with which a whole forward pass is compared. Slow on purpose: plain loops.
 */
import { embeddingScale, type ModelTensors } from '../model/decoder/load.ts'
import { widenBf16 } from '../model/bf16.ts'
import { fusedOf, lastNormPath, layerPath, linearPath, rowsOfParts } from '../model/decoder/shapes.ts'
import { gelu, matrix, multiply, plus, rmsNorm, silu, times } from './reference-math.ts'
import { mixed, type ReferenceLayer } from './reference-mixers.ts'

/**
 * Log-probability of each token except the first, for the model as `loadDecoder` would load it with `round`.
 * @param ids a few tokens; each costs two operations per weight
 * @returns ids.length - 1 values
 */
export async function referenceLogprobs({ config, tensors }: ModelTensors, ids: readonly number[]): Promise<Float64Array> {
  const { hiddenSize: H, activation, norms, residualScale, logitsScaling = 1 } = config
  const [before, after] = [norms !== 'after', norms !== undefined]
  const rows = ids.length - 1
  const read = async (name: string, round = true): Promise<Float32Array> => {
    const { dtype, data } = await tensors.read(name, { round })
    return dtype === 'bf16' ? widenBf16(data) : data
  }
  const norm = async (name: string, input: Float64Array[], fromOne = config.normsFromOne): Promise<Float64Array[]> => {
    const weight = await read(`${name}.weight`)
    return rmsNorm(input, fromOne ? Float64Array.from(weight, (w) => 1 + w) : weight, config.rmsNormEps)
  }
  const embedding = await read('model.embed_tokens.weight')
  const scale = embeddingScale(config, true)
  let x = matrix(rows, H)
  for (let t = 0; t < rows; t++) for (let c = 0; c < H; c++) x[t][c] = embedding[ids[t] * H + c] * scale

  for (let index = 0; index < config.layers; index++) {
    const layer: ReferenceLayer = {
      config,
      index,
      linear: async (module, input) => {
        const whole = fusedOf(config, module)
        const name = linearPath(config, index, whole ?? module)
        const bias = tensors.has(`${name}.bias`) ? await read(`${name}.bias`) : undefined
        const weight = await read(`${name}.weight`)
        if (!whole) return multiply(input, weight, bias)
        const { firstRow, rows } = rowsOfParts(config, whole).get(module)!
        const width = input[0].length
        return multiply(input, weight.subarray(firstRow * width, (firstRow + rows) * width))
      },
      norm: (name, ...rest) => norm(layerPath(config, index, name), ...rest),
      values: (name) => read(layerPath(config, index, name), false),
    }
    const attended = times(await mixed(layer, before ? await layer.norm('input_layernorm', x) : x), residualScale)
    // Gemma 3 also normalises the outputs of attention and the MLP; OLMo 2 normalises only those.
    x = plus(x, after ? await layer.norm('post_attention_layernorm', attended) : attended)
    const wide = before ? await layer.norm(after ? 'pre_feedforward_layernorm' : 'post_attention_layernorm', x) : x
    const [gate, up] = [await layer.linear('gate_proj', wide), await layer.linear('up_proj', wide)]
    const inner = gate.map((row, t) => row.map((g, c) => (activation === 'gelu' ? gelu(g) : silu(g)) * up[t][c]))
    const down = times(await layer.linear('down_proj', inner), residualScale)
    x = plus(x, after ? await layer.norm('post_feedforward_layernorm', down) : down)
  }
  const last = await norm(lastNormPath(config), x)
  const logits = multiply(last, config.tieWordEmbeddings ? embedding : await read('lm_head.weight'))
  return Float64Array.from(times(logits, 1 / logitsScaling), (row, t) => {
    const high = row.reduce((a, b) => Math.max(a, b), -Infinity)
    return row[ids[t + 1]] - high - Math.log(row.reduce((sum, z) => sum + Math.exp(z - high), 0))
  })
}
