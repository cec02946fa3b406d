/** Rotary embeddings of models that have one for the layers with a sliding window and one for the others, unlike `ropeOf`'s. */
import { UserError } from '../../../common/errors.ts'
import type { Json } from '../keys.ts'
import { ropeOf, type Rope } from '../rope.ts'

export interface RopeOfKinds {
  /** Base in the layers with a window, which is unscaled there. */
  local: number
  global: Rope
  /** Whether the file says the first in an object of its own. */
  saysLocal: boolean
}

/**
 * Since transformers 5 each kind of layer has an object of its own in rope_parameters; rope_scaling, as it was called before, is about layers with full attention.
 * @param otherwise the bases, where the file says none
 * @throws UserError for one object for both, for a kind of scaling by its old name, which not all readers see, and for what is not supported: scaling in layers with
 * a window among it
 */
export function ropeOfKinds(
  raw: Json,
  file: string,
  maxPositions: number,
  otherwise: { local: number; global: number },
): RopeOfKinds {
  const { rope_scaling: scaling, rope_parameters: parameters, ...rest } = raw
  const given = (parameters ?? {}) as Json
  const kinds = ['sliding_attention', 'full_attention']
  if (Object.keys(given).length > 0 && !kinds.some((kind) => kind in given))
    throw new UserError(`${file}: rope_parameters must have an object for each kind of layer, ${kinds.join(' and ')}.`)
  const { type = 'default', rope_type: named } = (scaling ?? {}) as Json
  if (!(kinds[1] in given) && type !== 'default' && named === undefined)
    throw new UserError(`${file}: rope_scaling has type ${JSON.stringify(type)} and no rope_type, by which transformers 4 scales and transformers 5 does not. Call the key rope_type.`) // prettier-ignore
  const [ofLocal, ofGlobal] = kinds.map((kind, i): Json => ({ ...(i === 0 ? rest : raw), rope_parameters: given[kind] }))
  const local = ropeOf({ ...ofLocal, rope_theta: otherwise.local }, file, maxPositions, otherwise.local)
  if (local.scaling.type !== 'default')
    throw new UserError(`${file}: rope_parameters.sliding_attention is scaled, and only full_attention may be.`)
  const global = ropeOf(ofGlobal, file, maxPositions, otherwise.global)
  // transformers 5 looks for it beside the two objects, where it stands for neither.
  if (global.scaling.type === 'yarn' && !global.scaling.truncate)
    throw new UserError(`${file}: truncate is false for layers of full_attention, and only true is supported where each kind of layer has a rotary embedding of its own.`) // prettier-ignore
  return { local: local.theta, global, saysLocal: (given[kinds[0]] ?? null) !== null }
}
