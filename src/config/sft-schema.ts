/**
 * The schema of a supervised run (`cli.js sft`). It works like schema.ts and shares its keys where they mean the same. It can also create a new
 * model: `[model.new]` gives family and sizes, and training starts from random weights.
 */
import * as z from 'zod'
import { MOST_ROLLOUTS } from '../common/sampling.ts'
import { type CkptConfig, ckptSchema } from './ckpt-schema.ts'
import { loraFields, microBatchFields, modelFields, optimizerFields, outputFields, runFields, templateFields } from './schema.ts'

const newModel = z
  .strictObject({
    family: z
      .enum(['llama', 'qwen2', 'qwen3', 'qwen3_5_text'])
      .describe(
        'Architecture. In qwen3_5_text, every fourth layer has attention; the others are Gated DeltaNets with as many heads of the same size.',
      ),
    hidden_size: z.int().min(8).describe('Width of the hidden state.'),
    intermediate_size: z.int().min(8).describe('Width of the MLP.'),
    num_hidden_layers: z.int().min(1).describe('Number of decoder layers.'),
    num_attention_heads: z.int().min(1).describe('Number of query heads.'),
    num_key_value_heads: z.int().min(1).optional().describe('Number of key and value heads. Default: num_attention_heads.'),
    head_dim: z.int().min(2).multipleOf(2).optional().describe('Size of a head. Default: hidden_size / num_attention_heads.'),
    tie_word_embeddings: z.boolean().default(true).describe('Use the embedding matrix as the output head.'),
    rope_theta: z.number().positive().default(10000.0).describe('Base of the rotary frequencies.'),
    rms_norm_eps: z.number().positive().default(1e-6).describe('Epsilon of RMSNorm.'),
    max_position_embeddings: z.int().min(16).default(2048).describe("Maximum sequence length that the model's config states."),
    initializer_range: z
      .number()
      .positive()
      .default(0.02)
      .describe('Standard deviation of the normal distribution from which weights are drawn.'),
    tokenizer: z
      .enum(['bytes'])
      .default('bytes')
      .describe('"bytes": one token per UTF-8 byte, plus the special tokens of a chat.'),
  })
  .describe('A new model with random weights, instead of `name`.')

const dataSchema = z.strictObject({
  path: z
    .string()
    .min(1)
    .optional()
    .describe('File of rows (.jsonl, .json, .parquet). Each row has `prompt` and `completion`, or `messages`.'),
  env: z
    .strictObject({
      id: z.string().min(1).describe('Environment whose reference answers are the completions.'),
      args: z.record(z.string(), z.unknown()).default({}).describe('Arguments for the environment.'),
    })
    .optional()
    .describe('Instead of `path`.'),
  max_examples: z.int().min(1).optional().describe('Use only this many rows. Default: all.'),
})

const scheduleFields = {
  ...optimizerFields,
  batch_size: z.int().min(1).max(MOST_ROLLOUTS).default(32).describe('Examples per optimizer step.'),
  max_seq_len: z.int().min(16).default(2048).describe('Maximum length of an example in tokens; a longer one is refused.'),
  ...templateFields,
  temperature: z
    .number()
    .positive()
    .default(1.0)
    .describe(
      'Logits are divided by it, so the model learns to be right when sampled at this temperature. Trained below 1.0, it is less certain when sampled at 1.0.',
    ),
}

const endFields = {
  ...outputFields,
  save_to: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Also write the finished model (a Hugging Face folder in bf16, or the adapter) to this folder. A model that is already there is replaced.',
    ),
}

/** The keys of [trainer.args] of a supervised run in the order and groups of `--help`. */
export const sftTrainerGroups = {
  Run: runFields,
  'What is trained': loraFields,
  Optimizer: scheduleFields,
  Memory: microBatchFields,
  Output: endFields,
}

/** The whole file. */
export const sftSchema = z.strictObject({
  model: z
    .strictObject({ name: modelFields.name.optional(), adapter: modelFields.adapter, new: newModel.optional() })
    .describe('`model = "folder, hub id or file.gguf"`, or a [model.new] table.'),
  data: dataSchema.describe('The training data: a file, or the answers of an environment.'),
  trainer: z
    .strictObject({
      args: z.strictObject({ ...runFields, ...loraFields, ...scheduleFields, ...microBatchFields, ...endFields }).prefault({}),
      ckpt: ckptSchema.prefault({}),
    })
    .prefault({}),
})

type Parsed = z.output<typeof sftSchema>
type ParsedArgs = Parsed['trainer']['args']
type ParsedNew = z.output<typeof newModel>
/** [model.new] with heads and head size filled in. */
export type NewModelConfig = Omit<ParsedNew, 'num_key_value_heads' | 'head_dim'> & {
  num_key_value_heads: number
  head_dim: number
}
/** [trainer.args] of a supervised run, with all defaults filled in. */
type SftTrainerArgs = Omit<ParsedArgs, 'run_name' | 'micro_batch_tokens'> & {
  run_name: string
  micro_batch_tokens: number
}
/** A resolved SFT config. It has exactly one of model.name and model.new, and of data.path and data.env. */
export type SftConfig = {
  model: { name?: string; adapter?: string; new?: NewModelConfig }
  data: Parsed['data']
  trainer: { args: SftTrainerArgs; ckpt: CkptConfig }
}
/** The output of `sftSchema.parse`, before the dependent defaults are filled in. */
export type ParsedSftConfig = Parsed
