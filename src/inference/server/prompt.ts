/** Converts text to tokens, and messages to text. Errors name the field. */
import { UserError } from '../../common/errors.ts'
import type { Message, ToolDefinition } from '../../common/types.ts'
import { thinkingAt, type Thinking } from '../parsers/reasoning.ts'
import { readTools } from '../parsers/tools/choice.ts'
import { badRequest } from './errors.ts'
import type { ServerContext } from './parts.ts'
import { contextWords } from './sampling.ts'
import type { ChatMessage, TemplateBody, ToolBody } from './schemas/chat.ts'
import type { SamplingBody } from './schemas/common.ts'

/** Characters per token of the context: of longer texts, only the beginning is tokenised at first. */
const USUAL = 8
/**
 * Texts that will be truncated are tokenised whole up to this many characters, or up to 2 x USUAL per token of the context if that is more, which
 * blocks the process for a second or two. Longer texts are refused.
 */
const MOST_CUT = 500_000

/**
 * @param options.cut whether the prompt will be truncated, so that it is not refused for its length
 * @throws HttpError for a text without tokens, or one far longer than the context
 */
export function encodeText(
  server: ServerContext,
  text: string,
  options: { field: string; addSpecialTokens: boolean; cut?: boolean },
): number[] {
  const { field, addSpecialTokens, cut } = options
  const { tokenizer } = server.parts
  const { maxLength } = server.engine
  const mostCut = Math.max(MOST_CUT, 2 * USUAL * maxLength)
  if (cut && text.length > mostCut) {
    const words = `the text has ${text.length} characters, but at most ${mostCut} can be tokenised for truncation`
    throw badRequest(`${field}: ${words}. Send only the part that should be kept.`, field)
  }
  // Tokenising megabytes would block all requests; the beginning shows whether the text can fit.
  for (let size = USUAL * maxLength; size < text.length && !cut; size *= 2) {
    const least = tokenizer.encode(text.slice(0, size), { addSpecialTokens }).length
    if (least <= 2 * maxLength) continue
    throw badRequest(
      `${field}: the prompt has more than ${least} tokens (${text.length} characters), but ${contextWords(maxLength)}. Shorten the prompt.`,
      field,
    )
  }
  const ids = tokenizer.encode(text, { addSpecialTokens })
  if (ids.length === 0) throw badRequest(`${field}: it has no tokens; generation needs at least one.`, field)
  return ids
}

/** @throws HttpError for an id outside the model's vocabulary */
export function checkIds(server: ServerContext, ids: readonly number[], field: string): number[] {
  const { vocabulary } = server.parts
  const wrong = ids.find((id) => id >= vocabulary)
  if (wrong !== undefined) throw badRequest(`${field}: token id ${wrong} is not one of the model's ${vocabulary} tokens.`, field)
  return ids as number[]
}

/**
 * The prompt's text and tokens, and the state of the answer's thoughts at its end.
 * @throws HttpError for messages that the template refuses
 */
export function encodeChat(
  server: ServerContext,
  body: TemplateBody & Pick<SamplingBody, 'truncate_prompt_tokens'>,
  tools?: readonly ToolDefinition[],
): { text: string; ids: number[]; thinking: Thinking } {
  const { tokenizer, chatTemplate, chatTemplateKwargs } = server.parts
  if (typeof body.chat_template === 'string') {
    throw badRequest(
      'chat_template: this server does not use templates sent in requests; start the server with --chat-template.',
      'chat_template',
    )
  }
  if (chatTemplate === undefined && !tokenizer.hasChatTemplate) {
    throw badRequest(
      'messages: the model has no chat template; start the server with --chat-template, or use /v1/completions.',
      'messages',
    )
  }
  const goesOn = body.continue_final_message === true
  if (goesOn && body.add_generation_prompt === true) {
    throw badRequest('continue_final_message: add_generation_prompt must not be set with it.', 'continue_final_message')
  }
  const { maxLength } = server.engine
  // Each message has at least one token, and a template takes long over a million of them.
  if (body.messages.length > maxLength)
    throw badRequest(`messages: there are ${body.messages.length}, but ${contextWords(maxLength)}. Send fewer.`, 'messages')
  const effort = body.reasoning_effort
  const shown = tools ?? toolsOf(body.tools)
  const variables = {
    ...chatTemplateKwargs,
    ...(effort ? { reasoning_effort: effort, enable_thinking: effort !== 'none' } : {}),
    ...body.chat_template_kwargs,
  }
  const messages = body.messages.map(messageOf)
  let text: string
  try {
    text = tokenizer.renderChat(messages, {
      addGenerationPrompt: goesOn ? false : (body.add_generation_prompt ?? true),
      continueFinalMessage: goesOn,
      tools: shown,
      chatTemplate,
      variables,
    })
  } catch (error) {
    if (error instanceof UserError) throw badRequest(error.message, 'messages')
    throw error
  }
  // Many templates silently ignore tools.
  if (shown.length > 0 && !shown.some((tool) => text.includes(tool.function.name)))
    server.warnOnce(
      'the chat template does not render tools: the model sees neither the tools of requests nor the calls in messages. Use a --chat-template that renders them, or describe the tools in a system message.',
    )
  const cut = typeof body.truncate_prompt_tokens === 'number'
  const ids = encodeText(server, text, { field: 'messages', addSpecialTokens: body.add_special_tokens ?? false, cut })
  return { text, ids, thinking: thinkingAt(text, goesOn ? messages.at(-1)?.content : '') }
}

/** A message in the form that templates take: content as one text, no nulls. */
function messageOf(message: ChatMessage): Message {
  const { role, content, tool_calls, name, tool_call_id } = message
  const reasoning = message.reasoning ?? message.reasoning_content
  const text =
    typeof content === 'string'
      ? content
      : (content ?? []).map((part) => ('refusal' in part ? part.refusal : part.text)).join('\n')
  return {
    role: role === 'developer' ? 'system' : role,
    content: text,
    ...(name ? { name } : {}),
    ...(tool_call_id ? { tool_call_id } : {}),
    // Templates use one name or the other.
    ...(reasoning ? { reasoning, reasoning_content: reasoning } : {}),
    ...(tool_calls && tool_calls.length > 0
      ? {
          tool_calls: tool_calls.map((call, i) => ({
            id: call.id ?? `call_${i}`,
            type: 'function' as const,
            function: { name: call.function.name, arguments: argumentsText(call.function.arguments) },
          })),
        }
      : {}),
  }
}

const argumentsText = (value: string | Record<string, unknown> | null | undefined): string =>
  typeof value === 'string' ? value : JSON.stringify(value ?? {})

/** Tools as /v1/chat/completions passes them to the template, so that /tokenize gives the same tokens. */
function toolsOf(tools: readonly ToolBody[] | null | undefined): ToolDefinition[] {
  try {
    return readTools(tools)
  } catch (error) {
    throw error instanceof UserError ? badRequest(error.message, 'tools') : error
  }
}
