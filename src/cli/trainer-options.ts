/** Turns keys of [trainer.args] that train and sft share into options of model and trainer. */
import type { TrainerArgs } from '../config/schema.ts'
import type { Checkpointing } from '../model/decoder/decoder.ts'
import type { LoadOptions } from '../model/decoder/load.ts'
import { configOfLayers, type Adapter, type LoraConfig } from '../model/files/peft.ts'
import { adapterModules } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
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

type LoraArgs = Pick<TrainerArgs, 'use_lora' | 'lora_rank' | 'lora_alpha' | 'lora_dropout' | 'lora_target_modules' | 'seed'>

/** What is trained: all weights, or an adapter, new or loaded. */
export function whatToTrain(
  args: LoraArgs,
  model: ModelConfig,
  adapter: Adapter | undefined,
): Pick<LoadOptions, 'full' | 'lora' | 'adapter'> {
  if (!args.use_lora) return { full: true }
  const { lora_rank: rank, lora_alpha: alpha, lora_dropout: dropout, seed } = args
  const targetModules = adapterModules(model, args.lora_target_modules)
  return { lora: { rank, alpha, dropout, targetModules, seed }, adapter }
}

/** The adapter_config.json of the trained adapter; undefined where all weights are trained. */
export function adapterConfig(
  args: LoraArgs,
  model: ModelConfig,
  adapter: Adapter | undefined,
  baseModel: string | null,
): LoraConfig | undefined {
  if (!args.use_lora) return undefined
  if (adapter) return configOfLayers(adapter, model)
  const { lora_rank: r, lora_alpha: loraAlpha, lora_dropout: loraDropout } = args
  const targetModules = adapterModules(model, args.lora_target_modules)
  return { r, loraAlpha, loraDropout, targetModules, useRslora: false, baseModel }
}

/** What the backward pass computes again in each layer. */
export const checkpointingOf = (args: Pick<TrainerArgs, 'gradient_checkpointing' | 'keep_attention'>): Checkpointing =>
  args.gradient_checkpointing && args.keep_attention ? 'keep attention' : args.gradient_checkpointing

/** The trainer's options from [trainer.args]. */
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
