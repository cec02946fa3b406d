/** LongRoPE (arXiv 2402.13753), the rope type of Phi-3 and Phi-4-mini: as transformers' `_compute_longrope_parameters` reads and computes it. */
import { UserError } from '../../common/errors.ts'
import { keyReader, type Json } from './keys.ts'
import type { ModelConfig, RopeScaling } from '../types.ts'

export type LongRope = Extract<RopeScaling, { type: 'longrope' }>

/** What cos and sin are multiplied by, where a config does not say it itself: `factor` is how many times longer the context was made. */
const growth = (factor: number, original: number): number =>
  factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original))

/**
 * @param rope the object that has the keys, `where` it stands
 * @param original tokens of the context before it was made longer, @param maxPositions and after
 * @param turned channels of a head that are rotated
 * @throws UserError for a key that is missing or impossible
 */
export function readLongRope(rope: Json, where: string, original: number, maxPositions: number, turned: number): LongRope {
  const key = keyReader(rope, where)
  const factors = (name: string): number[] => {
    const list = rope[name]
    const isNumber = (value: unknown) => typeof value === 'number' && value > 0 && value < Infinity
    if (!Array.isArray(list) || list.length !== turned / 2 || !list.every(isNumber))
      throw new UserError(
        `${where}.${name} must be a list of ${turned / 2} numbers above 0, one for each two of the ${turned} channels of a head that are rotated.`,
      )
    return list as number[]
  }
  const factor = key.optionalNumber('factor') ?? maxPositions / original
  return {
    type: 'longrope',
    shortFactors: factors('short_factor'),
    longFactors: factors('long_factor'),
    attentionFactor: key.optionalNumber('attention_factor') ?? growth(factor, original),
    originalMaxPositionEmbeddings: original,
    maxPositionEmbeddings: maxPositions,
  }
}

/** The keys that say the same; without the factor of attention where it follows from the two lengths. */
export function longRopeToJson(scaling: LongRope): Json {
  const { attentionFactor, shortFactors, longFactors, originalMaxPositionEmbeddings: original, maxPositionEmbeddings } = scaling
  return {
    rope_type: 'longrope',
    short_factor: shortFactors,
    long_factor: longFactors,
    ...(attentionFactor !== growth(maxPositionEmbeddings / original, original) && { attention_factor: attentionFactor }),
    original_max_position_embeddings: original,
  }
}

/**
 * Inverse frequencies of texts up to the original context, each divided by its short factor, in PyTorch's float32 steps. Those of longer texts would change keys that
 * are in the cache already (`refuseLonger`).
 * @param turned channels that are rotated, @param theta and their base
 */
export function longRopeFrequencies({ shortFactors }: LongRope, turned: number, theta: number): Float32Array {
  const { fround } = Math
  return Float32Array.from(shortFactors, (factor, i) => 1 / fround(fround(factor) * fround(theta ** fround((2 * i) / turned))))
}

/**
 * @param what the sequence, for the message: what is so long, and of how many tokens
 * @throws UserError where it is longer than the model's rotary embedding can be
 */
export function refuseLonger(
  { name, config }: { name: string; config: Pick<ModelConfig, 'ropeScaling' | 'maxPositionEmbeddings'> },
  tokens: number,
  what: string,
): void {
  const { ropeScaling, maxPositionEmbeddings: most } = config
  if (ropeScaling.type === 'longrope' && tokens > most)
    throw new UserError(
      `${what}, and ${name} takes ${most} at most here: of longer texts its rope type, longrope, turns every token in another way, which is not supported.`,
    )
}
