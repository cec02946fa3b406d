/** Gemma 3 without pictures. */
import { UserError } from '../../common/errors.ts'
import { keyReader, type Json } from '../config-keys.ts'
import { ropeOf } from '../config-rope.ts'
import type { Family } from './family.ts'
import { allBut, layersOf, layerTypes } from './layers.ts'

/** Gemma3TextConfig's. */
const DEFAULTS = { queryPreAttnScalar: 256, ropeTheta: 1_000_000, localRopeTheta: 10_000, window: 4096, pattern: 6 }

export const gemma3: Family = {
  architecture: 'Gemma3',
  defaults: { headDim: 256, tied: true },
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
    // Since transformers 5 each kind of layer has an object of its own.
    const { rope_scaling: _scaling, rope_parameters: parameters, ...rest } = raw
    const given = (parameters ?? {}) as Json
    const kinds = ['sliding_attention', 'full_attention']
    if (Object.keys(given).length > 0 && !kinds.some((kind) => kind in given))
      throw new UserError(`${file}: rope_parameters must have an object for each kind of layer, ${kinds.join(' and ')}.`)
    const [local, global] = kinds.map((kind, i): Json => ({ ...(i === 0 ? rest : raw), rope_parameters: given[kind] }))
    const localTheta = key.optionalNumber('rope_local_base_freq') ?? DEFAULTS.localRopeTheta
    const { theta, scaling } = ropeOf({ ...local, rope_theta: localTheta }, file, maxPositions, localTheta)
    if (scaling.type !== 'default')
      throw new UserError(`${file}: rope_parameters.sliding_attention is scaled, and only full_attention may be.`)
    const rope = ropeOf(global, file, maxPositions, DEFAULTS.ropeTheta)
    return {
      activation: 'gelu',
      norms: 'around',
      normsFromOne: true,
      embeddingScale: Math.sqrt(hiddenSize),
      attentionScale: (key.optionalNumber('query_pre_attn_scalar') ?? DEFAULTS.queryPreAttnScalar) ** -0.5,
      slidingLayers: layersOf('sliding_attention', allBut(pattern), raw, file, layers),
      slidingWindow: key.optionalCount('sliding_window') ?? DEFAULTS.window,
      localRopeTheta: theta,
      ropeTheta: rope.theta,
      ropeScaling: rope.scaling,
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
