/** Bodies that hold messages: /v1/chat/completions, /tokenize, /v1/responses. */
import * as z from 'zod'
import { formerly, ignored, list, only, requestFields, samplingFields } from './common.ts'

const textPart = z.object({
  type: z.enum(['text', 'input_text', 'output_text']),
  text: z.string(),
  // From an earlier answer that the client sends back.
  annotations: ignored,
  logprobs: ignored,
})
/** What OpenAI's models write in place of a text, from an earlier answer. */
const refusalPart = z.object({ type: z.literal('refusal'), refusal: z.string() })
const part = z.discriminatedUnion('type', [textPart, refusalPart], {
  error: ({ code }) => (code === 'invalid_union' ? 'it must be "text"; images, audio and files are not supported' : undefined),
})
const content = z.union([z.string(), list(part)], {
  error: 'it must be a string, or parts of type "text"',
})

const toolCall = z.object({
  id: z.string().nullish(),
  type: z.literal('function').nullish(),
  function: z.object({ name: z.string(), arguments: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish() }),
})

const message = z.object({
  role: z.enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: content.nullish(),
  name: z.string().nullish(),
  tool_calls: list(toolCall).nullish(),
  tool_call_id: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
})
export type ChatMessage = z.infer<typeof message>

const tool = z.object({
  type: z.literal('function'),
  function: z.object({
    name: z.string().min(1).max(256),
    description: z.string().nullish(),
    parameters: z.record(z.string(), z.unknown()).nullish(),
    strict: z.boolean().nullish(),
  }),
})
export type ToolBody = z.infer<typeof tool>

/** Fields that decide how messages become a prompt. */
const templateFields = {
  messages: list(message, { least: 1 }),
  tools: list(tool).nullish(),
  add_generation_prompt: z.boolean().nullish(),
  continue_final_message: z.boolean().nullish(),
  add_special_tokens: z.boolean().nullish(),
  chat_template: z.string().max(1_000_000).nullish(),
  chat_template_kwargs: z.record(z.string(), z.unknown()).nullish(),
  reasoning_effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).nullish(),
  documents: only([]),
  mm_processor_kwargs: only(),
}
export interface TemplateBody {
  messages: ChatMessage[]
  tools?: ToolBody[] | null
  add_generation_prompt?: boolean | null
  continue_final_message?: boolean | null
  add_special_tokens?: boolean | null
  chat_template?: string | null
  chat_template_kwargs?: Record<string, unknown> | null
  reasoning_effort?: string | null
}

export const chatBody = z.object({
  ...samplingFields,
  ...requestFields,
  ...templateFields,
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(-1).nullish(),
  tool_choice: z
    .union(
      [z.enum(['none', 'auto', 'required']), z.object({ type: z.literal('function'), function: z.object({ name: z.string() }) })],
      { error: 'it must be "none", "auto", "required" or a function by name' },
    )
    .nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  include_reasoning: z.boolean().nullish(),
  return_prompt_text: z.boolean().nullish(),
  echo: only(false),
  functions: formerly('tools'),
  function_call: formerly('tool_choice'),
  modalities: only(['text']),
  audio: only(),
  prediction: only(),
  web_search_options: only(),
  verbosity: ignored,
  prompt_cache_key: ignored,
  safety_identifier: ignored,
})
export type ChatBody = z.infer<typeof chatBody>

/** /tokenize takes a prompt or messages. */
export const tokenizeBody = z.object({
  ...templateFields,
  messages: templateFields.messages.nullish(),
  model: z.string().nullish(),
  prompt: z.string().nullish(),
  return_token_strs: z.boolean().nullish(),
})

const inputItem = z.object({
  type: z.literal('message', { error: 'only messages and reasoning are supported as items' }).nullish(),
  role: message.shape.role,
  content,
  id: ignored,
  status: ignored,
})

/** Thoughts of an earlier answer, sent back with the rest of its output. */
const reasoningItem = z.object({
  type: z.literal('reasoning'),
  content: list(z.object({ type: z.literal('reasoning_text'), text: z.string() })).nullish(),
  summary: ignored,
  encrypted_content: only(),
  id: ignored,
  status: ignored,
})

/** OpenAI's Responses API: text in, text out, nothing is stored. */
export const responsesBody = z.object({
  model: z.string().nullish(),
  input: z.union([z.string(), list(z.union([inputItem, reasoningItem]), { least: 1 })], {
    error: 'it must be a string or a list of messages with text',
  }),
  instructions: z.string().nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  temperature: samplingFields.temperature,
  top_p: samplingFields.top_p,
  top_k: samplingFields.top_k,
  min_p: samplingFields.min_p,
  seed: samplingFields.seed,
  stop: samplingFields.stop,
  ignore_eos: samplingFields.ignore_eos,
  stream: z.boolean().nullish(),
  stream_options: ignored,
  text: z
    .object({
      format: z
        .discriminatedUnion('type', [
          z.object({ type: z.literal('text') }),
          z.object({ type: z.literal('json_object') }),
          z.object({
            type: z.literal('json_schema'),
            name: z.string().nullish(),
            schema: z.record(z.string(), z.unknown()),
            strict: ignored,
          }),
        ])
        .nullish(),
      verbosity: ignored,
    })
    .nullish(),
  chat_template_kwargs: templateFields.chat_template_kwargs,
  cache_salt: requestFields.cache_salt,
  request_id: requestFields.request_id,
  priority: only(0),
  store: z.boolean().nullish(),
  metadata: z.record(z.string(), z.unknown()).nullish(),
  user: ignored,
  truncation: only('disabled'),
  tools: only([]),
  tool_choice: only('auto', 'none'),
  parallel_tool_calls: ignored,
  previous_response_id: only(),
  conversation: only(),
  prompt: only(),
  background: only(false),
  // Stateless clients request encrypted thoughts to send back; here the output contains them anyway, as plain text.
  include: only([], ['reasoning.encrypted_content']),
  reasoning: z.object({ effort: templateFields.reasoning_effort, summary: ignored, generate_summary: ignored }).nullish(),
  top_logprobs: only(0),
  service_tier: ignored,
  prompt_cache_key: ignored,
  safety_identifier: ignored,
})
export type ResponsesBody = z.infer<typeof responsesBody>
