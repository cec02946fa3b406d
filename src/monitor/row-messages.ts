/** Parts of a rollout's row as a report or the page shows them, whatever the file contains: rows of other programs are shown too. */
import type { Message } from '../common/types.ts'

/** The messages of a row, whatever the file contains; a text is one message of `role`. */
export function messagesOf(value: unknown, role: 'user' | 'assistant' = 'user'): Message[] {
  if (typeof value === 'string') return [{ role, content: value }]
  return Array.isArray(value)
    ? value.filter((item): item is Message => typeof item === 'object' && item !== null && !Array.isArray(item))
    : []
}

/** A field of a row as text, whatever the file contains. */
export const plain = (value: unknown): string =>
  typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value)

/** Names and arguments of calls. Arguments are JSON already; encoded again, every quote would get a backslash. */
export const callsOf = ({ tool_calls: calls }: Message): [name: string, args: string][] =>
  Array.isArray(calls) ? calls.map((call) => [plain(call?.function?.name), plain(call?.function?.arguments)]) : []
