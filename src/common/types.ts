/**
 * Types shared by the folders of src, each defined only here. They are plain objects, and this file imports nothing, so every folder may import it.
 *
 * Conventions
 * - Token arrays of one sequence have the same length; entry i belongs to token i.
 * - Log-probabilities are natural logarithms, over the full vocabulary, at the sampling temperature (logits divided by it). They are taken before
 *   top_p, top_k, min_p and penalties, which change what is drawn, but not what is trained on.
 */

/** A version of the policy's weights: 0 is the model as loaded, n the weights after training step n (fractions: between updates of a step). */
export type PolicyVersion = number

/** One chat message, in the format of chat templates. */
export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool'
  content: string
  /** For an assistant: the tool calls of the message. */
  tool_calls?: ToolCall[]
  /** For a tool: the id of the call that it answers, and the tool's name. */
  tool_call_id?: string
  name?: string
}

/** A tool call, in OpenAI's format. */
export interface ToolCall {
  id: string
  type: 'function'
  /** `arguments` is JSON text as the model wrote it, and may be invalid. */
  function: { name: string; arguments: string }
}

/** A tool as described to the model, in OpenAI's format; `parameters` is a JSON schema. */
export interface ToolDefinition {
  type: 'function'
  function: { name: string; description?: string; parameters: Record<string, unknown> }
}

/** How tokens are sampled. Names and order of application as in vLLM. Neutral values: temperature, top_p, repetition_penalty 1, others 0. */
export interface SamplingParams {
  /** 0 means greedy decoding. */
  temperature: number
  top_p: number
  /** 0 or -1: off. */
  top_k: number
  min_p: number
  repetition_penalty: number
  presence_penalty: number
  frequency_penalty: number
  /** The most tokens to generate. */
  max_tokens: number
  /** Strings that end a completion. The completion's ids include the token that completed the string. */
  stop: string[]
  /** Token ids that end a completion, besides the model's end-of-sequence tokens. */
  stop_token_ids: number[]
  /** The same seed gives the same tokens, whatever else is running. */
  seed: number
  /** Neither end-of-sequence tokens nor stop_token_ids are drawn before this many tokens. Default 0. */
  min_tokens?: number
  /** End-of-sequence tokens do not end the completion. Default false. */
  ignore_eos?: boolean
  /** Values to add to the logits, by token id. */
  logit_bias?: Record<number, number>
  /** Only these tokens can be drawn. */
  allowed_token_ids?: number[]
}

/**
 * Which log-probability a request asks for.
 * - 'policy': at the sampling temperature (at temperature 1 for greedy decoding), over the full vocabulary, before everything that changes the draw.
 *   This is what is trained on.
 * - 'raw': from the unmodified logits, at temperature 1.
 * - 'processed': from the distribution that the token was drawn from, so that the most likely tokens are only those that could be drawn. Prompt
 *   tokens, which are not drawn, get 'raw'.
 */
export type LogprobsMode = 'policy' | 'raw' | 'processed'

/** What a request asks for besides its tokens' log-probabilities. */
export interface LogprobsRequest {
  /** Default 'policy'. */
  mode?: LogprobsMode
  /** How many of the most likely tokens to return at each position (at most 20), and the actual token's rank. 0: only the rank; default: neither. */
  top?: number
  /** Also return log-probabilities of the prompt's tokens, with this many of the most likely ones. */
  prompt?: number
}

/** The most likely tokens of a position in descending order, and the rank of the actual token (1 is the most likely). */
export interface TopLogprobs {
  ids: number[]
  logprobs: number[]
  rank: number
}

/** A prompt token's log-probability given the tokens before it. */
export interface PromptLogprob extends TopLogprobs {
  logprob: number
}

/** Restricts which tokens may come next, one token after another: a grammar. */
export interface TokenConstraint {
  /** Writes a mask of the tokens that may come next: bit b of word w is token 32 w + b. */
  fill(mask: Uint32Array): void
  /** Tells which token was drawn. Not called for the last token. */
  accept(token: number): void
}

/** A sampled token, for callers that stream. */
export interface SampledToken {
  id: number
  logprob: number
  version: PolicyVersion
  top?: TopLogprobs
}

/** Sampled tokens. All three arrays have one entry for each token. */
export interface TokenLogprobs {
  ids: number[]
  logprobs: number[]
  versions: PolicyVersion[]
}

/** 'stop': ended by an end-of-sequence token, a stop token or a stop string; 'length': by max_tokens. */
export type FinishReason = 'stop' | 'length' | 'abort'

/** A request to a generator (the embedded engine or a vLLM server). */
export interface GenerationRequest {
  promptIds: number[]
  sampling: SamplingParams
  /** Aborts the request; its result then has finishReason 'abort'. */
  signal?: AbortSignal
  /** Name of the adapter to sample with; null: the model without adapter; default: the policy. Embedded engine only. */
  adapter?: string | null
  /** Requests share cached keys and values only with requests that have the same salt. */
  cacheSalt?: string
  /** `logprobs` and `constraint`: embedded engine only. */
  logprobs?: LogprobsRequest
  constraint?: TokenConstraint
  /** Look for stop strings in the text without special tokens. Default false. Embedded engine only. */
  skipSpecialTokens?: boolean
  /**
   * Called with each token as it is sampled. If it throws, the request fails. A request that a vLLM server lost is sent again: its tokens are then
   * reported from the first one again, and may differ.
   */
  onToken?: (token: SampledToken) => void
}

/** The result of a request. If an end-of-sequence token ended it, `ids` includes that token, and `text` does not. */
export interface GenerationResult extends TokenLogprobs {
  text: string
  finishReason: FinishReason
  /** What ended it: 'eos', 'stop: <string>', 'stop: token <id>', 'max_tokens' or 'abort'. */
  stopCondition: string
  /** One entry for each token of the completion, if requested. */
  top?: TopLogprobs[]
  /** One entry for each token of the prompt (null for the first), if requested. */
  promptLogprobs?: (PromptLogprob | null)[]
  /** How many prompt tokens were not computed for this request: they were cached, or shared with another request's prefill. */
  cachedTokens?: number
}

/** Anything that can sample from the policy. Requests run concurrently. */
export interface Generator {
  /** The version with which the next token will be sampled. */
  readonly version: PolicyVersion
  generate(request: GenerationRequest): Promise<GenerationResult>
}

/** A generator as environments see it: takes chat messages, returns a completion with its tokens. */
export interface ChatClient {
  complete(messages: Message[], sampling: SamplingParams, signal?: AbortSignal, turn?: ChatTurn): Promise<ChatCompletion>
}

/** The context of a request within a longer conversation. */
export interface ChatTurn {
  /** The tools that the model may call. */
  tools?: readonly ToolDefinition[]
  /** The previous completion, which `messages` continue. */
  previous?: ChatCompletion
  /** Whether the rollout has an earlier answer, even if `messages` do not continue it. Default: whether there is a `previous`. */
  later?: boolean
  /** Variables for the chat template. They override the run's. */
  variables?: Record<string, unknown>
}

export interface ChatCompletion extends GenerationResult {
  /** All tokens before the completion. If it continues a conversation, they begin with the tokens of the previous turn. */
  promptIds: number[]
  /** The answer as a message, with its tool calls. Default: `text`. */
  message?: Message
  /** Whether the chat template would now render earlier turns differently from the tokens that were kept for them. */
  rewritten?: boolean
}

/** One answer of the policy within a rollout. */
export interface RolloutTurn {
  /** Whether it starts a new sequence (as the first turn does) instead of continuing the tokens of the turn before. */
  branch: boolean
  /** The tokens before the answer, never trained on: the whole prompt if `branch`, otherwise those between the two answers. */
  promptIds: number[]
  /** How many of `completion_tokens` belong to this turn. */
  sampled: number
  /** Whether the chat template would now render earlier turns differently from the tokens that were kept for them. */
  rewritten?: boolean
}

/** One finished rollout: a prompt, the policy's answers, and their reward. */
export interface Rollout {
  /** The task's `example_id`; by default its index in the dataset. */
  exampleId: number
  env: string
  /** Shared by the rollouts of one task; unique in a run. */
  group: string
  /** 0 .. rollouts_per_example - 1, within the group. */
  index: number
  prompt: Message[]
  completion: Message[]
  answer: string
  info: Record<string, unknown>
  /** The tools that were described to the model; absent without any. */
  tools?: readonly ToolDefinition[]
  /** The task's own variables for the chat template. */
  variables?: Record<string, unknown>
  /** null if the rollout failed; it is then never trained on. */
  reward: number | null
  /** The unweighted value of each reward function, and other metrics; null if a function did not apply. */
  metrics: Record<string, number | null>
  /** The prompt of the first turn. */
  promptIds: number[]
  /** All tokens that the policy sampled, turn after turn. */
  completion_tokens: TokenLogprobs
  /** The turns as tokens. If absent, there is one turn. */
  turns?: RolloutTurn[]
  isTruncated: boolean
  stopCondition: string
  error: string | null
  seed: number
  timing: { generation_ms: number; scoring_ms: number; total_ms: number }
}

/** One sequence to train on. All arrays are as long as `ids`. */
export interface TrainingSample {
  ids: Int32Array
  /** 1 for tokens that count in the loss, otherwise 0. Always 0 for token 0, which has no log-probability. */
  lossMask: Uint8Array
  inferenceLogprobs: Float32Array
  advantages: Float32Array
  /** Log-probabilities under the reference model, if there is one. Computed by the trainer (trainer/reference.ts), or read from a batch file. */
  refLogprobs?: Float32Array
  /** The rollout that the sample comes from; absent in hand-made batches. */
  rollout?: Rollout
  /** All samples with the same key have the same first `promptLength` tokens, which may be computed only once. */
  promptKey?: string
  promptLength?: number
}

/** The training data of one step. */
export interface TrainingBatch {
  step: number
  samples: TrainingSample[]
  /** N of the loss: the number of loss tokens in the whole global batch, however it is split into micro-batches. */
  lossTokenCount: number
}

/** Metrics of one step: name to number; null for a value that was not finite. */
export type Metrics = Record<string, number | null>
