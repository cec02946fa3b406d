/** Writes the trainer's weights for another process to sample from, with exactly the values that the trainer computes with. */
import { mkdirSync } from 'node:fs'
import type { Decoder } from '../model/decoder/decoder.ts'
import { matrixDtypes, readLora } from '../model/decoder/trained.ts'
import { writeModelFiles } from '../model/files/export.ts'
import { writeAdapterFiles } from '../model/files/peft.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { weightTensors, type WeightsAbout } from './checkpoint.ts'

/**
 * Writes what is trained into a new folder: a PEFT adapter, or a Hugging Face model.
 * - Matrices have the dtype in which the trainer runs them, other tensors are float32. A checkpoint may round those to bf16, and a server would then
 *   sample from a slightly different model.
 * - A tied head is also written as `lm_head.weight`, and config.json says that it is not tied. Otherwise vLLM 0.32 would reload the embedding in
 *   place, but not the head that it made from it at startup.
 * @param tokenizer its files are written too, for a server that starts from the folder
 */
export async function writeSamplerWeights(
  dir: string,
  decoder: Decoder,
  about: WeightsAbout,
  tokenizer: Tokenizer | null = null,
): Promise<void> {
  mkdirSync(dir, { recursive: true })
  const { lora, rawConfig, rawGenerationConfig } = about
  if (lora) {
    await writeAdapterFiles(dir, { config: lora, tensors: await readLora(decoder), tokenizer })
    return
  }
  const matrices = matrixDtypes(decoder)
  const tensors = weightTensors(decoder, (name) => matrices.get(name) ?? 'f32')
  const tied = decoder.config.tieWordEmbeddings
  if (tied) tensors.push({ ...tensors.find(({ name }) => name === 'model.embed_tokens.weight')!, name: 'lm_head.weight' })
  const config = tied ? { ...rawConfig, tie_word_embeddings: false } : rawConfig
  await writeModelFiles(dir, { rawConfig: config, rawGenerationConfig, tensors, tokenizer })
}
