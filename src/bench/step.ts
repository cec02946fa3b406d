/** Benchmarks of whole steps: training a LoRA adapter, training every weight, and scoring. Each is checked before it is timed. */
import { randomUUID } from 'node:crypto'
import { rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { hashSeed, Random } from '../common/random.ts'
import type { TrainingSample } from '../common/types.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { loadDecoder, type LoadOptions, type ModelTensors } from '../model/decoder/load.ts'
import type { Checkpointing, Decoder } from '../model/decoder/decoder.ts'
import { untrained } from '../model/decoder/packed.ts'
import { useMatrixUnits } from '../kernels/common/matrix-units.ts'
import { adapterModules, LINEAR_MODULES, weightCount } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { scoreSamples } from '../trainer/gradients.ts'
import { negativeLogLikelihood } from '../trainer/losses/index.ts'
import { Trainer, type TrainerOptions } from '../trainer/trainer.ts'
import { CheckError } from './check.ts'
import { peakOf, type Peaks, type Rate } from './peaks.ts'
import { referenceLogprobs } from './reference.ts'
import { kernelShares, modelFlops, used, type KernelShares, type Usage } from './usage.ts'

export const stepKinds = ['score', 'lora', 'full'] as const
export type StepKind = (typeof stepKinds)[number]

export interface StepSize {
  sequences: number
  /** Tokens per sequence. */
  length: number
  /** Tokens per micro-batch. Default 2048. */
  microBatchTokens?: number
  /** Which layers are recomputed in the backward pass. Default: none. */
  checkpointing?: Checkpointing
  /** Whether large products run on the adapter's matrix units; MFU is then a share of their peak. Default: no. */
  matrixUnits?: boolean
}

export interface StepRow extends Omit<Usage, 'seconds'> {
  group: 'step'
  name: StepKind
  model: string
  matrixUnits?: boolean
  sequences: number
  length: number
  seconds: number
  tokensPerSecond: number
  /** Share of the adapter's measured peak that is used for the model's own operations. */
  mfu: number
  kernels?: KernelShares
  /** Result of the check: the largest difference of a log-probability from float64, or from scoring. */
  error: number
}

const loraRank = 8
/** How an adapter of `loraRank` is loaded. */
export const loraOptions = { rank: loraRank, alpha: 32, dropout: 0, targetModules: [...LINEAR_MODULES], seed: 0 }
/** `loraOptions` for a model whose modules may have other names. */
export const loraOptionsOf = (config: ModelConfig) => ({ ...loraOptions, targetModules: adapterModules(config, LINEAR_MODULES) })

/** With more weights than this, the float64 reference would take minutes. */
const referenceAtMost = 2e8
const referenceTokens = 5
/** Limit of the difference of log-probabilities from float64, relative to their size. Tests have a limit of 1e-5; random weights are harder. */
const tolerance = 1e-4
/** The limit if operands are rounded to f16. */
const unitsTolerance = 1e-2

/** The peak on which shares are based. */
export const peakFor = (peaks: Peaks, matrixUnits: boolean): Rate => (matrixUnits && peaks.units ? peaks.units : peaks.fma)

/** Sequences of random tokens without shared prompts; every token but the first of each is trained on. */
export function randomSamples({ sequences, length }: StepSize, vocabulary: number): TrainingSample[] {
  return Array.from({ length: sequences }, (_, i) => {
    const random = new Random(hashSeed('bench', i))
    const sample = untrained(Int32Array.from({ length: length + 1 }, () => random.int(vocabulary)))
    sample.lossMask.fill(1, 1)
    sample.advantages.fill(1)
    return sample
  })
}

/** Usual number of tokens in a micro-batch; a smaller batch is one micro-batch. */
const usualTokens = 2048

/**
 * Measures one kind of step.
 * @param repeats number of timed steps, of which the fastest counts
 * @throws CheckError naming the model and the step if log-probabilities are wrong or a loss does not fall; GpuError if memory runs out
 */
export async function benchStep(
  gpu: Gpu,
  files: ModelTensors,
  kind: StepKind,
  size: StepSize,
  peaks: Peaks,
  repeats: number,
): Promise<StepRow> {
  const name = `step ${kind} of ${files.name}`
  const { matrixUnits = false } = size
  const lora = kind === 'lora' ? loraOptionsOf(files.config) : undefined
  const loading: LoadOptions = { round: true, full: kind === 'full', lora, matrixUnits }
  const decoder = await loadDecoder(gpu, files, loading)
  const samples = randomSamples(size, files.config.vocabSize)
  try {
    const step = kind === 'score' ? scoringStep(name, decoder, files, samples, size) : trainingStep(name, decoder, samples, size)
    try {
      const error = await step.check()
      let best: Usage | undefined
      for (let i = 0; i < repeats; i++) {
        const usage = await used(gpu, step.run)
        if (!best || usage.seconds < best.seconds) best = { ...usage, peakBytes: Math.max(usage.peakBytes, best?.peakBytes ?? 0) }
      }
      const kernels = gpu.facts.timestamps ? kernelShares(await gpu.profile(step.run)) : undefined
      const rows = size.sequences * size.length
      const lengths = samples.map(({ ids }) => ids.length - 1)
      const flops = modelFlops(files.config, lengths, rows, kind === 'score' ? 'nothing' : kind)
      const { seconds, ...usage } = best!
      const idleShare = usage.idleShare ?? (kernels ? Math.max(0, 1 - kernels.totalMs / 1000 / seconds) : undefined)
      const { sequences, length } = size
      const speed = { seconds, tokensPerSecond: rows / seconds, mfu: flops / seconds / 1e9 / peakOf(peakFor(peaks, matrixUnits)) }
      return {
        group: 'step',
        name: kind,
        model: files.name,
        sequences,
        length,
        ...(matrixUnits ? { matrixUnits } : {}),
        ...speed,
        ...usage,
        idleShare,
        kernels,
        error,
      }
    } finally {
      step.release()
    }
  } finally {
    decoder.release()
    useMatrixUnits(gpu, false)
    gpu.pool.trim()
  }
}

interface Step {
  check: () => Promise<number>
  run: () => Promise<void>
  release: () => void
}

/** Compares log-probabilities of a few tokens with float64, if the model is small enough. @returns the largest relative error, or 0 */
async function scoringError(
  name: string,
  decoder: Decoder,
  files: ModelTensors,
  samples: TrainingSample[],
  most: number,
): Promise<number> {
  if (weightCount(files.config) > referenceAtMost) return 0
  const ids = [...samples[0].ids.subarray(0, referenceTokens)]
  const want = await referenceLogprobs(files, ids)
  const length = ids.length
  const [{ logprobs }] = await scoreSamples(decoder, [untrained(Int32Array.from(ids))], {
    temperature: 1,
    microBatchTokens: length,
  })
  let worst = 0
  want.forEach((value, i) => {
    const error = Math.abs(logprobs[i + 1] - value) / Math.max(1, Math.abs(value))
    if (!(error <= most))
      throw new CheckError(
        `${name}: the log-probability of token ${i + 1} is ${logprobs[i + 1]} and should be ${value}, so it is not timed.`,
      )
    worst = Math.max(worst, error)
  })
  return worst
}

function scoringStep(name: string, decoder: Decoder, files: ModelTensors, samples: TrainingSample[], size: StepSize): Step {
  const { matrixUnits, microBatchTokens = usualTokens } = size
  const run = async () => void (await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens }))
  return {
    run,
    async check() {
      await run()
      return await scoringError(name, decoder, files, samples, matrixUnits ? unitsTolerance : tolerance)
    },
    release: () => {},
  }
}

/** A trainer with cross-entropy and a constant learning rate, by default 1e-4. */
export function benchTrainer(
  decoder: Decoder,
  {
    learningRate = 1e-4,
    ...options
  }: Pick<TrainerOptions, 'microBatchTokens' | 'checkpointing' | 'runFolder'> & { learningRate?: number },
): Trainer {
  return new Trainer(decoder, {
    ...options,
    loss: negativeLogLikelihood,
    temperature: 1,
    optimizer: { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 },
    schedule: { type: 'constant', learningRate, warmupSteps: 0, maxSteps: 1000 },
    seed: 0,
  })
}

function trainingStep(name: string, decoder: Decoder, samples: TrainingSample[], size: StepSize): Step {
  // Made only for a step that is not finite, so that Ctrl-C leaves no folder behind.
  const folder = join(tmpdir(), `dawn-rl-bench-${randomUUID()}`)
  const { microBatchTokens = usualTokens } = size
  const lossTokenCount = size.sequences * size.length
  const trainer = benchTrainer(decoder, { microBatchTokens, checkpointing: size.checkpointing ?? false, runFolder: folder })
  let step = 0
  const train = async () => await trainer.trainStep({ step: step++, samples, lossTokenCount })
  return {
    run: async () => void (await train()),
    async check() {
      const want = await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens })
      const first = await train()
      let worst = 0
      first.samples.forEach(({ logprobs }, s) =>
        logprobs.forEach((l, t) => {
          worst = Math.max(worst, Math.abs(l - want[s].logprobs[t]) / Math.max(1, Math.abs(l)))
        }),
      )
      if (!(worst <= tolerance))
        throw new CheckError(`${name}: training and scoring differ by ${worst} in a log-probability, so it is not timed.`)
      const second = await train()
      const losses = [first, second].map(({ metrics }) => metrics['loss/mean'] ?? NaN)
      if (!(losses[1] < losses[0]))
        throw new CheckError(`${name}: the loss goes from ${losses[0]} to ${losses[1]} over a step, so it is not timed.`)
      return worst
    },
    release() {
      trainer.release()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
