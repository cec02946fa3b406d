/** Qwen2, Qwen3 and SmolLM3: layers that may have a sliding window; SmolLM3 also has some without rotary embedding. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import type { ModelConfig } from '../../types.ts'
import { silu, siluKeys, siluWithoutBias, type Family } from './family.ts'
import { layersOf, layerTypes } from './layers.ts'

/** Default of the Qwen configs, which use it from layer max_window_layers on. */
const WINDOW = 4096
const MAX_WINDOW_LAYERS = 28

/**
 * The layers with a sliding window: those of layer_types or of an older rule.
 * @param slides the rule; @param otherwise the window where the file says none
 */
function windowOf(
  raw: Json,
  file: string,
  layers: number,
  slides: (layer: number) => boolean,
  otherwise?: number,
): Pick<ModelConfig, 'slidingWindow' | 'slidingLayers'> {
  const { optionalCount, flag } = keyReader(raw, file)
  const asked = flag('use_sliding_window', false)
  const given = raw.sliding_window === null ? undefined : (optionalCount('sliding_window') ?? otherwise)
  const slidingWindow = asked ? given : undefined
  const slidingLayers = layersOf('sliding_attention', (i) => slidingWindow !== undefined && slides(i), raw, file, layers)
  if (slidingLayers.length === 0) return {}
  if (slidingWindow === undefined)
    throw new UserError(
      `${file}: layer_types has "sliding_attention", and these layers need use_sliding_window true and a sliding_window.`,
    )
  return { slidingWindow, slidingLayers }
}

/** The keys that say it; without them Qwen2 and Qwen3 would have a window. */
function windowToJson({ layers, slidingWindow, slidingLayers }: ModelConfig): Json {
  if (!slidingLayers) return { use_sliding_window: false }
  const layer_types = layerTypes('sliding_attention', slidingLayers, layers)
  return { use_sliding_window: true, sliding_window: slidingWindow, layer_types }
}

const qwen = {
  refuse: silu,
  read(raw, file, { layers }) {
    const first = () =>
      raw.max_window_layers === 0 ? 0 : (keyReader(raw, file).optionalCount('max_window_layers') ?? MAX_WINDOW_LAYERS)
    return windowOf(raw, file, layers, (layer) => layer >= first(), WINDOW)
  },
} satisfies Partial<Family>
const fromFirst = ({ slidingLayers }: ModelConfig): Json => (slidingLayers ? { max_window_layers: 0 } : {})

export const qwen2: Family = {
  ...qwen,
  architecture: 'Qwen2',
  defaults: { kvHeads: 32 },
  biases: 'qkv',
  write: (config) => ({ ...siluKeys, ...windowToJson(config), ...fromFirst(config) }),
}

export const qwen3: Family = {
  ...qwen,
  architecture: 'Qwen3',
  defaults: { kvHeads: 32, headDim: 128 },
  qkNorm: true,
  write: (config) => ({ ...siluKeys, attention_bias: config.qkvBias, ...windowToJson(config), ...fromFirst(config) }),
}

export const smollm3: Family = {
  architecture: 'SmolLM3',
  defaults: { kvHeads: 4, ropeTheta: 2_000_000, tied: true },
  refuse: siluWithoutBias,
  read(raw, file, { layers }) {
    const without = layersWithoutRope(raw, file, layers)
    return { layersWithoutRope: without, ...windowOf(raw, file, layers, (layer) => without.includes(layer)) }
  },
  write(config) {
    const { layers, layersWithoutRope: without = [], qkvBias } = config
    return {
      ...siluKeys,
      attention_bias: qkvBias,
      mlp_bias: false,
      ...windowToJson(config),
      no_rope_layers: Array.from({ length: layers }, (_, layer) => Number(!without.includes(layer))),
    }
  },
}

/** The layers with a 0 in no_rope_layers, else every fourth (no_rope_layer_interval). */
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
