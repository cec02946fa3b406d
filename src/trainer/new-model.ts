/** A model from random weights, as transformers initialises one: matrices normal, gains 1, biases 0. */
import { hashSeed, Random } from '../common/random.ts'
import { roundToBf16 } from '../model/bf16.ts'
import { configToJson } from '../model/config.ts'
import type { ModelTensors } from '../model/decoder-load.ts'
import { madeTensors } from '../model/shapes.ts'
import type { Tokenizer } from '../model/tokenizer.ts'
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
  /** Deviation of the matrices. */
  initializer_range: number
}

/** A model that is in no file yet, with its byte-level tokenizer. The same seed gives the same weights. */
export function newModel(
  options: NewModelOptions,
  seed: number,
): ModelTensors & { rawConfig: Record<string, unknown>; tokenizer: Tokenizer } {
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
    qkvBias: options.family === 'qwen2',
    outputBias: false,
    qkNorm: options.family === 'qwen3',
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
      const data = initial(name, shape, options.initializer_range, seed)
      return round ? { dtype: 'bf16', shape, data: roundToBf16(data) } : { dtype: 'f32', shape, data }
    }),
  }
}

function initial(name: string, shape: number[], deviation: number, seed: number): Float32Array {
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1))
  if (shape.length === 1) return name.endsWith('.bias') ? data : data.fill(1)
  const random = new Random(hashSeed(seed, 'weights', name))
  return data.map(() => random.normal() * deviation)
}
