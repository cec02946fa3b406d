/** How a chat request's tools are used, and how thoughts and calls are found in its answer. */
import { UserError } from '../../common/errors.ts'
import type { GrammarFormat } from '../grammar/types.ts'
import { ReasoningStream, thoughtMarks, type Thinking } from '../parsers/reasoning.ts'
import { planTools as plan, type ToolPlan as Plan } from '../parsers/tools/choice.ts'
import { AnswerText } from './answer.ts'
import { badRequest, unsupported } from './errors.ts'
import type { ServerContext } from './parts.ts'
import type { ChatBody } from './schemas/chat.ts'

export interface ToolPlan extends Plan {
  /** The constraint, if a call is required. */
  constraint?: { format: GrammarFormat; field: string }
  finishReason(reason: string, calls: number): string
}

/** The chat template for prompts with tools. */
const templateOf = ({ parts }: ServerContext): string | null => parts.chatTemplate ?? parts.tokenizer.toolTemplate

/** @throws HttpError for tools that this server does not support */
export function planTools(server: ServerContext, body: ChatBody): ToolPlan {
  const { toolParser = 'auto' } = server.parts
  const asked = (body.tools?.length ?? 0) > 0
  if (asked && toolParser === 'none' && body.tool_choice !== 'none')
    throw unsupported('tools', 'this server was started without a --tool-call-parser')
  let made: Plan
  try {
    // Many clients send "auto" without tools.
    const tool_choice = !asked && body.tool_choice === 'auto' ? 'none' : body.tool_choice
    made = plan({ ...body, tool_choice }, toolParser, templateOf(server))
  } catch (error) {
    if (!(error instanceof UserError)) throw error
    throw badRequest(error.message, error.message.startsWith('tool_choice') ? 'tool_choice' : 'tools')
  }
  // As in OpenAI's API, a call required by name has the finish reason of a text.
  const named = typeof body.tool_choice === 'object' && body.tool_choice !== null
  return {
    ...made,
    ...(made.format ? { constraint: { format: made.format, field: 'tool_choice' } } : {}),
    finishReason: (reason, calls) => (calls > 0 && reason === 'stop' && !named ? 'tool_calls' : reason),
  }
}

/** Reads the answer to a prompt. */
export function answerTo({ parts }: ServerContext, thinking: Thinking, tools?: Plan): AnswerText {
  const reasoning = parts.reasoning ? new ReasoningStream(thinking === 'begun') : undefined
  return new AnswerText(reasoning, tools?.parser ?? undefined, tools?.most)
}

/**
 * Whether special tokens can be left out of the answer's text. In some tokenizers, the marks of thoughts and calls are special tokens, which the
 * parsers need.
 */
export function readsWithoutSpecialTokens({ parts: { tokenizer, reasoning } }: ServerContext, tools?: Plan): boolean {
  const marks = [...(reasoning ? thoughtMarks : []), ...(tools?.parser?.marks ?? [])]
  return !marks.some((mark) => tokenizer.isSpecial(tokenizer.tokenToId(mark) ?? -1))
}

/** The token after which a constraint begins if the model thinks first: the one that ends its thoughts. */
export function thoughtsEnd({ parts }: ServerContext, thinking: Thinking): number | undefined {
  if (!parts.reasoning || thinking === 'ended') return undefined
  return parts.tokenizer.tokenToId('</think>') ?? undefined
}
