/**
 * Loss and gradients of a training batch, micro-batch by micro-batch. The loss divides by the tokens of the whole batch, so the gradient does
 * not change with the size of the micro-batches.
 */
import type { ChunkLoss } from '../autograd/ops/head.ts'
import { Tape } from '../autograd/tape.ts'
import type { TrainingBatch, TrainingSample } from '../common/types.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import type { Decoder } from '../model/decoder.ts'
import { groupByPrompt, pack, rowsOfGroup, type PackedBatch, type PackGroup } from '../model/packed.ts'
import { forwardLogprobs, uploadBatch } from './device-batch.ts'
import { runHostLoss, runLossKernel, type Loss } from './losses/index.ts'
import type { LossInputs, RatioBounds } from './losses/types.ts'

export interface GradientOptions {
  loss: Loss
  temperature: number
  checkpointing: boolean
  /** Rows of a micro-batch at most; one group that needs more gets a micro-batch of its own. */
  microBatchTokens: number
  /** Seed of LoRA's dropout for this step; none without it. */
  dropoutSeed?: number
  progress?: (done: number, total: number) => void
  /** Sees what a loss of the user's is about to be given, a micro-batch at a time. */
  inspect?: (inputs: LossInputs[]) => void
}

/** What the samples of a batch came to; arrays are as long as each sample, 0 where nothing was scored. */
export interface SampleResult {
  logprobs: Float32Array
  entropy: Float32Array
}

export interface GradientResult {
  loss: number
  samples: SampleResult[]
  /** Means of a custom loss's metrics over sequences. */
  lossMetrics: Record<string, number>
  microBatches: number
  /** Rows computed: prompt rows that are shared count once. */
  rows: number
}

/** Splits groups into micro-batches of at most `rowsAtMost` rows, in order; a larger group is split by members, its prompt repeated. */
export function microBatches(samples: TrainingSample[], rowsAtMost: number): PackGroup[][] {
  const batches: PackGroup[][] = []
  let current: PackGroup[] = []
  let rows = 0
  const flush = () => {
    if (current.length > 0) batches.push(current)
    current = []
    rows = 0
  }
  for (const group of groupByPrompt(samples)) {
    let part: PackGroup = { prefix: group.prefix, members: [] }
    const close = () => {
      if (part.members.length === 0) return
      current.push(part)
      rows += rowsOfGroup(part, samples)
      part = { prefix: group.prefix, members: [] }
    }
    for (const member of group.members) {
      const wider = { prefix: group.prefix, members: [...part.members, member] }
      if (rows + rowsOfGroup(wider, samples) <= rowsAtMost) part = wider
      else {
        close()
        flush()
        part = { prefix: group.prefix, members: [member] }
      }
    }
    close()
  }
  flush()
  return batches
}

/** Log-probabilities and entropies of every token but the first of each sample, at `temperature`; nothing is trained. */
export async function scoreSamples(
  decoder: Decoder,
  samples: TrainingSample[],
  options: { temperature: number; microBatchTokens: number },
): Promise<SampleResult[]> {
  const results = samples.map(emptyResult)
  for (const groups of microBatches(samples, options.microBatchTokens)) {
    const packed = pack(samples, groups, 'all')
    if (packed.targets.length === 0) continue
    const tape = new Tape(decoder.gpu, false)
    const batch = uploadBatch(decoder.gpu, packed, { trainsEmbedding: false })
    const out = forwardLogprobs(tape, decoder, batch, { temperature: options.temperature, checkpointing: false })
    await readTokens(decoder.gpu, packed, out.logprobs.buffer, out.entropy.buffer, results, 'score')
    out.release()
    batch.release()
  }
  return results
}

/**
 * Adds the gradients of `batch` to the decoder's parameter banks (which the caller zeroes).
 * @throws UserError where a custom loss returns something that is no gradient
 */
export async function accumulateGradients(
  decoder: Decoder,
  batch: TrainingBatch,
  options: GradientOptions,
): Promise<GradientResult> {
  const { gpu } = decoder
  const { samples } = batch
  const results = samples.map(emptyResult)
  const batches = microBatches(samples, options.microBatchTokens)
  const custom: Record<string, number>[] = []
  let [loss, rows] = [0, 0]
  for (const [index, groups] of batches.entries()) {
    options.progress?.(index, batches.length)
    const packed = pack(samples, groups, 'loss')
    rows += packed.rows
    if (packed.targets.length === 0) continue
    const tape = new Tape(gpu, true)
    const seed = options.dropoutSeed === undefined ? undefined : options.dropoutSeed + index
    const device = uploadBatch(gpu, packed, { trainsEmbedding: !!decoder.embedding.trained, dropoutSeed: seed })
    const count = packed.targets.length
    const [coefficient, tokenLoss] = ['loss gradient', 'token losses'].map((label) => gpu.pool.acquire(count * 4, label))
    const builtIn = options.loss.kernel ? builtInLoss(gpu, batch, packed, { coefficient, tokenLoss }, options.loss) : undefined
    const out = forwardLogprobs(tape, decoder, device, { ...options, chunkLoss: builtIn?.chunkLoss })
    if (!builtIn) {
      await readTokens(gpu, packed, out.logprobs.buffer, out.entropy.buffer, results, 'forward')
      const host = hostLoss(batch, packed, results, options)
      gpu.write(coefficient, host.gradient)
      loss += host.loss
      custom.push(...host.metrics)
      out.backward(coefficient)
    }
    tape.backward()
    if (builtIn) {
      await readTokens(gpu, packed, out.logprobs.buffer, out.entropy.buffer, results, 'forward and backward')
      for (const value of await gpu.readF32(tokenLoss, count)) loss += value
      builtIn.release()
    }
    out.release()
    device.release()
    coefficient.release()
    tokenLoss.release()
  }
  options.progress?.(batches.length, batches.length)
  return { loss, samples: results, lossMetrics: meanOfEach(custom), microBatches: batches.length, rows }
}

const emptyResult = (sample: TrainingSample): SampleResult => ({
  logprobs: new Float32Array(sample.ids.length),
  entropy: new Float32Array(sample.ids.length),
})

async function readTokens(
  gpu: Gpu,
  packed: PackedBatch,
  logprobs: GpuBuffer,
  entropy: GpuBuffer,
  results: SampleResult[],
  wait: string,
): Promise<void> {
  const count = packed.targets.length
  const [l, e] = [
    await gpu.readF32(logprobs, count, { name: wait, work: packed.rows }),
    await gpu.readF32(entropy, count, 'entropy'),
  ]
  for (let i = 0; i < count; i++) {
    const result = results[packed.sample[i]]
    result.logprobs[packed.token[i]] = l[i]
    result.entropy[packed.token[i]] = e[i]
  }
}

/** A built-in loss as the head asks for it, chunk by chunk of the scored tokens. */
function builtInLoss(
  gpu: Gpu,
  batch: TrainingBatch,
  packed: PackedBatch,
  out: { coefficient: GpuBuffer; tokenLoss: GpuBuffer },
  loss: Loss,
): { chunkLoss: ChunkLoss; release: () => void } {
  // Supervised training has no sampler: its ratio is pinned by equal bounds, so any log-probability will do.
  const [inferenceLogprobs, advantages] = (['inferenceLogprobs', 'advantages'] as const).map((field) =>
    gpu.upload(
      Float32Array.from(packed.targets, (_, i) => batch.samples[packed.sample[i]][field][packed.token[i]]),
      field,
    ),
  )
  const args = { ...(loss.args as unknown as RatioBounds), lossTokenCount: batch.lossTokenCount }
  const chunkLoss: ChunkLoss = ({ first, count }, logprobs) => {
    const part = (buffer: GpuBuffer) => ({ buffer, offset: first * 4, bytes: count * 4 })
    const inputs = { logprobs: part(logprobs), inferenceLogprobs: part(inferenceLogprobs), advantages: part(advantages) }
    runLossKernel(gpu, loss.kernel!, { ...inputs, gradient: part(out.coefficient), loss: part(out.tokenLoss) }, count, args)
    return out.coefficient
  }
  return {
    chunkLoss,
    release() {
      inferenceLogprobs.release()
      advantages.release()
    },
  }
}

/** Runs a loss of the user's on every sample of a micro-batch. */
function hostLoss(batch: TrainingBatch, packed: PackedBatch, results: SampleResult[], options: GradientOptions) {
  const inputs = new Map([...new Set(packed.sample)].map((index) => [index, lossInputs(batch, index, results[index])]))
  options.inspect?.([...inputs.values()])
  const gradients = new Map<number, Float32Array>()
  const metrics: Record<string, number>[] = []
  let total = 0
  for (const [index, input] of inputs) {
    const out = runHostLoss(options.loss, input)
    gradients.set(index, out.gradient)
    total += out.loss
    if (out.metrics) metrics.push(out.metrics)
  }
  const gradient = Float32Array.from(packed.sample, (sample, i) => gradients.get(sample)![packed.token[i]])
  return { gradient, loss: total, metrics }
}

export function lossInputs(batch: TrainingBatch, index: number, result: SampleResult): LossInputs {
  const { inferenceLogprobs, advantages, lossMask, rollout } = batch.samples[index]
  const { lossTokenCount } = batch
  return { ...result, frozenLogprobs: result.logprobs, inferenceLogprobs, advantages, lossMask, rollout, lossTokenCount }
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
