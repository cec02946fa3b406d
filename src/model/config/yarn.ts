/** YaRN (arXiv 2309.00071), the rope type of models whose context was made longer: as transformers' `_compute_yarn_parameters` reads and computes it. */
import { keyReader, type Json } from './keys.ts'
import type { RopeScaling } from '../types.ts'

export type Yarn = Extract<RopeScaling, { type: 'yarn' }>

/** transformers' defaults: full turns of a pair within the original context, above which it keeps its frequency, and below which that is divided by the factor. */
const BETAS = { fast: 32, slow: 1 }

/** What cos and sin are multiplied by, where a config does not say it itself. */
const growth = (factor: number, scale = 1): number => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1)

/**
 * @param rope the object that has the keys, `where` it stands
 * @param original tokens of the context before it was made longer, @param maxPositions and after
 * @throws UserError for a key that is missing or impossible
 */
export function readYarn(rope: Json, where: string, original: number, maxPositions: number): Yarn {
  const key = keyReader(rope, where)
  // In transformers a 0 is as good as no value here.
  const optional = (name: string) => (rope[name] === 0 ? null : key.optionalNumber(name))
  const factor = rope.factor === null ? maxPositions / original : key.number('factor')
  const [scale, scaleOfAll] = [optional('mscale'), optional('mscale_all_dim')]
  const inferred = scale && scaleOfAll ? growth(factor, scale) / growth(factor, scaleOfAll) : growth(factor)
  return {
    type: 'yarn',
    factor,
    attentionFactor: key.optionalNumber('attention_factor') ?? inferred,
    betaFast: optional('beta_fast') ?? BETAS.fast,
    betaSlow: optional('beta_slow') ?? BETAS.slow,
    truncate: key.flag('truncate', true),
    originalMaxPositionEmbeddings: original,
  }
}

/** The keys that say the same; without the factor of attention where it follows from the other, as some readers know no key for it. */
export function yarnToJson({ factor, attentionFactor, betaFast, betaSlow, truncate, originalMaxPositionEmbeddings }: Yarn): Json {
  return {
    rope_type: 'yarn',
    factor,
    ...(attentionFactor !== growth(factor) && { attention_factor: attentionFactor }),
    beta_fast: betaFast,
    beta_slow: betaSlow,
    ...(!truncate && { truncate }),
    original_max_position_embeddings: originalMaxPositionEmbeddings,
  }
}

/**
 * Inverse frequencies: of pairs that turn often within the original context as they are, of those that hardly turn divided by the factor, and blended in between.
 * In PyTorch's float32 steps.
 * @param turned channels that are rotated, @param theta and their base
 */
export function yarnFrequencies(yarn: Yarn, turned: number, theta: number): Float32Array {
  const { factor, betaFast, betaSlow, truncate, originalMaxPositionEmbeddings: original } = yarn
  const { fround } = Math
  /** The pair that makes so many turns within the original context. */
  const pairOf = (turns: number) => (turned * Math.log(original / (turns * 2 * Math.PI))) / (2 * Math.log(theta))
  const [first, last] = [pairOf(betaFast), pairOf(betaSlow)]
  const low = Math.max(truncate ? Math.floor(first) : first, 0)
  const high = Math.min(truncate ? Math.ceil(last) : last, turned - 1)
  const width = fround(low === high ? 0.001 : high - low)
  return Float32Array.from({ length: turned / 2 }, (_, i) => {
    const wavelength = fround(theta ** fround((2 * i) / turned))
    const ramp = Math.min(1, Math.max(0, fround(fround(i - fround(low)) / width)))
    const kept = fround(1 - ramp)
    const stretched = fround(1 / fround(fround(factor) * wavelength))
    return fround(stretched * fround(1 - kept)) + fround(fround(1 / wavelength) * kept)
  })
}
