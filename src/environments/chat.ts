/** The seam to generation: chat messages become token ids here, once, and the ids that were sampled are kept as they came. */
import type { ChatClient, ChatCompletion, Generator, Message, SamplingParams } from '../common/types.ts'

/** Renders messages by the model's chat template, with the opening of the assistant's turn, into token ids. */
export type PromptEncoder = (messages: Message[]) => number[]

/** A ChatClient over any generator (the embedded engine, or vLLM). */
export class PolicyClient implements ChatClient {
  readonly #generator: Generator
  readonly #encode: PromptEncoder
  readonly #maxPromptTokens: number

  constructor(generator: Generator, encode: PromptEncoder, options: { maxPromptTokens?: number } = {}) {
    this.#generator = generator
    this.#encode = encode
    this.#maxPromptTokens = options.maxPromptTokens ?? Infinity
  }

  /** Rejects for a prompt over the limit, naming both counts; the rollout then fails with that sentence. */
  async complete(messages: Message[], sampling: SamplingParams, signal?: AbortSignal): Promise<ChatCompletion> {
    const promptIds = this.#encode(messages)
    if (promptIds.length > this.#maxPromptTokens) {
      throw new Error(
        `the prompt has ${promptIds.length} tokens, more than max_prompt_len (${this.#maxPromptTokens}); raise it or shorten the prompt`,
      )
    }
    const result = await this.#generator.generate({ promptIds, sampling, signal })
    return { ...result, promptIds }
  }
}
