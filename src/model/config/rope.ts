/** Rotary embeddings in config.json: the old and the new spelling. */
import { UserError } from '../../common/errors.ts'
import { keyReader, type Json } from './keys.ts'
import { longRopeToJson } from './longrope.ts'
import { readYarn, yarnToJson } from './yarn.ts'
import type { RopeScaling } from '../types.ts'

export interface Rope {
  theta: number
  scaling: RopeScaling
}

/**
 * The keys of rope_parameters, or of rope_scaling as they were called before transformers 5, and which of the two.
 * @throws UserError where both are there and differ: transformers takes rope_scaling, with a base that may stand in neither
 */
export function ropeKeys(raw: Json, file: string): { where: string; given: Json } {
  const [parameters, scaling] = ['rope_parameters', 'rope_scaling'].map((where): Json => {
    const given = raw[where] ?? {}
    if (typeof given !== 'object' || Array.isArray(given)) throw new UserError(`${file}: ${where} must be an object.`)
    return given as Json
  })
  if (Object.keys(parameters).length === 0) return { where: 'rope_scaling', given: scaling }
  if (Object.keys(scaling).length > 0) {
    const [a, b] = [parameters, scaling].map(
      ({ type, ...rest }) => ({ rope_type: type, rope_theta: raw.rope_theta, ...rest }) as Json,
    )
    const other = Object.keys({ ...a, ...b }).find((key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]))
    if (other !== undefined)
      throw new UserError(`${file}: rope_parameters and rope_scaling are both there and differ in ${other}; keep one of the two.`)
  }
  return { where: 'rope_parameters', given: parameters }
}

/**
 * @param otherwise the base, where the file says none
 * @param partlyTurned whether a share of a head may be rotated, which `partOfHead` reads
 * @throws UserError for what is not supported
 */
export function ropeOf(raw: Json, file: string, maxPositions: number, otherwise: number, partlyTurned = false): Rope {
  const { where, given } = ropeKeys(raw, file)
  // For image positions of multimodal models; in text the angles are the same in all three sections.
  const { mrope_section: _section, mrope_interleaved: _interleaved, ...rope } = given
  const key = keyReader(rope, `${file}: ${where}`)
  const nested = Object.entries(rope).find(([, value]) => typeof value === 'object' && value !== null && !Array.isArray(value))
  if (nested)
    throw new UserError(`${file}: ${where}.${nested[0]} is an object; rope parameters for each layer type are not supported.`)
  if ((rope.partial_rotary_factor ?? 1) !== 1 && !partlyTurned) {
    throw new UserError(
      `${file}: ${where}.partial_rotary_factor is ${JSON.stringify(rope.partial_rotary_factor)}, and only 1 is supported.`,
    )
  }
  const theta = key.optionalNumber('rope_theta') ?? keyReader(raw, file).optionalNumber('rope_theta') ?? otherwise
  const type = rope.rope_type ?? rope.type ?? 'default'
  if (type === 'default') return { theta, scaling: { type } }
  if (type === 'linear') return { theta, scaling: { type, factor: key.number('factor') } }
  if (type !== 'llama3' && type !== 'yarn')
    throw new UserError(
      `${file}: ${where}.rope_type is ${JSON.stringify(type)}, and only default, linear, llama3 and yarn are supported.`,
    )
  const original = key.optionalNumber('original_max_position_embeddings') ?? maxPositions
  const { original_max_position_embeddings: outside = null } = raw
  if (outside !== null && outside !== original)
    throw new UserError(
      `${file}: original_max_position_embeddings is ${JSON.stringify(outside)}, and of ${where} ${original}; keep one of the two.`,
    )
  if (type === 'yarn') return { theta, scaling: readYarn(rope, `${file}: ${where}`, original, maxPositions) }
  const scaling = {
    type,
    factor: key.number('factor'),
    lowFreqFactor: key.number('low_freq_factor'),
    highFreqFactor: key.number('high_freq_factor'),
    originalMaxPositionEmbeddings: original,
  } as const
  return { theta, scaling }
}

/**
 * How many channels of a head are rotated.
 * @param otherwise the share of them, where the file says none
 * @throws UserError for an odd number, or more than there are
 */
export function partOfHead(raw: Json, file: string, headDim: number, otherwise: number): number {
  const parts = { ...raw, ...ropeKeys(raw, file).given }
  const share = keyReader(parts, file).optionalNumber('partial_rotary_factor') ?? otherwise
  const rotaryDim = Math.trunc(headDim * share)
  if (rotaryDim < 2 || rotaryDim > headDim || rotaryDim % 2 !== 0)
    throw new UserError(
      `${file}: partial_rotary_factor is ${share}, which turns ${rotaryDim} of a head's ${headDim} channels; it must be an even number of them.`,
    )
  return rotaryDim
}

/** Throws UserError for factors that follow no rule. */
export function ropeScalingToJson(scaling: RopeScaling): Json | null {
  if (scaling.type === 'default') return null
  if (scaling.type === 'linear') return { rope_type: 'linear', factor: scaling.factor }
  if (scaling.type === 'yarn') return yarnToJson(scaling)
  if (scaling.type === 'longrope') return longRopeToJson(scaling)
  if (scaling.type === 'factors') {
    throw new UserError(
      'The rope factors of this GGUF follow no rule that a config.json can say, so it cannot be written as a Hugging Face folder.',
    )
  }
  return {
    rope_type: 'llama3',
    factor: scaling.factor,
    low_freq_factor: scaling.lowFreqFactor,
    high_freq_factor: scaling.highFreqFactor,
    original_max_position_embeddings: scaling.originalMaxPositionEmbeddings,
  }
}
