/** Phi-3 and Phi-4 (mini, medium, 3.5, 4-mini): a Llama whose files have q, k and v as one matrix, and gate and up as one; perhaps with a window, a share of a head rotated, and longrope. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import { partOfHead, ropeKeys, ropeOf, ropeScalingToJson } from '../rope.ts'
import { readLongRope } from '../longrope.ts'
import { rotaryDimOf } from '../../decoder/rope.ts'
import { eightsOfParts, siluKeys, siluWithoutBias, type Family } from './family.ts'

/** Phi3Config's. */
const ROPE_THETA = 10_000
/** What its files have called longrope. */
const LONG: unknown[] = ['longrope', 'su', 'yarn']

export const phi3: Family = {
  architecture: 'Phi3',
  defaults: { rmsNormEps: 1e-5 },
  biases: 'none',
  partlyTurned: true,
  refuse(raw, refuse) {
    siluWithoutBias(raw, refuse)
    for (const key of ['attention_bias', 'lm_head_bias'])
      if (raw[key]) throw refuse(key, 'and biases in a Phi-3 are not supported')
  },
  read(raw, file, { heads, kvHeads, headDim, hiddenSize, maxPositions }) {
    const key = keyReader(raw, file)
    const intermediateSize = key.count('intermediate_size')
    const heights = { 'num_attention_heads x head_dim': heads * headDim, 'num_key_value_heads x head_dim': kvHeads * headDim }
    eightsOfParts({ hidden_size: hiddenSize, intermediate_size: intermediateSize, ...heights }, file)
    const rotaryDim = partOfHead(raw, file, headDim, 1)
    return {
      fused: ['qkv_proj', 'gate_up_proj'],
      ...(rotaryDim < headDim && { rotaryDim }),
      slidingWindow: key.optionalCount('sliding_window') ?? undefined,
      ...rope(raw, file, maxPositions, rotaryDim),
    }
  },
  write(config): Json {
    const { headDim, ropeScaling: scaling, ropeTheta, slidingWindow } = config
    const original = scaling.type === 'longrope' ? scaling.originalMaxPositionEmbeddings : config.maxPositionEmbeddings
    const share = rotaryDimOf(config) / headDim
    return {
      ...siluKeys,
      max_position_embeddings: scaling.type === 'longrope' ? scaling.maxPositionEmbeddings : config.maxPositionEmbeddings,
      original_max_position_embeddings: original,
      rope_scaling: undefined,
      rope_parameters: {
        ...(ropeScalingToJson(scaling) ?? { rope_type: 'default' }),
        rope_theta: ropeTheta,
        partial_rotary_factor: share,
      },
      sliding_window: slidingWindow ?? null,
    }
  },
}

/** Of a Phi-3 in transformers that does not say. */
const ORIGINAL_POSITIONS = 4096

/** transformers lets a Phi-3 have longrope or none. */
function rope(raw: Json, file: string, maxPositions: number, rotaryDim: number) {
  const { where, given: keys } = ropeKeys(raw, file)
  const isLong = LONG.includes(keys.rope_type ?? keys.type)
  const read = isLong ? { rope_theta: keys.rope_theta } : keys
  const plain = { ...raw, rope_parameters: undefined, rope_scaling: undefined, [where]: read }
  const { theta: ropeTheta, scaling } = ropeOf(plain, file, maxPositions, ROPE_THETA, true)
  if (!isLong && scaling.type !== 'default')
    throw new UserError(`${file}: ${where}.rope_type is "${scaling.type}", and a Phi-3 may only have default and longrope.`)
  if (!isLong) return { ropeTheta, ropeScaling: scaling }
  const original = keyReader(raw, file).optionalCount('original_max_position_embeddings') ?? ORIGINAL_POSITIONS
  const ropeScaling = readLongRope(keys, `${file}: ${where}`, original, maxPositions, rotaryDim)
  return { ropeTheta, ropeScaling, maxPositionEmbeddings: Math.min(original, maxPositions) }
}
