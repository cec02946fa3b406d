/** /v1/chat/completions: messages through the model's chat template. */
import type { Context } from 'hono'
import type { Thinking } from '../parsers/reasoning.ts'
import { joined, type AnswerText } from './answer.ts'
import { badRequest } from './errors.ts'
import type { Finished, Generation, Work } from './generation.ts'
import { chatLogprobs, promptLogprobs, Spelling } from './logprobs.ts'
import type { App, ServerContext } from './parts.ts'
import { encodeChat } from './prompt.ts'
import { fingerprint, idOf, modelOf, now, respond } from './route.ts'
import { completionsOf, logprobsOf, maxTokensOf, samplingOf, truncate } from './sampling.ts'
import { chatBody, type ChatBody } from './schemas/chat.ts'
import type { SsePiece } from './stream.ts'
import { constraintOf } from './structured.ts'
import { answerTo, planTools, readsWithoutSpecialTokens, thoughtsEnd, type ToolPlan } from './tools.ts'
import { checkStream, StreamUsage } from './usage.ts'

interface Wish {
  id: string
  model: string
  body: ChatBody
  work: Work
  /** The prompt as text. */
  prompt: string
  thinking: Thinking
  /** The request's `top_logprobs`; undefined for no log-probabilities. */
  top: number | undefined
  spelling: Spelling
  tools: ToolPlan
  server: ServerContext
}

export function addChat(app: App, server: ServerContext): void {
  app.post('/v1/chat/completions', async (context: Context) => {
    const body = await server.bodies.read(context, chatBody)
    const { model, adapter } = modelOf(server, body.model)
    const wish = { id: idOf(context, 'chatcmpl', body.request_id), model, server, body, ...prepare(server, body, adapter) }
    const how = { answer: (g: Generation) => answer(g, wish), pieces: (g: Generation) => chunks(g, wish) }
    return await respond(context, server, body, { id: wish.id, works: [wish.work], ...how })
  })
}

function prepare(
  server: ServerContext,
  body: ChatBody,
  adapter: string | null | undefined,
): Pick<Wish, 'work' | 'prompt' | 'thinking' | 'top' | 'spelling' | 'tools'> {
  const { parts, engine } = server
  checkStream(body, body.prompt_logprobs)
  if (body.logprobs !== true && body.top_logprobs) throw badRequest('top_logprobs: it needs logprobs to be true.', 'top_logprobs')
  const top = body.logprobs === true ? (body.top_logprobs ?? 0) : undefined
  const logprobs = logprobsOf(parts, { top, prompt: body.prompt_logprobs, field: 'top_logprobs' })
  const tools = planTools(server, body)
  const sampling = samplingOf(body, parts.defaults)
  const n = completionsOf(body, sampling.temperature)
  const { text: prompt, ids, thinking } = encodeChat(server, body, tools.tools)
  const { maxLength } = engine
  const promptIds = truncate(ids, body, maxLength)
  const [given, field] = body.max_completion_tokens
    ? [body.max_completion_tokens, 'max_completion_tokens']
    : [body.max_tokens, 'max_tokens']
  const max_tokens = maxTokensOf(promptIds.length, given, parts.defaults?.max_tokens ?? Infinity, {
    maxLength,
    prompt: 'messages',
    field,
  })
  const work: Work = {
    promptIds,
    sampling: { ...sampling, max_tokens },
    n,
    text: {
      skipSpecialTokens: body.skip_special_tokens ?? readsWithoutSpecialTokens(server, tools),
      includeStop: body.include_stop_str_in_output ?? false,
    },
    logprobs,
    adapter,
    cacheSalt: body.cache_salt ?? undefined,
    constraint: constraintOf(server, body, { own: tools.constraint, afterToken: thoughtsEnd(server, thinking) }),
  }
  return { work, prompt, thinking, top, tools, spelling: new Spelling(parts.tokenizer, body.return_tokens_as_token_ids === true) }
}

const answerTextOf = ({ server, thinking, tools }: Wish): AnswerText => answerTo(server, thinking, tools)

function answer(generation: Generation, wish: Wish): object {
  const { id, model, body, work, spelling, prompt } = wish
  const { finished } = generation
  const known = finished[0]?.result.promptLogprobs
  return {
    id,
    object: 'chat.completion',
    created: now(),
    model,
    system_fingerprint: fingerprint(wish.server),
    choices: finished.map((one) => choice(one, wish)),
    usage: generation.usage(),
    prompt_logprobs: known && typeof body.prompt_logprobs === 'number' ? promptLogprobs(work.promptIds, known, spelling) : null,
    prompt_token_ids: body.return_token_ids === true ? work.promptIds : null,
    ...(body.return_prompt_text === true ? { prompt_text: prompt } : {}),
  }
}

function choice(one: Finished, wish: Wish): object {
  const { body, top, spelling, tools } = wish
  const text = answerTextOf(wish)
  text.push(one.text)
  text.flush()
  const calls = text.toolCalls
  const withReasoning = body.include_reasoning !== false
  return {
    index: one.index,
    message: {
      role: 'assistant',
      content: text.content === '' && calls.length > 0 ? null : text.content,
      refusal: null,
      ...(withReasoning && text.reasoning ? { reasoning: text.reasoning } : { reasoning: null }),
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
    },
    logprobs: top === undefined ? null : chatLogprobs(one.tokens, top, spelling),
    finish_reason: tools.finishReason(one.finishReason, calls.length),
    stop_reason: one.stopReason,
    token_ids: body.return_token_ids === true ? one.tokens.map((token) => token.id) : null,
  }
}

async function* chunks(generation: Generation, wish: Wish): AsyncGenerator<SsePiece> {
  const { id, model, body, work, top, spelling, tools, prompt } = wish
  const envelope = { id, object: 'chat.completion.chunk', created: now(), model, system_fingerprint: fingerprint(wish.server) }
  const usage = new StreamUsage(generation, body)
  const ids = body.return_token_ids === true
  const texts = new Map<number, AnswerText>()
  const chunk = (choice: { index: number }, more: object = {}) => ({
    data: { ...envelope, choices: [choice], ...usage.event(choice.index), ...more },
  })
  for (let index = 0; index < work.n; index++) {
    texts.set(index, answerTextOf(wish))
    const role = { index, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }
    yield chunk(role, {
      ...(ids ? { prompt_token_ids: work.promptIds } : {}),
      ...(body.return_prompt_text === true ? { prompt_text: prompt } : {}),
    })
  }
  for await (const { index, tokens, text: came, finished } of generation.pieces()) {
    usage.made(index, tokens.length)
    const text = texts.get(index)!
    const pushed = text.push(came)
    const delta = finished ? joined(pushed, text.flush()) : pushed
    if (body.include_reasoning === false) delete delta.reasoning
    const asked = tokens.length > 0 && (ids || top !== undefined)
    if (Object.keys(delta).length === 0 && !finished && !asked) continue
    const choice = {
      index,
      delta,
      logprobs: top !== undefined && tokens.length > 0 ? chatLogprobs(tokens, top, spelling) : null,
      finish_reason: finished ? tools.finishReason(finished.finishReason, text.toolCalls.length) : null,
      ...(finished ? { stop_reason: finished.stopReason } : {}),
      ...(ids ? { token_ids: tokens.map((token) => token.id) } : {}),
    }
    yield chunk(choice)
  }
  yield* usage.last(envelope)
}
