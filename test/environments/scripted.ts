/** A ChatClient that answers from a script: the real interface without a model, so that what an environment does with an answer is tested alone. */
import { neutralSampling } from '../../src/common/sampling.ts'
import type { ChatClient, ChatCompletion, FinishReason, Message, SamplingParams } from '../../src/common/types.ts'

export const sampling = { ...neutralSampling, max_tokens: 24, seed: 7 }

/** A completion with one token a character. */
export function completionOf(text: string, finishReason: FinishReason = 'stop'): ChatCompletion {
  const ids = Array.from(`${text}\n`, (char) => char.codePointAt(0)!)
  return {
    text,
    finishReason,
    stopCondition: finishReason === 'stop' ? 'eos' : finishReason === 'length' ? 'max_tokens' : 'abort',
    ids,
    logprobs: ids.map(() => -0.5),
    versions: ids.map(() => 3),
    promptIds: [1, 2, 3],
  }
}

export class ScriptedClient implements ChatClient {
  readonly asked: { messages: Message[]; sampling: SamplingParams }[] = []
  readonly #answer: (messages: Message[], signal?: AbortSignal) => ChatCompletion | Promise<ChatCompletion>
  constructor(answer: string | ((messages: Message[], signal?: AbortSignal) => ChatCompletion | Promise<ChatCompletion>)) {
    this.#answer = typeof answer === 'string' ? () => completionOf(answer) : answer
  }
  async complete(messages: Message[], params: SamplingParams, signal?: AbortSignal): Promise<ChatCompletion> {
    this.asked.push({ messages, sampling: params })
    return await this.#answer(messages, signal)
  }
}
