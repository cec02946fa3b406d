/**
 * One optimizer step: gradients of the whole batch, their norm, clipping, AdamW, the schedule, and what it all came to. The weights change in
 * place and at one point, without waiting in between: `published` is called right there, so whoever samples from the same buffers knows which
 * tokens are of which version. Whether the norm was finite is known later; if not, the GPU left everything as it was, and the version names the
 * weights of the one before, as that of every skipped step does.
 */
import { hashSeed } from '../common/random.ts'
import { phase } from '../common/timeline.ts'
import { tracer } from '../common/trace.ts'
import type { Metrics, TrainingBatch } from '../common/types.ts'
import type { Decoder } from '../model/decoder.ts'
import { refreshWeights } from '../model/decoder-load.ts'
import { NotFiniteError, writeBadStep } from './bad-step.ts'
import { Fitting } from './fitting.ts'
import { accumulateGradients, type GradientResult, type SampleResult } from './gradients.ts'
import { checkLossGradient, checkLossShape } from './losses/check.ts'
import { negativeLogLikelihood, type Loss } from './losses/index.ts'
import type { RatioBounds } from './losses/types.ts'
import { finite, lossKey, policyMetrics } from './metrics.ts'
import type { AddedTerms } from './micro-batch.ts'
import { AdamW, type AdamWOptions } from './optimizer.ts'
import { learningRateAt, type Schedule } from './schedule.ts'

export interface TrainerOptions extends AddedTerms {
  loss: Loss
  /** Scores every batch first, for `beta` and for a loss that reads refLogprobs; frozen, of the policy's shape (reference.ts). */
  reference?: Decoder
  /** Logits are divided by it: that of sampling. */
  temperature: number
  /** Rows of a micro-batch at most. */
  microBatchTokens: number
  checkpointing: boolean
  /** False: commands are made anew for every micro-batch (micro-batch.ts). */
  plans?: boolean
  optimizer: AdamWOptions
  schedule: Schedule
  /** Of LoRA's dropout. */
  seed: number
  /** Where `nan_step_N/` goes. */
  runFolder: string
}

export interface StepHooks {
  /** Micro-batches done, of how many. */
  progress?: (done: number, total: number) => void
  /** The step's weights are in place for all commands recorded from here on. Not called without a finite loss, or anything to learn from. */
  published?: () => void
  /** Told in a sentence what the step did otherwise than it was asked to. */
  warn?: (line: string) => void
}

export interface StepResult {
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
    this.#dropout = decoder.layers.some((l) => [l.q, l.k, l.v, l.o, l.gate, l.up, l.down].some((p) => !!p.lora?.dropout))
  }

  /**
   * Makes one step. A step whose loss or gradient is not finite is skipped, and its batch written to `nan_step_N/`.
   * @throws NotFiniteError at the third such step in a row; UserError where a custom loss is wrong
   */
  async trainStep(batch: TrainingBatch, hooks: StepHooks = {}): Promise<StepResult> {
    const { decoder, options, optimizer } = this
    const begin = performance.now()
    const learningRate = learningRateAt(options.schedule, this.step + 1)
    this.step++
    if (batch.lossTokenCount === 0) return { metrics: { 'optim/lr': learningRate }, skipped: true, samples: [] }

    const whole = tracer?.span('steps', 'forward_backward')
    const gradients = phase('gradients')
    const work = () =>
      accumulateGradients(decoder, batch, {
        ...options,
        ...this.fitting.size,
        dropoutSeed: this.#dropout ? hashSeed(options.seed, 'dropout', this.step) : undefined,
        progress: hooks.progress,
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
      hooks.published?.()
    }
    const norm = await optimizer.settle('optimizer step')
    optimizing.end()
    whole?.end()
    const skipped = !Number.isFinite(result.loss) || !Number.isFinite(norm)
    const metrics = this.#metrics(batch, result, { norm, learningRate, seconds: (performance.now() - begin) / 1000 })
    if (skipped) await this.#keepBadStep(batch, result.loss, norm, hooks.warn)
    else this.badSteps = 0
    return { metrics, skipped, samples: result.samples }
  }

  release(): void {
    this.fitting.release()
    this.optimizer.release()
  }

  #metrics(batch: TrainingBatch, result: GradientResult, step: { norm: number; learningRate: number; seconds: number }): Metrics {
    const [{ loss }, { gpu }] = [this.options, this.decoder]
    const { 'entropy/all/mean': entropy, ...ratios } = policyMetrics(
      batch,
      result.samples,
      loss.kernel ? (loss.args as unknown as RatioBounds) : undefined,
    )
    return {
      ...Object.fromEntries(Object.entries(result.lossMetrics).map(([name, value]) => [lossKey(name), finite(value)])),
      'loss/mean': finite(result.loss),
      'entropy/all/mean': entropy,
      // Supervised tokens were sampled by nobody.
      ...(loss === negativeLogLikelihood ? {} : ratios),
      'optim/grad_norm': finite(step.norm),
      'optim/lr': step.learningRate,
      'perf/throughput': result.rows / step.seconds,
      'perf/peak_memory': gpu.pool.peakBytes / 2 ** 30,
      'perf/buffers_made': gpu.pool.buffersMade + gpu.readBuffersMade,
      'time/forward_backward': step.seconds,
    }
  }

  async #keepBadStep(batch: TrainingBatch, loss: number, norm: number, warn: StepHooks['warn']): Promise<void> {
    const what = Number.isFinite(loss) ? `the gradient norm is ${norm}` : `the loss is ${loss}`
    const dir = await writeBadStep(this.options.runFolder, batch, what, warn)
    this.badSteps++
    if (this.badSteps < MOST_BAD_STEPS) return
    throw new NotFiniteError(
      `${MOST_BAD_STEPS} steps in a row were not finite (at step ${batch.step} ${what}), so the run stops; the weights are those of the last good step. ` +
        `Lower trainer.args.learning_rate or max_grad_norm; ${dir} holds the batch.`,
    )
  }
}
