/** Tool calls in the rows of datasets. */
import type { ToolCall } from './types.ts'

/**
 * Tool calls in OpenAI's format, with the arguments as the text that a model writes.
 * @param wrong makes the error that is thrown if the calls are not a list of `{ function: { name, arguments } }`
 */
export function toolCallsOf(calls: unknown, wrong: () => Error): ToolCall[] {
  if (!Array.isArray(calls)) throw wrong()
  return calls.map((call: Partial<ToolCall> | null, i) => {
    const { name, arguments: given } = (call?.function ?? {}) as { name?: unknown; arguments?: unknown }
    if (typeof name !== 'string' || given === undefined) throw wrong()
    const text = typeof given === 'string' ? given : JSON.stringify(given)
    return { id: call!.id ?? `call_${i}`, type: 'function', function: { name, arguments: text } }
  })
}
