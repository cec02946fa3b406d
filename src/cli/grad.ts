/** `grad`: loss and gradients of a batch, as one training step would see them. */
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import type { TensorToWrite } from '../model/safetensors.ts'
import { reporter, withDecoder, withModelAndBatch, type ModelBatchOptions } from './model-batch.ts'
import { notNegative, number } from './options.ts'

interface GradOptions extends ModelBatchOptions {
  loss: string
  maskRatioLow: number
  maskRatioHigh: number
  beta: number
  entropyCoef: number
  gradientCheckpointing: boolean
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  withModelAndBatch(program.command('grad'))
    .description(
      "Write the gradient of every trainable tensor, and loss and grad_norm: with --adapter the adapter's tensors, each under two names (with and without base_model.model), else every weight.",
    )
    .option('--loss <name>', 'cispo, cispo_mask, or a loss file', 'cispo')
    .option('--mask-ratio-low <number>', 'lower bound of the importance ratio', notNegative, 0.125)
    .option('--mask-ratio-high <number>', 'upper bound of the importance ratio', notNegative, 8)
    .option(
      '--beta <number>',
      "weight of the KL term; the reference is the batch's ref_logprobs, or with --adapter the model without it",
      notNegative,
      0,
    )
    .option('--entropy-coef <number>', 'weight of the entropy bonus', number, 0)
    .option('--no-gradient-checkpointing', 'keep all activations: faster, more memory')
    .action(grad)
}

const scalar = (value: number): TensorToWrite => ({ dtype: 'F32', shape: [1], data: Float32Array.of(value) })

async function grad(options: GradOptions): Promise<void> {
  const { accumulateGradients } = await import('../trainer/gradients.ts')
  const { checkLossGradient, checkLossShape } = await import('../trainer/losses/check.ts')
  const { loadLoss } = await import('../trainer/losses/index.ts')
  const { withoutAdapter } = await import('../trainer/reference.ts')
  const { batchOf } = await import('../model/packed.ts')
  const { writeSafetensors } = await import('../model/safetensors.ts')
  const bounds = { mask_ratio_low: options.maskRatioLow, mask_ratio_high: options.maskRatioHigh }
  const { hookResolve } = await import('../environments/load.ts')
  hookResolve()
  const loss = await loadLoss(options.loss, bounds)
  if (!loss.kernel) checkLossShape(loss, true)
  let checked = !loss.checked
  await withDecoder(options, true, async ({ decoder, samples }) => {
    const start = performance.now()
    const given = samples.filter((sample) => sample.refLogprobs).length
    if (options.beta > 0 && given < samples.length && (given > 0 || options.adapter === undefined)) {
      throw new UserError(
        `--beta needs a reference: ${given} of the ${samples.length} sequences of ${options.batch} have ref_logprobs. Write them for all` +
          (options.adapter === undefined
            ? ', or train an adapter (--adapter): the reference is then the model without it.'
            : ', or for none.'),
      )
    }
    const store = decoder.store!
    const batch = batchOf(0, samples)
    const report = reporter('gradients')
    store.zeroGradients()
    const result = await accumulateGradients(decoder, batch, {
      loss,
      beta: options.beta,
      entropyCoef: options.entropyCoef,
      reference: options.beta > 0 && given === 0 ? withoutAdapter(decoder) : undefined,
      temperature: options.temperature,
      checkpointing: options.gradientCheckpointing,
      microBatchTokens: options.microBatchTokens,
      progress: (done, total) => report(done / total),
      // The user's loss is checked against finite differences, as in the first batch of a run.
      inspect: (inputs) => (checked ||= checkLossGradient(loss, inputs)),
    })
    let squares = 0
    for (const parameter of store.parameters) {
      for (const value of await store.read(parameter, 'gradients')) squares += value * value
    }
    const norm = Math.sqrt(squares)
    const tensors = new Map<string, TensorToWrite>()
    tensors.set('loss', scalar(result.loss))
    tensors.set('grad_norm', scalar(norm))
    for (const parameter of store.parameters) {
      const tensor = { dtype: 'F32' as const, shape: parameter.shape, data: () => store.read(parameter, 'gradients') }
      tensors.set(parameter.name, tensor)
      // The tensor's name in an adapter file.
      if (options.adapter !== undefined) tensors.set(`base_model.model.${parameter.name}`, tensor)
    }
    await writeSafetensors(options.out, tensors)
    const seconds = ((performance.now() - start) / 1000).toFixed(1)
    console.log(
      `${options.out}: ${loss.name} loss ${result.loss.toPrecision(6)}, gradient norm ${norm.toPrecision(6)}, ${store.parameters.length} tensors, ${batch.lossTokenCount} loss tokens in ${result.microBatches} micro-batches (${seconds} s)`,
    )
  })
}
