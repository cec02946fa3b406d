/** Collects the findings of parsers into deltas, and joins deltas to a whole answer. */
import { randomUUID } from 'node:crypto'
import type { ToolCall } from '../../../common/types.ts'
import type { AnswerDelta, AnswerStream, ParsedAnswer, ToolCallDelta } from '../types.ts'

/** A delta under construction. */
export class DeltaWriter {
  #content = ''
  #calls: ToolCallDelta[] = []
  #index = -1

  /** Number of calls so far. */
  get count(): number {
    return this.#index + 1
  }

  content(text: string): void {
    this.#content += text
  }

  begin(name: string): void {
    this.#index++
    const id = `call_${randomUUID().replaceAll('-', '').slice(0, 24)}`
    this.#calls.push({ index: this.#index, id, type: 'function', function: { name, arguments: '' } })
  }

  arguments(text: string): void {
    const last = this.#calls.at(-1)
    if (last?.index === this.#index) last.function.arguments = (last.function.arguments ?? '') + text
    else this.#calls.push({ index: this.#index, function: { arguments: text } })
  }

  /** What was added since the last `take`. */
  take(): AnswerDelta {
    const delta: AnswerDelta = {}
    if (this.#content !== '') delta.content = this.#content
    if (this.#calls.length > 0) delta.tool_calls = this.#calls
    this.#content = ''
    this.#calls = []
    return delta
  }
}

/** Joins deltas. */
export class AnswerJoiner {
  #content = ''
  readonly #calls: ToolCall[] = []

  add(delta: AnswerDelta): void {
    this.#content += delta.content ?? ''
    for (const { index, id, function: made } of delta.tool_calls ?? []) {
      if (id !== undefined) this.#calls[index] = { id, type: 'function', function: { name: made.name ?? '', arguments: '' } }
      this.#calls[index].function.arguments += made.arguments ?? ''
    }
  }

  get answer(): ParsedAnswer {
    return { content: this.#content === '' ? null : this.#content, tool_calls: this.#calls }
  }
}

/** The whole text, parsed by a stream. */
export function parseWhole(stream: AnswerStream, text: string): ParsedAnswer {
  const joiner = new AnswerJoiner()
  joiner.add(stream.push(text))
  joiner.add(stream.flush())
  return joiner.answer
}
