/** The keys of [inference]: who samples. A resolved config leaves out the keys of the backend that does not sample. */
import * as z from 'zod'

export const inferenceFields = {
  backend: z
    .enum(['embedded', 'vllm'])
    .default('embedded')
    .describe(
      '"embedded": the engine in this process, on the same weights as the trainer. "vllm": a local vLLM server (scripts/setup-vllm.sh installs one), into which new weights are pushed while it samples.',
    ),
  max_num_seqs: z
    .int()
    .min(1)
    .max(4096)
    .default(32)
    .describe(
      'Completions that are decoded together. In the embedded engine each has room for max_seq_len tokens in the KV cache, unless kv_cache_bytes says otherwise.',
    ),
  max_num_batched_tokens: z
    .int()
    .min(1)
    .max(65536)
    .optional()
    .describe(
      'For the embedded engine only: the most tokens that one step computes: the next token of each completion, and prompt tokens. Longer prompts take several steps. Default: max_num_seqs + 256.',
    ),
  kv_cache_bytes: z
    .int()
    .min(1)
    .optional()
    .describe(
      'For the embedded engine only: bytes of the KV cache. Where it is full, the newest completions are paused, and computed again later. Default: max_num_seqs x max_seq_len tokens.',
    ),
  kv_cache_dtype: z
    .enum(['f32', 'f16'])
    .default('f32')
    .describe(
      'For the embedded engine only: "f16" takes half the memory, and mismatch_kl is then no longer exactly 0 (docs/mismatch.md).',
    ),
  reuse_kv_cache: z
    .boolean()
    .default(false)
    .describe(
      'For the embedded engine only: new requests also reuse keys and values of prompts that were computed before the last weight update. Faster with long prompts, at the price of a mismatch.',
    ),
  serve: z
    .boolean()
    .default(false)
    .describe(
      'For the embedded engine only: any OpenAI client may sample from the policy as it learns (docs/api.md). The line `serving` says where and under which names.',
    ),
  serve_host: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Address that `serve` listens on; one that other machines reach needs a key in the environment variable DAWN_RL_API_KEY. Default: 127.0.0.1.',
    ),
  serve_port: z.int().min(0).max(65535).optional().describe('Port that `serve` listens on; 0: any free one. Default: 8000.'),
  base_url: z
    .string()
    .regex(/^https?:\/\/(\[[\da-f:]+\]|[\w.-]+)(:\d{1,5})?(\/[\w./~-]*)?$/i, 'an http URL such as "http://127.0.0.1:8000"')
    .optional()
    .describe(
      'For vLLM only: a server that runs already, on this machine or on one that sees the same files. Default: the run starts its own.',
    ),
  python: z
    .string()
    .min(1)
    .default('.venv-vllm/bin/python')
    .describe(
      'For vLLM only: the Python that has vLLM, where the run starts the server. A path is looked for here, then in the folder of dawn-rl.',
    ),
  startup_timeout: z
    .number()
    .positive()
    .default(900)
    .describe(
      'For vLLM only: seconds that the server may take until it answers. One at base_url must answer within 30 seconds when the run starts, and within these when it goes away later.',
    ),
  push_timeout: z
    .number()
    .positive()
    .default(300)
    .describe('For vLLM only: seconds that one push of weights may take: loading, the probe that they are live, retries.'),
  max_restarts: z
    .int()
    .min(0)
    .default(3)
    .describe('For vLLM only: how many times in a row a server that died is started again without having finished a completion.'),
  args: z
    .record(z.string(), z.unknown())
    .default({})
    .describe(
      "For vLLM only: the server's own flags, in snake_case or kebab-case, such as gpu_memory_utilization = 0.5 or enforce_eager = true.",
    ),
}

/** Keys that only vLLM reads, without `args`, which every vf-rl config has (foreign.ts). */
export const VLLM_KEYS = ['python', 'startup_timeout', 'push_timeout', 'max_restarts'] as const

/** Keys that only the embedded engine reads. */
export const EMBEDDED_KEYS = [
  'max_num_batched_tokens',
  'kv_cache_bytes',
  'kv_cache_dtype',
  'reuse_kv_cache',
  'serve',
  'serve_host',
  'serve_port',
] as const

/** The value of a vLLM flag: a table is passed as JSON, a list as several words. */
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
  /** Keys as they were written. inference-checks.ts has checked that the run sets none of them itself and that every value can be a flag's. */
  args: Record<string, VllmFlag>
}
/** A resolved [inference]. */
export type InferenceConfig = EmbeddedConfig | VllmConfig
