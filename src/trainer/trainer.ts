/**
 * One training step: gradients of the whole batch, their norm, clipping, AdamW, the schedule, and the metrics; `iterations` times. The weights
 * change in place and at one point, without waiting in between: `published` is called right there, so whoever samples from the same buffers knows
 * which tokens are of which version. Whether the norm was finite is known later; if not, the GPU left everything as it was, and the new version has the
 * same weights as the one before, as after every skipped step.
 */
import { hashSeed } from '../common/random.ts'
import { phase } from '../common/timeline.ts'
import { tracer } from '../common/trace.ts'
import type { Metrics, TrainingBatch } from '../common/types.ts'
import { projectionsOf, type Checkpointing, type Decoder } from '../model/decoder.ts'
import { refreshWeights } from '../model/decoder-trained.ts'
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
  /** Scores every batch first, for `beta` and for a loss that reads refLogprobs; frozen (reference.ts). */
  reference?: Decoder
  /** Logits are divided by it: that of sampling. */
  temperature: number
  /** Rows of a micro-batch at most. */
  microBatchTokens: number
  checkpointing: Checkpointing
  /** False: commands are made anew for every micro-batch (micro-batch.ts). */
  plans?: boolean
  optimizer: AdamWOptions
  schedule: Schedule
  /** Updates by each batch; 1 where it is left out. */
  iterations?: number
  /** Of LoRA's dropout. */
  seed: number
  /** Where `nan_step_N/` goes. */
  runFolder: string
}

export interface StepHooks {
  /** Micro-batches done, of how many. */
  progress?: (done: number, total: number) => void
  /** The weights of this share of the step's updates are in place for all commands recorded from here on. Not called without a finite loss. */
  published?: (share: number) => void
  /** Called with a sentence where the step deviates from the config, as by smaller micro-batches. */
  warn?: (line: string) => void
}

interface StepResult {
  metrics: Metrics
  /** True where the weights stayed: nothing to learn from, or something was not finite. */
  skipped: boolean
  /** One for each sample of the batch: log-probabilities and entropies before the step. */
  samples: SampleResult[]
}

/** Bad steps in a row that end the run. */
const MOST_BAD_STEPS = 3

export class Trainer {
  readonly decoder: Decoder
  readonly options: TrainerOptions
  readonly optimizer: AdamW
  /** Runs its micro-batches. */
  readonly fitting: Fitting
  /** Steps done, skipped ones included; also the version of the weights. */
  step = 0
  /** Steps in a row that were not finite. */
  badSteps = 0
  readonly #dropout: boolean
  #lossChecked: boolean

  /** @throws UserError for a loss of the user's that has not the right shape */
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
   * Makes one step: all updates by a batch. An update whose loss or gradient is not finite is left out and ends its step, and the batch is written to
   * `nan_step_N/`.
   * @throws NotFiniteError at the third such step in a row; UserError where a custom loss is wrong
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

  /** Update `index` by a batch; the sampler's log-probabilities stay those that the tokens were drawn with. */
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
