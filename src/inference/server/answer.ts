/** Splits a completion's text into thoughts, tool calls and content, the same way for whole answers and streams. */
import type { ToolCall } from '../../common/types.ts'
import type { ReasoningStream } from '../parsers/reasoning.ts'
import type { AnswerStream, ToolCallDelta, ToolParser } from '../parsers/types.ts'

/** What a piece of text adds to the message. */
interface MessageDelta {
  reasoning?: string
  content?: string
  tool_calls?: ToolCallDelta[]
}

export class AnswerText {
  readonly #reasoning: ReasoningStream | undefined
  readonly #tools: AnswerStream | undefined
  readonly #most: number
  /** The message so far. */
  reasoning = ''
  content = ''
  readonly toolCalls: ToolCall[] = []

  /** @param most maximum calls that are returned */
  constructor(reasoning: ReasoningStream | undefined, tools: ToolParser | undefined, most = Infinity) {
    this.#most = most
    this.#reasoning = reasoning
    this.#tools = tools?.stream()
  }

  push(text: string): MessageDelta {
    if (!this.#reasoning) return this.#add({}, this.#tools?.push(text) ?? { content: text })
    const { reasoning, content } = this.#reasoning.push(text)
    return this.#add({ reasoning }, content ? (this.#tools?.push(content) ?? { content }) : {})
  }

  /** The text that was held back; to be called at the end. */
  flush(): MessageDelta {
    const split = this.#reasoning?.flush()
    const first = split?.content ? (this.#tools?.push(split.content) ?? { content: split.content }) : {}
    const delta = this.#add({ reasoning: split?.reasoning }, first)
    return this.#tools ? joined(delta, this.#add({}, this.#tools.flush())) : delta
  }

  #add({ reasoning }: { reasoning?: string }, { content, tool_calls }: Omit<MessageDelta, 'reasoning'>): MessageDelta {
    this.reasoning += reasoning ?? ''
    this.content += content ?? ''
    const calls = (tool_calls ?? []).filter(({ index }) => index < this.#most)
    for (const { index, id, function: call } of calls) {
      this.toolCalls[index] ??= { id: id!, type: 'function', function: { name: '', arguments: '' } }
      this.toolCalls[index].function.name += call.name ?? ''
      this.toolCalls[index].function.arguments += call.arguments ?? ''
    }
    return {
      ...(reasoning ? { reasoning } : {}),
      ...(content ? { content } : {}),
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
    }
  }
}

/** Joins the deltas of two consecutive pieces. */
export function joined(a: MessageDelta, b: MessageDelta): MessageDelta {
  const reasoning = (a.reasoning ?? '') + (b.reasoning ?? '')
  const content = (a.content ?? '') + (b.content ?? '')
  const tool_calls = [...(a.tool_calls ?? []), ...(b.tool_calls ?? [])]
  return {
    ...(reasoning ? { reasoning } : {}),
    ...(content ? { content } : {}),
    ...(tool_calls.length > 0 ? { tool_calls } : {}),
  }
}
