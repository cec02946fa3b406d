/** Messages as chat templates take them. */
import { UserError } from '../../common/errors.ts'
import type { Message } from '../../common/types.ts'
import { pythonJson, stripped } from './python-text.ts'

/** Renders messages by a template. */
type Written = (messages: readonly object[]) => string

/** The prompt, with the arguments of calls as objects; of a template that does not take them so (DeepSeek-R1's joins them to text) as text. */
export function rendered(messages: readonly object[], written: Written): string {
  try {
    return written(messages.map(withArguments))
  } catch (error) {
    try {
      return written(messages)
    } catch {
      throw error
    }
  }
}

/**
 * Where the text of a message that is gone on with stands in the rendered prompt: no text has it by chance. Of a template that trims texts
 * the space at its end is missing.
 */
const HERE = '\u{f8ff}here\u{f8ff} '

/** The prompt up to the end of the last message's text, without the white space there where the template trims texts (as transformers has it). */
export function unfinished(messages: readonly Message[], written: Written): string {
  const last = messages.at(-1)
  if (last === undefined || typeof last.content !== 'string')
    throw new UserError('continue_final_message needs a last message with text to continue.')
  const marked = rendered([...messages.slice(0, -1), { ...last, content: last.content + HERE }], written)
  const at = marked.lastIndexOf(HERE.trimEnd())
  if (at < 0) throw new UserError('continue_final_message: the chat template does not write the last message.')
  return marked.startsWith(HERE, at) ? marked.slice(0, at) : stripped(marked.slice(0, at), undefined, false, true)
}

/** Templates write a call's arguments with `tojson`: they are given as an object where their text is one, as Python's servers give them. */
function withArguments(message: object): object {
  const calls = (message as Message).tool_calls
  if (!Array.isArray(calls)) return message
  const read = (text: unknown): unknown => {
    if (typeof text !== 'string') return text
    if (text.trim() === '') return {}
    try {
      const value = pythonJson(text)
      return typeof value === 'object' && value !== null ? value : text
    } catch {
      return text
    }
  }
  return {
    ...message,
    tool_calls: calls.map((call) => ({ ...call, function: { ...call.function, arguments: read(call.function?.arguments) } })),
  }
}
