/** What a server is made of beside the engine, and how it is set up. Nothing here knows of a command line. */
import type { HttpBindings } from '@hono/node-server'
import type { Hono } from 'hono'
import type { LogprobsMode, SamplingParams } from '../../common/types.ts'
import type { Tokenizer } from '../../model/tokenizer.ts'
import type { Logger } from '../../monitor/logger.ts'
import type { Grammars } from '../grammar/types.ts'
import type { ServingEngine } from '../types.ts'
import type { BodyReader } from './body.ts'
import type { Gate } from './limits.ts'
import type { ServerMetrics } from './metrics.ts'

/** What requests get that leave a value out; the model's generation_config.json may say so. */
export type SamplingDefaults = Partial<
  Pick<SamplingParams, 'temperature' | 'top_p' | 'top_k' | 'min_p' | 'repetition_penalty' | 'max_tokens'>
>

export interface ServerParts {
  /** The model's names in requests; answers carry the first. */
  names: readonly string[]
  /** The model's name without the adapter that is trained on it, where one is. */
  baseName?: string
  /** Where the model is: a folder, a file, an id. */
  root: string
  tokenizer: Tokenizer
  /** Rows of the model's vocabulary, which may be more than the tokenizer's. */
  vocabulary: number
  eosTokenIds: readonly number[]
  log: Logger
  /** Of this package. */
  version: string
  defaults?: SamplingDefaults
  /** Of what log-probabilities are. Default 'raw', as vLLM. */
  logprobsMode?: LogprobsMode
  /** The largest logprobs, top_logprobs, prompt_logprobs. Default 20. */
  maxLogprobs?: number
  /** Adapters that fit at the same time. */
  maxAdapters?: number
  /** In place of the tokenizer's own chat template. */
  chatTemplate?: string
  /** Variables for it where a request does not give them. */
  chatTemplateKwargs?: Record<string, unknown>
  /** How the model writes calls of tools: a parser's name, 'auto' (default: by the template), or 'none': tools are refused. */
  toolParser?: string
  /** Whether <think>...</think> is told apart from the answer. Default false. */
  reasoning?: boolean
  /** Constrained answers. Without it they are refused. */
  grammars?: () => Promise<Grammars>
  /** Reads the weights anew: of a folder, or of the model's own. Without it they are not changed by requests. */
  reloadWeights?: (dir: string | undefined) => Promise<unknown>
}

export interface ServerOptions {
  /** Default 127.0.0.1. Any address that is not this machine's own needs a key. */
  host?: string
  /** 0, the default: a free one. */
  port?: number
  apiKeys?: readonly string[]
  /** Pages of other origins that may ask, or '*'. Default: none. */
  allowedOrigins?: readonly string[]
  /** Adapters and weights are loaded from below this folder at run time; default: not at all. */
  adapterRoot?: string
  /** Routes that stop the engine or change weights. Default: on loopback. */
  devMode?: boolean
  /** Completions that run or wait here at most; more get 429. Default 1024. */
  maxHeld?: number
  maxBodyBytes?: number
  /** Until a body is whole. */
  bodySeconds?: number
  maxConnections?: number
}

/** What every route has. */
export interface ServerContext {
  engine: ServingEngine
  parts: ServerParts
  options: ServerOptions
  gate: Gate
  metrics: ServerMetrics
  bodies: BodyReader
  /** Ends every request that is under way. */
  ending: AbortController
  /** Names that weights were given (/update_weight_version), by the engine's version. */
  weightNames: Map<number, string>
  /** Completions that failed by no fault of their clients, since the last one that did not. */
  failuresInARow: number
  /** Writes into the log what is to be said once. */
  warnOnce(message: string): void
  /** Is told of a fault, under the id that the client sees. */
  fault(id: string, error: unknown): void
}

/** What a request leaves for the log. */
type Note = Record<string, string | number>

export type App = Hono<{ Bindings: HttpBindings; Variables: { note?: Note } }>
