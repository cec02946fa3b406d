/** Granite 3 (dense): a Llama with factors for embeddings, scores, residuals and logits. */
import { keyReader, type Json } from '../keys.ts'
import type { ModelConfig } from '../../types.ts'
import { siluKeys, siluWithoutBias, type Family } from './family.ts'

/** A factor of 1, which is the default of all, is none; the scale of scores is always said, since that of other families is another one. */
export function multipliers(
  raw: Json,
  file: string,
): Pick<ModelConfig, 'embeddingScale' | 'attentionScale' | 'residualScale' | 'logitsScaling'> {
  const factor = (name: string): number => keyReader(raw, file).optionalNumber(name) ?? 1
  const unlessOne = (value: number): number | undefined => (value === 1 ? undefined : value)
  return {
    embeddingScale: unlessOne(factor('embedding_multiplier')),
    attentionScale: factor('attention_multiplier'),
    residualScale: unlessOne(factor('residual_multiplier')),
    logitsScaling: unlessOne(factor('logits_scaling')),
  }
}

/** The keys that say these. */
export const multiplierKeys = (config: ModelConfig): Json => ({
  embedding_multiplier: config.embeddingScale ?? 1,
  attention_multiplier: config.attentionScale ?? config.headDim ** -0.5,
  residual_multiplier: config.residualScale ?? 1,
  logits_scaling: config.logitsScaling ?? 1,
})

export const granite: Family = {
  architecture: 'Granite',
  refuse: siluWithoutBias,
  read: multipliers,
  write: (config) => ({ ...siluKeys, attention_bias: config.qkvBias, mlp_bias: false, ...multiplierKeys(config) }),
}
