/** What a family of models has of its own in config.json. */
import { UserError } from '../../../common/errors.ts'
import type { Json } from '../keys.ts'
import type { ModelConfig } from '../../types.ts'

export interface FamilyShape {
  layers: number
  heads: number
  kvHeads: number
  headDim: number
  hiddenSize: number
  maxPositions: number
}

export interface Family {
  /** The first part of `architectures`: Llama of LlamaForCausalLM. */
  architecture: string
  /** Defaults of its config class in transformers, where they are not a Llama's. */
  defaults?: { kvHeads?: number; headDim?: number; ropeTheta?: number; rmsNormEps?: number; tied?: boolean }
  /** q, k and v always have a bias, or nothing has; else attention_bias says it, and of o too. */
  biases?: 'qkv' | 'none'
  /** Whether there are norms over each head of q and k. */
  qkNorm?: boolean
  /** Whether only a share of a head's channels may be rotated (partial_rotary_factor). */
  partlyTurned?: boolean
  /** Its own names in files of a layer's parts (`self_attn.o_proj`) and of the last norm (`norm`), by those that the others have. */
  names?: Readonly<Record<string, string>>
  /** Throws for features that the decoder does not have. @param refuse makes the error: a key, and why its value is not taken */
  refuse(raw: Json, refuse: (key: string, why: string) => UserError): void
  /** Its own parts of a ModelConfig; rope among them where it is not read as a Llama's. */
  read?(raw: Json, file: string, shape: FamilyShape): Partial<ModelConfig>
  /** Keys of layers that the decoder does not have, which are not written again: transformers refuses the 0 that a 0.0 of them would become. */
  leftOut?: readonly string[]
  /** The keys that `read` reads, and those that the others do not have. */
  write(config: ModelConfig): Json
}

/** Sizes by their keys, of a model with fused matrices: parts of what is trained must begin where they can be bound. */
export function eightsOfParts(sizes: Record<string, number>, file: string): void {
  for (const [key, size] of Object.entries(sizes))
    if (size % 8 !== 0) throw new UserError(`${file}: ${key} is ${size}; it must be a multiple of 8.`)
}

/** For families whose MLP is gated with SiLU. */
export function silu(raw: Json, refuse: (key: string, why: string) => UserError): void {
  const act = raw.hidden_act ?? 'silu'
  // swish is transformers' other name of it.
  if (act !== 'silu' && act !== 'swish') throw refuse('hidden_act', 'and only silu is supported')
}

/** Likewise, where mlp_bias may be asked for. */
export function siluWithoutBias(raw: Json, refuse: (key: string, why: string) => UserError): void {
  silu(raw, refuse)
  if (raw.mlp_bias) throw refuse('mlp_bias', 'and biases in the MLP are not supported')
}

/** What these write. */
export const siluKeys: Json = { hidden_act: 'silu' }
