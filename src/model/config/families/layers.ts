/** Keys that say which layers are of which kind. */
import { UserError } from '../../../common/errors.ts'
import type { Json } from '../keys.ts'

/** The layers of a kind, where the others have full attention: as layer_types says, else by `otherwise`. */
export function layersOf(kind: string, otherwise: (layer: number) => boolean, raw: Json, file: string, layers: number): number[] {
  const kinds = [kind, 'full_attention']
  const types = raw.layer_types ?? Array.from({ length: layers }, (_, layer) => kinds[Number(!otherwise(layer))])
  if (!Array.isArray(types) || types.length < layers || types.some((type) => !kinds.includes(type as string)))
    throw new UserError(`${file}: layer_types must be a list of ${layers} words, each ${kinds.join(' or ')}.`)
  return types.slice(0, layers).flatMap((type, layer) => (type === kind ? [layer] : []))
}

/** All layers but each `interval`th. */
export const allBut = (interval: number) => (layer: number) => (layer + 1) % interval !== 0

/** layer_types of these layers. */
export const layerTypes = (kind: string, of: readonly number[], layers: number): string[] =>
  Array.from({ length: layers }, (_, layer) => (of.includes(layer) ? kind : 'full_attention'))
