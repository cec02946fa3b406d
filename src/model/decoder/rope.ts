/** Rotary angles of a model, made on the host in float32 steps like PyTorch's, so that both get the same angles. */
import { longRopeFrequencies } from '../config/longrope.ts'
import { yarnFrequencies } from '../config/yarn.ts'
import type { ModelConfig, RopeScaling } from '../types.ts'

/** How many channels of a head are rotated, from the first on. */
export const rotaryDimOf = ({ rotaryDim, headDim }: Pick<ModelConfig, 'headDim' | 'rotaryDim'>): number => rotaryDim ?? headDim

/**
 * Inverse frequencies, (rotaryDim / 2). `llama3`: low frequencies are stretched, the middle is blended (Llama 3.1; transformers'
 * modeling_rope_utils).
 */
export function inverseFrequencies(
  config: Pick<ModelConfig, 'headDim' | 'ropeTheta' | 'ropeScaling' | 'rotaryDim'>,
): Float32Array {
  const { ropeTheta, ropeScaling } = config
  const turned = rotaryDimOf(config)
  if (ropeScaling.type === 'yarn') return yarnFrequencies(ropeScaling, turned, ropeTheta)
  if (ropeScaling.type === 'longrope') return longRopeFrequencies(ropeScaling, turned, ropeTheta)
  const base = Float32Array.from({ length: turned / 2 }, (_, i) => 1 / Math.fround(ropeTheta ** Math.fround((2 * i) / turned)))
  if (ropeScaling.type === 'default') return base
  if (ropeScaling.type === 'linear') return base.map((f) => f / ropeScaling.factor)
  if (ropeScaling.type === 'llama3') {
    const { factor, lowFreqFactor, highFreqFactor, originalMaxPositionEmbeddings: original } = ropeScaling
    const { fround } = Math
    return base.map((f) => {
      const wavelength = fround(fround(1 / f) * fround(2 * Math.PI))
      if (wavelength > original / lowFreqFactor) return f / factor
      if (wavelength < original / highFreqFactor) return f
      const turns = fround(fround(1 / wavelength) * original)
      const smooth = fround(fround(turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor))
      return fround(fround(fround(1 - smooth) * f) / factor) + fround(smooth * f)
    })
  }
  const { factors } = ropeScaling
  return base.map((f, i) => f / factors[i])
}

/** What cos and sin are multiplied by, in float32: with yarn and longrope a rotation also changes the length. */
export const rotaryFactor = (scaling: RopeScaling): number =>
  'attentionFactor' in scaling ? Math.fround(scaling.attentionFactor) : 1

/** (cos, sin) of every position below `positions`, times `factor` (`rotaryFactor`), (positions, rotaryDim / 2, 2). */
export function rotaryTable(inverse: Float32Array, positions: number, factor = 1): Float32Array {
  const table = new Float32Array(positions * inverse.length * 2)
  for (let position = 0; position < positions; position++) {
    for (let i = 0; i < inverse.length; i++) {
      const angle = Math.fround(position * inverse[i])
      const at = (position * inverse.length + i) * 2
      table[at] = Math.fround(Math.cos(angle)) * factor
      table[at + 1] = Math.fround(Math.sin(angle)) * factor
    }
  }
  return table
}
