/** OLMo 2, whose norms follow attention and the MLP, and Olmo 3: the same with a sliding window in three of four layers. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import { ropeScalingToJson } from '../rope.ts'
import type { ModelConfig } from '../../types.ts'
import { silu, siluKeys, type Family } from './family.ts'
import { allBut, layersOf, layerTypes } from './layers.ts'
import { ropeOfKinds } from './rope-kinds.ts'

/** Olmo2Config's and Olmo3Config's. */
const DEFAULTS = { ropeTheta: 500_000, window: 4096, interval: 4 }

const NORMS: Pick<ModelConfig, 'norms' | 'qkNormWhole'> = { norms: 'after', qkNormWhole: true }

export const olmo2: Family = {
  architecture: 'Olmo2',
  defaults: { rmsNormEps: 1e-5 },
  qkNorm: true,
  refuse: silu,
  read: () => NORMS,
  write: ({ qkvBias }) => ({ ...siluKeys, attention_bias: qkvBias }),
}

export const olmo3: Family = {
  architecture: 'Olmo3',
  defaults: { rmsNormEps: 1e-5 },
  qkNorm: true,
  refuse: silu,
  read(raw, file, { layers, maxPositions }) {
    const slidingLayers = layersOf('sliding_attention', allBut(DEFAULTS.interval), raw, file, layers)
    if (slidingLayers.length > 0 && raw.sliding_window === null)
      throw new UserError(`${file}: sliding_window is null, and layers of sliding_attention need a number.`)
    const slidingWindow = keyReader(raw, file).optionalCount('sliding_window') ?? DEFAULTS.window
    return {
      ...NORMS,
      ...(slidingLayers.length > 0 && { slidingWindow, slidingLayers }),
      ...ropesOf(raw, file, slidingLayers, maxPositions),
    }
  },
  write({ layers, slidingLayers = [], slidingWindow, localRopeTheta, ropeTheta, ropeScaling, qkvBias }) {
    const full = ropeScalingToJson(ropeScaling) ?? { rope_type: 'default' }
    return {
      ...siluKeys,
      attention_bias: qkvBias,
      sliding_window: slidingWindow ?? DEFAULTS.window,
      layer_types: layerTypes('sliding_attention', slidingLayers, layers),
      rope_theta: undefined,
      rope_scaling: undefined,
      rope_parameters: {
        full_attention: { ...full, rope_theta: ropeTheta },
        sliding_attention: { rope_type: 'default', rope_theta: localRopeTheta ?? ropeTheta },
      },
    }
  },
}

/** localRopeTheta only where layers with a window turn otherwise than the others. */
function ropesOf(
  raw: Json,
  file: string,
  slidingLayers: number[],
  maxPositions: number,
): Pick<ModelConfig, 'ropeTheta' | 'ropeScaling' | 'localRopeTheta'> {
  const { ropeTheta: otherwise } = DEFAULTS
  const { local, global, saysLocal } = ropeOfKinds(raw, file, maxPositions, { local: otherwise, global: otherwise })
  const { theta, scaling } = global
  if (slidingLayers.length > 0 && !saysLocal && (raw.rope_theta ?? otherwise) !== otherwise)
    throw new UserError(
      `${file}: rope_theta is ${JSON.stringify(raw.rope_theta)}, which transformers 5 takes for layers of full_attention alone, and transformers 4 for all. Say it in rope_parameters, with an object for each kind of layer.`,
    )
  const alike = slidingLayers.length === 0 || (local === theta && scaling.type === 'default')
  return { ropeTheta: theta, ropeScaling: scaling, ...(!alike && { localRopeTheta: local }) }
}
