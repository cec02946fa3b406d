/** What parsers make of an answer's text, in the words of OpenAI's chat completions. */
import type { ToolCall } from '../../common/types.ts'

/** A whole answer. `content` is null where there is no text beside the calls. */
export interface ParsedAnswer {
  content: string | null
  tool_calls: ToolCall[]
}

/** A piece of a call: the first of an index has id, type and name, the others more of `arguments`. */
export interface ToolCallDelta {
  index: number
  id?: string
  type?: 'function'
  function: { name?: string; arguments?: string }
}

/** What a piece of text adds to an answer; empty where the text is still undecided. */
export interface AnswerDelta {
  content?: string
  tool_calls?: ToolCallDelta[]
}

/** Parses an answer as it comes. The deltas together are what the whole text parses to, however it is cut. */
export interface AnswerStream {
  push(text: string): AnswerDelta
  /** The rest, when the text has ended. */
  flush(): AnswerDelta
}

/** Finds tool calls in what a model writes. */
export interface ToolParser {
  readonly name: string
  /** Words that it looks for, which a tokenizer may have as special tokens. */
  readonly marks: readonly string[]
  parse(text: string): ParsedAnswer
  stream(): AnswerStream
}

/** What a piece of text adds to a thinking model's answer. */
export interface ReasoningDelta {
  reasoning?: string
  content?: string
}
