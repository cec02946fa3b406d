/** Qwen3.5 (dense, text): Gated DeltaNets in most layers. */
import { UserError } from '../../../common/errors.ts'
import { keyReader } from '../keys.ts'
import { partOfHead, ropeScalingToJson } from '../rope.ts'
import { silu, siluKeys, type Family } from './family.ts'
import { allBut, layersOf, layerTypes } from './layers.ts'

/** Qwen3_5TextConfig's. */
const DEFAULTS = { keyHeads: 16, valueHeads: 32, keyDim: 128, valueDim: 128, taps: 4, rotary: 0.25, interval: 4 }

export const qwen35: Family = {
  architecture: 'Qwen3_5',
  defaults: { kvHeads: 4, headDim: 256 },
  qkNorm: true,
  partlyTurned: true,
  refuse: silu,
  read(raw, file, { layers, headDim }) {
    const key = keyReader(raw, file)
    const interval = key.optionalCount('full_attention_interval') ?? DEFAULTS.interval
    const deltaLayers = layersOf('linear_attention', allBut(interval), raw, file, layers)
    const keyHeads = key.optionalCount('linear_num_key_heads') ?? DEFAULTS.keyHeads
    const valueHeads = key.optionalCount('linear_num_value_heads') ?? DEFAULTS.valueHeads
    if (valueHeads % keyHeads !== 0)
      throw new UserError(`${file}: linear_num_value_heads ${valueHeads} is not a multiple of linear_num_key_heads ${keyHeads}.`)
    const [keyDim, valueDim] = (['linear_key_head_dim', 'linear_value_head_dim'] as const).map((name, i) => {
      const channels = key.optionalCount(name) ?? [DEFAULTS.keyDim, DEFAULTS.valueDim][i]
      if (channels % 4 !== 0) throw new UserError(`${file}: ${name} is ${channels}; it must be a multiple of 4.`)
      return channels
    })
    const rotaryDim = partOfHead(raw, file, headDim, DEFAULTS.rotary)
    const taps = key.optionalCount('linear_conv_kernel_dim') ?? DEFAULTS.taps
    return {
      normsFromOne: true,
      rotaryDim,
      qwen35: { deltaLayers, keyHeads, valueHeads, keyDim, valueDim, taps },
    }
  },
  write({ layers, headDim, rotaryDim = headDim, ropeTheta, ropeScaling, qkvBias, qwen35: own }) {
    if (!own) throw new Error('A Qwen3.5 without its own part')
    return {
      ...siluKeys,
      layer_types: layerTypes('linear_attention', own.deltaLayers, layers),
      linear_num_key_heads: own.keyHeads,
      linear_num_value_heads: own.valueHeads,
      linear_key_head_dim: own.keyDim,
      linear_value_head_dim: own.valueDim,
      linear_conv_kernel_dim: own.taps,
      rope_scaling: undefined,
      rope_parameters: {
        ...(ropeScalingToJson(ropeScaling) ?? { rope_type: 'default' }),
        rope_theta: ropeTheta,
        partial_rotary_factor: rotaryDim / headDim,
      },
      attention_bias: qkvBias,
    }
  },
}
