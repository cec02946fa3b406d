/** Gemma 3 without pictures. */
import { keyReader } from '../keys.ts'
import type { Family } from './family.ts'
import { allBut, layersOf, layerTypes } from './layers.ts'
import { ropeOfKinds } from './rope-kinds.ts'

/** Gemma3TextConfig's. */
const DEFAULTS = { queryPreAttnScalar: 256, ropeTheta: 1_000_000, localRopeTheta: 10_000, window: 4096, pattern: 6 }

export const gemma3: Family = {
  architecture: 'Gemma3',
  defaults: { kvHeads: 4, headDim: 256, tied: true },
  qkNorm: true,
  refuse(raw, refuse) {
    if ((raw.hidden_activation ?? 'gelu_pytorch_tanh') !== 'gelu_pytorch_tanh')
      throw refuse('hidden_activation', 'and only gelu_pytorch_tanh is supported')
    for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'])
      if ((raw[key] ?? null) !== null) throw refuse(key, 'and soft caps are not supported')
    if (raw.use_bidirectional_attention)
      throw refuse('use_bidirectional_attention', 'and a token that sees those after it is not supported')
    if (raw.sliding_window === null) throw refuse('sliding_window', 'and layers of sliding_attention need a number')
  },
  read(raw, file, { layers, hiddenSize, maxPositions }) {
    const key = keyReader(raw, file)
    const pattern = key.optionalCount('sliding_window_pattern') ?? DEFAULTS.pattern
    const localTheta = key.optionalNumber('rope_local_base_freq') ?? DEFAULTS.localRopeTheta
    const { local, global } = ropeOfKinds(raw, file, maxPositions, { local: localTheta, global: DEFAULTS.ropeTheta })
    return {
      activation: 'gelu',
      norms: 'around',
      normsFromOne: true,
      embeddingScale: Math.sqrt(hiddenSize),
      embeddingScaleRounded: true,
      attentionScale: (key.optionalNumber('query_pre_attn_scalar') ?? DEFAULTS.queryPreAttnScalar) ** -0.5,
      slidingLayers: layersOf('sliding_attention', allBut(pattern), raw, file, layers),
      slidingWindow: key.optionalCount('sliding_window') ?? DEFAULTS.window,
      localRopeTheta: local,
      ropeTheta: global.theta,
      ropeScaling: global.scaling,
    }
  },
  write: ({ layers, headDim, qkvBias, attentionScale = headDim ** -0.5, slidingLayers = [], slidingWindow, localRopeTheta }) => ({
    hidden_activation: 'gelu_pytorch_tanh',
    attention_bias: qkvBias,
    // The square of a root has an error in its last digits.
    query_pre_attn_scalar: Number((attentionScale ** -2).toPrecision(12)),
    sliding_window: slidingWindow,
    layer_types: layerTypes('sliding_attention', slidingLayers, layers),
    rope_local_base_freq: localRopeTheta,
  }),
}
