/** The data that crosses the bridge to Python, in verifiers' format (its serve/types.py), as far as it is used here. */
import type { Message, ToolCall, ToolDefinition } from '../../common/types.ts'
import type { Row } from '../types.ts'

/** A row of a Python environment. `packed`: the row in msgpack, as it is sent to the environment server. */
export interface PythonRow extends Row {
  packed: Uint8Array
}

/** The description of a Python environment (`describe` in bridge.py). */
export interface Description {
  /** Whether it is a taskset (verifiers 0.4.0 or later). */
  tasksets?: boolean
  /** Whether its rubric compares the rollouts of a task, which then must be played by a single request. */
  group: boolean
  max_turns: number
  message_type: string
  system_prompt: string | null
  tools: LooseTool[]
  rewards: [name: string, weight: number][]
  train: number
}

/** A tool in verifiers' format. */
export interface LooseTool {
  name: string
  description?: string | null
  parameters?: Record<string, unknown> | null
}

/** Converts a tool to the format that chat templates use. */
export const toolOf = ({ name, description, parameters }: LooseTool): ToolDefinition => ({
  type: 'function',
  function: { name, ...(description ? { description } : {}), parameters: parameters ?? { type: 'object', properties: {} } },
})

/** The result of a rollout: verifiers' RolloutOutput. */
export interface Output {
  completion: unknown
  reward: unknown
  error?: { error: string; message: string; error_chain_repr?: string } | null
  is_truncated?: boolean
  stop_condition?: string | null
  metrics?: Record<string, unknown> | null
  trajectory?: OutputStep[] | null
  /** Tasksets only: the session in which the answers of the trajectory were requested. */
  session?: string
}

/** One call of a model. */
interface OutputStep {
  response?: { id?: string } | null
  tokens?: { completion_ids?: number[] } | null
  /** Tasksets only: the numbers of tokens of the call's prompt and answer. */
  lengths?: [prompt: number, answer: number]
}

/** A message in OpenAI's or verifiers' format, whose tool calls may be objects or JSON text. */
interface LooseMessage {
  role?: unknown
  content?: unknown
  tool_calls?: unknown
  tool_call_id?: unknown
  name?: unknown
}

/**
 * Converts messages to our format: content as one string, no nulls.
 * @throws Error for an invalid message, or one with anything other than text
 */
export function messagesOf(value: unknown, what: string): Message[] {
  if (typeof value === 'string') return [{ role: 'user', content: value }]
  if (!Array.isArray(value)) throw new Error(`${what} is not a list of messages`)
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
  throw new Error(`${what} has a message that is not text; only text is supported`)
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
