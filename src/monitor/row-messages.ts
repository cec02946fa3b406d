/** Parts of a rollout's row as a report or the page shows them, whatever the file contains: rows of other programs are shown too. */
import type { Message, ToolCall } from '../common/types.ts'

/** The messages of a row, whatever the file contains; a text is one message of `role`. Their calls have names and arguments that are text. */
export function messagesOf(value: unknown, role: 'user' | 'assistant' = 'user'): Message[] {
  if (typeof value === 'string') return [{ role, content: value }]
  return Array.isArray(value) ? value.filter(isObject).map(withCalls) : []
}

function withCalls(message: object): Message {
  const { tool_calls: calls, ...rest } = message as Message
  return Array.isArray(calls) ? { ...rest, tool_calls: calls.flatMap((call) => asCall(call) ?? []) } : rest
}

/** Verifiers writes each call as JSON text, or without `function` around its name and arguments. */
function asCall(call: unknown): ToolCall | undefined {
  const value = typeof call === 'string' ? jsonOf(call) : call
  if (!isObject(value)) return undefined
  const { function: inner, id, ...own } = value as Partial<ToolCall>
  const { name, arguments: args } = (inner ?? own) as Partial<ToolCall['function']>
  return { id: plain(id), type: 'function', function: { name: plain(name), arguments: plain(args) } }
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null && !Array.isArray(value)

/** A field of a row as text, whatever the file contains. */
export const plain = (value: unknown): string =>
  typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value)

/** Names and arguments of the calls of a message from `messagesOf`. */
export const callsOf = ({ tool_calls: calls = [] }: Message): [name: string, args: string][] =>
  calls.map((call) => [call.function.name, call.function.arguments])
