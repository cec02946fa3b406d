/** The parts and options of a server beside the engine. Nothing here depends on the command line. */
import type { HttpBindings } from '@hono/node-server'
import type { Hono } from 'hono'
import type { LogprobsMode, SamplingParams } from '../../common/types.ts'
import type { Tokenizer } from '../../model/tokenizer/tokenizer.ts'
import type { Logger } from '../../monitor/logger.ts'
import type { Grammars } from '../grammar/types.ts'
import type { ServingEngine } from '../types.ts'
import type { BodyReader } from './body.ts'
import type { Gate } from './limits.ts'
import type { ServerMetrics } from './metrics.ts'

/** Sampling defaults of requests; may come from the model's generation_config.json. */
export type SamplingDefaults = Partial<
  Pick<SamplingParams, 'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty' | 'max_tokens'>
>

export interface ServerParts {
  /** The model's names in requests; answers use the first. */
  names: readonly string[]
  /** If an adapter is being trained: the name of the model without it. */
  baseName?: string
  /** Where the model is from: a folder, a file, or an id. */
  root: string
  tokenizer: Tokenizer
  /** Size of the model's vocabulary, which may be larger than the tokenizer's. */
  vocabulary: number
  eosTokenIds: readonly number[]
  log: Logger
  /** Version of this package. */
  version: string
  defaults?: SamplingDefaults
  /** The logits that log-probabilities are computed from. Default 'raw', as in vLLM. */
  logprobsMode?: LogprobsMode
  /** The largest allowed logprobs, top_logprobs, prompt_logprobs. Default 20. */
  maxLogprobs?: number
  /** Maximum number of adapters loaded at the same time. */
  maxAdapters?: number
  /** Replaces the tokenizer's own chat template. */
  chatTemplate?: string
  /** Template variables, unless a request gives them. */
  chatTemplateKwargs?: Record<string, unknown>
  /** How the model writes tool calls: a parser's name, 'auto' (the default: chosen by the template), or 'none' (tools are refused). */
  toolParser?: string
  /** Whether <think>...</think> is returned separately from the answer. Default false. */
  reasoning?: boolean
  /** Grammars for constrained answers. Without them, such requests are refused. */
  grammars?: () => Promise<Grammars>
  /** Loads weights from a folder, or the model's own again. Without it, requests cannot change weights. */
  reloadWeights?: (dir: string | undefined) => Promise<unknown>
}

export interface ServerOptions {
  /** Default 127.0.0.1. Any address other than this machine's own needs a key. */
  host?: string
  /** Default 0: any free port. */
  port?: number
  apiKeys?: readonly string[]
  /** Web origins whose pages may send requests, or '*'. Default: none. */
  allowedOrigins?: readonly string[]
  /** Folder below which adapters and weights may be loaded at run time; default: none may. */
  adapterRoot?: string
  /** Whether there are routes that pause the engine or change weights. Default: on loopback only. */
  devMode?: boolean
  /** Maximum number of completions that run or wait; further ones get 429. Default 1024. */
  maxHeld?: number
  maxBodyBytes?: number
  /** Seconds that a body may take to arrive. */
  bodySeconds?: number
  maxConnections?: number
}

/** What every route can use. */
export interface ServerContext {
  engine: ServingEngine
  parts: ServerParts
  options: ServerOptions
  gate: Gate
  metrics: ServerMetrics
  bodies: BodyReader
  /** Aborts every request in progress. */
  ending: AbortController
  /** Names given to weights (/update_weight_version), by the engine's version. */
  weightNames: Map<number, string>
  /** Consecutive completions that failed through no fault of their clients. */
  failuresInARow: number
  /** Logs a warning; each text only once. */
  warnOnce(message: string): void
  /** Called for an internal error, with the id that the client sees. */
  fault(id: string, error: unknown): void
}

/** A request's entries for the log. */
type Note = Record<string, string | number>

export type App = Hono<{ Bindings: HttpBindings; Variables: { note?: Note } }>
