/**
 * Training steps. A step is `iterations` updates on one batch; an update is gradients of the whole batch, their norm, clipping and AdamW. Weights
 * change in place at one point of the command stream, without waiting for the GPU. `published` is called right there, so that whoever samples from
 * the same buffers knows the version of each token. Whether the norm was finite is known only later; if not, the GPU has left the weights unchanged,
 * and the new version equals the one before, as after every skipped step.
 */
import { hashSeed } from '../common/random.ts'
import { phase } from '../common/timeline.ts'
import { tracer } from '../common/trace.ts'
import type { Metrics, TrainingBatch } from '../common/types.ts'
import { projectionsOf, type Checkpointing, type Decoder } from '../model/decoder/decoder.ts'
import { refreshWeights } from '../model/decoder/trained.ts'
import { NotFiniteError, writeBadStep, type BadUpdate } from './bad-step.ts'
import { Fitting } from './fitting.ts'
import { accumulateGradients, type SampleResult } from './gradients.ts'
import { checkLossGradient, checkLossShape } from './losses/check.ts'
import type { Loss } from './losses/index.ts'
import { ofAllUpdates, updateMetrics } from './metrics.ts'
import type { AddedTerms } from './micro-batch.ts'
import { AdamW, type AdamWOptions } from './optimizer.ts'
import { learningRateAt, type Schedule } from './schedule.ts'

export interface TrainerOptions extends AddedTerms {
  loss: Loss
  /** Scores every batch before it is trained on, for `beta` and for losses that read refLogprobs (reference.ts). */
  reference?: Decoder
  /** Logits are divided by it, as in sampling. */
  temperature: number
  /** The most rows in a micro-batch. */
  microBatchTokens: number
  checkpointing: Checkpointing
  /** False: record the commands anew for every micro-batch (micro-batch.ts). */
  plans?: boolean
  optimizer: AdamWOptions
  schedule: Schedule
  /** Updates on each batch. Default 1. */
  iterations?: number
  /** Seed of LoRA's dropout. */
  seed: number
  /** The folder for `nan_step_N/`. */
  runFolder: string
}

export interface StepHooks {
  /** Called with the number of micro-batches done, and of all. */
  progress?: (done: number, total: number) => void
  /** The weights after this share of the step's updates are in place for all commands recorded from here on. Not called if the loss is not finite. */
  published?: (share: number) => void
  /** Called with a sentence when the step deviates from the config, for example by smaller micro-batches. */
  warn?: (line: string) => void
}

interface StepResult {
  metrics: Metrics
  /** True if the weights did not change: no loss tokens, or a loss or gradient norm that is not finite. */
  skipped: boolean
  /** Log-probabilities and entropies before the step, one result for each sample of the batch. */
  samples: SampleResult[]
}

/** The run ends after this many bad steps in a row. */
const MOST_BAD_STEPS = 3

export class Trainer {
  readonly decoder: Decoder
  readonly options: TrainerOptions
  readonly optimizer: AdamW
  /** Runs the step's micro-batches. */
  readonly fitting: Fitting
  /** Steps done, including skipped ones; also the version of the weights. */
  step = 0
  /** How many of the last steps in a row were not finite. */
  badSteps = 0
  readonly #dropout: boolean
  #lossChecked: boolean

  /** @throws UserError for a user's loss that fails `checkLossShape` */
  constructor(decoder: Decoder, options: TrainerOptions) {
    if (!decoder.store) throw new Error('the model was loaded without anything to train')
    if (options.beta && !options.reference) throw new Error('beta needs a reference model')
    if (!options.loss.kernel) checkLossShape(options.loss, options.reference !== undefined)
    this.decoder = decoder
    this.options = options
    this.optimizer = new AdamW(decoder.store, options.optimizer)
    this.fitting = new Fitting(decoder, options)
    this.#lossChecked = !options.loss.checked
    this.#dropout = decoder.layers.some((layer) =>
      projectionsOf(layer)
        .flat()
        .some((p) => !!p.lora?.dropout),
    )
  }

  /**
   * Makes one step: all updates on a batch. An update whose loss or gradient norm is not finite is skipped and ends the step; the batch is then
   * written to `nan_step_N/`.
   * @throws NotFiniteError at the third such step in a row; UserError if a custom loss fails its checks
   */
  async trainStep(batch: TrainingBatch, hooks: StepHooks = {}): Promise<StepResult> {
    const { schedule, iterations = 1 } = this.options
    const learningRate = learningRateAt(schedule, ++this.step)
    if (batch.lossTokenCount === 0) return { metrics: { 'optim/lr': learningRate }, skipped: true, samples: [] }
    const made: StepResult[] = []
    while (made.length < iterations && !made.at(-1)?.skipped)
      made.push(await this.#update(batch, learningRate, made.length, hooks))
    if (!made.at(-1)!.skipped) this.badSteps = 0
    return { ...made[0], metrics: ofAllUpdates(made.map((update) => update.metrics)) }
  }

  /** Update `index` of a step. In all of them, inference log-probabilities are those with which the tokens were sampled. */
  async #update(batch: TrainingBatch, learningRate: number, index: number, hooks: StepHooks): Promise<StepResult> {
    const { decoder, options, optimizer } = this
    const { iterations = 1 } = options
    const begin = performance.now()
    const whole = tracer?.span('steps', 'forward_backward')
    const gradients = phase('gradients')
    const work = () =>
      accumulateGradients(decoder, batch, {
        ...options,
        ...this.fitting.size,
        dropoutSeed: this.#dropout ? hashSeed(options.seed, 'dropout', this.step, ...(index > 0 ? [index] : [])) : undefined,
        progress: (done, total) => hooks.progress?.(index * total + done, iterations * total),
        inspect: (inputs) => (this.#lossChecked ||= checkLossGradient(options.loss, inputs)),
      })
    const result = await this.fitting.run(batch, work, hooks.warn)
    gradients.end({ 'micro-batches': result.microBatches, rows: result.rows })
    const optimizing = phase('optimizer')
    optimizer.measure()
    if (Number.isFinite(result.loss)) {
      optimizer.update(learningRate)
      refreshWeights(decoder)
      decoder.gpu.flush()
      hooks.published?.((index + 1) / iterations)
    }
    const norm = await optimizer.settle()
    optimizing.end()
    whole?.end()
    const skipped = !Number.isFinite(result.loss) || !Number.isFinite(norm)
    const about = { norm, learningRate, seconds: (performance.now() - begin) / 1000 }
    const metrics = updateMetrics(batch, result, options.loss, decoder.gpu, about)
    const what = Number.isFinite(result.loss) ? `the gradient norm is ${norm}` : `the loss is ${result.loss}`
    if (skipped) await this.#keepBadStep(batch, { what, index, samples: result.samples }, hooks.warn)
    return { metrics, skipped, samples: result.samples }
  }

  release(): void {
    this.fitting.release()
    this.optimizer.release()
  }

  async #keepBadStep(batch: TrainingBatch, bad: BadUpdate, warn: StepHooks['warn']): Promise<void> {
    const dir = await writeBadStep(this.options.runFolder, batch, bad, warn)
    this.badSteps++
    if (this.badSteps < MOST_BAD_STEPS) return
    throw new NotFiniteError(
      `${MOST_BAD_STEPS} steps in a row were not finite (at step ${batch.step} ${bad.what}), so the run stops; the weights are those of the last good update. ` +
        `Lower trainer.args.learning_rate or max_grad_norm; ${dir} holds the batch.`,
    )
  }
}
