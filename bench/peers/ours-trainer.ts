/** Trainers of our jobs. */
import { tmpdir } from 'node:os'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { negativeLogLikelihood, type Loss } from '../../src/trainer/losses/index.ts'
import { Trainer } from '../../src/trainer/trainer.ts'

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
