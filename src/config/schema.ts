/**
 * The schema of an RL run's TOML file: types, defaults, limits and help text of every key, in vf-rl's dialect.
 *
 * - Everything is derived from it: the config's type, error messages, command-line overrides, `--help`, docs/config.md, a run's config.toml.
 * - Every accepted key has an effect. Keys of other trainers that mean nothing here are in foreign.ts.
 * - The schema validates a file after `normalize` (compose.ts): `model = "x"` is `model.name`, a single `[env]` is a list of one.
 * - Defaults are RLTrainer's (verifiers 0.1.9) where it has the key. Defaults that depend on other keys are filled in by resolve.ts.
 * - Paths are relative to the working directory.
 */
import * as z from 'zod'
import { QUANTIZATIONS } from '../model/types.ts'
import { SINKS } from '../monitor/sinks/types.ts'
import { FOLDER_NAME, NO_DEVICE } from '../common/folders.ts'
import { MOST_ROLLOUTS } from '../common/sampling.ts'
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
  'qkv_proj',
  'gate_up_proj',
] as const

export const runFields = {
  run_name: z
    .string()
    .regex(FOLDER_NAME, "the name of a folder: letters, digits, '-', '_' and '.', at most 200 characters, the last one not '.'")
    .regex(NO_DEVICE, "another name: Windows reserves this one for a device, and the run's folder may be copied there")
    .optional()
    .describe(
      'Name of the run and of its folder. Default: environment, model and six random hex digits, such as reverse-text--tiny--3fa9c1 (in sft: sft-reverse-text--..., or sft-data--... for a file).',
    ),
  output_dir: z.string().min(1).default('outputs').describe('The run is written to `<output_dir>/<run_name>/`.'),
  seed: z.int().min(0).default(42).describe('Random seed of the whole run: task order, sampling, LoRA initialisation, dropout.'),
  shuffle_dataset: z
    .boolean()
    .default(true)
    .describe('Shuffle the rows anew in each pass. false: keep their order, for example for a curriculum from easy to hard.'),
}

export const loraFields = {
  use_lora: z
    .boolean()
    .default(true)
    .describe('Train a LoRA adapter. false: train all weights (full fine-tuning); choose a learning rate about 10 times lower.'),
  lora_rank: z.int().min(1).max(1024).default(8).describe('Rank r of the adapter. Memory and the adapter file grow with it.'),
  lora_alpha: z.number().positive().default(32).describe('Scaling: the adapter is multiplied by lora_alpha / lora_rank.'),
  lora_dropout: z
    .number()
    .min(0)
    .lt(1)
    .default(0)
    .describe(
      "Dropout on the adapter's input in training. Sampling has none, so above 0 the trainer's log-probabilities differ from the sampler's.",
    ),
  lora_target_modules: z
    .array(z.enum(LINEAR_LAYERS))
    .min(1)
    .default([...ALL_LAYERS])
    .describe(
      'Linear layers that get an adapter. The default means all: it includes in_proj_qkv, in_proj_z and out_proj of Gated DeltaNet layers (Qwen3.5), in_proj and out_proj of convolutions (LFM2), and input_linear (gate and up in one) and output_linear of Granite 4, and qkv_proj and gate_up_proj of Phi. LFM2 calls o_proj out_proj, and gate_proj, up_proj and down_proj w1, w3 and w2; either name works. Names that no layer of the model has are left out, as in PEFT; a list of nothing else is refused.',
    ),
}

const BITSANDBYTES = 'is named "adamw_8bit" here, with its state on the GPU'

export const optimizerFields = {
  optim: z
    .enum(['adamw', 'adamw_8bit'])
    .default('adamw')
    .meta({ foreign: { adamw_bnb_8bit: BITSANDBYTES, paged_adamw_8bit: BITSANDBYTES } })
    .describe(
      'AdamW. "adamw_8bit" stores both moments of matrices in 8 bits, in blocks of 256: 2 bytes per trained parameter instead of 8, for full fine-tuning of large models.',
    ),
  learning_rate: z
    .number()
    .min(0)
    .default(1e-5)
    .describe(
      'Peak learning rate of AdamW. LoRA needs about 10 times that of full fine-tuning: 1e-5 to 1e-4 for a 4B model, more for smaller ones.',
    ),
  lr_scheduler_type: z
    .enum(['constant', 'constant_with_warmup', 'linear', 'cosine'])
    .default('constant')
    .describe(
      'Schedule, as in transformers. linear and cosine warm up for warmup_steps, then decay to 0 at max_steps. constant ignores warmup_steps.',
    ),
  warmup_steps: z.int().min(0).default(0).describe('Steps in which the learning rate rises from 0 to its peak.'),
  max_steps: z.int().min(1).default(500).describe('Training steps of the whole run. A resumed run stops at the same step.'),
  max_grad_norm: z
    .number()
    .positive()
    .default(1.0)
    .describe('Gradient clipping: a larger global norm is scaled down to this value.'),
  weight_decay: z.number().min(0).default(0.0).describe('Decoupled weight decay of AdamW.'),
  adam_beta1: z.number().min(0).lt(1).default(0.9).describe("Decay rate of AdamW's first moment."),
  adam_beta2: z.number().min(0).lt(1).default(0.999).describe("Decay rate of AdamW's second moment."),
  adam_epsilon: z
    .number()
    .min(1e-37) // Far less is 0 in float32, and 0 / 0 where a moment is 0.
    .default(1e-8)
    .describe("Added to the square root of AdamW's second moment."),
}

export const microBatchFields = {
  micro_batch_size: z
    .int()
    .min(1)
    .default(8)
    .describe(
      'Size of a micro-batch, in sequences of max_seq_len tokens; shorter ones are packed, so more of them fit. Affects memory only: the gradient does not depend on it.',
    ),
  micro_batch_tokens: z
    .union([z.int().min(16), z.literal('auto')])
    .optional()
    .describe(
      'Size of a micro-batch, in tokens. Default: micro_batch_size x max_seq_len. "auto": the largest power of two that fits in memory, at most a batch. It depends on the memory that is free at the start, so two runs may differ by rounding; the run\'s config.toml has the number, and --resume keeps it.',
    ),
  gpu_memory: z
    .number()
    .positive()
    .optional()
    .describe(
      'GPU memory that the run may use, in GiB, for a GPU that is shared with others. Micro-batches that would take more are made smaller (docs/reliability.md). micro_batch_tokens = "auto" is chosen to fit in this amount. Without it, "auto" fits in the free memory, if that is known (software adapter: free system memory; NVIDIA: from nvidia-smi; AMD: from the driver; Apple: two thirds of all memory).',
    ),
  gradient_checkpointing: z
    .boolean()
    .default(true)
    .describe(
      'Keep one hidden state per layer and recompute the rest in the backward pass: far less memory, but a fifth to a third more time.',
    ),
  keep_attention: z
    .boolean()
    .default(false)
    .describe(
      'With gradient_checkpointing: also keep the attention outputs instead of recomputing them. The longer the sequences, the more time this saves; it takes heads x head size x 4 more bytes per token and layer. Results are bit-identical.',
    ),
  matrix_units: z
    .boolean()
    .default(false)
    .describe(
      "Run large products and attention's backward pass on the GPU's matrix units, for faster training (1.9 times on an H200, measured with attention in float32) and decoding (1.2 times there). Operands are rounded to f16 (about 2e-4 of a product) and silently clamped to its range: activations at 65504, gradients of activations at about 2,000 times the largest gradient that the loss gives a log-probability. Sums stay float32. Refused if the GPU offers none, or if weights or (in Gemma) activations are outside f16's range.",
    ),
  bf16: z
    .boolean()
    .default(true)
    .describe(
      'Hold loaded weights in bf16, rounding those that bf16 cannot represent exactly. false: hold those in float32. Arithmetic is float32 either way, except with matrix_units. Full fine-tuning trains float32 master weights; kernels use a copy of them, rounded for weights that are held in bf16.',
    ),
  quantization: z
    .enum(QUANTIZATIONS)
    .optional()
    .describe(
      'Hold the matrices of the layers in few bits, to train an adapter on a model that would not fit otherwise. "gguf": as they are in a quantised GGUF file. "q8_0": the same, and all other matrices in 8 bits. Takes a third to half of the memory of bf16; slower, as values are widened on each use (docs/performance.md). Default: bf16; a GGUF file is widened to it on loading, with the same numbers as "gguf".',
    ),
}

export const outputFields = {
  logging_steps: z.int().min(1).default(1).describe('Steps between two progress lines. metrics.jsonl has every step.'),
  report_to: z
    .array(z.enum(['none', ...SINKS]))
    .default([])
    .describe(
      'Where to send metrics in addition to metrics.jsonl; docs/sinks.md says what each needs. A single word may be written without brackets.',
    ),
}

const batchFields = {
  batch_size: z
    .int()
    .min(2)
    .max(MOST_ROLLOUTS)
    .default(512)
    .describe('Rollouts per training step, from batch_size / rollouts_per_example tasks.'),
  rollouts_per_example: z
    .int()
    .min(2)
    .default(16)
    .describe(
      'Rollouts per task (a group), which share a baseline. More: less noisy advantages, but fewer tasks per step. 8 or more are recommended.',
    ),
  max_seq_len: z
    .int()
    .min(16)
    .default(2048)
    .describe('Maximum sequence length (prompt and completion) in tokens. The sizes of KV cache and micro-batches depend on it.'),
  max_prompt_len: z
    .int()
    .min(1)
    .optional()
    .describe(
      'Maximum prompt length in tokens; a rollout with a longer prompt fails. Default: max_seq_len - max_tokens, or max_seq_len / 4 if max_tokens is not set, but at most 512.',
    ),
  max_tokens: z.int().min(1).optional().describe('Maximum completion length in tokens. Default: max_seq_len - max_prompt_len.'),
}

const samplingFields = {
  temperature: z.number().positive().default(1.0).describe('Logits are divided by it, in sampling and in training.'),
  top_p: z
    .number()
    .gt(0)
    .max(1)
    .default(1.0)
    .describe('Sample only from the most likely tokens that together have this probability. 1.0: off.'),
  top_k: z.int().min(-1).default(0).describe('Sample only from this many most likely tokens. 0 or -1: off.'),
  min_p: z
    .number()
    .min(0)
    .max(1)
    .default(0.0)
    .describe('Sample only from tokens at least this fraction as likely as the most likely one. 0.0: off.'),
  repetition_penalty: z
    .number()
    .positive()
    .default(1.0)
    .describe('Above 1, makes tokens less likely that already occur in the prompt or the completion. 1.0: off.'),
  presence_penalty: z
    .number()
    .min(-2)
    .max(2)
    .default(0.0)
    .describe('Subtracted from the logit of each token that already occurs in the completion. 0.0: off.'),
  frequency_penalty: z
    .number()
    .min(-2)
    .max(2)
    .default(0.0)
    .describe('As presence_penalty, but once for each occurrence. 0.0: off.'),
  stop: z.array(z.string().min(1)).default([]).describe("Strings that end a completion, besides the model's own end tokens."),
}

const turnFields = {
  trajectory_strategy: z
    .enum(['interleaved', 'branching'])
    .default('interleaved')
    .describe(
      'Samples of rollouts with several turns. "interleaved": each turn continues the earlier tokens unchanged, one sample per rollout. "branching": the chat template renders each turn anew, one sample per turn; for templates that rewrite earlier turns (Qwen3 drops thoughts).',
    ),
  tool_call_parser: z
    .enum(['auto', 'hermes', 'llama3_json', 'json'])
    .default('auto')
    .describe('How the model writes tool calls, in environments with tools. "auto": as its chat template shows.'),
}

/** chat_template_kwargs, of `train` and of `sft`. */
export const templateFields = {
  chat_template_kwargs: freeTable()
    .default({})
    .describe(
      'Variables for the chat template, such as { enable_thinking = false } for Qwen3. They apply to every prompt, also in evaluation. Unknown ones are ignored by the template.',
    ),
}

const asyncFields = {
  max_async_level: z
    .int()
    .min(0)
    .max(16)
    .default(1)
    .describe(
      'Steps by which sampling may run ahead of training. 1: one step off-policy. 0: sampling and training take turns; with the embedded engine, such a run is reproducible bit for bit.',
    ),
  max_off_policy_steps: z
    .int()
    .min(0)
    .default(8)
    .describe(
      'A rollout is dropped if any of its tokens was sampled more than this many steps before the step that would train on it.',
    ),
  max_concurrent: z
    .int()
    .min(1)
    .default(1024)
    .describe('Maximum rollouts in flight (sampling, being scored, or waiting for a slot).'),
  generation_timeout: z
    .number()
    .positive()
    .default(600)
    .describe(
      "Time limit in seconds for one completion, and for the environment's work between two. A rollout that exceeds it fails.",
    ),
  rollout_timeout: z
    .number()
    .positive()
    .optional()
    .describe(
      "Time limit in seconds for all completions of a rollout and the environment's work between them together, without the time spent waiting for a slot. A rollout that exceeds it fails. Default: only generation_timeout applies.",
    ),
  reward_timeout: z
    .number()
    .positive()
    .default(60)
    .describe('Time limit in seconds for scoring one rollout. A rollout that exceeds it fails.'),
}

const evalFields = {
  eval_strategy: z
    .enum(['no', 'steps'])
    .default('no')
    .describe('"steps": evaluate on the held-out split before the first step, every eval_steps steps, and after the last.'),
  eval_steps: z.int().min(1).default(50).describe('Steps between two evaluations.'),
  eval_examples: z
    .int()
    .min(1)
    .default(64)
    .describe('Held-out tasks per environment in one evaluation; the same ones each time.'),
  eval_rollouts_per_example: z.int().min(1).max(MOST_ROLLOUTS).default(1).describe('Rollouts per held-out task.'),
  eval_temperature: z.number().min(0).optional().describe('Temperature in evaluation; 0 is greedy. Default: `temperature`.'),
}

const sampleLogFields = {
  log_completions: z
    .boolean()
    .default(true)
    .describe('Print sample completions to the console. Every rollout is written to disk either way.'),
  log_completions_steps: z.int().min(1).default(10).describe('Steps between two prints of samples. The first step prints too.'),
  num_completions_to_print: z.int().min(1).default(2).describe('Number of samples per print.'),
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
  name: z.string().min(1).describe('Hugging Face folder, hub id, or a .gguf file. `model = "..."` is the short form.'),
  adapter: z
    .string()
    .min(1)
    .optional()
    .describe('PEFT adapter folder to continue from. Its rank, alpha and modules must be those of this config.'),
}

/** The whole file. `rlSchema.parse` fills in every default that does not depend on another key. */
export const rlSchema = z.strictObject({
  model: z.strictObject(modelFields).describe('`model = "folder, hub id or file.gguf"`, or a table with `name` and `adapter`.'),
  env: z.array(envSchema).min(1).describe('One environment as [env], or a mixture as several [[env]] tables.'),
  inference: z.strictObject(inferenceFields).prefault({}),
  trainer: z.strictObject({ args: trainerArgs.prefault({}), ckpt: ckptSchema.prefault({}) }).prefault({}),
})

type Parsed = z.output<typeof rlSchema>
type ParsedArgs = Parsed['trainer']['args']
/** Keys of [trainer.args] whose default depends on other keys. resolve.ts fills them in. */
type Derived = 'run_name' | 'max_prompt_len' | 'max_tokens' | 'micro_batch_tokens' | 'eval_temperature'

/** [trainer.args] with all defaults filled in. */
export type TrainerArgs = Omit<ParsedArgs, Derived> & {
  [K in Derived]-?: Exclude<ParsedArgs[K], undefined | 'auto'>
}
/** An [env] with `name` filled in. */
export type EnvConfig = Omit<Parsed['env'][number], 'name'> & { name: string }
/** A resolved RL config: every default is filled in, and names are those of the file. */
export type RunConfig = Omit<Parsed, 'trainer' | 'env' | 'inference'> & {
  env: EnvConfig[]
  inference: InferenceConfig
  trainer: { args: TrainerArgs; ckpt: CkptConfig }
}
/** The output of `rlSchema.parse`, before the dependent defaults are filled in. */
export type ParsedRunConfig = Parsed
