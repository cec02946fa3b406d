/**
 * The one schema of an RL run's TOML file: types, defaults, limits and help text of every key, in vf-rl's dialect.
 *
 * - Everything is derived from here: the type of the config, the messages of a mistake, command-line overrides, `--help`,
 *   docs/config.md, the resolved config.toml of a run.
 * - Every accepted key has an effect. Keys of other trainers that mean nothing here are in foreign.ts.
 * - The schema sees a file after `normalize` (compose.ts): `model = "x"` is `model.name`, one `[env]` is a list of one.
 * - Defaults are RLTrainer's (verifiers 0.1.9) where it has the key. Defaults that depend on other keys are filled in by resolve.ts.
 * - Paths are relative to the folder that the command is started in.
 */
import * as z from 'zod'
import { QUANTIZATIONS } from '../model/types.ts'
import { SINKS } from '../monitor/sinks/types.ts'
import { FOLDER_NAME, NO_DEVICE } from '../common/folders.ts'
import { algorithmFields, freeTable } from './algorithm-schema.ts'
import { type CkptConfig, ckptSchema } from './ckpt-schema.ts'
import { envSchema } from './env-schema.ts'
import { type InferenceConfig, inferenceFields } from './inference-schema.ts'

/** The linear layers of a decoder block that LoRA can adapt, by their Hugging Face names. */
const ALL_LAYERS = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const
const LINEAR_LAYERS = [
  ...ALL_LAYERS,
  'in_proj_qkv',
  'in_proj_z',
  'in_proj_b',
  'in_proj_a',
  'out_proj',
  'in_proj',
  'w1',
  'w2',
  'w3',
  'input_linear',
  'output_linear',
] as const

const REPORTERS = ['none', ...SINKS] as const

export const runFields = {
  run_name: z
    .string()
    .regex(FOLDER_NAME, "the name of a folder: letters, digits, '-', '_' and '.', at most 200, the last one no '.'")
    .regex(NO_DEVICE, "another name: Windows keeps this one for a device, and a run's folder may be taken there")
    .optional()
    .describe(
      'Name of the run and of its folder. Default: a new one of environment, model and six hex digits, as in reverse-text--tiny--3fa9c1.',
    ),
  output_dir: z.string().min(1).default('outputs').describe('The run is written to <output_dir>/<run_name>/.'),
  seed: z
    .int()
    .min(0)
    .default(42)
    .describe('Everything random comes from it: order of tasks, sampling, LoRA initialisation, dropout.'),
  shuffle_dataset: z
    .boolean()
    .default(true)
    .describe('Rows come in a new order in each pass. false: in the order of the data, as for a curriculum from easy to hard.'),
}

export const loraFields = {
  use_lora: z
    .boolean()
    .default(true)
    .describe('Train a LoRA adapter. false trains all weights (full fine-tuning), with a learning rate about 10 times lower.'),
  lora_rank: z.int().min(1).max(1024).default(8).describe('Rank r of the adapter. Memory and adapter file grow with it.'),
  lora_alpha: z.number().positive().default(32).describe('Scale: the adapter is multiplied by lora_alpha / lora_rank.'),
  lora_dropout: z
    .number()
    .min(0)
    .lt(1)
    .default(0)
    .describe("Dropout on the adapter's input while training. Above 0 the trainer no longer scores exactly what was sampled."),
  lora_target_modules: z
    .array(z.enum(LINEAR_LAYERS))
    .min(1)
    .default([...ALL_LAYERS])
    .describe(
      'Linear layers with an adapter. Default: all of them; in a Gated DeltaNet (Qwen3.5) in_proj_qkv, in_proj_z and out_proj are then among them, in LFM2 in_proj and out_proj of its convolutions, in Granite 4 input_linear (gate and up in one) and output_linear. LFM2 calls o_proj out_proj, and gate_proj, up_proj, down_proj w1, w3, w2; both names do.',
    ),
}

const BITSANDBYTES = 'is named "adamw_8bit" here, with its state on the GPU'

export const optimizerFields = {
  optim: z
    .enum(['adamw', 'adamw_8bit'])
    .default('adamw')
    .meta({ foreign: { adamw_bnb_8bit: BITSANDBYTES, paged_adamw_8bit: BITSANDBYTES } })
    .describe(
      'AdamW; "adamw_8bit" holds both moments of matrices in 8 bits, in blocks of 256: 2 bytes a trained parameter and not 8, for full fine-tuning of large models.',
    ),
  learning_rate: z
    .number()
    .min(0)
    .default(1e-5)
    .describe(
      'Peak learning rate of AdamW. LoRA takes about 10 times what full fine-tuning takes: 1e-5 to 1e-4 for 4B, more for small models.',
    ),
  lr_scheduler_type: z
    .enum(['constant', 'constant_with_warmup', 'linear', 'cosine'])
    .default('constant')
    .describe(
      'As in transformers: linear and cosine warm up for warmup_steps, then fall to 0 at max_steps; constant ignores warmup_steps.',
    ),
  warmup_steps: z.int().min(0).default(0).describe('Steps over which the learning rate rises from 0.'),
  max_steps: z.int().min(1).default(500).describe('Optimizer steps of the whole run (a resumed run stops at the same step).'),
  max_grad_norm: z
    .number()
    .positive()
    .default(1.0)
    .describe('The gradient is scaled down to this global norm where it is longer.'),
  weight_decay: z.number().min(0).default(0.0).describe('Decoupled weight decay of AdamW.'),
  adam_beta1: z.number().min(0).lt(1).default(0.9).describe('Decay of the first moment.'),
  adam_beta2: z.number().min(0).lt(1).default(0.999).describe('Decay of the second moment.'),
  adam_epsilon: z.number().positive().default(1e-8).describe('Added to the square root of the second moment.'),
}

export const microBatchFields = {
  micro_batch_size: z
    .int()
    .min(1)
    .default(8)
    .describe(
      'A micro-batch has room for this many sequences of max_seq_len tokens; shorter ones are packed, so more of them fit. Memory only: the gradient does not depend on it.',
    ),
  micro_batch_tokens: z
    .union([z.int().min(16), z.literal('auto')])
    .optional()
    .describe(
      'The same room, in tokens. Default: micro_batch_size x max_seq_len. "auto": the largest power of two whose memory fits, at most a batch; it depends on the memory that is free at the start, so two runs may differ in rounding. The number is in the run\'s config.toml, and --resume keeps it.',
    ),
  gpu_memory: z
    .number()
    .positive()
    .optional()
    .describe(
      'GiB of GPU memory that the run may fill, for a GPU that others use too; micro-batches are made smaller where they would take more (docs/reliability.md). micro_batch_tokens = "auto" is chosen to fit into it; without it, into the memory that is free, where the machine tells (a software adapter: the free memory of the system; NVIDIA: nvidia-smi; AMD: the driver; Apple: two thirds of all memory).',
    ),
  gradient_checkpointing: z
    .boolean()
    .default(true)
    .describe(
      'Keep one hidden state a layer and compute the rest again in the backward pass: far less memory, a fifth to a third more time.',
    ),
  keep_attention: z
    .boolean()
    .default(false)
    .describe(
      'With gradient_checkpointing: keep the outputs of attention, too, and do not compute them again. The longer the sequences the more time it saves; it takes heads x head size x 4 bytes more for each token and layer. Results are the same to the bit.',
    ),
  matrix_units: z
    .boolean()
    .default(false)
    .describe(
      "Run large products and attention's backward pass on the GPU's matrix units: operands are rounded to f16 (about 2e-4 of a product), sums stay float32. For faster training (1.9 times on an H200, with attention in float32) and decoding (1.2 times there); refused where the GPU shows none, where a weight is outside f16's range, and for Gemma, whose activations are.",
    ),
  bf16: z
    .boolean()
    .default(true)
    .describe(
      'Hold loaded weights in bf16, rounding those that do not fit it exactly. false keeps such weights in float32. Arithmetic is float32 either way, except with matrix_units. Full fine-tuning trains float32 masters; kernels compute with their copy, rounded where the weight is held in bf16.',
    ),
  quantization: z
    .enum(QUANTIZATIONS)
    .optional()
    .describe(
      'Hold the matrices of the layers in few bits: "gguf" as a quantised GGUF file has them; "q8_0" the same, and all other matrices in 8 bits. A third to half of the memory of bf16, for an adapter on a model that would not fit; slower, as values are widened each time they are used (docs/performance.md). Default: bf16, to which a GGUF file is widened when it is loaded, with the same numbers as "gguf".',
    ),
}

export const outputFields = {
  logging_steps: z.int().min(1).default(1).describe('Print a progress line every so many steps. metrics.jsonl has every step.'),
  report_to: z
    .array(z.enum(REPORTERS))
    .default([])
    .describe(
      'Where else metrics go, beside metrics.jsonl: docs/sinks.md says what each needs. A single word may stand without brackets.',
    ),
}

const batchFields = {
  batch_size: z.int().min(2).default(512).describe('Rollouts of one optimizer step: batch_size / rollouts_per_example tasks.'),
  rollouts_per_example: z
    .int()
    .min(2)
    .default(16)
    .describe(
      'Rollouts of one task, which share a baseline (group). More: a steadier advantage, fewer tasks a step. 8 or more is advised.',
    ),
  max_seq_len: z
    .int()
    .min(16)
    .default(2048)
    .describe('Longest sequence (prompt and completion) in tokens. Sets the room of the KV cache and of a micro-batch.'),
  max_prompt_len: z
    .int()
    .min(1)
    .optional()
    .describe(
      'Longest prompt in tokens; a rollout with a longer one fails. Default: at most 512: what max_tokens leaves of max_seq_len, or a quarter of it where max_tokens is not set.',
    ),
  max_tokens: z.int().min(1).optional().describe('Longest completion in tokens. Default: max_seq_len - max_prompt_len.'),
}

const samplingFields = {
  temperature: z.number().positive().default(1.0).describe('Logits are divided by it, when sampling and when training.'),
  top_p: z
    .number()
    .gt(0)
    .max(1)
    .default(1.0)
    .describe('Draw from the most likely tokens that together have this probability. 1.0: off.'),
  top_k: z.int().min(-1).default(0).describe('Draw from this many most likely tokens. 0 or -1: off.'),
  min_p: z
    .number()
    .min(0)
    .max(1)
    .default(0.0)
    .describe('Draw from tokens at least this fraction as likely as the most likely one. 0.0: off.'),
  repetition_penalty: z
    .number()
    .positive()
    .default(1.0)
    .describe('Makes tokens of the prompt and of the completion so far less likely (above 1). 1.0: off.'),
  presence_penalty: z
    .number()
    .min(-2)
    .max(2)
    .default(0.0)
    .describe('Taken from the logit of each token that the completion already has. 0.0: off.'),
  frequency_penalty: z.number().min(-2).max(2).default(0.0).describe('The same, times how often it occurs. 0.0: off.'),
  stop: z.array(z.string().min(1)).default([]).describe("Strings that end a completion, beside the model's own end tokens."),
}

const turnFields = {
  trajectory_strategy: z
    .enum(['interleaved', 'branching'])
    .default('interleaved')
    .describe(
      'Rollouts of several turns. "interleaved": later turns go on with the tokens before them as they stand, one sample a rollout. "branching": the chat template renders each turn anew, one sample a turn; for templates that rewrite history (Qwen3 drops thoughts).',
    ),
  tool_call_parser: z
    .enum(['auto', 'hermes', 'llama3_json', 'json'])
    .default('auto')
    .describe('How the model writes calls of tools, in environments that have tools. "auto": as its chat template shows.'),
}

/** chat_template_kwargs, of `train` and of `sft`. */
export const templateFields = {
  chat_template_kwargs: freeTable()
    .default({})
    .describe(
      'Variables for the chat template, as { enable_thinking = false } of Qwen3: for every prompt, in evaluation too; a template ignores those that it does not know.',
    ),
}

const asyncFields = {
  max_async_level: z
    .int()
    .min(0)
    .max(16)
    .default(1)
    .describe(
      'Steps that sampling may run ahead of training. 1: one step off-policy; 0: in turns, which the embedded engine repeats bit for bit.',
    ),
  max_off_policy_steps: z
    .int()
    .min(0)
    .default(8)
    .describe('A rollout with a token sampled more than this many steps before the one that would train on it is dropped.'),
  max_concurrent: z
    .int()
    .min(1)
    .default(1024)
    .describe('Rollouts in flight at most (sampling, being scored, or waiting for a slot).'),
  generation_timeout: z
    .number()
    .positive()
    .default(600)
    .describe(
      "Seconds allowed for one completion, and for the environment's work between two; after that the rollout has failed.",
    ),
  rollout_timeout: z
    .number()
    .positive()
    .optional()
    .describe(
      "Seconds allowed for all completions of one rollout and the environment's work between them together, time spent waiting for a slot not counted; after that it has failed. Default: no limit beside generation_timeout.",
    ),
  reward_timeout: z
    .number()
    .positive()
    .default(60)
    .describe('Seconds allowed for the reward of one rollout; after that the rollout has failed.'),
}

const evalFields = {
  eval_strategy: z
    .enum(['no', 'steps'])
    .default('no')
    .describe('"steps": evaluate on the held-out split before the first step, every eval_steps, and after the last.'),
  eval_steps: z.int().min(1).default(50).describe('Steps between two evaluations.'),
  eval_examples: z
    .int()
    .min(1)
    .default(64)
    .describe('Held-out tasks of one evaluation (the same ones each time), of each environment.'),
  eval_rollouts_per_example: z.int().min(1).default(1).describe('Rollouts of each held-out task.'),
  eval_temperature: z.number().min(0).optional().describe('Temperature of evaluation; 0 is greedy. Default: temperature.'),
}

const sampleLogFields = {
  log_completions: z
    .boolean()
    .default(true)
    .describe('Print sample completions to the console. Every rollout is on disk either way.'),
  log_completions_steps: z.int().min(1).default(10).describe('Steps between two prints of samples (the first step prints too).'),
  num_completions_to_print: z.int().min(1).default(2).describe('Samples a print.'),
}

/** The keys of [trainer.args] in the order and groups of `--help`. */
export const trainerGroups = {
  Run: runFields,
  'What is trained': loraFields,
  Optimizer: optimizerFields,
  'Batch and lengths': { ...batchFields, ...microBatchFields },
  Sampling: samplingFields,
  'Turns and tools': { ...templateFields, ...turnFields },
  Algorithm: algorithmFields,
  'Asynchrony and time limits': asyncFields,
  Evaluation: evalFields,
  Output: { ...outputFields, ...sampleLogFields },
}

const trainerArgs = z.strictObject({
  ...runFields,
  ...loraFields,
  ...optimizerFields,
  ...batchFields,
  ...microBatchFields,
  ...samplingFields,
  ...templateFields,
  ...turnFields,
  ...algorithmFields,
  ...asyncFields,
  ...evalFields,
  ...outputFields,
  ...sampleLogFields,
})

export const modelFields = {
  name: z.string().min(1).describe('Hugging Face folder, hub id, or one .gguf file. `model = "..."` is the short form.'),
  adapter: z
    .string()
    .min(1)
    .optional()
    .describe('PEFT adapter folder to go on from. Its rank, alpha and modules must be those of this config.'),
}

/** The whole file. `rlSchema.parse` fills every default that does not depend on another key. */
export const rlSchema = z.strictObject({
  model: z.strictObject(modelFields).describe('`model = "folder, hub id or file.gguf"`, or a table with `name` and `adapter`.'),
  env: z.array(envSchema).min(1).describe('One environment as [env], or a mixture as several [[env]].'),
  inference: z.strictObject(inferenceFields).prefault({}),
  trainer: z.strictObject({ args: trainerArgs.prefault({}), ckpt: ckptSchema.prefault({}) }).prefault({}),
})

type Parsed = z.output<typeof rlSchema>
type ParsedArgs = Parsed['trainer']['args']
/** Keys of [trainer.args] whose default depends on other keys; resolve.ts fills them. */
type Derived = 'run_name' | 'max_prompt_len' | 'max_tokens' | 'micro_batch_tokens' | 'eval_temperature'

/** [trainer.args], all defaults filled in. */
export type TrainerArgs = Omit<ParsedArgs, Derived> & {
  [K in Derived]-?: Exclude<ParsedArgs[K], undefined | 'auto'>
}
/** One [env], `name` filled in. */
export type EnvConfig = Omit<Parsed['env'][number], 'name'> & { name: string }
/** A resolved RL config: every default filled in, names as in the file. */
export type RunConfig = Omit<Parsed, 'trainer' | 'env' | 'inference'> & {
  env: EnvConfig[]
  inference: InferenceConfig
  trainer: { args: TrainerArgs; ckpt: CkptConfig }
}
/** What `rlSchema.parse` gives, before the derived defaults. */
export type ParsedRunConfig = Parsed
