/** From the keys of [trainer.args], which train and sft share, to what the trainer takes. */
import type { TrainerArgs } from '../config/schema.ts'
import type { Checkpointing } from '../model/decoder.ts'
import type { RunFolder } from '../monitor/run-folder.ts'
import type { Loss } from '../trainer/losses/index.ts'
import type { TrainerOptions } from '../trainer/trainer.ts'

type Shared = Pick<
  TrainerArgs,
  | 'temperature'
  | 'micro_batch_tokens'
  | 'gradient_checkpointing'
  | 'keep_attention'
  | 'optim'
  | 'adam_beta1'
  | 'adam_beta2'
  | 'adam_epsilon'
  | 'weight_decay'
  | 'max_grad_norm'
  | 'lr_scheduler_type'
  | 'learning_rate'
  | 'warmup_steps'
  | 'max_steps'
  | 'seed'
>

/** What of a layer is made again on the way back. */
export const checkpointingOf = (args: Pick<TrainerArgs, 'gradient_checkpointing' | 'keep_attention'>): Checkpointing =>
  args.gradient_checkpointing && args.keep_attention ? 'keep attention' : args.gradient_checkpointing

export function trainerOptions(args: Shared, loss: Loss, folder: RunFolder): TrainerOptions {
  return {
    loss,
    temperature: args.temperature,
    microBatchTokens: args.micro_batch_tokens,
    checkpointing: checkpointingOf(args),
    optimizer: {
      beta1: args.adam_beta1,
      beta2: args.adam_beta2,
      eps: args.adam_epsilon,
      weightDecay: args.weight_decay,
      maxGradNorm: args.max_grad_norm,
      moments: args.optim === 'adamw_8bit' ? '8bit' : 'float32',
    },
    schedule: {
      type: args.lr_scheduler_type,
      learningRate: args.learning_rate,
      warmupSteps: args.warmup_steps,
      maxSteps: args.max_steps,
    },
    seed: args.seed,
    runFolder: folder.path,
  }
}
