/** The interface of the embedded engine, as servers and runs use it. */
import type { Generator, PolicyVersion } from '../common/types.ts'
import type { Decode } from './stop-watch.ts'

export interface EngineOptions {
  /** The most sequences that run at once. Further requests wait. */
  maxSequences: number
  /** The most tokens of prompt and completion together. */
  maxLength: number
  /** Tokens that end every completion. */
  eosTokenIds: readonly number[]
  /** Converts tokens to text. */
  decode: Decode
  /** Rows (tokens) in the KV cache, rounded up to whole pages. Default: maxSequences x maxLength, or fewer if the adapter binds less. */
  cacheRows?: number
  /** Size of the KV cache in bytes. The smaller of the two limits applies. */
  cacheBytes?: number
  /** Tokens in a page of the KV cache. Default 16. */
  pageSize?: number
  /** Data type of the KV cache. f16 takes half the memory, but log-probabilities are then no longer bit-identical to the trainer's. Default f32. */
  kvCacheDtype?: 'f32' | 'f16'
  /** Whether requests reuse the cached keys and values of earlier ones that have the same prefix. Default true. */
  prefixCaching?: boolean
  /** Whether they are also reused after an update of the weights with which they were computed. Default false. */
  cacheAcrossVersions?: boolean
  /** The most prompt tokens that a step computes. Longer prompts take several steps, during which other requests continue. Default 256. */
  maxPrefillRows?: number
  /** The most named adapters that are loaded at once, and their largest rank, a multiple of 8. Defaults 4 and 16. */
  maxAdapters?: number
  maxAdapterRank?: number
  /** False: record every step anew instead of replaying it (see StepCommands). Default true. */
  plans?: boolean
  /**
   * Whether to start a step before the host knows the tokens of the previous step, which then stay on the GPU. The end of a sequence is noticed late,
   * and tokens computed after it are dropped. Default: true on GPUs, which would otherwise wait for the host; false on software adapters, where the
   * extra token costs more than the wait.
   */
  ahead?: boolean
  /**
   * Whether requests come in full batches, as rollouts do. A software driver then compiles the kernels of the largest steps on all cores before the
   * first step. Default: false, since a single request would have to wait for kernels that it does not need.
   */
  full?: boolean
  /**
   * The most steps whose tokens are read back together, if steps start ahead of the host. Two such blocks are in flight at a time. A block is read
   * early when a request draws its last token, or a streaming request its first. Larger blocks mean fewer waits, but more wasted tokens after the end
   * of a sequence, and streams get their tokens block by block. Default 4 on GPUs, 1 on software adapters; always 1 if steps do not start ahead.
   */
  readBlock?: number
  /**
   * Shortest prefix, in tokens, whose keys the rows of a decode step go through together on a CPU driver: for a shorter one, another dispatch that
   * writes partial sums costs more than it saves (bench/LOG.md). No bit depends on it. Default 64.
   */
  sharedKeys?: number
}

export interface EngineStats {
  version: PolicyVersion
  running: number
  waiting: number
  paused: boolean
  /** Steps in which tokens were drawn or scored. */
  decodeSteps: number
  tokensGenerated: number
  /** Prompt tokens computed, and those that were not, because they were cached or shared with another request's prefill. */
  prefillTokens: number
  sharedPromptTokens: number
  finished: number
  aborted: number
  failed: number
  /** Prompt tokens of all admitted requests, including sharedPromptTokens. */
  promptTokens: number
  /** How often a sequence lost its pages to others and had to be recomputed. */
  preemptions: number
  /** Rows (tokens) in the KV cache, and how many of them requests hold. */
  kvRows: number
  kvRowsUsed: number
  /** Age in ms of the oldest unfinished request; 0 if there is none. */
  oldestMs: number
}

/** What a pause does with running requests: 'keep' freezes them, 'wait' lets them finish first, 'abort' ends them. */
export type PauseMode = 'keep' | 'wait' | 'abort'

export interface AdapterInfo {
  name: string
  /** The folder from which it was loaded. */
  path: string
  rank: number
  /** How often an adapter was loaded under this name. This is the version of tokens sampled with it. */
  version: PolicyVersion
}

/** Named adapters, several of which can be used in one batch. They can be loaded and unloaded while requests run. */
export interface AdapterSet {
  list(): AdapterInfo[]
  has(name: string): boolean
  /**
   * Loads an adapter from a PEFT folder.
   * @param options.inPlace replace the weights of an adapter with this name, also for requests that are using it
   * @throws UserError for a folder that is no adapter of this model, a rank that is too large, a name that is taken, or if there is no free place
   */
  load(name: string, path: string, options?: { inPlace?: boolean }): Promise<AdapterInfo>
  /** Refuses new requests for an adapter; its place becomes free when its last request ends. @throws UserError for an unknown name */
  unload(name: string): Promise<void>
}

export interface ServingEngine extends Generator {
  readonly maxLength: number
  readonly adapters: AdapterSet
  stats(): EngineStats
  /** Stops starting steps. 'wait' resolves when all requests have finished, 'abort' ends them, 'keep' (default) freezes them. New requests wait. */
  pause(mode?: PauseMode): Promise<void>
  resume(): void
  readonly paused: boolean
  /** Drops cached keys and values that no running request holds. */
  resetPrefixCache(): void
}
