/**
 * config.json of the supported families, as transformers reads it: the same defaults, old and new spelling of the rope keys. What the
 * decoder cannot compute is refused here, in one sentence that names file and key, and never ignored.
 */
import { UserError, nearest } from '../common/errors.ts'
import {
  gemmaOf,
  gemmaToJson,
  headDimOf,
  layersWithoutRope,
  qwen35Of,
  qwen35ToJson,
  refuseOfGemma,
  windowOf,
  windowToJson,
} from './config-families.ts'
import { keyReader, MOST_LAYERS, type Json } from './config-keys.ts'
import { ropeOf, ropeScalingToJson } from './config-rope.ts'
import { FAMILIES, type ModelConfig, type ModelFamily } from './types.ts'

const DEFAULT_ROPE_THETA = 10_000
const SMOLLM3_ROPE_THETA = 2_000_000
/**
 * Reads a parsed config.json (and generation_config.json, whose end-of-sequence ids are added). `file` is the name that errors give.
 * Throws UserError for a missing or impossible key and for everything that is not supported.
 */
export function parseConfig(
  whole: Json,
  file: string,
  generation: Json = {},
  generationFile = 'generation_config.json',
): ModelConfig {
  const raw = textConfig(whole)
  const key = keyReader(raw, file)
  const family = familyOf(raw, file)
  refuseUnsupported(raw, file, family)
  const hiddenSize = key.count('hidden_size')
  const heads = key.count('num_attention_heads')
  const kvHeads = key.optionalCount('num_key_value_heads') ?? heads
  const layers = key.count('num_hidden_layers', MOST_LAYERS)
  const headDim = key.optionalCount('head_dim') ?? headDimOf[family] ?? hiddenSize / heads
  if (!Number.isInteger(headDim))
    throw new UserError(`${file}: hidden_size ${hiddenSize} is not a multiple of num_attention_heads ${heads}.`)
  if (headDim % 2 !== 0) throw new UserError(`${file}: head_dim ${headDim} is odd, and rotary embeddings turn pairs.`)
  if (heads % kvHeads !== 0)
    throw new UserError(`${file}: num_attention_heads ${heads} is not a multiple of num_key_value_heads ${kvHeads}.`)
  const attentionBias = family !== 'qwen2' && family !== 'mistral' && key.flag('attention_bias', false)
  const positions = key.count('max_position_embeddings')
  const gemma = family === 'gemma3_text' ? gemmaOf(raw, file, layers, positions) : undefined
  const qwen35 = family === 'qwen3_5_text' ? qwen35Of(raw, file, layers, headDim) : undefined
  const rope = gemma?.rope ?? ropeOf(raw, file, positions, family === 'smollm3' ? SMOLLM3_ROPE_THETA : DEFAULT_ROPE_THETA)
  const withoutRope = family === 'smollm3' ? layersWithoutRope(raw, file, layers) : undefined
  const vocabSize = key.count('vocab_size')
  return {
    family,
    hiddenSize,
    intermediateSize: key.count('intermediate_size'),
    layers,
    heads,
    kvHeads,
    headDim,
    vocabSize,
    rmsNormEps: key.optionalNumber('rms_norm_eps') ?? 1e-6,
    ropeTheta: rope.theta,
    ropeScaling: rope.scaling,
    ...(withoutRope && { layersWithoutRope: withoutRope }),
    ...(!gemma && !qwen35 && windowOf(raw, file, family, layers, withoutRope)),
    tieWordEmbeddings: key.flag('tie_word_embeddings', family === 'smollm3' || family === 'gemma3_text'),
    qkvBias: family === 'qwen2' || attentionBias,
    outputBias: attentionBias,
    qkNorm: family === 'qwen3' || family === 'gemma3_text' || family === 'qwen3_5_text',
    ...(gemma && { gemma: gemma.config }),
    ...(qwen35 && { qwen35 }),
    maxPositionEmbeddings: positions,
    eosTokenIds: tokenIds([raw, file], [generation, generationFile]),
    bosTokenId: key.optionalId('bos_token_id'),
    padTokenId: key.optionalId('pad_token_id'),
  }
}

/** The config.json that says the same as `config`, for models that did not come with one. Throws UserError for rope factors. */
export function configToJson(config: ModelConfig): Json {
  const { family, eosTokenIds: eos, layersWithoutRope = [] } = config
  return {
    architectures: [`${ARCHITECTURES[family]}ForCausalLM`],
    model_type: family,
    hidden_size: config.hiddenSize,
    intermediate_size: config.intermediateSize,
    num_hidden_layers: config.layers,
    num_attention_heads: config.heads,
    num_key_value_heads: config.kvHeads,
    head_dim: config.headDim,
    vocab_size: config.vocabSize,
    max_position_embeddings: config.maxPositionEmbeddings,
    rms_norm_eps: config.rmsNormEps,
    rope_theta: config.ropeTheta,
    rope_scaling: ropeScalingToJson(config.ropeScaling),
    tie_word_embeddings: config.tieWordEmbeddings,
    ...(config.gemma ? gemmaToJson(config, config.gemma) : { hidden_act: 'silu' }),
    ...(config.qwen35 && qwen35ToJson(config, config.qwen35)),
    ...(family === 'qwen2' || family === 'mistral' ? {} : { attention_bias: config.qkvBias }),
    ...(family === 'llama' || family === 'smollm3' ? { mlp_bias: false } : {}),
    ...windowToJson(config),
    ...(family === 'smollm3' && {
      no_rope_layers: Array.from({ length: config.layers }, (_, layer) => Number(!layersWithoutRope.includes(layer))),
    }),
    bos_token_id: config.bosTokenId,
    eos_token_id: eos.length > 1 ? eos : (eos[0] ?? null),
    pad_token_id: config.padTokenId,
    torch_dtype: 'bfloat16',
  }
}

const ARCHITECTURES: Record<ModelFamily, string> = {
  llama: 'Llama', mistral: 'Mistral', smollm3: 'SmolLM3', qwen2: 'Qwen2', qwen3: 'Qwen3', gemma3_text: 'Gemma3',
  qwen3_5_text: 'Qwen3_5',
} // prettier-ignore

/** The union of eos_token_id of several files, each an id or a list of ids. Throws UserError for anything else. */
function tokenIds(...sources: [Json, string][]): number[] {
  const ids = new Set<number>()
  for (const [source, file] of sources) {
    const value = source.eos_token_id ?? []
    for (const id of Array.isArray(value) ? (value as unknown[]) : [value]) {
      if (!Number.isInteger(id))
        throw new UserError(`${file}: eos_token_id is ${JSON.stringify(value)}; it must be a token id or a list of them.`)
      // -1 stands for "none" in some exports.
      if ((id as number) >= 0) ids.add(id as number)
    }
  }
  return [...ids]
}

/** The part of a config.json that is about text, where a model has others too (Qwen3.5 sees pictures, of which nothing is read). */
export function textConfig(raw: Json): Json {
  const text = raw.model_type === 'qwen3_5' ? raw.text_config : undefined
  if (typeof text !== 'object' || text === null) return raw
  const { tie_word_embeddings: tied } = raw
  return {
    architectures: ['Qwen3_5ForCausalLM'],
    model_type: 'qwen3_5_text',
    ...(tied !== undefined && { tie_word_embeddings: tied }),
    ...text,
  }
}

/** For messages: a, b and c. */
export const familyNames = new Intl.ListFormat('en-GB').format(FAMILIES)

function familyOf(raw: Json, file: string): ModelFamily {
  const type = raw.model_type
  if (FAMILIES.includes(type as ModelFamily)) return type as ModelFamily
  if (typeof type !== 'string') throw new UserError(`${file}: model_type is missing. Is this a model's config.json?`)
  const near = nearest(type, FAMILIES)
  const hint = near ? ` (${near} is the nearest)` : ''
  throw new UserError(`${file}: model_type "${type}" is not supported${hint}; dawn-rl runs ${familyNames} models.`)
}

function refuseUnsupported(raw: Json, file: string, family: ModelFamily): void {
  const refuse = (key: string, why: string) => new UserError(`${file}: ${key} is ${JSON.stringify(raw[key])}, ${why}.`)
  if (family === 'gemma3_text') refuseOfGemma(raw, refuse)
  else if ((raw.hidden_act ?? 'silu') !== 'silu') throw refuse('hidden_act', 'and only silu is supported')
  if ((family === 'llama' || family === 'smollm3') && raw.mlp_bias)
    throw refuse('mlp_bias', 'and biases in the MLP are not supported')
  if (raw.quantization_config) {
    throw new UserError(
      `${file}: quantization_config is set, and quantised weights are not supported. Use the F32, F16 or BF16 model, or a GGUF file.`,
    )
  }
  const partial = raw.partial_rotary_factor ?? 1
  if (partial !== 1 && family !== 'qwen3_5_text')
    throw refuse('partial_rotary_factor', 'and only a full rotary embedding (1) is supported')
}
