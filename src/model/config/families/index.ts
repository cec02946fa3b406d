/** Every family that the decoder runs. A new one is a file in this folder and a line here, as far as its layers are made of what the others have. */
import { UserError, nearest } from '../../../common/errors.ts'
import type { Json } from '../keys.ts'
import { FAMILIES, type ModelFamily } from '../../types.ts'
import type { Family } from './family.ts'
import { gemma3 } from './gemma3.ts'
import { lfm2 } from './lfm2.ts'
import { granite } from './granite.ts'
import { granite4 } from './granite4.ts'
import { llama, ministral, mistral } from './llama.ts'
import { olmo2, olmo3 } from './olmo.ts'
import { phi3 } from './phi3.ts'
import { qwen2, qwen3, smollm3 } from './qwen.ts'
import { qwen35 } from './qwen35.ts'

export const families: Record<ModelFamily, Family> = {
  llama,
  mistral,
  ministral,
  smollm3,
  qwen2,
  qwen3,
  gemma3_text: gemma3,
  qwen3_5_text: qwen35,
  olmo2,
  olmo3,
  lfm2,
  granite,
  granitemoehybrid: granite4,
  phi3,
}

/** For messages: a, b and c. */
export const familyNames = new Intl.ListFormat('en-GB').format(FAMILIES)

/** @throws UserError where model_type is missing or another one */
export function familyOf(raw: Json, file: string): ModelFamily {
  const type = raw.model_type
  if (FAMILIES.includes(type as ModelFamily)) return type as ModelFamily
  if (typeof type !== 'string') throw new UserError(`${file}: model_type is missing. Is this a model's config.json?`)
  const near = nearest(type, FAMILIES)
  const hint = near ? ` (${near} is the nearest)` : ''
  throw new UserError(`${file}: model_type "${type}" is not supported${hint}; dawn-rl runs ${familyNames} models.`)
}
