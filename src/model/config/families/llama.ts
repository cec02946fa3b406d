/** Llama, and Mistral: the same layers, with a sliding window, and Ministral, which has it in some. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import type { ModelConfig } from '../../types.ts'
import { silu, siluKeys, siluWithoutBias, type Family, type FamilyShape } from './family.ts'
import { layersOf, layerTypes } from './layers.ts'

/** Default of MistralConfig. */
const WINDOW = 4096

function refuseLayerTypes(raw: Json, file: string): void {
  const other = Array.isArray(raw.layer_types) && raw.layer_types.find((type) => type !== 'full_attention')
  if (other) throw new UserError(`${file}: layer_types has "${String(other)}", and only full_attention is supported.`)
}

export const llama: Family = {
  architecture: 'Llama',
  refuse: siluWithoutBias,
  read(raw, file) {
    refuseLayerTypes(raw, file)
    return {}
  },
  write: ({ qkvBias }) => ({ ...siluKeys, attention_bias: qkvBias, mlp_bias: false }),
}

const givenWindow = (raw: Json, file: string): number | undefined =>
  raw.sliding_window === null ? undefined : (keyReader(raw, file).optionalCount('sliding_window') ?? WINDOW)

/** The window, which only layers of sliding_attention have; without layer_types, all. */
function windowOfLayers(raw: Json, file: string, { layers }: FamilyShape): Partial<ModelConfig> {
  const slidingWindow = givenWindow(raw, file)
  const slidingLayers = layersOf('sliding_attention', () => slidingWindow !== undefined, raw, file, layers)
  if (slidingLayers.length === 0) return {}
  if (slidingWindow === undefined)
    throw new UserError(`${file}: sliding_window is null, and layers of sliding_attention need a number.`)
  return { slidingWindow, slidingLayers }
}

const writeWindow = ({ layers, slidingWindow, slidingLayers }: ModelConfig): Json => ({
  sliding_window: slidingWindow ?? null,
  ...(slidingLayers && { layer_types: layerTypes('sliding_attention', slidingLayers, layers) }),
})

export const mistral: Family = {
  architecture: 'Mistral',
  defaults: { kvHeads: 8 },
  biases: 'none',
  refuse: silu,
  read: (raw, file, shape) =>
    // With layer_types transformers takes it for a Ministral.
    Array.isArray(raw.layer_types) ? windowOfLayers(raw, file, shape) : { slidingWindow: givenWindow(raw, file) },
  write: (config) => ({ ...siluKeys, ...writeWindow(config) }),
}

export const ministral: Family = { ...mistral, architecture: 'Ministral', read: windowOfLayers }
