/** What single families have in config.json beside what all have. */
import { UserError } from '../common/errors.ts'
import { keyReader, type Json } from './config-keys.ts'
import { ropeKeys, ropeOf, type Rope } from './config-rope.ts'
import type { GemmaConfig, ModelConfig, ModelFamily, Qwen35Config } from './types.ts'

/** MistralConfig's. */
const MISTRAL_WINDOW = 4096
/** Gemma3TextConfig's. */
const GEMMA = { headDim: 256, queryPreAttnScalar: 256, ropeTheta: 1_000_000, localRopeTheta: 10_000, window: 4096, pattern: 6 }
/** Qwen3_5TextConfig's. */
const QWEN35 = { headDim: 256, keyHeads: 16, valueHeads: 32, keyDim: 128, valueDim: 128, taps: 4, rotary: 0.25, interval: 4 }

/** Defaults where head_dim is left out; other families divide the hidden size. */
export const headDimOf: Partial<Record<ModelFamily, number>> = {
  qwen3: 128,
  gemma3_text: GEMMA.headDim,
  qwen3_5_text: QWEN35.headDim,
}

/** Tokens that a Mistral layer looks back over; undefined: all. */
export function windowOf(raw: Json, file: string): number | undefined {
  if (raw.sliding_window === null) return undefined
  return keyReader(raw, file).optionalCount('sliding_window') ?? MISTRAL_WINDOW
}

/** SmolLM3's: where no_rope_layers has a 0, else every fourth (no_rope_layer_interval). */
export function layersWithoutRope(raw: Json, file: string, layers: number): number[] {
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
export function refuseOfGemma(raw: Json, refuse: (key: string, why: string) => UserError): void {
  if ((raw.hidden_activation ?? 'gelu_pytorch_tanh') !== 'gelu_pytorch_tanh')
    throw refuse('hidden_activation', 'and only gelu_pytorch_tanh is supported')
  for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'])
    if ((raw[key] ?? null) !== null) throw refuse(key, 'and soft caps are not supported')
  if (raw.use_bidirectional_attention)
    throw refuse('use_bidirectional_attention', 'and a token that sees those after it is not supported')
  if (raw.sliding_window === null) throw refuse('sliding_window', 'and layers of sliding_attention need a number')
}

/** The layers of a kind, where the others have full attention: as layer_types says, else all but each `interval`th. */
function layersOf(kind: string, interval: number, raw: Json, file: string, layers: number): number[] {
  const kinds = [kind, 'full_attention']
  const types = raw.layer_types ?? Array.from({ length: layers }, (_, layer) => kinds[Number((layer + 1) % interval === 0)])
  if (!Array.isArray(types) || types.length < layers || types.some((type) => !kinds.includes(type as string)))
    throw new UserError(`${file}: layer_types must be a list of ${layers} words, each ${kinds.join(' or ')}.`)
  return types.slice(0, layers).flatMap((type, layer) => (type === kind ? [layer] : []))
}

/** Qwen3.5's own keys. */
export function qwen35Of(raw: Json, file: string, layers: number, headDim: number): Qwen35Config {
  const key = keyReader(raw, file)
  const interval = key.optionalCount('full_attention_interval') ?? QWEN35.interval
  const deltaLayers = layersOf('linear_attention', interval, raw, file, layers)
  const keyHeads = key.optionalCount('linear_num_key_heads') ?? QWEN35.keyHeads
  const valueHeads = key.optionalCount('linear_num_value_heads') ?? QWEN35.valueHeads
  if (valueHeads % keyHeads !== 0)
    throw new UserError(`${file}: linear_num_value_heads ${valueHeads} is not a multiple of linear_num_key_heads ${keyHeads}.`)
  const [keyDim, valueDim] = (['linear_key_head_dim', 'linear_value_head_dim'] as const).map((name, i) => {
    const channels = key.optionalCount(name) ?? [QWEN35.keyDim, QWEN35.valueDim][i]
    if (channels % 4 !== 0) throw new UserError(`${file}: ${name} is ${channels}; it must be a multiple of 4.`)
    return channels
  })
  const share = keyReader({ ...raw, ...ropeKeys(raw, file).given }, file).optionalNumber('partial_rotary_factor') ?? QWEN35.rotary
  const rotaryDim = Math.trunc(headDim * share)
  if (rotaryDim < 2 || rotaryDim > headDim || rotaryDim % 2 !== 0)
    throw new UserError(
      `${file}: partial_rotary_factor is ${share}, which turns ${rotaryDim} of a head's ${headDim} channels; it must be an even number of them.`,
    )
  return {
    deltaLayers,
    keyHeads,
    valueHeads,
    keyDim,
    valueDim,
    taps: key.optionalCount('linear_conv_kernel_dim') ?? QWEN35.taps,
    rotaryDim,
  }
}

export function qwen35ToJson({ layers, headDim, ropeTheta }: ModelConfig, qwen35: Qwen35Config): Json {
  const { deltaLayers, rotaryDim } = qwen35
  return {
    layer_types: Array.from({ length: layers }, (_, i) => (deltaLayers.includes(i) ? 'linear_attention' : 'full_attention')),
    linear_num_key_heads: qwen35.keyHeads,
    linear_num_value_heads: qwen35.valueHeads,
    linear_key_head_dim: qwen35.keyDim,
    linear_value_head_dim: qwen35.valueDim,
    linear_conv_kernel_dim: qwen35.taps,
    rope_parameters: { rope_type: 'default', rope_theta: ropeTheta, partial_rotary_factor: rotaryDim / headDim },
  }
}

/** Gemma 3's own keys, old and new spelling. */
export function gemmaOf(raw: Json, file: string, layers: number, maxPositions: number): { config: GemmaConfig; rope: Rope } {
  const key = keyReader(raw, file)
  const pattern = key.optionalCount('sliding_window_pattern') ?? GEMMA.pattern
  const slidingLayers = layersOf('sliding_attention', pattern, raw, file, layers)
  // Since transformers 5 each kind of layer has an object of its own.
  const { rope_scaling: _scaling, rope_parameters: parameters, ...rest } = raw
  const given = (parameters ?? {}) as Json
  const kinds = ['sliding_attention', 'full_attention']
  if (Object.keys(given).length > 0 && !kinds.some((kind) => kind in given))
    throw new UserError(`${file}: rope_parameters must have an object for each kind of layer, ${kinds.join(' and ')}.`)
  const [local, global] = kinds.map((kind, i): Json => ({ ...(i === 0 ? rest : raw), rope_parameters: given[kind] }))
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

export function gemmaToJson({ layers }: ModelConfig, gemma: GemmaConfig): Json {
  const { slidingLayers } = gemma
  return {
    hidden_activation: 'gelu_pytorch_tanh',
    query_pre_attn_scalar: gemma.queryPreAttnScalar,
    sliding_window: gemma.slidingWindow,
    layer_types: Array.from({ length: layers }, (_, i) => (slidingLayers.includes(i) ? 'sliding_attention' : 'full_attention')),
    rope_local_base_freq: gemma.localRopeTheta,
  }
}
