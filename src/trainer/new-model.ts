/**
 * Makes a model with random weights, initialised as in transformers: matrices normal, gains 1, biases 0, and the exp(A_log) of Gated DeltaNets
 * uniform in [0.01, 16].
 */
import { hashSeed, Random } from '../common/random.ts'
import { roundToBf16 } from '../model/bf16.ts'
import { configToJson } from '../model/config/config.ts'
import { families } from '../model/config/families/index.ts'
import type { ModelTensors } from '../model/decoder/load.ts'
import { DELTA_PART, madeTensors } from '../model/decoder/shapes.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import type { ModelConfig, ModelFamily } from '../model/types.ts'
import { BYTE_END, BYTE_PAD, BYTE_VOCABULARY, byteTokenizer } from './byte-tokenizer.ts'

/** Sizes of a new model, under the names of config.json. */
export interface NewModelOptions {
  family: ModelFamily
  hidden_size: number
  intermediate_size: number
  num_hidden_layers: number
  num_attention_heads: number
  num_key_value_heads: number
  head_dim: number
  tie_word_embeddings: boolean
  rope_theta: number
  rms_norm_eps: number
  max_position_embeddings: number
  /** Standard deviation of the matrices. */
  initializer_range: number
}

/** Makes a model that exists in no file yet, with its byte-level tokenizer. The same seed gives the same weights. */
export function newModel(
  options: NewModelOptions,
  seed: number,
): ModelTensors & { rawConfig: Record<string, unknown>; tokenizer: Tokenizer } {
  const { biases, qkNorm = false } = families[options.family]
  const config: ModelConfig = {
    family: options.family,
    hiddenSize: options.hidden_size,
    intermediateSize: options.intermediate_size,
    layers: options.num_hidden_layers,
    heads: options.num_attention_heads,
    kvHeads: options.num_key_value_heads,
    headDim: options.head_dim,
    vocabSize: BYTE_VOCABULARY,
    rmsNormEps: options.rms_norm_eps,
    ropeTheta: options.rope_theta,
    ropeScaling: { type: 'default' },
    tieWordEmbeddings: options.tie_word_embeddings,
    qkvBias: biases === 'qkv',
    outputBias: false,
    qkNorm,
    ...(options.family === 'qwen3_5_text' && deltaNets(options)),
    maxPositionEmbeddings: options.max_position_embeddings,
    eosTokenIds: [BYTE_END],
    bosTokenId: null,
    padTokenId: BYTE_PAD,
  }
  return {
    name: `new ${options.family}`,
    config,
    rawConfig: { ...configToJson(config), initializer_range: options.initializer_range },
    tokenizer: byteTokenizer(options.max_position_embeddings),
    tensors: madeTensors(config, (name, shape, { round }) => {
      const data = initial(name, shape, options.initializer_range, seed, config)
      return round ? { dtype: 'bf16', shape, data: roundToBf16(data) } : { dtype: 'f32', shape, data }
    }),
  }
}

/** As in Qwen3.5: every fourth layer has full attention, which rotates a quarter of each head's channels. */
function deltaNets({
  num_hidden_layers: layers,
  num_attention_heads: heads,
  head_dim: size,
}: NewModelOptions): Partial<ModelConfig> {
  const deltaLayers = Array.from({ length: layers }, (_, layer) => layer).filter((layer) => layer % 4 !== 3)
  return {
    normsFromOne: true,
    qwen35: { deltaLayers, keyHeads: heads, valueHeads: heads, keyDim: size, valueDim: size, taps: 4 },
    rotaryDim: Math.max(2, 2 * Math.floor(size / 8)),
  }
}

function initial(name: string, shape: number[], deviation: number, seed: number, config: ModelConfig): Float32Array {
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1))
  const random = new Random(hashSeed(seed, 'weights', name))
  if (name.endsWith('.A_log')) return data.map(() => Math.log(0.01 + 15.99 * random.next()))
  const isGain = shape.length === 1 && !name.endsWith('.bias')
  // The weight of a norm that multiplies by 1 + weight starts at 0.
  if (isGain) return data.fill(config.normsFromOne && name.endsWith('norm.weight') && !name.includes(`.${DELTA_PART}.`) ? 0 : 1)
  if (shape.length === 1) return data
  return data.map(() => random.normal() * deviation)
}
