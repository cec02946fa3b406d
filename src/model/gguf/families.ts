/**
 * What GGUF files of some architectures have of their own, as llama.cpp's converter writes it and llama.cpp reads it. Numbers that no key says are in llama.cpp's code.
 */
import { UserError } from '../../common/errors.ts'
import { allBut } from '../config/families/layers.ts'
import { eightsOfParts } from '../config/families/family.ts'
import { readLongRope } from '../config/longrope.ts'
import type { ModelConfig } from '../types.ts'
import type { GgufFile } from './gguf.ts'
import { exactDecimal, metadataReader } from './metadata.ts'
import { ropeScaling } from './rope.ts'

type Shape = Pick<ModelConfig, 'layers' | 'hiddenSize' | 'heads' | 'kvHeads' | 'headDim' | 'intermediateSize' | 'ropeTheta'>

/** Granite's factors, of which 0 is none, as llama.cpp reads them. */
function granite(file: GgufFile): Partial<ModelConfig> {
  const meta = metadataReader(file)
  const factor = (key: string): number | undefined => {
    const value = meta.number(`granite.${key}`) ?? 0
    if (!(value >= 0 && value < Infinity))
      throw new UserError(`${file.path}: granite.${key} is ${value}; it must be a number above 0.`)
    return value === 0 ? undefined : exactDecimal(value)
  }
  const unlessOne = (value: number | undefined) => (value === 1 ? undefined : value)
  // Its files say by this whether heads are turned. No config.json of this family says that they are not, so nothing could be written.
  if (meta.flag('granite.rope.scaling.finetuned') === false)
    throw new UserError(
      `${file.path}: granite.rope.scaling.finetuned is false, which means no rotary embedding; Granite's GGUF files are supported only with it. Use the model's Hugging Face folder.`,
    )
  return {
    embeddingScale: unlessOne(factor('embedding_scale')),
    attentionScale: factor('attention.scale'),
    residualScale: unlessOne(factor('residual_scale')),
    logitsScaling: unlessOne(factor('logit_scale')),
  }
}

/** The layers with a sliding window: of a list those that are true, of a number all but each so manieth. */
function slidingLayers(file: GgufFile, arch: string, layers: number, otherwise: number): number[] {
  const key = `${arch}.attention.sliding_window_pattern`
  const given = metadataReader(file).numberOrFlags(key) ?? otherwise
  if (Array.isArray(given) && given.length < layers)
    throw new UserError(`${file.path}: ${key} has ${given.length} values; it must have one for each of the ${layers} layers.`)
  const slides = Array.isArray(given) ? (layer: number) => given[layer] : allBut(given)
  return Array.from({ length: layers }, (_, layer) => layer).filter(slides)
}

/** A 27B scales scores by the channels that heads would have if they divided the hidden size. llama.cpp knows it by its 62 layers. */
const LAYERS_OF_27B = 62

function gemma3(file: GgufFile, { layers, hiddenSize, heads, headDim }: Shape): Partial<ModelConfig> {
  const meta = metadataReader(file)
  for (const key of ['gemma3.attn_logit_softcapping', 'gemma3.final_logit_softcapping'])
    if (meta.number(key)) throw new UserError(`${file.path}: ${key} is ${meta.number(key)}, and soft caps are not supported.`)
  const scale = layers === LAYERS_OF_27B ? hiddenSize / heads : headDim
  return {
    family: 'gemma3_text',
    // Some old files lack it, and what llama.cpp takes then is not what the models have.
    ropeTheta: exactDecimal(meta.above0('gemma3.rope.freq_base')),
    activation: 'gelu',
    norms: 'around',
    normsFromOne: true,
    embeddingScale: Math.sqrt(hiddenSize),
    embeddingScaleRounded: true,
    attentionScale: scale ** -0.5,
    slidingLayers: slidingLayers(file, 'gemma3', layers, 6),
    slidingWindow: meta.count('gemma3.attention.sliding_window'),
    localRopeTheta: exactDecimal(meta.above0('gemma3.rope.freq_base_swa', 10_000)),
  }
}

/** OLMo 2, or Olmo 3, whose files have a window. */
async function olmo2(file: GgufFile, { layers, headDim, ropeTheta: theta }: Shape): Promise<Partial<ModelConfig>> {
  const meta = metadataReader(file)
  const window = meta.number('olmo2.attention.sliding_window') ?? 0
  const sliding = window > 0 ? slidingLayers(file, 'olmo2', layers, 4) : []
  const norms = { norms: 'after', qkNormWhole: true } as const
  if (sliding.length === 0) return { ...norms, family: 'olmo2' }
  const local = exactDecimal(meta.above0('olmo2.rope.freq_base_swa', theta))
  const scaling = await ropeScaling(file, 'olmo2', headDim, theta)
  return {
    ...norms,
    family: 'olmo3',
    slidingWindow: meta.count('olmo2.attention.sliding_window'),
    slidingLayers: sliding,
    // Layers with a window turn unscaled.
    ...((local !== theta || scaling.type !== 'default') && { localRopeTheta: local }),
  }
}

/** Phi-3 and Phi-4: a window in all layers (which llama.cpp leaves out, and transformers does not), a share of a head turned, and longrope where there are factors. */
async function phi3(file: GgufFile, shape: Shape): Promise<Partial<ModelConfig>> {
  const { heads, kvHeads, headDim, hiddenSize, intermediateSize, ropeTheta } = shape
  const meta = metadataReader(file)
  const heights = { 'head_count x head_dim': heads * headDim, 'head_count_kv x head_dim': kvHeads * headDim }
  eightsOfParts({ embedding_length: hiddenSize, feed_forward_length: intermediateSize, ...heights }, file.path)
  const rotaryDim = meta.number('phi3.rope.dimension_count') ?? headDim
  if (rotaryDim < 2 || rotaryDim > headDim || rotaryDim % 2 !== 0)
    throw new UserError(
      `${file.path}: phi3.rope.dimension_count is ${rotaryDim}; it must be an even number of a head's ${headDim} channels.`,
    )
  const window = meta.number('phi3.attention.sliding_window') ?? 0
  return {
    fused: ['qkv_proj', 'gate_up_proj'],
    ...(rotaryDim < headDim && { rotaryDim }),
    slidingWindow: window === 0 ? undefined : meta.count('phi3.attention.sliding_window'),
    ...(await phi3Rope(file, rotaryDim, ropeTheta)),
  }
}

async function phi3Rope(file: GgufFile, rotaryDim: number, theta: number): Promise<Partial<ModelConfig>> {
  const meta = metadataReader(file)
  const type = meta.string('phi3.rope.scaling.type') ?? 'longrope'
  if (!file.tensors.has('rope_factors_short.weight') || type !== 'longrope') {
    const scaling = await ropeScaling(file, 'phi3', rotaryDim, theta)
    if (scaling.type === 'default') return {}
    throw new UserError(`${file.path}: its rope scaling is ${scaling.type}, and a Phi-3 may only have none and longrope.`)
  }
  const factors = async (name: string): Promise<number[]> => {
    const list = await file.readFloat32(name)
    if (list.length === rotaryDim / 2) return Array.from(list, exactDecimal)
    throw new UserError(
      `${file.path}: ${name} has ${list.length} factors, but ${rotaryDim} turned channels need ${rotaryDim / 2}.`,
    )
  }
  const [short_factor, long_factor] = [await factors('rope_factors_short.weight'), await factors('rope_factors_long.weight')]
  const [original, positions] = [meta.count('phi3.rope.scaling.original_context_length'), meta.count('phi3.context_length')]
  const usual = readLongRope({ short_factor, long_factor }, file.path, original, positions, rotaryDim)
  const found = meta.above0('phi3.rope.scaling.attn_factor', 1)
  const attentionFactor = Math.fround(usual.attentionFactor) === found ? usual.attentionFactor : exactDecimal(found)
  return { ropeScaling: { ...usual, attentionFactor }, maxPositionEmbeddings: Math.min(original, positions) }
}

/** By general.architecture. */
export const OWN_PARTS: Readonly<
  Record<string, (file: GgufFile, shape: Shape) => Partial<ModelConfig> | Promise<Partial<ModelConfig>>>
> = { granite, gemma3, olmo2, phi3 }
