/** The keys of [inference]: which backend samples. A resolved config leaves out the keys of the other backend. */
import * as z from 'zod'

export const inferenceFields = {
  backend: z
    .enum(['embedded', 'vllm'])
    .default('embedded')
    .describe(
      'What generates completions. "embedded": the engine in this process, on the same weights as the trainer. "vllm": a local vLLM server (scripts/setup-vllm.sh installs one), to which new weights are pushed while it samples.',
    ),
  max_num_seqs: z
    .int()
    .min(1)
    .max(4096)
    .default(32)
    .describe(
      'Maximum number of completions that are decoded together. In the embedded engine, each has room for max_seq_len tokens in the KV cache, unless kv_cache_bytes is set.',
    ),
  max_num_batched_tokens: z
    .int()
    .min(1)
    .max(65536)
    .optional()
    .describe(
      'Only with the embedded engine: maximum number of tokens per engine step: the next token of each completion, plus prompt tokens. Longer prompts take several steps. Default: max_num_seqs + 256.',
    ),
  kv_cache_bytes: z
    .int()
    .min(1)
    .optional()
    .describe(
      'Only with the embedded engine: size of the KV cache in bytes. If it is full, the newest completions are preempted and recomputed later. Default: room for max_num_seqs x max_seq_len tokens.',
    ),
  kv_cache_dtype: z
    .enum(['f32', 'f16'])
    .default('f32')
    .describe(
      'Only with the embedded engine: data type of the KV cache. "f16" takes half the memory, but mismatch_kl is then no longer exactly 0 (docs/mismatch.md).',
    ),
  reuse_kv_cache: z
    .boolean()
    .default(false)
    .describe(
      'Only with the embedded engine: new requests also reuse keys and values of prompts computed before the last weight update. Faster with long prompts, but mismatch_kl is then no longer exactly 0 (docs/mismatch.md).',
    ),
  serve: z
    .boolean()
    .default(false)
    .describe(
      "Only with the embedded engine: let OpenAI clients sample from the policy as it learns (docs/api.md). The run's `serving` line gives the address and the model names.",
    ),
  serve_host: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Address that `serve` listens on. If other machines can reach it, a key in the environment variable DAWN_RL_API_KEY is required. Default: 127.0.0.1.',
    ),
  serve_port: z.int().min(0).max(65535).optional().describe('Port that `serve` listens on; 0: any free port. Default: 8000.'),
  base_url: z
    .string()
    .regex(/^https?:\/\/(\[[\da-f:]+\]|[\w.-]+)(:\d{1,5})?(\/[\w./~-]*)?$/i, 'an http URL such as "http://127.0.0.1:8000"')
    .optional()
    .describe(
      'Only with vLLM: URL of a server that is already running, on this machine or on one that sees the same files. Default: the run starts its own server.',
    ),
  python: z
    .string()
    .min(1)
    .default('.venv-vllm/bin/python')
    .describe(
      'Only with vLLM: the Python that has vLLM, for a server that the run starts. A relative path is looked up in the current folder, then in that of dawn-rl.',
    ),
  startup_timeout: z
    .number()
    .positive()
    .default(900)
    .describe(
      'Only with vLLM: seconds that the server may take to start. A server at base_url must answer within 30 seconds when the run starts, and within startup_timeout if it goes away later.',
    ),
  push_timeout: z
    .number()
    .positive()
    .default(300)
    .describe(
      'Only with vLLM: seconds that one push of weights may take, including loading, the probe that they are live, and retries.',
    ),
  max_restarts: z
    .int()
    .min(0)
    .default(3)
    .describe(
      'Only with vLLM: how many times in a row a server that died is restarted without having finished a completion in between.',
    ),
  args: z
    .record(z.string(), z.unknown())
    .default({})
    .describe(
      "Only with vLLM: the server's own flags, in snake_case or kebab-case, such as gpu_memory_utilization = 0.5 or enforce_eager = true.",
    ),
}

/** Keys that only vLLM uses, except `args`, which every vf-rl config has (foreign.ts). */
export const VLLM_KEYS = ['python', 'startup_timeout', 'push_timeout', 'max_restarts'] as const

/** Keys that only the embedded engine uses. */
export const EMBEDDED_KEYS = [
  'max_num_batched_tokens',
  'kv_cache_bytes',
  'kv_cache_dtype',
  'reuse_kv_cache',
  'serve',
  'serve_host',
  'serve_port',
] as const

/** The value of a vLLM flag. A table is passed as JSON, a list as several words. */
type VllmFlag = string | number | boolean | (string | number | boolean)[] | Record<string, unknown>

export interface EmbeddedConfig {
  backend: 'embedded'
  max_num_seqs: number
  max_num_batched_tokens?: number
  kv_cache_bytes?: number
  kv_cache_dtype: 'f32' | 'f16'
  reuse_kv_cache: boolean
  serve: boolean
  serve_host?: string
  serve_port?: number
}
export interface VllmConfig {
  backend: 'vllm'
  max_num_seqs: number
  /** Without a trailing slash or /v1. */
  base_url?: string
  python: string
  startup_timeout: number
  push_timeout: number
  max_restarts: number
  /** vLLM flags as written. inference-checks.ts has checked that the run sets none of them itself, and that every value is possible for a flag. */
  args: Record<string, VllmFlag>
}
/** A resolved [inference]. */
export type InferenceConfig = EmbeddedConfig | VllmConfig
