/**
 * The reference model of a KL term, which keeps the policy near to it. By default it is the model that the run began with, sharing the weights that are not
 * trained; reference-sync.ts may update it. It may be another model with the same tokens instead: a teacher, from which the policy is distilled.
 */
import type { Projection } from '../autograd/ops/linear.ts'
import type { ParameterStore } from '../autograd/parameters.ts'
import { UserError } from '../common/errors.ts'
import type { TrainingSample } from '../common/types.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { loadDecoder, type LoadOptions, type ModelTensors } from '../model/decoder-load.ts'
import { withProjections, type Decoder } from '../model/decoder.ts'
import { packedBatches } from '../model/packed.ts'
import { ownBlocks } from '../model/quantise.ts'
import type { Tokenizer } from '../model/tokenizer.ts'
import type { ModelConfig } from '../model/types.ts'
import type { MicroBatchRunner, Work } from './micro-batch.ts'

/**
 * The reference of a policy that was just loaded and not yet trained: the same weights without its adapter where that is fresh (its B is 0), with a frozen
 * copy of the adapter where the run goes on from one, and the files once more where every weight is trained.
 * @param files of the model that the policy was loaded from
 * @param moves whether the reference is updated later: the adapter is then copied in any case
 */
export async function loadReference(policy: Decoder, files: ModelTensors, options: LoadOptions, moves = false): Promise<Decoder> {
  if (!options.full) return options.adapter || moves ? withAdapterOf(policy, policy.store!.snapshot()) : withoutAdapter(policy)
  const { round, matrixUnits, progress } = options
  return await loadDecoder(policy.gpu, files, { round, matrixUnits, progress })
}

/**
 * Another model as the reference: frozen, and in its blocks where its files are quantised.
 * @throws UserError for files that are broken; GpuError where the adapter has no room
 */
export async function loadOtherReference(
  gpu: Gpu,
  files: ModelTensors,
  { round, matrixUnits, progress }: Pick<LoadOptions, 'round' | 'matrixUnits' | 'progress'>,
): Promise<Decoder> {
  // A policy's options also say what is trained, and from which adapter on: of these nothing is for the reference.
  return await loadDecoder(gpu, files, { round, matrixUnits, progress, quantization: ownBlocks(files) })
}

/**
 * Checks that a reference model has the policy's vocabulary.
 * @throws UserError where it has other tokens, or too few
 */
export function checkSameTokens(policy: Words, reference: Words): void {
  const [ours, theirs] = [policy.tokenizer, reference.tokenizer]
  for (let id = 0; id < ours.vocabSize; id++) {
    const [own, other] = [ours.idToToken(id), theirs.idToToken(id)]
    if (own === null || own === other) continue
    throw new UserError(
      `The reference model ${reference.name} has other tokens than ${policy.name}: ${id} is ${JSON.stringify(other)} there and ${JSON.stringify(own)} here, so its log-probabilities say nothing of ours. Name a model of the same family, with the same tokenizer.`,
    )
  }
  const [rows, needed] = [reference.config.vocabSize, policy.config.vocabSize]
  if (rows >= needed) return
  throw new UserError(
    `The reference model ${reference.name} has ${rows} rows in its embedding and ${policy.name} ${needed}: a token that the policy samples may be none of its. Name one with at least as many.`,
  )
}

interface Words {
  name: string
  config: ModelConfig
  tokenizer: Tokenizer
}

/** The model of `policy`, which keeps its weights, without its adapter. */
export const withoutAdapter = (policy: Decoder): Decoder => withAdapterOf(policy, undefined)

/** The model of `policy` with the adapter that `store` holds, or none. */
function withAdapterOf(policy: Decoder, store: ParameterStore | undefined): Decoder {
  const frozen = ({ lora, ...rest }: Projection): Projection => ({ ...rest, lora: lora && store && { ...lora, store } })
  const layers = policy.layers.map((layer) => withProjections(layer, frozen))
  return { ...policy, layers, store: undefined, release: () => store?.release() }
}

/** Gives the samples the log-probabilities of their loss tokens under the runner's reference model, where they have none. Packed as that takes them: it may share no prompts. */
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
  // All are set at the end: a step that did not fit in memory begins again.
  samples.forEach((sample, i) => (sample.refLogprobs = found[i]))
}
