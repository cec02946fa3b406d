/** LFM2 (dense, text): gated short convolutions in most layers, and names of its own for the parts of a layer. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import type { Family } from './family.ts'
import { layersOf, layerTypes } from './layers.ts'

/** Lfm2Config's. */
const DEFAULTS = { normEps: 1e-5, taps: 3, intermediateSize: 12288, multipleOf: 256, multiplier: 1 }

export const lfm2: Family = {
  architecture: 'Lfm2',
  defaults: { kvHeads: 8, ropeTheta: 1_000_000, tied: true },
  biases: 'none',
  qkNorm: true,
  names: {
    input_layernorm: 'operator_norm',
    post_attention_layernorm: 'ffn_norm',
    norm: 'embedding_norm',
    'self_attn.o_proj': 'self_attn.out_proj',
    'self_attn.q_norm': 'self_attn.q_layernorm',
    'self_attn.k_norm': 'self_attn.k_layernorm',
    'mlp.gate_proj': 'feed_forward.w1',
    'mlp.up_proj': 'feed_forward.w3',
    'mlp.down_proj': 'feed_forward.w2',
  },
  refuse(raw, refuse) {
    if (raw.conv_bias) throw refuse('conv_bias', 'and biases in the convolutions are not supported')
  },
  read(raw, file, { layers, hiddenSize }) {
    const key = keyReader(raw, file)
    const attending = attendingLayers(raw, file, layers)
    const taps = key.optionalCount('conv_L_cache') ?? DEFAULTS.taps
    if (taps < 2) throw new UserError(`${file}: conv_L_cache is ${taps}; it must be at least 2.`)
    if (hiddenSize % 4 !== 0) throw new UserError(`${file}: hidden_size is ${hiddenSize}; in lfm2 it must be a multiple of 4.`)
    const { tie_embedding: tied = null } = raw
    return {
      rmsNormEps: key.optionalNumber('norm_eps') ?? DEFAULTS.normEps,
      intermediateSize: intermediateSize(raw, file),
      shortConv: { layers: layersOf('conv', (layer) => !attending.includes(layer), raw, file, layers), taps },
      ...(tied !== null && { tieWordEmbeddings: key.flag('tie_embedding', true) }),
    }
  },
  write({ layers, hiddenSize, intermediateSize: width, rmsNormEps, shortConv }) {
    if (!shortConv) throw new Error('An LFM2 without its own part')
    return {
      norm_eps: rmsNormEps,
      // mlx-lm and vLLM look for these.
      block_dim: hiddenSize,
      block_ff_dim: width,
      block_auto_adjust_ff_dim: false,
      block_ffn_dim_multiplier: DEFAULTS.multiplier,
      block_multiple_of: DEFAULTS.multipleOf,
      conv_dim: hiddenSize,
      conv_L_cache: shortConv.taps,
      conv_bias: false,
      layer_types: layerTypes('conv', shortConv.layers, layers),
    }
  },
}

/** full_attn_idxs, which layer_types replaces; all layers where it is not there. */
function attendingLayers(raw: Json, file: string, layers: number): number[] {
  const given = raw.full_attn_idxs ?? Array.from({ length: layers }, (_, layer) => layer)
  if (!Array.isArray(given) || given.some((layer) => !Number.isInteger(layer)))
    throw new UserError(`${file}: full_attn_idxs must be a list of the layers with attention, counted from 0.`)
  return given as number[]
}

/** Channels of the MLP: two thirds of what the file says, rounded up to a multiple, unless it says not to adjust that (transformers' Lfm2MLP). */
function intermediateSize(raw: Json, file: string): number {
  const key = keyReader(raw, file)
  const given = key.optionalCount('block_ff_dim') ?? key.optionalCount('intermediate_size') ?? DEFAULTS.intermediateSize
  if (!key.flag('block_auto_adjust_ff_dim', true)) return given
  const multiple = key.optionalCount('block_multiple_of') ?? DEFAULTS.multipleOf
  const multiplier = key.optionalNumber('block_ffn_dim_multiplier') ?? DEFAULTS.multiplier
  return multiple * Math.ceil(Math.trunc(multiplier * Math.trunc((2 * given) / 3)) / multiple)
}
