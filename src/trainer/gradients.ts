/**
 * Loss and gradients of a training batch, one micro-batch after another. The loss is divided by the number of loss tokens in the whole batch, so the
 * gradient does not depend on the size of the micro-batches.
 */
import type { TrainingBatch, TrainingSample } from '../common/types.ts'
import type { Checkpointing, Decoder } from '../model/decoder/decoder.ts'
import { packedBatches, type PackedBatch } from '../model/decoder/packed.ts'
import { runHostLoss, type Loss } from './losses/index.ts'
import { withKl } from './losses/kl.ts'
import type { LossInputs } from './losses/types.ts'
import { MicroBatchRunner, scaleOf, type AddedTerms, type LossData, type TokenResults, type Work } from './micro-batch.ts'
import { scoreReference } from './reference.ts'

export interface GradientOptions extends AddedTerms {
  loss: Loss
  temperature: number
  checkpointing: Checkpointing
  /** The most rows in a micro-batch. A single group that needs more gets a micro-batch of its own. */
  microBatchTokens: number
  /** Keeps its recorded commands for the next step. Default: a runner for this call only. */
  runner?: MicroBatchRunner
  /** Seed of LoRA's dropout for this step. Default: no dropout. */
  dropoutSeed?: number
  /** Computes the samples' `refLogprobs` before anything else, unless all samples have them. */
  reference?: Decoder
  progress?: (done: number, total: number) => void
  /** Called for each micro-batch with the inputs of a custom loss, before the loss runs. */
  inspect?: (inputs: LossInputs[]) => void
}

/** Results for one sample. The arrays are as long as the sample, with 0 for tokens that were not scored. */
export interface SampleResult {
  logprobs: Float32Array
  entropy: Float32Array
}

export interface GradientResult {
  loss: number
  samples: SampleResult[]
  /** Means over sequences of a custom loss's metrics. */
  lossMetrics: Record<string, number>
  microBatches: number
  /** Rows computed; shared prompt rows count once. */
  rows: number
}

/** Computes log-probabilities and entropies at `temperature` of every token of each sample but the first, without gradients. */
export async function scoreSamples(
  decoder: Decoder,
  samples: TrainingSample[],
  options: { temperature: number; microBatchTokens: number; runner?: MicroBatchRunner },
): Promise<SampleResult[]> {
  const results = samples.map(emptyResult)
  const batches = packedBatches(decoder.config, samples, options.microBatchTokens, 'all')
  const work: Work = { kind: 'score', temperature: options.temperature, checkpointing: false }
  await withRunner(decoder, options, async (runner) => {
    await runner.makeRoom(batches, work)
    for (const packed of batches) {
      if (packed.targets.length > 0) keepResults(packed, await runner.run(packed, work), results)
    }
  })
  return results
}

/**
 * Adds the gradients of `batch` to the decoder's parameter banks, which the caller has zeroed. Returns loss and log-probabilities.
 * @throws UserError if a custom loss throws or returns something invalid
 */
export async function accumulateGradients(
  decoder: Decoder,
  batch: TrainingBatch,
  options: GradientOptions,
): Promise<GradientResult> {
  const { samples } = batch
  const { temperature, checkpointing, dropoutSeed, beta, entropyCoef } = options
  const results = samples.map(emptyResult)
  const batches = packedBatches(decoder.config, samples, options.microBatchTokens, 'loss')
  const custom: Record<string, number>[] = []
  let loss = 0
  const collect = async (packed: PackedBatch, numbers: Promise<TokenResults>): Promise<void> => {
    const found = await numbers
    keepResults(packed, found, results)
    for (const value of found.losses) loss += value
    if (entropyCoef) for (const value of found.entropy) loss -= (entropyCoef * value) / batch.lossTokenCount
  }
  await withRunner(decoder, options, async (runner) => {
    const sizes = { lossTokens: batch.lossTokenCount, gradientScale: scaleOf(batch, options) }
    const common = { temperature, checkpointing, dropoutSeed, beta, entropyCoef, ...sizes }
    const work: Work = options.loss.kernel ? { ...common, kind: 'loss', loss: options.loss } : { ...common, kind: 'host' }
    await runner.makeRoom(batches, work)
    if (options.reference) await scoreReference(runner, samples, options.reference, options)
    let behind: Promise<void> | undefined
    for (const [index, packed] of batches.entries()) {
      options.progress?.(index, batches.length)
      if (packed.targets.length === 0) continue
      const own = { ...work, dropoutSeed: dropoutSeed === undefined ? undefined : dropoutSeed + index }
      if (options.loss.kernel) {
        const numbers = runner.run(packed, own, lossData(batch, packed, beta))
        // An error of one promise while the other is awaited must not count as an unhandled rejection.
        numbers.catch(() => {})
        await behind
        behind = collect(packed, numbers)
        behind.catch(() => {})
        // A GPU not shared with an engine gets its next micro-batch before this one ends. (On software adapters that would take CPU cores.)
        if (decoder.gpu.facts.software || decoder.gpu.share.engines > 0) await behind
      } else {
        await collect(packed, runner.run(packed, own))
        const host = hostLoss(batch, packed, results, options)
        await runner.backward(host.gradient)
        loss += host.loss
        custom.push(...host.metrics)
      }
    }
    await behind
  })
  options.progress?.(batches.length, batches.length)
  const rows = batches.reduce((sum, packed) => sum + packed.rows, 0)
  return { loss, samples: results, lossMetrics: meanOfEach(custom), microBatches: batches.length, rows }
}

/** Calls `fn` with the caller's runner, or with one that lives for this call only. */
async function withRunner(
  decoder: Decoder,
  options: { runner?: MicroBatchRunner; microBatchTokens: number; reference?: Decoder },
  fn: (runner: MicroBatchRunner) => Promise<void>,
): Promise<void> {
  const runner =
    options.runner ?? new MicroBatchRunner(decoder, { rowsAtMost: options.microBatchTokens, reference: options.reference })
  try {
    await fn(runner)
  } finally {
    if (!options.runner) runner.release()
  }
}

const emptyResult = (sample: TrainingSample): SampleResult => ({
  logprobs: new Float32Array(sample.ids.length),
  entropy: new Float32Array(sample.ids.length),
})

function keepResults(packed: PackedBatch, numbers: TokenResults, results: SampleResult[]): void {
  for (let i = 0; i < packed.targets.length; i++) {
    const result = results[packed.sample[i]]
    result.logprobs[packed.token[i]] = numbers.logprobs[i]
    result.entropy[packed.token[i]] = numbers.entropy[i]
  }
}

/** Inputs of a built-in loss. (Supervised training clamps every ratio to 1, so its inference log-probabilities have no effect.) */
function lossData({ samples }: TrainingBatch, packed: PackedBatch, beta = 0): LossData {
  const values = (field: 'inferenceLogprobs' | 'advantages' | 'refLogprobs') =>
    Float32Array.from(packed.sample, (sample, i) => samples[sample][field]![packed.token[i]])
  const refLogprobs = beta > 0 ? values('refLogprobs') : undefined
  return { inferenceLogprobs: values('inferenceLogprobs'), advantages: values('advantages'), refLogprobs }
}

/** Runs a custom loss on every sample of a micro-batch. */
function hostLoss(batch: TrainingBatch, packed: PackedBatch, results: SampleResult[], options: GradientOptions) {
  const inputs = new Map([...new Set(packed.sample)].map((index) => [index, lossInputs(batch, index, results[index])]))
  options.inspect?.([...inputs.values()])
  const gradients = new Map<number, Float32Array>()
  const metrics: Record<string, number>[] = []
  let total = 0
  for (const [index, input] of inputs) {
    const out = withKl(runHostLoss(options.loss, input), input, options.beta)
    gradients.set(index, out.gradient.slice()) // a loss may reuse one array for all sequences
    total += out.loss
    if (out.metrics) metrics.push(out.metrics)
  }
  const gradient = Float32Array.from(packed.sample, (sample, i) => gradients.get(sample)![packed.token[i]])
  return { gradient, loss: total, metrics }
}

function lossInputs(batch: TrainingBatch, index: number, result: SampleResult): LossInputs {
  const { inferenceLogprobs, refLogprobs, advantages, lossMask, rollout } = batch.samples[index]
  const [{ lossTokenCount }, { logprobs }] = [batch, result]
  return { ...result, frozenLogprobs: logprobs, inferenceLogprobs, refLogprobs, advantages, lossMask, rollout, lossTokenCount }
}

function meanOfEach(rows: Record<string, number>[]): Record<string, number> {
  const sums: Record<string, { sum: number; count: number }> = {}
  for (const row of rows) {
    for (const [name, value] of Object.entries(row)) {
      const s = (sums[name] ??= { sum: 0, count: 0 })
      s.sum += value
      s.count++
    }
  }
  return Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]))
}
