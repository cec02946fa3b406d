/** vLLM's command line: `[inference.args]` as flags, and the flags that the run sets itself. */
import { loraRankFlag } from '../../common/vllm-ranks.ts'

/** A value of `[inference.args]`. A table becomes JSON, which is how vLLM takes it. */
type FlagValue = string | number | boolean | readonly (string | number | boolean)[] | { readonly [key: string]: unknown }

/**
 * Writes `{ gpu_memory_utilization: 0.5, enforce_eager: true }` as `--gpu-memory-utilization 0.5 --enforce-eager`. Keys may be in snake or kebab
 * case, false becomes `--no-...`, and a list becomes one flag with several words.
 */
export function vllmFlags(args: Readonly<Record<string, FlagValue>>): string[] {
  return Object.entries(args).flatMap(([key, value]) => {
    const name = key.replaceAll('_', '-')
    if (value === true) return [`--${name}`]
    if (value === false) return [`--no-${name}`]
    if (Array.isArray(value)) return [`--${name}`, ...value.map(String)]
    return [`--${name}`, typeof value === 'object' ? JSON.stringify(value) : String(value)]
  })
}

/** The properties of a run that decide how its server is started. */
export interface ServerNeeds {
  /** Model folder, or hub id. */
  model: string
  /** Name of the base model in requests. */
  servedName: string
  maxLength: number
  maxSequences: number
  /** Rank of the adapter; undefined if all weights are trained. */
  loraRank?: number
  /** Steps that sampling may run ahead. At most that many policy versions, plus one, are in flight. */
  maxAsyncLevel: number
  logprobsMode: LogprobsMode
  /** `[inference.args]`. */
  args: Readonly<Record<string, FlagValue>>
}

/** Whether log-probabilities are computed before temperature and filters (raw), or after both (processed). */
export type LogprobsMode = 'raw_logprobs' | 'processed_logprobs'

/** Number of adapters that can be in flight at once, and so in one batch of the server. */
export const adaptersInFlight = (maxAsyncLevel: number): number => Math.max(2, maxAsyncLevel + 1)

/** All flags of the server, ours first. User flags that may be set override ours, because vLLM takes the last one. */
export function serverFlags(needs: ServerNeeds, port: number): string[] {
  const { model, servedName, maxLength, maxSequences, loraRank, maxAsyncLevel, logprobsMode, args } = needs
  const lora = loraRank !== undefined && {
    enable_lora: true,
    max_lora_rank: loraRankFlag(loraRank) ?? loraRank,
    max_loras: adaptersInFlight(maxAsyncLevel),
    // One more on the host: the next version is loaded while the others still serve requests.
    max_cpu_loras: adaptersInFlight(maxAsyncLevel) + 2,
  }
  const set: Record<string, FlagValue> = {
    model,
    served_model_name: servedName,
    host: '127.0.0.1',
    port,
    max_model_len: maxLength,
    max_num_seqs: maxSequences,
    logprobs_mode: logprobsMode,
    // The model's generation_config.json must not add a top_k or an end token that the trainer does not know about.
    generation_config: 'vllm',
    // Full weights: only this endpoint says which weights sampled which token.
    ...(lora || { enable_scale_out: true }),
    // The server sends tokens in groups: fewer, larger pieces to parse on both sides.
    stream_interval: 8,
    disable_uvicorn_access_log: true,
  }
  return [...vllmFlags(set), ...vllmFlags(args)]
}

/**
 * Environment variables for the server, unless the caller's environment sets them: what it needs to accept adapters and weights at run time, and to
 * stay off the network.
 */
export function serverEnvironment(cpu: boolean): Record<string, string> {
  return {
    VLLM_ALLOW_RUNTIME_LORA_UPDATING: '1',
    VLLM_SERVER_DEV_MODE: '1',
    VLLM_NO_USAGE_STATS: '1',
    // By default the CPU build takes half of the memory for its KV cache, and the trainer is in the same memory.
    ...(cpu && { VLLM_TARGET_DEVICE: 'cpu', VLLM_CPU_KVCACHE_SPACE: '1' }),
  }
}
