/**
 * config.json of the supported families, as transformers reads it: the same defaults, old and new spelling of the rope keys. What the
 * decoder cannot compute is refused here, in one sentence that names file and key, and never ignored.
 */
import { UserError, nearest } from '../common/errors.ts'
import { FAMILIES, type GemmaConfig, type ModelConfig, type ModelFamily, type RopeScaling } from './types.ts'

type Json = Record<string, unknown>
/** Qwen3Config's own default, where the key is left out; the others divide the hidden size. */
const QWEN3_HEAD_DIM = 128
/** MistralConfig's, likewise. */
const MISTRAL_WINDOW = 4096
const DEFAULT_ROPE_THETA = 10_000
const SMOLLM3_ROPE_THETA = 2_000_000
/** Gemma3TextConfig's. */
const GEMMA = { headDim: 256, queryPreAttnScalar: 256, ropeTheta: 1_000_000, localRopeTheta: 10_000, window: 4096, pattern: 6 }

/**
 * Reads a parsed config.json (and generation_config.json, whose end-of-sequence ids are added). `file` is the name that errors give.
 * Throws UserError for a missing or impossible key and for everything that is not supported.
 */
export function parseConfig(
  raw: Json,
  file: string,
  generation: Json = {},
  generationFile = 'generation_config.json',
): ModelConfig {
  const key = keyReader(raw, file)
  const family = familyOf(raw, file)
  refuseUnsupported(raw, file, family)
  const hiddenSize = key.count('hidden_size')
  const heads = key.count('num_attention_heads')
  const kvHeads = key.optionalCount('num_key_value_heads') ?? heads
  const layers = key.count('num_hidden_layers')
  if (family !== 'gemma3_text') refuseSlidingWindow(raw, file, layers)
  const headDim =
    key.optionalCount('head_dim') ??
    (family === 'qwen3' ? QWEN3_HEAD_DIM : family === 'gemma3_text' ? GEMMA.headDim : hiddenSize / heads)
  if (!Number.isInteger(headDim))
    throw new UserError(`${file}: hidden_size ${hiddenSize} is not a multiple of num_attention_heads ${heads}.`)
  if (headDim % 2 !== 0) throw new UserError(`${file}: head_dim ${headDim} is odd, and rotary embeddings turn pairs.`)
  if (heads % kvHeads !== 0)
    throw new UserError(`${file}: num_attention_heads ${heads} is not a multiple of num_key_value_heads ${kvHeads}.`)
  const attentionBias = family !== 'qwen2' && family !== 'mistral' && key.flag('attention_bias', false)
  const positions = key.count('max_position_embeddings')
  const gemma = family === 'gemma3_text' ? gemmaOf(raw, file, layers, positions) : undefined
  const rope = gemma?.rope ?? ropeOf(raw, file, positions, family === 'smollm3' ? SMOLLM3_ROPE_THETA : DEFAULT_ROPE_THETA)
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
    ...(family === 'smollm3' && { layersWithoutRope: layersWithoutRope(raw, file, layers) }),
    tieWordEmbeddings: key.flag('tie_word_embeddings', family === 'smollm3' || family === 'gemma3_text'),
    qkvBias: family === 'qwen2' || attentionBias,
    outputBias: attentionBias,
    qkNorm: family === 'qwen3' || family === 'gemma3_text',
    ...(gemma && { gemma: gemma.config }),
    maxPositionEmbeddings: family === 'mistral' ? Math.min(positions, windowOf(raw, file)) : positions,
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
    ...(family === 'qwen2' || family === 'mistral' ? {} : { attention_bias: config.qkvBias }),
    ...(family === 'llama' || family === 'smollm3' ? { mlp_bias: false } : {}),
    ...(family === 'mistral'
      ? { sliding_window: null }
      : family === 'llama' || family === 'gemma3_text'
        ? {}
        : { use_sliding_window: false }),
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
} // prettier-ignore

function ropeScalingToJson(scaling: RopeScaling): Json | null {
  if (scaling.type === 'default') return null
  if (scaling.type === 'linear') return { rope_type: 'linear', factor: scaling.factor }
  if (scaling.type === 'factors') {
    throw new UserError(
      'The rope factors of this GGUF follow no rule that a config.json can say, so it cannot be written as a Hugging Face folder.',
    )
  }
  return {
    rope_type: 'llama3',
    factor: scaling.factor,
    low_freq_factor: scaling.lowFreqFactor,
    high_freq_factor: scaling.highFreqFactor,
    original_max_position_embeddings: scaling.originalMaxPositionEmbeddings,
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
  if (partial !== 1) throw refuse('partial_rotary_factor', 'and only a full rotary embedding (1) is supported')
}

function refuseSlidingWindow(raw: Json, file: string, layers: number): void {
  const types = raw.layer_types
  if (Array.isArray(types)) {
    const other = types.find((type) => type !== 'full_attention')
    if (other === undefined) return
    throw new UserError(`${file}: layer_types has "${String(other)}", and only full_attention is supported.`)
  }
  // SmolLM3's are its layers without rotary embeddings, whichever these are, and without the key it has no window; Qwen has one of its own then.
  const smollm3 = raw.model_type === 'smollm3'
  const first = smollm3 ? 0 : Number(raw.max_window_layers ?? 28)
  const none = raw.sliding_window === null || (smollm3 && raw.sliding_window === undefined)
  if (!raw.use_sliding_window || none || layers <= first) return
  throw new UserError(`${file}: use_sliding_window is true, and sliding window attention is not supported.`)
}

/** Tokens that a Mistral layer looks back over: sequences up to so many are as without a window. */
function windowOf(raw: Json, file: string): number {
  if (raw.sliding_window === null) return Infinity
  return keyReader(raw, file).optionalCount('sliding_window') ?? MISTRAL_WINDOW
}

/** SmolLM3's: where no_rope_layers has a 0, else every fourth (no_rope_layer_interval). */
function layersWithoutRope(raw: Json, file: string, layers: number): number[] {
  const given = raw.no_rope_layers ?? null
  const interval = keyReader(raw, file).optionalCount('no_rope_layer_interval') ?? 4
  const turns = given ?? Array.from({ length: layers }, (_, layer) => Number((layer + 1) % interval !== 0))
  if (!Array.isArray(turns) || turns.length < layers || turns.some((turn) => turn !== 0 && turn !== 1))
    throw new UserError(
      `${file}: no_rope_layers must be a list of ${layers} numbers, 0 for a layer without rotary embeddings and 1 for others.`,
    )
  return turns.slice(0, layers).flatMap((turn, layer) => (turn === 0 ? [layer] : []))
}

/** What the decoder has not of what Gemma's layers can do. */
function refuseOfGemma(raw: Json, refuse: (key: string, why: string) => UserError): void {
  if ((raw.hidden_activation ?? 'gelu_pytorch_tanh') !== 'gelu_pytorch_tanh')
    throw refuse('hidden_activation', 'and only gelu_pytorch_tanh is supported')
  for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'])
    if ((raw[key] ?? null) !== null) throw refuse(key, 'and soft caps are not supported')
  if (raw.use_bidirectional_attention)
    throw refuse('use_bidirectional_attention', 'and a token that sees those after it is not supported')
}

interface Rope {
  theta: number
  scaling: RopeScaling
}

/** Gemma 3's own keys, old and new spelling. */
function gemmaOf(raw: Json, file: string, layers: number, maxPositions: number): { config: GemmaConfig; rope: Rope } {
  const key = keyReader(raw, file)
  const pattern = key.optionalCount('sliding_window_pattern') ?? key.optionalCount('_sliding_window_pattern') ?? GEMMA.pattern
  const kinds = ['sliding_attention', 'full_attention']
  const types = raw.layer_types ?? Array.from({ length: layers }, (_, layer) => kinds[Number((layer + 1) % pattern === 0)])
  if (!Array.isArray(types) || types.length < layers || types.some((type) => !kinds.includes(type as string)))
    throw new UserError(`${file}: layer_types must be a list of ${layers} words, each sliding_attention or full_attention.`)
  const slidingLayers = types.slice(0, layers).flatMap((type, layer) => (type === kinds[0] ? [layer] : []))
  // Since transformers 5 each kind of layer has an object of its own.
  const given = (raw.rope_parameters ?? {}) as Json
  const [local, global] = kinds.map((kind): Json => {
    const { rope_scaling: scaling = null, ...rest } = raw
    const own = raw.rope_parameters ? (given[kind] ?? {}) : kind === kinds[1] ? (scaling ?? {}) : {}
    return { ...rest, rope_parameters: own }
  })
  const localTheta = key.optionalNumber('rope_local_base_freq') ?? GEMMA.localRopeTheta
  const { theta, scaling } = ropeOf({ ...local, rope_theta: localTheta }, file, maxPositions, localTheta)
  if (scaling.type !== 'default')
    throw new UserError(`${file}: rope_parameters.sliding_attention is scaled, and only full_attention may be.`)
  const config = {
    queryPreAttnScalar: key.optionalNumber('query_pre_attn_scalar') ?? GEMMA.queryPreAttnScalar,
    slidingLayers,
    slidingWindow: key.optionalCount('sliding_window') ?? GEMMA.window,
    localRopeTheta: theta,
  }
  return { config, rope: ropeOf(global, file, maxPositions, GEMMA.ropeTheta) }
}

function gemmaToJson({ layers }: ModelConfig, gemma: GemmaConfig): Json {
  const { slidingLayers } = gemma
  return {
    hidden_activation: 'gelu_pytorch_tanh',
    query_pre_attn_scalar: gemma.queryPreAttnScalar,
    sliding_window: gemma.slidingWindow,
    layer_types: Array.from({ length: layers }, (_, i) => (slidingLayers.includes(i) ? 'sliding_attention' : 'full_attention')),
    rope_local_base_freq: gemma.localRopeTheta,
  }
}

function ropeOf(raw: Json, file: string, maxPositions: number, otherwise: number): Rope {
  const where = raw.rope_parameters ? 'rope_parameters' : 'rope_scaling'
  const given = raw.rope_parameters ?? raw.rope_scaling ?? {}
  if (typeof given !== 'object' || Array.isArray(given)) throw new UserError(`${file}: ${where} must be an object.`)
  const rope = given as Json
  const key = keyReader(rope, `${file}: ${where}`)
  const nested = Object.entries(rope).find(([, value]) => typeof value === 'object' && value !== null)
  if (nested)
    throw new UserError(`${file}: ${where}.${nested[0]} is an object; rope parameters for each layer type are not supported.`)
  if ((rope.partial_rotary_factor ?? 1) !== 1) {
    throw new UserError(
      `${file}: ${where}.partial_rotary_factor is ${JSON.stringify(rope.partial_rotary_factor)}, and only 1 is supported.`,
    )
  }
  const theta = key.optionalNumber('rope_theta') ?? keyReader(raw, file).optionalNumber('rope_theta') ?? otherwise
  const type = rope.rope_type ?? rope.type ?? 'default'
  if (type === 'default') return { theta, scaling: { type } }
  if (type === 'linear') return { theta, scaling: { type, factor: key.number('factor') } }
  if (type === 'llama3') {
    const scaling = {
      type,
      factor: key.number('factor'),
      lowFreqFactor: key.number('low_freq_factor'),
      highFreqFactor: key.number('high_freq_factor'),
      originalMaxPositionEmbeddings: key.optionalNumber('original_max_position_embeddings') ?? maxPositions,
    } as const
    return { theta, scaling }
  }
  throw new UserError(
    `${file}: ${where}.rope_type is ${JSON.stringify(type)}, and only default, linear and llama3 are supported.`,
  )
}

const isCount = (value: unknown): value is number => Number.isInteger(value) && (value as number) > 0
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value > 0

/** Reads keys of a JSON object with errors that name the file and the key. */
function keyReader(raw: Json, file: string) {
  const wrong = (key: string, what: string) =>
    new UserError(
      raw[key] === undefined
        ? `${file}: ${key} is missing.`
        : `${file}: ${key} is ${JSON.stringify(raw[key])}; it must be ${what}.`,
    )
  const absent = (key: string) => raw[key] === undefined || raw[key] === null
  const count = (key: string): number => {
    const value = raw[key]
    if (!isCount(value)) throw wrong(key, 'a whole number above 0')
    return value
  }
  const number = (key: string): number => {
    const value = raw[key]
    if (!isNumber(value)) throw wrong(key, 'a number above 0')
    return value
  }
  return {
    count,
    number,
    optionalCount: (key: string) => (absent(key) ? null : count(key)),
    optionalNumber: (key: string) => (absent(key) ? null : number(key)),
    flag: (key: string, otherwise: boolean): boolean => {
      const value = raw[key] ?? otherwise
      if (typeof value !== 'boolean') throw wrong(key, 'true or false')
      return value
    },
    /** A token id; null for none (absent, null, or -1). A list of ids gives its first. */
    optionalId: (key: string): number | null => {
      const value: unknown = Array.isArray(raw[key]) ? (raw[key] as unknown[])[0] : raw[key]
      if (value === undefined || value === null || value === -1) return null
      if (!Number.isInteger(value) || (value as number) < 0) throw wrong(key, 'a token id')
      return value as number
    },
  }
}
