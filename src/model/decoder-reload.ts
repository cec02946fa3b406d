/** Puts other weights of the same model into a decoder that stays: what `reload_weights` of the server does. */
import type { Norm } from '../autograd/ops/norm.ts'
import type { BufferRange, Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { writeWeight, type Weight } from '../kernels/common/weight.ts'
import { UserError } from '../common/errors.ts'
import { roundToBf16, widenBf16 } from './bf16.ts'
import type { Decoder } from './decoder.ts'
import type { ModelFiles } from './open.ts'
import type { TensorSource } from './types.ts'

/**
 * Writes every weight of `files` over the decoder's, in the dtype that the decoder keeps it in. Adapters stay as they are. No step may be recorded
 * meanwhile: the engine is paused.
 * @throws UserError for a model of another shape, before anything was written
 */
export async function reloadDecoder(decoder: Decoder, files: Pick<ModelFiles, 'name' | 'config' | 'tensors'>): Promise<void> {
  const shapes = [
    'family',
    'hiddenSize',
    'intermediateSize',
    'layers',
    'heads',
    'kvHeads',
    'headDim',
    'vocabSize',
    'tieWordEmbeddings',
  ] as const
  for (const key of [...shapes, 'qkvBias', 'outputBias', 'qkNorm'] as const) {
    if (files.config[key] === decoder.config[key]) continue
    throw new UserError(
      `${files.name} is another model than ${decoder.name}: its ${key} is ${files.config[key]}, not ${decoder.config[key]}.`,
    )
  }
  const { gpu } = decoder
  const { tensors } = files
  await writeMatrix(gpu, tensors, 'model.embed_tokens.weight', decoder.embedding.weight)
  for (const layer of decoder.layers) {
    for (const norm of [layer.inputNorm, layer.postNorm, layer.qNorm, layer.kNorm]) if (norm) await writeNorm(gpu, tensors, norm)
    for (const { name, weight, bias } of [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]) {
      await writeMatrix(gpu, tensors, `${name}.weight`, weight)
      if (bias) await writeVector(gpu, tensors, `${name}.bias`, bias)
    }
    await gpu.sync('loading')
  }
  await writeNorm(gpu, tensors, decoder.norm)
  if (decoder.head.weight !== decoder.embedding.weight) await writeMatrix(gpu, tensors, 'lm_head.weight', decoder.head.weight)
  await gpu.sync('loading')
}

async function writeMatrix(gpu: Gpu, tensors: TensorSource, name: string, weight: Weight): Promise<void> {
  const read = await tensors.read(name, { round: weight.bf16 })
  if (weight.bf16) writeWeight(gpu, weight, read.dtype === 'bf16' ? read.data : roundToBf16(read.data))
  else writeWeight(gpu, weight, read.dtype === 'bf16' ? widenBf16(read.data) : read.data)
}

const writeNorm = (gpu: Gpu, tensors: TensorSource, { name, gain }: Norm) => writeVector(gpu, tensors, `${name}.weight`, gain)

async function writeVector(gpu: Gpu, tensors: TensorSource, name: string, to: GpuBuffer | BufferRange): Promise<void> {
  const read = await tensors.read(name)
  const data = read.dtype === 'bf16' ? widenBf16(read.data) : read.data
  if ('buffer' in to) gpu.write(to.buffer, data, to.offset)
  else gpu.write(to, data)
}
