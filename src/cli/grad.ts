/** `grad`: loss and gradients of a batch, as one training step would see them. */
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import type { TensorToWrite } from '../model/files/safetensors.ts'
import type { Loss } from '../trainer/losses/index.ts'
import { reporter, withDecoder, withModelAndBatch, type ModelBatchOptions } from './model-batch.ts'
import { jsonObject, notNegative, number } from './options.ts'
import { unwritten } from './out-file.ts'
import { unreadNotices, watchArgs } from './watched-args.ts'

interface GradOptions extends ModelBatchOptions {
  loss: string
  lossArgs: Record<string, unknown>
  maskRatioLow: number
  maskRatioHigh: number
  beta: number
  entropyCoef: number
  gradientCheckpointing: boolean
  /** Of a config: the loss has log-probabilities of the reference where beta is 0, too. */
  useRefModel?: boolean
  /** Of a config: another model as the reference. */
  refModel?: string
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  withModelAndBatch(program.command('grad'))
    .description(
      "Write the gradient of every trainable tensor, and loss and grad_norm: with --adapter the adapter's tensors, each under two names (with and without base_model.model), else every weight.",
    )
    .argument('[words...]', '@ FILE: a training config, whose loss, arguments and bounds are used; options override them')
    .option('--loss <name>', 'cispo, cispo_mask, or a loss file', 'cispo')
    .option('--loss-args <json>', 'arguments of a loss file, as JSON', (text) => jsonObject('grad', '--loss-args', text), {})
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

/** The options, with what a training config says in the place of those that were not given. */
async function withConfig(words: string[], options: GradOptions, command: Command): Promise<GradOptions> {
  const { loadConfig } = await import('../config/load.ts')
  const loaded = loadConfig(words)
  if ('help' in loaded) return options
  const { args } = loaded.config.trainer
  const ofConfig: Partial<GradOptions> = {
    loss: args.loss,
    lossArgs: args.loss_args,
    maskRatioLow: args.mask_ratio_low,
    maskRatioHigh: args.mask_ratio_high,
    beta: args.beta,
    entropyCoef: args.entropy_coef,
    temperature: args.temperature,
    round: args.bf16,
    matrixUnits: args.matrix_units,
    quantization: args.quantization,
    useRefModel: args.use_ref_model,
    refModel: args.ref_model,
  }
  const left = Object.entries(ofConfig).filter(([key]) => command.getOptionValueSource(key) !== 'cli')
  return { ...options, ...Object.fromEntries(left) }
}

/** Tries the loss as a run does, and names what was given to it and has no effect. @throws UserError where it fails */
async function tryLoss(loss: Loss, command: Command): Promise<void> {
  const isGiven = (key: keyof GradOptions) => command.getOptionValueSource(key) === 'cli'
  if (loss.kernel) {
    if (isGiven('lossArgs'))
      throw new UserError(
        `grad: the built-in loss ${loss.name} takes no --loss-args. Its bounds are --mask-ratio-low and --mask-ratio-high.`,
      )
    return
  }
  const { checkLossShape } = await import('../trainer/losses/check.ts')
  const watched = watchArgs(loss.args)
  checkLossShape({ ...loss, args: watched.args }, true)
  for (const notice of unreadNotices(watched, '--loss-args ', loss.name)) console.error(`warning: ${notice}`)
  for (const [key, option] of [
    ['maskRatioLow', '--mask-ratio-low'],
    ['maskRatioHigh', '--mask-ratio-high'],
  ] as const)
    // prettier-ignore
    if (isGiven(key)) console.error(`note: ${option} has no effect: the loss is from a file, which takes --loss-args instead.`)
}

async function grad(words: string[], asked: GradOptions, command: Command): Promise<void> {
  const options = words.length > 0 ? await withConfig(words, asked, command) : asked
  const { maskRatioLow: low, maskRatioHigh: high } = options
  if (low > high)
    throw new UserError(`grad: --mask-ratio-low is ${low}, above --mask-ratio-high (${high}). No ratio lies between them.`)
  const needs = [options.beta > 0 && '--beta', options.useRefModel && 'use_ref_model', options.refModel && 'ref_model'].find(
    Boolean,
  )
  const { accumulateGradients } = await import('../trainer/gradients.ts')
  const { checkLossGradient } = await import('../trainer/losses/check.ts')
  const { loadLoss } = await import('../trainer/losses/index.ts')
  const { withoutAdapter } = await import('../trainer/reference.ts')
  const { batchOf } = await import('../model/decoder/packed.ts')
  const { writeSafetensors } = await import('../model/files/safetensors.ts')
  const bounds = { mask_ratio_low: low, mask_ratio_high: high }
  const { hookResolve } = await import('../environments/load.ts')
  hookResolve()
  const loss = await loadLoss(options.loss, bounds, options.lossArgs)
  await tryLoss(loss, command)
  let checked = !loss.checked
  await withDecoder(options, true, async ({ decoder, samples }) => {
    const start = performance.now()
    const given = samples.filter((sample) => sample.refLogprobs).length
    const hasOwn = options.adapter !== undefined && options.refModel === undefined
    if (needs && given < samples.length && (given > 0 || !hasOwn)) {
      throw new UserError(
        `${needs} needs a reference: ${given} of the ${samples.length} sequences of ${options.batch} have ref_logprobs. Write them for all` +
          (options.refModel !== undefined
            ? `; grad opens no second model, and the config's is ${options.refModel}.`
            : options.adapter === undefined
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
      reference: needs && given === 0 ? withoutAdapter(decoder) : undefined,
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
    await writeSafetensors(options.out, tensors).catch(unwritten(`--out ${options.out}`))
    const seconds = ((performance.now() - start) / 1000).toFixed(1)
    console.log(
      `${options.out}: ${loss.name} loss ${result.loss.toPrecision(6)}, gradient norm ${norm.toPrecision(6)}, ${store.parameters.length} tensors, ${batch.lossTokenCount} loss tokens in ${result.microBatches} micro-batches (${seconds} s)`,
    )
  })
}
