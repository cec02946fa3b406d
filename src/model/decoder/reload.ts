/** Puts other weights of the same model into a decoder that stays, buffers and all: what `reload_weights` of the server does. */
import { messageOf, UserError } from '../../common/errors.ts'
import { rangeOf, type BufferRange } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { checkF16Range, matrixUnitOf } from '../../kernels/common/matrix-units.ts'
import { writeWeight, type Weight } from '../../kernels/common/weight.ts'
import { writeBlocks } from '../../kernels/quantised/quantised.ts'
import { roundToBf16, widenBf16 } from '../bf16.ts'
import { embeddingScale, gained, type ModelTensors } from './load.ts'
import { normsOf, projectionsOf, valuesOf as layerValues, type Decoder } from './decoder.ts'
import { readBlocks, rowsOf } from './quantise.ts'
import { checkTensors } from './shapes.ts'
import { headIsEmbedding, refuseOtherHead } from './tied-head.ts'
import type { ModelConfig, TensorData, TensorSource } from '../types.ts'
import { Uploads } from './uploads.ts'

/** Config values that a decoder's buffers and commands depend on. */
const fixed = [
  'family', 'hiddenSize', 'intermediateSize', 'layers', 'heads', 'kvHeads', 'headDim', 'vocabSize', 'qkvBias',
  'outputBias', 'qkNorm', 'qkNormWhole', 'rmsNormEps', 'ropeTheta', 'ropeScaling', 'layersWithoutRope', 'slidingWindow', 'slidingLayers',
  'localRopeTheta', 'attentionScale', 'embeddingScale', 'embeddingScaleRounded', 'residualScale', 'logitsScaling', 'activation', 'norms', 'normsFromOne',
  'qwen35', 'shortConv', 'fused', 'rotaryDim',
] as const satisfies (keyof ModelConfig)[] // prettier-ignore

/** A tensor of the files, and where it goes: a matrix in the dtype that it has there, a vector in float32. */
interface Target {
  name: string
  weight?: Weight
  /** Where the weight is rows of it: the first of them. */
  firstRow?: number
  vector?: GpuBuffer | BufferRange
  /** As of `Norm`. */
  fromOne?: boolean
}

/** Thrown where files failed once some of their weights had been written: the decoder's are of two models then. */
export class MixedWeightsError extends Error {
  override name = 'MixedWeightsError'
}

/**
 * Overwrites the decoder's weights by those of `files`, in the dtype that the decoder holds them in (float32 is rounded where that is bf16), or in its
 * quantised blocks. Adapters stay as they are. No step may be recorded meanwhile.
 * @throws UserError for another model, files that are broken, values that matrix units do not take, and a decoder whose weights are trained. All
 *   files are read once to check this, before anything is written. MixedWeightsError where they cannot be read again, or `signal` aborts between
 */
export async function reloadDecoder(decoder: Decoder, files: ModelTensors, signal?: AbortSignal): Promise<void> {
  const { gpu } = decoder
  const { name, config, tensors } = files
  if (decoder.embedding.trained)
    throw new UserError(`The weights of ${decoder.name} are being trained, so nothing else is loaded.`)
  for (const key of fixed) {
    const [found, wanted] = [config[key], decoder.config[key]].map((value) => JSON.stringify(value))
    if (found !== wanted)
      throw new UserError(`${name} is another model than ${decoder.name}: its ${key} is ${found}, not ${wanted}.`)
  }
  checkTensors(config, tensors, name)
  await refuseOtherHead(name, config, tensors)
  const { tieWordEmbeddings: tied } = decoder.config
  if (tied !== config.tieWordEmbeddings && !(tied && (await headIsEmbedding(tensors)))) {
    throw new UserError(
      `${name} is another model than ${decoder.name}: its lm_head.weight is ${tied ? 'not ' : ''}the same as its embedding.`,
    )
  }
  const targets = targetsOf(decoder)
  const units = matrixUnitOf(gpu) !== undefined
  for (const target of targets) {
    signal?.throwIfAborted()
    const blocks = target.weight?.blocks
    if (blocks) await readBlocks(tensors, target.name, blocks.format)
    if (blocks && !units) continue
    const { data } = await valuesOf(tensors, target)
    if (units) checkF16Range(target.name, data)
  }
  signal?.throwIfAborted()
  try {
    await write(decoder, tensors, targets, signal)
  } catch (error) {
    const why = messageOf(error).replace(/\.$/, '')
    throw new MixedWeightsError(
      `${why}. Some weights of ${name} had been written by then, and the others are still those of before: nothing is sampled until weights are loaded again.`,
      { cause: error },
    )
  }
  const { embedding } = decoder
  // As a load of these files would have it; commands that are recorded with the old one are recorded anew (inference/step.ts).
  if (config.embeddingScaleRounded && !embedding.weight.bf16)
    embedding.scale = embeddingScale(config, tensors.dtype?.('model.embed_tokens.weight') === 'BF16')
}

async function write({ gpu }: Decoder, tensors: TensorSource, targets: readonly Target[], signal?: AbortSignal): Promise<void> {
  const uploads = new Uploads(gpu)
  for (const target of targets) {
    await uploads.room()
    const { name, weight, vector } = target
    const blocks = weight?.blocks
    const whole = blocks ? await readBlocks(tensors, name, blocks.format) : await valuesOf(tensors, target)
    signal?.throwIfAborted()
    const { data } = target.firstRow === undefined ? whole : rowsOf(whole, target.firstRow, weight!.rows)
    if (blocks) writeBlocks(gpu, blocks, data as Uint8Array)
    else if (weight) writeWeight(gpu, weight, data as Exclude<typeof data, Uint8Array>)
    else {
      const { buffer, offset } = rangeOf(vector!)
      gpu.write(buffer, data, offset)
    }
    uploads.add(data.byteLength)
  }
  await uploads.done()
}

async function valuesOf(tensors: TensorSource, { name, weight, fromOne }: Target): Promise<TensorData> {
  const isBf16 = weight?.bf16 ?? false
  const read = await tensors.read(name, { round: isBf16 })
  if (isBf16 && read.dtype === 'f32') return { dtype: 'bf16', shape: read.shape, data: roundToBf16(read.data) }
  if (!isBf16 && read.dtype === 'bf16') return { dtype: 'f32', shape: read.shape, data: gained(widenBf16(read.data), fromOne) }
  if (fromOne && read.dtype === 'f32') return { ...read, data: gained(read.data, fromOne) }
  return read
}

function targetsOf({ embedding, layers, norm, head }: Decoder): Target[] {
  const targets: Target[] = [{ name: 'model.embed_tokens.weight', weight: embedding.weight }]
  const norms = [norm]
  for (const layer of layers) {
    for (const { name, firstRow, weight, bias } of projectionsOf(layer).flat()) {
      targets.push({ name: `${name}.weight`, firstRow, weight })
      if (bias) targets.push({ name: `${name}.bias`, vector: bias })
    }
    norms.push(...normsOf(layer))
    for (const { name, values } of layerValues(layer)) targets.push({ name, vector: values })
  }
  for (const { name, gain, fromOne } of norms) targets.push({ name: `${name}.weight`, vector: gain, fromOne })
  if (head.weight !== embedding.weight) targets.push({ name: 'lm_head.weight', weight: head.weight })
  return targets
}
