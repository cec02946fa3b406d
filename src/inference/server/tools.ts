/** What a chat request's tools and tool_choice mean for its prompt, its draw and its answer. */
import type { GrammarFormat } from '../grammar/types.ts'
import type { ToolParser } from '../parsers/types.ts'
import { badRequest, unsupported } from './errors.ts'
import type { ServerContext } from './parts.ts'
import type { ChatBody } from './schemas/chat.ts'

export interface ToolPlan {
  /** Whether the template is told of the tools. */
  rendered: boolean
  /** Finds the calls; undefined: none are looked for. */
  parser?: ToolParser
  /** Where a call is demanded, what it must look like. */
  constraint?: { format: GrammarFormat; field: string }
  finishReason(reason: string, calls: number): string
}

const asItIs = (reason: string) => reason

/** @throws HttpError for tools that this server can't serve */
export function planTools(server: ServerContext, body: ChatBody): ToolPlan {
  const tools = body.tools ?? []
  const choice = body.tool_choice ?? (tools.length > 0 ? 'auto' : 'none')
  if (tools.length === 0) {
    if (choice === 'auto' || choice === 'none') return { rendered: false, finishReason: asItIs }
    throw badRequest('tool_choice: it demands a call, and there are no tools.', 'tool_choice')
  }
  if (choice === 'none') return { rendered: true, finishReason: asItIs }
  const { toolParser } = server.parts
  if (choice === 'auto') {
    if (!toolParser) throw unsupported('tools', 'this server does not know how its model writes calls (--tool-call-parser)')
    return {
      rendered: true,
      parser: toolParser,
      finishReason: (reason, calls) => (calls > 0 && reason === 'stop' ? 'tool_calls' : reason),
    }
  }
  throw unsupported('tool_choice', 'only "auto" and "none" are supported by this server')
}
