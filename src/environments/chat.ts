/** Turns chat messages into token ids. Each message is encoded once, and sampled ids are kept as they are. */
import type {
  ChatClient,
  ChatCompletion,
  ChatTurn,
  Generator,
  Message,
  SamplingParams,
  ToolCall,
  ToolDefinition,
} from '../common/types.ts'
import { ChatTemplate, type EncodedPrompt } from './template.ts'

/** Encodes messages with the model's chat template, up to and including the header that starts the assistant's turn. */
export type PromptEncoder = (messages: Message[], tools?: readonly ToolDefinition[]) => number[]

/** Finds the tool calls in an answer; `content` is the rest of the text. `prompt`: as text, since it may begin the answer's thoughts. */
export type ToolCallParser = (
  text: string,
  tools: readonly ToolDefinition[],
  prompt: string,
) => { content: string | null; tool_calls: ToolCall[] }

/**
 * How the turns of a rollout are joined. 'interleaved': earlier tokens are kept and continued, giving one sequence per rollout. 'branching': the
 * template renders the conversation anew for each turn, giving one sequence per turn.
 */
export type TrajectoryStrategy = 'interleaved' | 'branching'

export interface PolicyClientOptions {
  /** Maximum number of prompt tokens in the first turn. */
  maxPromptTokens?: number
  /** Maximum number of tokens of a prompt and its completion together. Later turns get what is left. */
  maxSeqTokens?: number
  /** Default 'interleaved'. */
  strategy?: TrajectoryStrategy
  /** Without a parser, answers cannot call tools. */
  parseTools?: ToolCallParser
}

/** The conversation has filled the sequence, so there is no room for another answer. */
export class ContextFullError extends Error {}

/** A ChatClient over any generator (the embedded engine, or vLLM). */
export class PolicyClient implements ChatClient {
  readonly #generator: Generator
  readonly #encode: PromptEncoder | ChatTemplate
  readonly #options: PolicyClientOptions
  /** The prompt text of each completion. */
  readonly #texts = new WeakMap<ChatCompletion, string>()
  /** The last prompt that was encoded as a whole. Cached because the rollouts of a group ask for the same prompt one after another. */
  #last: { key: string; prompt: EncodedPrompt } | undefined

  /** If `encode` is a plain function, every turn is encoded anew, as with 'branching'. */
  constructor(generator: Generator, encode: PromptEncoder | ChatTemplate, options: PolicyClientOptions = {}) {
    this.#generator = generator
    this.#encode = encode
    this.#options = options
  }

  /**
   * Rejects for a prompt over the limit, naming both counts; the rollout then fails with that sentence. A later turn without room for an
   * answer rejects with ContextFullError; one with little room gets less than max_tokens.
   */
  async complete(
    messages: Message[],
    sampling: SamplingParams,
    signal?: AbortSignal,
    turn: ChatTurn = {},
  ): Promise<ChatCompletion> {
    const { previous, tools, later = previous !== undefined } = turn
    const { maxPromptTokens = Infinity, maxSeqTokens = Infinity } = this.#options
    const prompt = this.#promptOf(messages, turn)
    const promptIds = prompt.ids
    const room = maxSeqTokens - promptIds.length
    const count = `${prompt.cut ? 'more than ' : ''}${promptIds.length} tokens`
    if (!later && promptIds.length > maxPromptTokens) {
      throw new Error(`the prompt has ${count}, more than max_prompt_len (${maxPromptTokens}); raise it or shorten the prompt`)
    }
    if (room < 1) {
      if (later) throw new ContextFullError(`the conversation has ${count}, which fill max_seq_len (${maxSeqTokens})`)
      throw new Error(
        `the prompt has ${count}, which leave no room for an answer within max_seq_len (${maxSeqTokens}); shorten the prompt or raise max_seq_len`,
      )
    }
    const drawn = sampling.max_tokens > room ? { ...sampling, max_tokens: room } : sampling
    const result = await this.#generator.generate({ promptIds, sampling: drawn, signal })
    const completion: ChatCompletion = { ...result, promptIds }
    if (prompt.rewritten) completion.rewritten = true
    this.#texts.set(completion, prompt.text)
    const parsed = tools && tools.length > 0 ? this.#options.parseTools?.(result.text, tools, prompt.text) : undefined
    if (parsed && parsed.tool_calls.length > 0) {
      // Ids are derived from the call's position, so that a repeated run is identical.
      const tool_calls = parsed.tool_calls.map((call, i) => ({ ...call, id: `call_${promptIds.length}_${i}` }))
      completion.message = { role: 'assistant', content: parsed.content ?? '', tool_calls }
    }
    return completion
  }

  #promptOf(messages: Message[], { previous, tools, variables }: ChatTurn): EncodedPrompt & { rewritten?: boolean } {
    const encode = this.#encode instanceof ChatTemplate ? this.#encode.with(variables) : this.#encode
    // A prompt with more tokens is refused in any turn.
    const { maxSeqTokens: most = Infinity } = this.#options
    const whole = (): EncodedPrompt => {
      const key = JSON.stringify([messages, tools, variables])
      if (this.#last?.key !== key) {
        const plain = !(encode instanceof ChatTemplate)
        this.#last = { key, prompt: plain ? { ids: encode(messages, tools), text: '' } : encode.prompt(messages, tools, most) }
      }
      const { prompt } = this.#last
      return { ...prompt, ids: [...prompt.ids] }
    }
    if (!(encode instanceof ChatTemplate) || !previous || this.#options.strategy === 'branching') return whole()
    const next = encode.next(messages, previous, tools, most)
    if (next === null) return { ...whole(), rewritten: true }
    const text = (this.#texts.get(previous) ?? '') + encode.textOf(previous.ids) + next.text
    if (next.cut) return next
    return { ids: next.ids, text, rewritten: encode.text(messages, tools) !== text }
  }
}
