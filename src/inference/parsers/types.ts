/** What parsers return for an answer's text, in the terms of OpenAI's chat completions. */
import type { ToolCall } from '../../common/types.ts'

/** A whole answer. `content` is null if there is no text beside the calls. */
export interface ParsedAnswer {
  content: string | null
  tool_calls: ToolCall[]
}

/** A piece of a call. The first piece with an index has id, type and name; the others continue `arguments`. */
export interface ToolCallDelta {
  index: number
  id?: string
  type?: 'function'
  function: { name?: string; arguments?: string }
}

/** What a piece of text adds to an answer; empty while the text is still undecided. */
export interface AnswerDelta {
  content?: string
  tool_calls?: ToolCallDelta[]
}

/** Parses an answer as it arrives. The deltas together are what the whole text parses to, wherever it is cut. */
export interface AnswerStream {
  push(text: string): AnswerDelta
  /** The rest, to be called when the text has ended. */
  flush(): AnswerDelta
}

/** Finds tool calls in what a model writes. */
export interface ToolParser {
  readonly name: string
  /** Markers that the parser looks for, which a tokenizer may have as special tokens. */
  readonly marks: readonly string[]
  parse(text: string): ParsedAnswer
  stream(): AnswerStream
}

/** What a piece of text adds to a thinking model's answer. */
export interface ReasoningDelta {
  reasoning?: string
  content?: string
}
