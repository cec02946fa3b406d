/** Chat on top of a generator: messages become a prompt by the model's template, and the answer comes back with its tokens. */
import { UserError } from '../common/errors.ts'
import type { ChatClient, Generator, Message } from '../common/types.ts'

/** What of a tokenizer is needed; src/model's `Tokenizer` has it. */
export interface ChatTokenizer {
  encodeChat(messages: readonly Message[]): number[]
}

export interface ChatLimits {
  /** Tokens of a prompt. */
  maxPromptLength: number
  /** Tokens of prompt and completion together. */
  maxLength: number
}

/** A chat client over any generator. `complete` throws UserError for a prompt that leaves no room for `max_tokens` tokens; nothing is cut. */
export function chatClient(generator: Generator, tokenizer: ChatTokenizer, limits: ChatLimits): ChatClient {
  const { maxPromptLength, maxLength } = limits
  return {
    async complete(messages, sampling, signal) {
      const promptIds = tokenizer.encodeChat(messages)
      if (promptIds.length > maxPromptLength) {
        throw new UserError(
          `The prompt ${excerpt(messages)} has ${promptIds.length} tokens, and trainer.args.max_prompt_len is ${maxPromptLength}. ` +
            'Shorten it or raise that key.',
        )
      }
      if (promptIds.length + sampling.max_tokens > maxLength) {
        throw new UserError(
          `The prompt ${excerpt(messages)} has ${promptIds.length} tokens and max_tokens is ${sampling.max_tokens}; ` +
            `together they pass trainer.args.max_seq_len, ${maxLength}. Raise that key or lower trainer.args.max_tokens.`,
        )
      }
      const result = await generator.generate({ promptIds, sampling, signal })
      return { ...result, promptIds }
    },
  }
}

/** The beginning of the last message, to know the prompt by. */
function excerpt(messages: readonly Message[]): string {
  const text = (messages.at(-1)?.content ?? '').replace(/\s+/g, ' ').trim()
  return `'${text.length > 60 ? `${text.slice(0, 57)}...` : text}'`
}
