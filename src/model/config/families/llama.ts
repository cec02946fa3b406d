/** Llama, and Mistral: the same layers, with a sliding window. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import { silu, siluKeys, siluWithoutBias, type Family } from './family.ts'

/** Default of MistralConfig. */
const WINDOW = 4096

function refuseLayerTypes(raw: Json, file: string): void {
  const other = Array.isArray(raw.layer_types) && raw.layer_types.find((type) => type !== 'full_attention')
  if (other) throw new UserError(`${file}: layer_types has "${String(other)}", and only full_attention is supported.`)
}

export const llama: Family = {
  architecture: 'Llama',
  refuse: siluWithoutBias,
  read(raw, file) {
    refuseLayerTypes(raw, file)
    return {}
  },
  write: ({ qkvBias }) => ({ ...siluKeys, attention_bias: qkvBias, mlp_bias: false }),
}

export const mistral: Family = {
  architecture: 'Mistral',
  defaults: { kvHeads: 8 },
  biases: 'none',
  refuse: silu,
  read(raw, file) {
    refuseLayerTypes(raw, file)
    const given = raw.sliding_window === null ? undefined : (keyReader(raw, file).optionalCount('sliding_window') ?? WINDOW)
    // With layer_types transformers takes it for a Ministral, whose layers of full_attention have no window.
    return { slidingWindow: Array.isArray(raw.layer_types) ? undefined : given }
  },
  write: ({ slidingWindow }) => ({ ...siluKeys, sliding_window: slidingWindow ?? null }),
}
