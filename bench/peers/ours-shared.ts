/** What our jobs share: settings, time, and a trainer of cross-entropy. */
import { tmpdir } from 'node:os'
import { plainSampling } from '../../src/bench/data.ts'
import type { SamplingParams } from '../../src/common/types.ts'
import type { Gpu } from '../../src/gpu/gpu.ts'
import type { Decoder } from '../../src/model/decoder.ts'
import type { ModelFiles } from '../../src/model/open.ts'
import { LINEAR_MODULES } from '../../src/model/shapes.ts'
import { negativeLogLikelihood, type Loss } from '../../src/trainer/losses/index.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import type { Job, Result } from './job.ts'
import { median } from './table.ts'

/** As in peers' LoraConfig; B is zero, so the model says what it says without. */
export const LORA = { rank: 8, alpha: 32, dropout: 0, targetModules: [...LINEAR_MODULES], seed: 0 }

export const sampling = (over: Partial<SamplingParams>): SamplingParams => ({
  ...plainSampling,
  temperature: 1,
  max_tokens: 16,
  ...over,
})

/** What every work needs. */
export interface Bench {
  job: Job
  gpu: Gpu
  files: ModelFiles
  /** Writes a figure with where it was made. */
  report: (result: Omit<Result, 'peakBytes'>) => void
}

/** The median time of `run` in seconds, after `warmUp` runs that do not count. */
export async function secondsOf(run: () => Promise<unknown>, repeats: number, warmUp = 1): Promise<number> {
  for (let i = 0; i < warmUp; i++) await run()
  const times: number[] = []
  for (let i = 0; i < repeats; i++) {
    const begin = performance.now()
    await run()
    times.push((performance.now() - begin) / 1000)
  }
  return median(times)
}

/** AdamW at 1e-4, as the peers' steps. */
export function trainerOf(
  decoder: Decoder,
  loss: Loss,
  options: { microBatchTokens: number; checkpointing: boolean; maxGradNorm: number },
): Trainer {
  return new Trainer(decoder, {
    loss,
    temperature: 1,
    microBatchTokens: options.microBatchTokens,
    checkpointing: options.checkpointing,
    optimizer: { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0, maxGradNorm: options.maxGradNorm },
    schedule: { type: 'constant', learningRate: 1e-4, warmupSteps: 0, maxSteps: 1000 },
    seed: 0,
    runFolder: tmpdir(),
  })
}

/** A trainer of cross-entropy whose gradients are not clipped. */
export const supervisedTrainer = (decoder: Decoder, microBatchTokens: number, checkpointing: boolean): Trainer =>
  trainerOf(decoder, negativeLogLikelihood, { microBatchTokens, checkpointing, maxGradNorm: 1e9 })
