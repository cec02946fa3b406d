/** The embedded engine as a server or a run uses it. */
import type { Generator, PolicyVersion } from '../common/types.ts'
import type { Decode } from './stop-watch.ts'

export interface EngineOptions {
  /** Sequences that run together at most; more requests wait. */
  maxSequences: number
  /** Tokens of prompt and completion together, at most. */
  maxLength: number
  /** Tokens that end every completion. */
  eosTokenIds: readonly number[]
  /** Tokens to text. */
  decode: Decode
  /** Rows (tokens) of the KV cache, rounded up to pages. Default: maxSequences x maxLength, or what the adapter binds. */
  cacheRows?: number
  /** The cache's size in bytes; the smaller of both limits counts. */
  cacheBytes?: number
  /** Tokens of a page of the KV cache. Default 16. */
  pageSize?: number
  /** Values of the KV cache. f16 takes half the room; its log-probabilities are no longer the trainer's to the bit. Default f32. */
  kvCacheDtype?: 'f32' | 'f16'
  /** Whether keys and values of requests that have ended are found by later ones with the same beginning. Default true. */
  prefixCaching?: boolean
  /** Whether they are also used after an update of the weights that they were computed with. Default false. */
  cacheAcrossVersions?: boolean
  /** Prompt tokens that a step computes at most; longer prompts take several steps, between which the others go on. Default 256. */
  maxPrefillRows?: number
  /** Adapters with a name that are loaded at the same time, at most, and the largest rank of one, a multiple of 8. Default 4 and 16. */
  maxAdapters?: number
  maxAdapterRank?: number
  /** False: steps are recorded anew each time, not replayed; see StepCommands. Default true. */
  plans?: boolean
  /**
   * Begin a step before the host knows the tokens of the one before: their ids stay on the GPU. The end of a sequence is then found late, and the tokens
   * computed after it are dropped. Default: true on GPUs, which would wait for the host; false on a software adapter, where the extra token costs more than the wait.
   */
  ahead?: boolean
  /**
   * Whether requests come in full batches, as rollouts do: a software driver then compiles the kernels of the largest steps on all cores before the
   * first step. Default: false, as a single request would wait for kernels that it does not need.
   */
  full?: boolean
  /**
   * Steps whose tokens are read back together at most, where steps are begun ahead: two such blocks are in flight at a time. A block is read before it is full
   * when a request draws its last token, or the first of a stream. Larger blocks take fewer waits, but more tokens behind a sequence's end are wasted, and
   * streams get their tokens block by block. Default 4 on GPUs; 1 where steps are not begun ahead.
   */
  readBlock?: number
}

export interface EngineStats {
  version: PolicyVersion
  running: number
  waiting: number
  paused: boolean
  /** Steps that drew tokens. */
  decodeSteps: number
  tokensGenerated: number
  /** Prompt tokens computed, and those that another request had already. */
  prefillTokens: number
  sharedPromptTokens: number
  finished: number
  aborted: number
  failed: number
  /** Prompt tokens of all requests that were admitted: sharedPromptTokens of them were in the cache. */
  promptTokens: number
  /** Times that a sequence lost its pages to others, and was computed again. */
  preemptions: number
  /** Rows (tokens) of the KV cache in all, and those that requests hold. */
  kvRows: number
  kvRowsUsed: number
  /** Age of the oldest request that is not done, in ms; 0 where there is none. */
  oldestMs: number
}

/** What a pause does with running requests: 'keep' freezes them, 'wait' lets them finish first, 'abort' ends them. */
export type PauseMode = 'keep' | 'wait' | 'abort'

export interface AdapterInfo {
  name: string
  /** The folder that it was read from. */
  path: string
  rank: number
  /** Counts how often it was loaded under this name: a token's version under it. */
  version: PolicyVersion
}

/** Adapters by name, several in one batch. Loading and unloading go on while requests run. */
export interface AdapterSet {
  list(): AdapterInfo[]
  has(name: string): boolean
  /**
   * Reads a PEFT folder.
   * @param options.inPlace a name that is loaded already takes the new weights, requests that run with it included
   * @throws UserError for a folder that is no adapter of this model, a rank that is too large, a name that is taken, no free place
   */
  load(name: string, path: string, options?: { inPlace?: boolean }): Promise<AdapterInfo>
  /** New requests with it are refused at once; its place is free when its last request has ended. @throws UserError for a name that is not loaded */
  unload(name: string): Promise<void>
}

export interface ServingEngine extends Generator {
  readonly maxLength: number
  readonly adapters: AdapterSet
  stats(): EngineStats
  /** No further step begins. 'wait' resolves when all requests have ended, 'abort' ends them, 'keep' (default) leaves them where they are. New ones wait. */
  pause(mode?: PauseMode): Promise<void>
  resume(): void
  readonly paused: boolean
  /** Forgets cached keys and values that no running request holds. */
  resetPrefixCache(): void
}
