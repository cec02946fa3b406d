/**
 * config.json of the supported families, as transformers reads it: the same defaults, old and new spelling of the rope keys. What the
 * decoder cannot compute is refused here, in one sentence that names file and key, and never ignored.
 */
import { UserError } from '../../common/errors.ts'
import { keyReader, MOST_LAYERS, type Json } from './keys.ts'
import { ropeOf, ropeScalingToJson } from './rope.ts'
import type { Family } from './families/family.ts'
import { families, familyOf } from './families/index.ts'
import type { ModelConfig, ModelFamily } from '../types.ts'

const DEFAULT_ROPE_THETA = 10_000

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
  const rules = families[family]
  const { defaults = {}, biases, qkNorm = false } = rules
  refuseUnsupported(raw, file, family)
  const hiddenSize = key.count('hidden_size')
  const heads = key.count('num_attention_heads')
  // In transformers null stands for `heads` in every family, and a key that is not there for the default.
  const kvHeads =
    raw.num_key_value_heads === undefined ? (defaults.kvHeads ?? heads) : (key.optionalCount('num_key_value_heads') ?? heads)
  const layers = key.count('num_hidden_layers', MOST_LAYERS)
  const headDim = key.optionalCount('head_dim') ?? defaults.headDim ?? hiddenSize / heads
  if (!Number.isInteger(headDim))
    throw new UserError(`${file}: hidden_size ${hiddenSize} is not a multiple of num_attention_heads ${heads}.`)
  if (headDim % 2 !== 0)
    throw new UserError(`${file}: head_dim ${headDim} is odd; rotary position embeddings need an even number.`)
  if (heads % kvHeads !== 0)
    throw new UserError(`${file}: num_attention_heads ${heads} is not a multiple of num_key_value_heads ${kvHeads}.`)
  const attentionBias = !biases && key.flag('attention_bias', false)
  const maxPositions = key.count('max_position_embeddings')
  const own = rules.read?.(raw, file, { layers, heads, kvHeads, headDim, hiddenSize, maxPositions })
  return {
    family,
    hiddenSize,
    intermediateSize: own?.intermediateSize ?? key.count('intermediate_size'),
    layers,
    heads,
    kvHeads,
    headDim,
    vocabSize: key.count('vocab_size'),
    rmsNormEps: key.optionalNumber('rms_norm_eps') ?? defaults.rmsNormEps ?? 1e-6,
    ...ropeOfMost(raw, file, maxPositions, rules, own),
    tieWordEmbeddings: key.flag('tie_word_embeddings', defaults.tied ?? false),
    ...own,
    qkvBias: biases === 'qkv' || attentionBias,
    outputBias: attentionBias,
    qkNorm,
    maxPositionEmbeddings: own?.maxPositionEmbeddings ?? maxPositions,
    eosTokenIds: tokenIds([raw, file], [generation, generationFile]),
    bosTokenId: key.optionalId('bos_token_id'),
    padTokenId: key.optionalId('pad_token_id'),
  }
}

/** The rotary embedding, where the family has not read it itself. */
function ropeOfMost(
  raw: Json,
  file: string,
  maxPositions: number,
  { defaults, partlyTurned }: Family,
  own: Partial<ModelConfig> = {},
): Pick<ModelConfig, 'ropeTheta' | 'ropeScaling'> {
  const { ropeTheta, ropeScaling } = own
  if (ropeTheta !== undefined && ropeScaling) return { ropeTheta, ropeScaling }
  const { theta, scaling } = ropeOf(raw, file, maxPositions, defaults?.ropeTheta ?? DEFAULT_ROPE_THETA, partlyTurned)
  return { ropeTheta: theta, ropeScaling: scaling }
}

/** The config.json that says the same as `config`, for models that did not come with one. Throws UserError for rope factors. */
export function configToJson(config: ModelConfig): Json {
  const { family, eosTokenIds: eos } = config
  const rules = families[family]
  return {
    architectures: [`${rules.architecture}ForCausalLM`],
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
    ...rules.write(config),
    bos_token_id: config.bosTokenId,
    eos_token_id: eos.length > 1 ? eos : (eos[0] ?? null),
    pad_token_id: config.padTokenId,
    torch_dtype: 'bfloat16',
  }
}

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

/** The part of a config.json that is about text, where a model has others too (Qwen3.5 sees pictures, of which nothing is read), without what its family leaves out. */
export function textConfig(raw: Json): Json {
  const text = raw.model_type === 'qwen3_5' ? raw.text_config : undefined
  if (typeof text !== 'object' || text === null) {
    const { leftOut = [] } = Object.hasOwn(families, String(raw.model_type)) ? families[raw.model_type as ModelFamily] : {}
    return leftOut.length > 0 ? Object.fromEntries(Object.entries(raw).filter(([key]) => !leftOut.includes(key))) : raw
  }
  const { tie_word_embeddings: tied, quantization_config, quantization } = raw
  return {
    architectures: ['Qwen3_5ForCausalLM'],
    model_type: 'qwen3_5_text',
    ...text,
    // That of the whole model is what holds: transformers writes the part's default beside it.
    ...(tied !== undefined && { tie_word_embeddings: tied }),
    ...(quantization_config !== undefined && { quantization_config }),
    ...(quantization !== undefined && { quantization }),
  }
}

function refuseUnsupported(raw: Json, file: string, family: ModelFamily): void {
  const refuse = (key: string, why: string) => new UserError(`${file}: ${key} is ${JSON.stringify(raw[key])}, ${why}.`)
  families[family].refuse(raw, refuse)
  // transformers 5 asks every family for it; embedding models made from a language model have it.
  if (raw.is_causal !== undefined && raw.is_causal !== true)
    throw refuse('is_causal', 'and a token that sees those after it is not supported')
  // MLX names it `quantization`.
  const few = ['quantization_config', 'quantization'].find((key) => raw[key] !== null && typeof raw[key] === 'object')
  if (few) {
    throw new UserError(
      `${file}: ${few} is set, and quantised weights are not supported. Use the F32, F16 or BF16 model, or a GGUF file.`,
    )
  }
  const partial = raw.partial_rotary_factor ?? 1
  if (partial !== 1 && !families[family].partlyTurned)
    throw refuse('partial_rotary_factor', 'and only a full rotary embedding (1) is supported')
}
