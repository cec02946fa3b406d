/** Fills in the defaults that depend on other keys. All other defaults are in the schema. */
import { defaultRunName } from '../monitor/run-folder.ts'
import { autoRange } from './micro-batch.ts'
import type { InferenceConfig, VllmConfig } from './inference-schema.ts'
import type { ParsedRunConfig, RunConfig } from './schema.ts'
import type { NewModelConfig, ParsedSftConfig, SftConfig } from './sft-schema.ts'

/** RLTrainer's default of max_prompt_len. */
const PROMPT_LEN = 512

/** Returns an RL config with every default filled in. */
export function resolveRun(parsed: ParsedRunConfig): RunConfig {
  const given = parsed.trainer.args
  const env = parsed.env.map((one) => ({ ...one, name: one.name ?? one.id }))
  const max_prompt_len = given.max_prompt_len ?? defaultPromptLen(given.max_seq_len, given.max_tokens)
  const args = {
    ...given,
    run_name: given.run_name ?? defaultRunName(env.map((one) => one.name).join('+'), parsed.model.name),
    max_prompt_len,
    max_tokens: given.max_tokens ?? given.max_seq_len - max_prompt_len,
    eval_temperature: given.eval_temperature ?? given.temperature,
    ...microBatch(given),
  }
  return { ...parsed, env, inference: resolveInference(parsed.inference), trainer: { args, ckpt: parsed.trainer.ckpt } }
}

/** Returns an SFT config with every default filled in. */
export function resolveSft(parsed: ParsedSftConfig): SftConfig {
  const given = parsed.trainer.args
  const { new: fresh, ...rest } = parsed.model
  // Without the ./ of a file, which in the middle of a name would stay.
  const data = parsed.data.env?.id.replace(/^[./\\]+/u, '') ?? 'data'
  const args = {
    ...given,
    run_name: given.run_name ?? defaultRunName(`sft-${data}`, rest.name ?? fresh?.family ?? 'model'),
    ...microBatch(given),
  }
  const model: SftConfig['model'] = rest
  if (fresh) {
    const heads = fresh.num_attention_heads
    const full: NewModelConfig = {
      ...fresh,
      num_key_value_heads: fresh.num_key_value_heads ?? heads,
      head_dim: fresh.head_dim ?? fresh.hidden_size / heads,
    }
    model.new = full
  }
  return { model, data: parsed.data, trainer: { args, ckpt: parsed.trainer.ckpt } }
}

/** The keys of the chosen backend, without those of the other one. */
function resolveInference(given: ParsedRunConfig['inference']): InferenceConfig {
  const { backend, max_num_seqs, base_url, python, startup_timeout, push_timeout, max_restarts, args, ...embedded } = given
  if (backend === 'embedded') return { backend, max_num_seqs, ...embedded }
  const times = { startup_timeout, push_timeout, max_restarts }
  const vllm = { backend, max_num_seqs, python, ...times, args: args as VllmConfig['args'] }
  return base_url === undefined ? vllm : { ...vllm, base_url: base_url.replace(/\/+$/, '').replace(/\/v1$/, '') }
}

/** What max_tokens leaves of the sequence, or a quarter of the sequence if max_tokens is not set. At most 512. */
function defaultPromptLen(maxSeqLen: number, maxTokens: number | undefined): number {
  if (maxTokens === undefined) return Math.min(PROMPT_LEN, Math.floor(maxSeqLen / 4))
  return maxTokens < maxSeqLen ? Math.min(PROMPT_LEN, maxSeqLen - maxTokens) : PROMPT_LEN
}

/** Makes the two sizes of a micro-batch agree. If tokens are given, they win. "auto" becomes the largest possible number, which micro-batch.ts lowers. */
function microBatch(args: {
  micro_batch_size: number
  micro_batch_tokens?: number | 'auto'
  max_seq_len: number
  batch_size: number
}) {
  const tokens = args.micro_batch_tokens === 'auto' ? autoRange(args).most : args.micro_batch_tokens
  if (tokens === undefined) return { micro_batch_tokens: args.micro_batch_size * args.max_seq_len }
  return { micro_batch_tokens: tokens, micro_batch_size: Math.max(1, Math.floor(tokens / args.max_seq_len)) }
}
