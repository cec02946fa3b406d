/** /v1/responses: OpenAI's newer API, for text. Nothing is stored, so clients send the whole conversation each time. */
import { randomUUID } from 'node:crypto'
import type { Context } from 'hono'
import { decodeStream } from '../../model/tokenizer/tokenizer.ts'
import type { Thinking } from '../parsers/reasoning.ts'
import type { AnswerText } from './answer.ts'
import type { Generation, Usage, Work } from './generation.ts'
import type { App, ServerContext } from './parts.ts'
import { encodeChat } from './prompt.ts'
import { idOf, modelOf, now, respond } from './route.ts'
import { maxTokensOf, samplingOf } from './sampling.ts'
import { responsesBody, type ChatMessage, type ResponsesBody } from './schemas/chat.ts'
import type { ResponseFormat } from './schemas/common.ts'
import type { SsePiece } from './stream.ts'
import { constraintOf } from './structured.ts'
import { answerTo, readsWithoutSpecialTokens, thoughtsEnd } from './tools.ts'

interface Wish {
  id: string
  item: string
  created: number
  model: string
  body: ResponsesBody
  work: Work
  thinking: Thinking
  server: ServerContext
  /** Number of events sent so far. */
  sent: number
}

export function addResponses(app: App, server: ServerContext): void {
  app.post('/v1/responses', async (context: Context) => {
    const body = await server.bodies.read(context, responsesBody)
    const { model, adapter } = modelOf(server, body.model)
    const id = idOf(context, 'resp', body.request_id)
    const item = `msg_${randomUUID().replaceAll('-', '')}`
    const wish: Wish = { id, item, created: now(), model, body, server, sent: 0, ...prepare(server, body, adapter) }
    return await respond(context, server, body, {
      id,
      works: [wish.work],
      answer: (generation) => whole(generation, wish),
      pieces: (generation) => events(generation, wish),
      done: false,
      fault: (error) => ({
        event: 'error',
        data: {
          type: 'error',
          code: String(error.status),
          message: error.message,
          param: error.param,
          sequence_number: wish.sent++,
        },
      }),
    })
  })
}

function prepare(
  server: ServerContext,
  body: ResponsesBody,
  adapter: string | null | undefined,
): { work: Work; thinking: Thinking } {
  const { parts, engine } = server
  const messages: ChatMessage[] = body.instructions ? [{ role: 'system', content: body.instructions }] : []
  if (typeof body.input === 'string') messages.push({ role: 'user', content: body.input })
  else {
    // Thoughts belong to the answer after them.
    let reasoning = ''
    for (const item of body.input) {
      if (item.type === 'reasoning') reasoning += (item.content ?? []).map((part) => part.text).join('')
      else {
        const { role, content } = item
        messages.push({ role, content, ...(role === 'assistant' ? { reasoning } : {}) })
        reasoning = ''
      }
    }
  }
  const { chat_template_kwargs, reasoning: asked } = body
  const { ids, thinking } = encodeChat(server, { messages, chat_template_kwargs, reasoning_effort: asked?.effort })
  const limits = { maxLength: engine.maxLength, prompt: 'input', field: 'max_output_tokens' }
  const max_tokens = maxTokensOf(ids.length, body.max_output_tokens, parts.defaults?.max_tokens ?? Infinity, limits)
  return {
    thinking,
    work: {
      promptIds: ids,
      sampling: { ...samplingOf(body, parts.defaults), max_tokens },
      n: 1,
      text: { skipSpecialTokens: readsWithoutSpecialTokens(server), includeStop: false },
      adapter,
      cacheSalt: body.cache_salt ?? undefined,
      constraint: constraintOf(server, { response_format: formatOf(body) }, { afterToken: thoughtsEnd(server, thinking) }),
    },
  }
}

/** `text.format` as a response_format. */
function formatOf({ text }: ResponsesBody): ResponseFormat | undefined {
  const format = text?.format
  if (format?.type !== 'json_schema') return format ?? undefined
  return { type: 'json_schema', json_schema: { name: format.name, schema: format.schema } }
}

interface Ended {
  status: 'completed' | 'incomplete'
  /** Why the answer is incomplete. */
  reason?: string
  output: object[]
  usage?: Usage
  /** Number of tokens before the answer's first one. */
  thoughts?: number
}

function response(wish: Wish, ended?: Ended): object {
  const { id, created, model, body, work } = wish
  const { sampling } = work
  return {
    id,
    object: 'response',
    created_at: created,
    status: ended?.status ?? 'in_progress',
    error: null,
    incomplete_details: ended?.reason ? { reason: ended.reason } : null,
    instructions: body.instructions ?? null,
    max_output_tokens: sampling.max_tokens,
    metadata: body.metadata ?? {},
    model,
    output: ended?.output ?? [],
    parallel_tool_calls: false,
    previous_response_id: null,
    store: false,
    temperature: sampling.temperature,
    text: { format: body.text?.format ?? { type: 'text' } },
    tool_choice: 'none',
    tools: [],
    top_p: sampling.top_p,
    truncation: 'disabled',
    usage: ended?.usage
      ? {
          input_tokens: ended.usage.prompt_tokens,
          // Clients read both without checking. Cache writes cost nothing here, so the second is 0.
          input_tokens_details: {
            cached_tokens: ended.usage.prompt_tokens_details?.cached_tokens ?? 0,
            cache_write_tokens: 0,
          },
          output_tokens: ended.usage.completion_tokens,
          output_tokens_details: { reasoning_tokens: ended.thoughts ?? 0 },
          total_tokens: ended.usage.total_tokens,
        }
      : null,
  }
}

/** The items of the output, in the API's form. */
const kinds = {
  reasoning: {
    event: 'response.reasoning_text',
    item: ({ item }: Wish, _: string, content: object[]) => ({
      id: `rs_${item.slice(4)}`,
      type: 'reasoning',
      summary: [],
      content,
    }),
    part: (text: string) => ({ type: 'reasoning_text', text }),
    piece: {},
  },
  message: {
    event: 'response.output_text',
    item: ({ item }: Wish, status: string, content: object[]) => ({
      id: item,
      type: 'message',
      role: 'assistant',
      status,
      content,
    }),
    part: (text: string) => ({ type: 'output_text', text, annotations: [], logprobs: [] }),
    piece: { logprobs: [] as never[] },
  },
}
type Kind = keyof typeof kinds

const itemOf = (kind: Kind, wish: Wish, status: string, text: string) => kinds[kind].item(wish, status, [kinds[kind].part(text)])

function endedOf(generation: Generation, wish: Wish, text: AnswerText): Ended {
  const [one] = generation.finished
  const status = one.finishReason === 'stop' ? 'completed' : 'incomplete'
  const reasoning = text.reasoning ? [itemOf('reasoning', wish, status, text.reasoning)] : []
  return {
    status,
    ...(one.finishReason === 'stop' ? {} : { reason: one.finishReason === 'length' ? 'max_output_tokens' : one.finishReason }),
    output: [...reasoning, itemOf('message', wish, status, text.content)],
    usage: generation.usage(),
    thoughts: text.reasoning ? thoughtsOf(wish, one.result.ids) : 0,
  }
}

/** Number of tokens before the answer. */
function thoughtsOf({ server, thinking, work }: Wish, ids: readonly number[]): number {
  const decoder = decodeStream(server.parts.tokenizer, work.text)
  const text = answerTo(server, thinking)
  const first = ids.findIndex((id) => text.push(decoder.push(id)).content)
  return first < 0 ? ids.length : first
}

function whole(generation: Generation, wish: Wish): object {
  const text = answerTo(wish.server, wish.thinking)
  text.push(generation.finished[0].text)
  text.flush()
  return response(wish, endedOf(generation, wish, text))
}

async function* events(generation: Generation, wish: Wish): AsyncGenerator<SsePiece> {
  const event = (type: string, fields: object): SsePiece => ({
    event: type,
    data: { type, sequence_number: wish.sent++, ...fields },
  })
  const text = answerTo(wish.server, wish.thinking)
  yield event('response.created', { response: response(wish) })
  yield event('response.in_progress', { response: response(wish) })
  /** The item being written, and its text so far. */
  let open: { kind: Kind; text: string; index: number } | undefined
  const place = ({ kind, index }: { kind: Kind; index: number }) => {
    return { item_id: kinds[kind].item(wish, '', []).id, output_index: index, content_index: 0 }
  }
  function* close(status: string): Generator<SsePiece> {
    if (!open) return
    const { event: name, part, piece } = kinds[open.kind]
    yield event(`${name}.done`, { ...place(open), text: open.text, ...piece })
    yield event('response.content_part.done', { ...place(open), part: part(open.text) })
    yield event('response.output_item.done', { output_index: open.index, item: itemOf(open.kind, wish, status, open.text) })
  }
  function* grow(kind: Kind, delta: string): Generator<SsePiece> {
    if (open?.kind !== kind) {
      yield* close('completed')
      open = { kind, text: '', index: open ? open.index + 1 : 0 }
      const item = kinds[kind].item(wish, 'in_progress', [])
      yield event('response.output_item.added', { output_index: open.index, item })
      yield event('response.content_part.added', { ...place(open), part: kinds[kind].part('') })
    }
    open.text += delta
    if (delta) yield event(`${kinds[kind].event}.delta`, { ...place(open), delta, ...kinds[kind].piece })
  }
  for await (const { text: came, finished } of generation.pieces()) {
    for (const { reasoning, content } of [text.push(came), finished ? text.flush() : {}]) {
      if (reasoning) yield* grow('reasoning', reasoning)
      if (content) yield* grow('message', content)
    }
  }
  yield* grow('message', '')
  const ended = endedOf(generation, wish, text)
  yield* close(ended.status)
  yield event(ended.status === 'completed' ? 'response.completed' : 'response.incomplete', { response: response(wish, ended) })
}
