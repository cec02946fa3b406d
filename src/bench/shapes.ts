/** Models to measure: named sizes with random weights, or files. */
import { existsSync } from 'node:fs'
import { nearest, UserError } from '../common/errors.ts'
import type { ModelTensors } from '../model/decoder/load.ts'
import { openModel } from '../model/files/open.ts'
import { madeTensors } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { randomBf16 } from './data.ts'

const base: ModelConfig = {
  family: 'qwen3',
  hiddenSize: 128,
  intermediateSize: 384,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  headDim: 32,
  vocabSize: 512,
  rmsNormEps: 1e-6,
  ropeTheta: 1e6,
  ropeScaling: { type: 'default' },
  tieWordEmbeddings: true,
  qkvBias: false,
  outputBias: false,
  qkNorm: true,
  maxPositionEmbeddings: 40960,
  eosTokenIds: [],
  bosTokenId: null,
  padTokenId: null,
}
const qwen3: ModelConfig = { ...base, kvHeads: 8, headDim: 128, vocabSize: 151936 }

/** Sizes as in their config.json on the hub. */
export const modelShapes: Record<string, ModelConfig> = {
  tiny: base,
  'smollm2-135m': {
    ...base,
    family: 'llama',
    qkNorm: false,
    hiddenSize: 576,
    intermediateSize: 1536,
    layers: 30,
    heads: 9,
    kvHeads: 3,
    headDim: 64,
    vocabSize: 49152,
    ropeTheta: 1e5,
    rmsNormEps: 1e-5,
    maxPositionEmbeddings: 8192,
  },
  'qwen3-0.6b': { ...qwen3, hiddenSize: 1024, intermediateSize: 3072, layers: 28, heads: 16 },
  'qwen3-1.7b': { ...qwen3, hiddenSize: 2048, intermediateSize: 6144, layers: 28, heads: 16 },
  'qwen3-4b': { ...qwen3, hiddenSize: 2560, intermediateSize: 9728, layers: 36, heads: 32 },
  'qwen3.5-0.8b': {
    ...base,
    family: 'qwen3_5_text',
    normsFromOne: true,
    hiddenSize: 1024,
    intermediateSize: 3584,
    layers: 24,
    heads: 8,
    headDim: 256,
    vocabSize: 248320,
    ropeTheta: 1e7,
    qwen35: {
      // Every fourth layer has attention.
      deltaLayers: Array.from({ length: 24 }, (_, i) => i).filter((i) => i % 4 !== 3),
      keyHeads: 16,
      valueHeads: 16,
      keyDim: 128,
      valueDim: 128,
      taps: 4,
    },
    rotaryDim: 64,
    maxPositionEmbeddings: 262144,
  },
  'gemma-3-270m': {
    ...base,
    family: 'gemma3_text',
    hiddenSize: 640,
    intermediateSize: 2048,
    layers: 18,
    heads: 4,
    kvHeads: 1,
    headDim: 256,
    vocabSize: 262144,
    activation: 'gelu',
    norms: 'around',
    normsFromOne: true,
    embeddingScale: Math.sqrt(640),
    embeddingScaleRounded: true,
    // Every sixth layer sees all earlier tokens.
    slidingLayers: Array.from({ length: 18 }, (_, i) => i).filter((i) => i % 6 !== 5),
    slidingWindow: 512,
    localRopeTheta: 1e4,
    maxPositionEmbeddings: 32768,
  },
  'olmo-2-1b': {
    ...base,
    family: 'olmo2',
    hiddenSize: 2048,
    intermediateSize: 8192,
    layers: 16,
    heads: 16,
    kvHeads: 16,
    headDim: 128,
    vocabSize: 100352,
    tieWordEmbeddings: false,
    norms: 'after',
    qkNormWhole: true,
    ropeTheta: 5e5,
    maxPositionEmbeddings: 4096,
  },
  'lfm2-350m': {
    ...base,
    family: 'lfm2',
    hiddenSize: 1024,
    intermediateSize: 4608,
    layers: 16,
    heads: 16,
    kvHeads: 8,
    headDim: 64,
    vocabSize: 65536,
    rmsNormEps: 1e-5,
    // The other layers have attention.
    shortConv: { layers: [0, 1, 3, 4, 6, 7, 9, 11, 13, 15], taps: 3 },
    maxPositionEmbeddings: 128000,
  },
  'granite-4.0-350m': {
    ...base,
    family: 'granitemoehybrid',
    qkNorm: false,
    fused: ['gate_up_proj'],
    hiddenSize: 1024,
    intermediateSize: 2048,
    layers: 28,
    heads: 16,
    kvHeads: 4,
    headDim: 64,
    vocabSize: 100352,
    ropeTheta: 1e7,
    rmsNormEps: 1e-5,
    embeddingScale: 12,
    attentionScale: 0.015625,
    residualScale: 0.263,
    logitsScaling: 4,
    maxPositionEmbeddings: 32768,
  },
}

/** A model of random bf16 weights, made tensor by tensor as it is read. Activations keep their magnitude through the layers. */
export function randomModel(name: string, config: ModelConfig): ModelTensors {
  const tensors = madeTensors(config, (tensor, shape) => {
    const length = shape.reduce((a, b) => a * b, 1)
    if (shape.length === 2) return { dtype: 'bf16', shape, data: randomBf16(length, tensor, 1 / Math.sqrt(shape[1])) }
    return { dtype: 'f32', shape, data: new Float32Array(length).fill(tensor.endsWith('.bias') ? 0 : 1) }
  })
  return { name: `${name} (random weights)`, config, tensors }
}

/**
 * The model for a shape's name (random weights), or from a folder or GGUF file.
 * @throws UserError for anything else, listing the shapes
 */
export async function modelFor(ref: string): Promise<ModelTensors> {
  if (Object.hasOwn(modelShapes, ref)) return randomModel(ref, modelShapes[ref])
  if (existsSync(ref)) return await openModel(ref)
  const near = nearest(ref, Object.keys(modelShapes))
  throw new UserError(
    `--model ${ref} is neither a file or folder here nor a shape with random weights, which are ${Object.keys(modelShapes).join(', ')}.` +
      (near ? ` Did you mean ${near}?` : ''),
  )
}
