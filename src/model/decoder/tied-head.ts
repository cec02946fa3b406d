/** A head that is tied to the embedding may lie in a model's files beside it, as trainers write it out (sampler-weights.ts). */
import { UserError } from '../../common/errors.ts'
import type { ModelConfig, TensorData, TensorSource } from '../types.ts'

/** Whether `lm_head.weight` is the embedding. */
export async function headIsEmbedding(tensors: TensorSource): Promise<boolean> {
  const [head, embedding] = [await tensors.read('lm_head.weight'), await tensors.read('model.embed_tokens.weight')]
  const bytes = ({ data }: TensorData) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
  return head.dtype === embedding.dtype && Buffer.compare(bytes(head), bytes(embedding)) === 0
}

/**
 * Refuses a tied head that differs from the embedding, as readers disagree: transformers 5 takes the file's head, transformers 4 and vLLM the embedding.
 * @throws UserError where the config ties the head and the files have another one
 */
export async function refuseOtherHead(name: string, config: ModelConfig, tensors: TensorSource): Promise<void> {
  if (!config.tieWordEmbeddings || !tensors.has('lm_head.weight') || (await headIsEmbedding(tensors))) return
  throw new UserError(
    `${name}: tie_word_embeddings is true in config.json, and lm_head.weight is another matrix than the embedding. Set it to false to run with that head, or take the tensor out of the file.`,
  )
}
