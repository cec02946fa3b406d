/**
 * The words that cross rooms, one definition each. Plain typed objects: nothing here imports anything, so every room may use them.
 *
 * Conventions
 * - Token arrays of one sequence all have the same length; entry i is about token i.
 * - A log-probability is natural-log, over the full vocabulary, at the sampling temperature (logits divided by it), before
 *   top_p, top_k, min_p and penalties, which change what is drawn and not what is trained on.
 */

/** Counts optimizer steps whose weights the sampler has taken. 0 is the model as it was loaded. */
export type PolicyVersion = number

/** One chat message, as the chat template takes it. */
export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool'
  content: string
  /** Of an assistant: the tools that it calls, side by side. */
  tool_calls?: ToolCall[]
  /** Of a tool: the call that it answers, and its own name. */
  tool_call_id?: string
  name?: string
}

/** A call of a tool, as OpenAI writes it. */
export interface ToolCall {
  id: string
  type: 'function'
  /** `arguments` is JSON text, as the model wrote it: it may be broken. */
  function: { name: string; arguments: string }
}

/** A tool as the model is told of it; `parameters` is a JSON schema. */
export interface ToolDefinition {
  type: 'function'
  function: { name: string; description?: string; parameters: Record<string, unknown> }
}

/** How tokens are drawn. Names and order of application as in vLLM; neutral values: 1, 1, 0 (off), 0, 1, 0, 0. */
export interface SamplingParams {
  /** 0 is greedy. */
  temperature: number
  top_p: number
  /** 0 or -1: off. */
  top_k: number
  min_p: number
  repetition_penalty: number
  presence_penalty: number
  frequency_penalty: number
  /** Tokens generated at most. */
  max_tokens: number
  /** Strings that end a completion; the completion's ids keep the token that completed the string. */
  stop: string[]
  /** Token ids that end a completion, beside the model's own end-of-sequence tokens. */
  stop_token_ids: number[]
  /** The same seed gives the same tokens whatever else is running. */
  seed: number
  /** No end-of-sequence token, and none of stop_token_ids, is drawn before so many tokens. Default 0. */
  min_tokens?: number
  /** End-of-sequence tokens do not end the completion. Default false. */
  ignore_eos?: boolean
  /** Added to the logits of tokens, by id. */
  logit_bias?: Record<number, number>
  /** Only these are drawn. */
  allowed_token_ids?: number[]
}

/**
 * Which log-probability a request asks for. 'policy': at the sampling temperature, over the full vocabulary, before all that changes the draw (what is trained
 * on; at temperature 0 that of temperature 1). 'raw': of the model's logits as they are. 'processed': of the distribution that the token was drawn from,
 * where only tokens that could be drawn are among the most likely ones; of a prompt's token, which was not drawn, as 'raw'.
 */
export type LogprobsMode = 'policy' | 'raw' | 'processed'

/** What a request wants to know beside its tokens' log-probabilities. */
export interface LogprobsRequest {
  /** Default 'policy'. */
  mode?: LogprobsMode
  /** So many of the most likely tokens of each position, at most 20, and the rank of the token that stands there. 0: the rank alone; default: neither. */
  top?: number
  /** Log-probabilities of the prompt's tokens too, with so many of the most likely ones. */
  prompt?: number
}

/** The most likely tokens of a position, most likely first, and the rank (1 is the most likely) of the token that stands there. */
export interface TopLogprobs {
  ids: number[]
  logprobs: number[]
  rank: number
}

/** A token of a prompt: its log-probability given those before it. */
export interface PromptLogprob extends TopLogprobs {
  logprob: number
}

/** Says which tokens may come next, one token after the other: a grammar. */
export interface TokenConstraint {
  /** Writes the tokens that may come next: bit b of word w is token 32 w + b. */
  fill(mask: Uint32Array): void
  /** Takes the token that was drawn, where another one follows. */
  accept(token: number): void
}

/** A token as it was sampled, for those who do not wait for the last one. */
export interface SampledToken {
  id: number
  logprob: number
  version: PolicyVersion
  top?: TopLogprobs
}

/** What a sampled token carries. All three arrays have one entry a token. */
export interface TokenLogprobs {
  ids: number[]
  logprobs: number[]
  versions: PolicyVersion[]
}

export type FinishReason = 'stop' | 'length' | 'abort'

/** A request to a generator (embedded engine, or vLLM). */
export interface GenerationRequest {
  promptIds: number[]
  sampling: SamplingParams
  /** Ends the request early; its result then has finishReason 'abort'. */
  signal?: AbortSignal
  /** Samples with this adapter, by name; null: the model without any; default: the policy. The embedded engine only. */
  adapter?: string | null
  /** Requests share cached keys and values only with those of the same salt. */
  cacheSalt?: string
  /** The embedded engine only, as is `constraint`. */
  logprobs?: LogprobsRequest
  constraint?: TokenConstraint
  /** Look for stop strings in the text without special tokens. Default false. The embedded engine only. */
  skipSpecialTokens?: boolean
  /**
   * Called with each token as it comes. What it throws fails the request. A request that a vLLM server lost is asked again: its tokens then come again from the
   * first, and need not be the same.
   */
  onToken?: (token: SampledToken) => void
}

/** What a generator gives back. `ids` includes the end-of-sequence token where one ended it; `text` does not. */
export interface GenerationResult extends TokenLogprobs {
  text: string
  finishReason: FinishReason
  /** What ended it: 'eos', 'stop: <string>', 'stop: token <id>', 'max_tokens', 'abort'. */
  stopCondition: string
  /** One entry a token of the completion, where the request asked for it. */
  top?: TopLogprobs[]
  /** One entry a token of the prompt, null for the first, where the request asked for it. */
  promptLogprobs?: (PromptLogprob | null)[]
  /** Tokens of the prompt whose keys and values were found in the cache. */
  cachedTokens?: number
}

/** Anything that can sample from the policy. Requests run concurrently. */
export interface Generator {
  /** The version that the next token will be sampled with. */
  readonly version: PolicyVersion
  generate(request: GenerationRequest): Promise<GenerationResult>
}

/** What an environment sees of a generator: chat messages in, a completion with its tokens out. */
export interface ChatClient {
  complete(messages: Message[], sampling: SamplingParams, signal?: AbortSignal, turn?: ChatTurn): Promise<ChatCompletion>
}

/** What a request is in a longer conversation. */
export interface ChatTurn {
  /** The tools that the model may call. */
  tools?: readonly ToolDefinition[]
  /** The completion before: `messages` go on after it. */
  previous?: ChatCompletion
  /** Variables for the chat template, over those of the run. */
  variables?: Record<string, unknown>
}

export interface ChatCompletion extends GenerationResult {
  /** All tokens that stood before the completion. Of a turn that goes on, they begin with the tokens of the turn before. */
  promptIds: number[]
  /** The answer as a message, with the tools that it calls. Default: `text`. */
  message?: Message
  /** True: the template would have written the turns before otherwise than they stand. */
  rewritten?: boolean
}

/** One turn of a rollout, of the policy's answers. */
export interface RolloutTurn {
  /** Whether it begins a sequence of its own; else it follows the tokens of the turn before. The first turn does. */
  branch: boolean
  /** The tokens before the answer, never trained on: the whole prompt of a branch, else what stands between the two answers. */
  promptIds: number[]
  /** How many of `completion_tokens` are this turn's. */
  sampled: number
  /** True: the template would have written the turns before otherwise than they stand. */
  rewritten?: boolean
}

/** One finished rollout: a prompt, what the policy answered, and what it earned. */
export interface Rollout {
  /** Index of the task in its dataset. */
  exampleId: number
  env: string
  /** Rollouts of one task share a group; unique in a run. */
  group: string
  /** 0 .. rollouts_per_example - 1 inside the group. */
  index: number
  prompt: Message[]
  completion: Message[]
  answer: string
  info: Record<string, unknown>
  /** null when the rollout failed: it is never trained on. */
  reward: number | null
  /** Unweighted value of each reward function and metric; null: did not apply. */
  metrics: Record<string, number | null>
  /** Of the first turn. */
  promptIds: number[]
  /** All tokens that the policy sampled, turn after turn. */
  completion_tokens: TokenLogprobs
  /** Where there are several. */
  turns?: RolloutTurn[]
  isTruncated: boolean
  stopCondition: string
  error: string | null
  seed: number
  timing: { generation_ms: number; scoring_ms: number; total_ms: number }
}

/** One training sample: a sequence with its mask. Arrays are as long as `ids`. */
export interface TrainingSample {
  ids: Int32Array
  /** 1 for tokens whose log-probability the loss counts; 0 elsewhere, and always 0 at token 0. */
  lossMask: Uint8Array
  inferenceLogprobs: Float32Array
  advantages: Float32Array
  /** Under the reference model, where there is one: the trainer fills it in (trainer/reference.ts), or a batch file. */
  refLogprobs?: Float32Array
  /** Where the sample came from; hand-made batches leave it out. */
  rollout?: Rollout
  /** The first `promptLength` tokens are the same in all samples with this key, and may be computed once. */
  promptKey?: string
  promptLength?: number
}

/** What the trainer makes one optimizer step from. */
export interface TrainingBatch {
  step: number
  samples: TrainingSample[]
  /** N of the loss: loss-mask tokens of the whole global batch, whatever the micro-batching. */
  lossTokenCount: number
}

/** Flat metrics of one step: name to number; null for a value that was not finite. */
export type Metrics = Record<string, number | null>
