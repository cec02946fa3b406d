/**
 * The reference model of the KL term. By default it is the model with which the run began, and shares all weights that are not trained with the
 * policy; reference-sync.ts may update it. It can also be another model with the same tokenizer, such as a teacher for distillation.
 */
import type { Projection } from '../autograd/ops/linear.ts'
import type { ParameterStore } from '../autograd/parameters.ts'
import { UserError } from '../common/errors.ts'
import type { TrainingSample } from '../common/types.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { loadDecoder, type LoadOptions, type ModelTensors } from '../model/decoder/load.ts'
import { withProjections, type Decoder } from '../model/decoder/decoder.ts'
import { packedBatches } from '../model/decoder/packed.ts'
import { ownBlocks } from '../model/decoder/quantise.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import type { ModelConfig } from '../model/types.ts'
import type { MicroBatchRunner, Work } from './micro-batch.ts'

/**
 * Makes the reference for a policy that was just loaded and not yet trained. With a fresh adapter (B is 0): the policy's weights without the adapter.
 * If the run continues from an adapter: the policy's weights with a frozen copy of it. In full training: the model loaded a second time.
 * @param files the files of the model from which the policy was loaded
 * @param moves whether the reference is updated later; then even a fresh adapter is copied
 */
export async function loadReference(policy: Decoder, files: ModelTensors, options: LoadOptions, moves = false): Promise<Decoder> {
  if (!options.full) return options.adapter || moves ? withAdapterOf(policy, policy.store!.snapshot()) : withoutAdapter(policy)
  const { round, matrixUnits, progress } = options
  return await loadDecoder(policy.gpu, files, { round, matrixUnits, progress })
}

/**
 * Loads another model as the reference: frozen, and in its own quantised blocks if its files are quantised.
 * @throws UserError for broken files; GpuError if the GPU lacks the memory
 */
export async function loadOtherReference(
  gpu: Gpu,
  files: ModelTensors,
  { round, matrixUnits, progress }: Pick<LoadOptions, 'round' | 'matrixUnits' | 'progress'>,
): Promise<Decoder> {
  // Only these options: the rest of a policy's options say what to train and from which adapter.
  return await loadDecoder(gpu, files, { round, matrixUnits, progress, quantization: ownBlocks(files) })
}

/**
 * Checks that a reference model has the policy's vocabulary.
 * @throws UserError if its tokens differ, or it has too few
 */
export function checkSameTokens(policy: Words, reference: Words): void {
  const [ours, theirs] = [policy.tokenizer, reference.tokenizer]
  for (let id = 0; id < ours.vocabSize; id++) {
    const [own, other] = [ours.idToToken(id), theirs.idToToken(id)]
    if (own === null || own === other) continue
    throw new UserError(
      `The reference model ${reference.name} has a different vocabulary from ${policy.name}: token ${id} is ${JSON.stringify(other)} there and ${JSON.stringify(own)} here, so their log-probabilities cannot be compared. Name a model of the same family, with the same tokenizer.`,
    )
  }
  const [rows, needed] = [reference.config.vocabSize, policy.config.vocabSize]
  if (rows >= needed) return
  throw new UserError(
    `The reference model ${reference.name} has ${rows} rows in its embedding, but ${policy.name} has ${needed}: the policy may sample a token that the reference model does not have. Name a model with at least as many.`,
  )
}

interface Words {
  name: string
  config: ModelConfig
  tokenizer: Tokenizer
}

/** The policy's model without its adapter; shares all weights. */
export const withoutAdapter = (policy: Decoder): Decoder => withAdapterOf(policy, undefined)

/** The policy's model with the adapter that `store` holds, or with none. */
function withAdapterOf(policy: Decoder, store: ParameterStore | undefined): Decoder {
  const frozen = ({ lora, ...rest }: Projection): Projection => ({ ...rest, lora: lora && store && { ...lora, store } })
  const layers = policy.layers.map((layer) => withProjections(layer, frozen))
  return { ...policy, layers, store: undefined, release: () => store?.release() }
}

/**
 * Computes the samples' `refLogprobs` with the runner's reference model, unless all samples have them. Packs the samples for the reference, which may
 * be unable to share prompts where the policy can.
 */
export async function scoreReference(
  runner: MicroBatchRunner,
  samples: TrainingSample[],
  { config }: Decoder,
  { temperature, microBatchTokens }: { temperature: number; microBatchTokens: number },
): Promise<void> {
  if (samples.every((sample) => sample.refLogprobs)) return
  const batches = packedBatches(config, samples, microBatchTokens, 'loss')
  const work: Work = { kind: 'reference', temperature, checkpointing: false }
  await runner.makeRoom(batches, work)
  const found = samples.map((sample) => new Float32Array(sample.ids.length))
  for (const packed of batches) {
    if (packed.targets.length === 0) continue
    const { logprobs } = await runner.run(packed, work)
    packed.sample.forEach((sample, i) => (found[sample][packed.token[i]] = logprobs[i]))
  }
  // Set only at the end, as a step that runs out of memory starts again.
  samples.forEach((sample, i) => (sample.refLogprobs = found[i]))
}
