/** Keys of config.json that only some families have. */
import { UserError } from '../common/errors.ts'
import { keyReader, type Json } from './config-keys.ts'
import { ropeKeys, ropeOf, type Rope } from './config-rope.ts'
import type { GemmaConfig, ModelConfig, ModelFamily, Qwen35Config } from './types.ts'

/** Default of MistralConfig and the Qwen configs; the Qwen ones use it from layer max_window_layers on. */
const WINDOW = 4096
const QWEN_MAX_WINDOW_LAYERS = 28
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

/** The layers with a sliding window: all of a Mistral's, those of layer_types or of an older rule in Qwen2, Qwen3 and SmolLM3, none of a Llama. */
export function windowOf(
  raw: Json,
  file: string,
  family: ModelFamily,
  layers: number,
  withoutRope: number[] | undefined,
): Pick<ModelConfig, 'slidingWindow' | 'slidingLayers'> {
  const { optionalCount, flag } = keyReader(raw, file)
  const window = (otherwise?: number) =>
    raw.sliding_window === null ? undefined : (optionalCount('sliding_window') ?? otherwise)
  if (family === 'llama' || family === 'mistral') {
    const other = Array.isArray(raw.layer_types) && raw.layer_types.find((type) => type !== 'full_attention')
    if (other) throw new UserError(`${file}: layer_types has "${String(other)}", and only full_attention is supported.`)
    return family === 'mistral' ? { slidingWindow: window(WINDOW) } : {}
  }
  const slidingWindow = flag('use_sliding_window', false) ? window(withoutRope ? undefined : WINDOW) : undefined
  const first = () => (raw.max_window_layers === 0 ? 0 : (optionalCount('max_window_layers') ?? QWEN_MAX_WINDOW_LAYERS))
  const slides = (layer: number) => slidingWindow !== undefined && (withoutRope?.includes(layer) ?? layer >= first())
  const slidingLayers = layersOf('sliding_attention', slides, raw, file, layers)
  if (slidingLayers.length === 0) return {}
  if (slidingWindow === undefined)
    throw new UserError(
      `${file}: layer_types has "sliding_attention", and these layers need use_sliding_window true and a sliding_window.`,
    )
  return { slidingWindow, slidingLayers }
}

/** SmolLM3's layers without rotary embedding: those with a 0 in no_rope_layers, else every fourth (no_rope_layer_interval). */
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

/** Refuses features of Gemma's layers that the decoder does not have. */
export function refuseOfGemma(raw: Json, refuse: (key: string, why: string) => UserError): void {
  if ((raw.hidden_activation ?? 'gelu_pytorch_tanh') !== 'gelu_pytorch_tanh')
    throw refuse('hidden_activation', 'and only gelu_pytorch_tanh is supported')
  for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'])
    if ((raw[key] ?? null) !== null) throw refuse(key, 'and soft caps are not supported')
  if (raw.use_bidirectional_attention)
    throw refuse('use_bidirectional_attention', 'and a token that sees those after it is not supported')
  if (raw.sliding_window === null) throw refuse('sliding_window', 'and layers of sliding_attention need a number')
}

/** The layers of a kind, where the others have full attention: as layer_types says, else by `otherwise`. */
function layersOf(kind: string, otherwise: (layer: number) => boolean, raw: Json, file: string, layers: number): number[] {
  const kinds = [kind, 'full_attention']
  const types = raw.layer_types ?? Array.from({ length: layers }, (_, layer) => kinds[Number(!otherwise(layer))])
  if (!Array.isArray(types) || types.length < layers || types.some((type) => !kinds.includes(type as string)))
    throw new UserError(`${file}: layer_types must be a list of ${layers} words, each ${kinds.join(' or ')}.`)
  return types.slice(0, layers).flatMap((type, layer) => (type === kind ? [layer] : []))
}

/** All layers but each `interval`th. */
const allBut = (interval: number) => (layer: number) => (layer + 1) % interval !== 0

/** layer_types of these layers. */
const layerTypes = (kind: string, of: readonly number[], layers: number): string[] =>
  Array.from({ length: layers }, (_, layer) => (of.includes(layer) ? kind : 'full_attention'))

/** Qwen3.5's own keys. */
export function qwen35Of(raw: Json, file: string, layers: number, headDim: number): Qwen35Config {
  const key = keyReader(raw, file)
  const interval = key.optionalCount('full_attention_interval') ?? QWEN35.interval
  const deltaLayers = layersOf('linear_attention', allBut(interval), raw, file, layers)
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
    layer_types: layerTypes('linear_attention', deltaLayers, layers),
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
  const slidingLayers = layersOf('sliding_attention', allBut(pattern), raw, file, layers)
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
    layer_types: layerTypes('sliding_attention', slidingLayers, layers),
    rope_local_base_freq: gemma.localRopeTheta,
  }
}

/** The keys of `windowOf`; Qwen2 and Qwen3 would have a window where none is said. */
export function windowToJson({ family, layers, slidingWindow, slidingLayers }: ModelConfig): Json {
  if (family === 'mistral') return { sliding_window: slidingWindow ?? null }
  if (!['qwen2', 'qwen3', 'smollm3'].includes(family)) return {}
  if (!slidingLayers) return { use_sliding_window: false }
  const layer_types = layerTypes('sliding_attention', slidingLayers, layers)
  return {
    use_sliding_window: true,
    sliding_window: slidingWindow,
    layer_types,
    ...(family !== 'smollm3' && { max_window_layers: 0 }),
  }
}
