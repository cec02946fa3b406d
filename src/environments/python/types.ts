/** The data that crosses the bridge to Python, in verifiers' form (its serve/types.py), as far as it is used here. */
import type { Message, ToolCall, ToolDefinition } from '../../common/types.ts'
import type { Row } from '../types.ts'

/** A row of a Python environment; `packed`: the row as it is sent to the environment server, in msgpack. */
export interface PythonRow extends Row {
  packed: Uint8Array
}

/** The description of a Python environment (`describe` in bridge.py). */
export interface Description {
  /** Whether it is a taskset, of verifiers 0.4.0 or later. */
  tasksets?: boolean
  /** Whether its rubric compares the rollouts of a task, which must then be played by one request. */
  group: boolean
  max_turns: number
  message_type: string
  system_prompt: string | null
  tools: LooseTool[]
  rewards: [name: string, weight: number][]
  train: number
}

/** A tool in verifiers' form. */
export interface LooseTool {
  name: string
  description?: string | null
  parameters?: Record<string, unknown> | null
}

/** The tool in the form that chat templates take. */
export const toolOf = ({ name, description, parameters }: LooseTool): ToolDefinition => ({
  type: 'function',
  function: { name, ...(description ? { description } : {}), parameters: parameters ?? { type: 'object', properties: {} } },
})

/** The result of a rollout, verifiers' RolloutOutput. */
export interface Output {
  completion: unknown
  reward: unknown
  error?: { error: string; message: string; error_chain_repr?: string } | null
  is_truncated?: boolean
  stop_condition?: string | null
  metrics?: Record<string, unknown> | null
  trajectory?: OutputStep[] | null
  /** Of a taskset: the session in which the answers of its trajectory were asked for. */
  session?: string
}

/** One call of a model. */
interface OutputStep {
  response?: { id?: string } | null
  tokens?: { completion_ids?: number[] } | null
  /** Of a taskset: how many tokens the call's prompt and answer have. */
  lengths?: [prompt: number, answer: number]
}

/** A message of OpenAI's or of verifiers', whose calls of tools may be objects or JSON. */
interface LooseMessage {
  role?: unknown
  content?: unknown
  tool_calls?: unknown
  tool_call_id?: unknown
  name?: unknown
}

/**
 * Messages in our form: content as one text, no nulls.
 * @throws Error for a bad message, or one with more than text
 */
export function messagesOf(value: unknown, what: string): Message[] {
  if (typeof value === 'string') return [{ role: 'user', content: value }]
  if (!Array.isArray(value)) throw new Error(`${what} is no list of messages`)
  return value.map((message: LooseMessage) => messageOf(message, what))
}

function messageOf(message: LooseMessage, what: string): Message {
  const { role, content, tool_calls, tool_call_id, name } = message
  const known = role === 'developer' ? 'system' : role
  if (known !== 'system' && known !== 'user' && known !== 'assistant' && known !== 'tool')
    throw new Error(`${what} has a message of role ${JSON.stringify(role)}`)
  const calls = Array.isArray(tool_calls) ? tool_calls.map(callOf) : []
  return {
    role: known,
    content: textOf(content, what),
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(typeof tool_call_id === 'string' ? { tool_call_id } : {}),
    ...(typeof name === 'string' ? { name } : {}),
  }
}

function textOf(content: unknown, what: string): string {
  if (typeof content === 'string') return content
  if (content === null || content === undefined) return ''
  const parts = Array.isArray(content) ? (content as { text?: unknown }[]) : [{}]
  if (parts.every((part) => typeof part.text === 'string')) return parts.map((part) => part.text).join('\n')
  throw new Error(`${what} has a message that is not text, which this trainer's models do not read`)
}

function callOf(call: unknown): ToolCall {
  const given = (typeof call === 'string' ? JSON.parse(call) : call) as Record<string, unknown>
  const inner = (given.function ?? given) as Record<string, unknown>
  const text = typeof inner.arguments === 'string' ? inner.arguments : JSON.stringify(inner.arguments ?? {})
  return {
    id: typeof given.id === 'string' ? given.id : '',
    type: 'function',
    function: { name: String(inner.name), arguments: text },
  }
}
