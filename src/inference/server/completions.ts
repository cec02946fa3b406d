/** /v1/completions: prompts as text or token ids, one or many. */
import { setImmediate as turn } from 'node:timers/promises'
import type { Context } from 'hono'
import { badRequest } from './errors.ts'
import type { Finished, Generation, Usage, Work } from './generation.ts'
import { completionLogprobs, lengthOf, Offsets, promptLogprobs, Spelling, type CompletionToken } from './logprobs.ts'
import type { App, ServerContext } from './parts.ts'
import { checkIds, encodeText } from './prompt.ts'
import { fingerprint, idOf, modelOf, now, respond } from './route.ts'
import { completionsOf, logprobsOf, maxTokensOf, samplingOf, truncate } from './sampling.ts'
import { completionsBody, type CompletionsBody } from './schemas/completions.ts'
import type { SsePiece } from './stream.ts'
import { constraintOf } from './structured.ts'
import { checkStream, StreamUsage } from './usage.ts'

/** Default of max_tokens. */
const DEFAULT_TOKENS = 16

interface Wish {
  id: string
  model: string
  body: CompletionsBody
  /** The request's `logprobs`; undefined for none. */
  top: number | undefined
  spelling: Spelling
  server: ServerContext
}

export function addCompletions(app: App, server: ServerContext): void {
  app.post('/v1/completions', async (context: Context) => {
    const body = await server.bodies.read(context, completionsBody)
    const { model, adapter } = modelOf(server, body.model)
    const top = body.logprobs ?? undefined
    const echo = body.echo === true
    const works = await worksOf(server, body, { top, echo, adapter })
    const spelling = new Spelling(server.parts.tokenizer, body.return_tokens_as_token_ids === true)
    const wish: Wish = { id: idOf(context, 'cmpl', body.request_id), model, body, top, spelling, server }
    const how = { answer: (g: Generation) => answer(g, wish), pieces: (g: Generation) => chunks(g, wish) }
    return await respond(context, server, body, { id: wish.id, works, ...how })
  })
}

async function worksOf(
  server: ServerContext,
  body: CompletionsBody,
  wish: { top: number | undefined; echo: boolean; adapter?: string | null },
): Promise<Work[]> {
  const { parts, engine } = server
  const { top, echo, adapter } = wish
  checkStream(body, body.prompt_logprobs)
  if (body.max_tokens === 0 && !echo) throw badRequest('max_tokens: it must be 1 or more, or 0 with echo.', 'max_tokens')
  if (body.stream === true && echo && top !== undefined)
    throw badRequest('echo: it cannot be streamed together with logprobs. Send the request without stream.', 'echo')
  // Echoed tokens have log-probabilities like the others.
  const promptTop = body.prompt_logprobs ?? (echo && top !== undefined ? top : undefined)
  const logprobs = logprobsOf(parts, { top, prompt: promptTop, field: 'logprobs' })
  const { maxLength } = engine
  const { temperature } = samplingOf(body, parts.defaults)
  const n = completionsOf(body, temperature)
  const constraint = constraintOf(server, body)
  // Checked first, since tokenising millions of prompts takes long.
  server.gate.check(n * countOf(body.prompt))
  const prompts = await promptsOf(server, body)
  return prompts.map(({ ids, text: promptText }) => {
    const promptIds = truncate(ids, body, maxLength)
    // For max_tokens = 0, one token is generated and left out of the answer.
    const asked = body.max_tokens === 0 ? 1 : body.max_tokens
    const max_tokens = maxTokensOf(promptIds.length, asked, Math.min(DEFAULT_TOKENS, parts.defaults?.max_tokens ?? Infinity), {
      maxLength,
      prompt: 'prompt',
    })
    const text = { skipSpecialTokens: body.skip_special_tokens ?? true, includeStop: body.include_stop_str_in_output ?? false }
    return {
      promptIds,
      promptText,
      // Called for each prompt: without a seed in the request, equal prompts get different answers.
      sampling: { ...samplingOf(body, parts.defaults), max_tokens },
      n,
      text,
      logprobs,
      adapter,
      cacheSalt: body.cache_salt ?? undefined,
      constraint,
    }
  })
}

const countOf = (prompt: CompletionsBody['prompt']): number =>
  typeof prompt === 'string' || typeof prompt[0] === 'number' ? 1 : prompt.length

/** The tokens of each prompt, and its text if the request has it and all of it is used. */
async function promptsOf(
  server: ServerContext,
  { prompt, add_special_tokens, truncate_prompt_tokens }: CompletionsBody,
): Promise<{ ids: number[]; text?: string }[]> {
  const cut = typeof truncate_prompt_tokens === 'number'
  const read = (one: string | number[]) => {
    if (typeof one !== 'string') return { ids: checkIds(server, one, 'prompt') }
    const ids = encodeText(server, one, { field: 'prompt', addSpecialTokens: add_special_tokens ?? true, cut })
    return { ids, ...(cut ? {} : { text: one }) }
  }
  if (typeof prompt === 'string' || typeof prompt[0] === 'number') return [read(prompt as string | number[])]
  const all: { ids: number[]; text?: string }[] = []
  for (const one of prompt as (string | number[])[]) {
    all.push(read(one))
    // Long prompts take time; this lets other requests run in between.
    await turn()
  }
  return all
}

function answer(generation: Generation, wish: Wish): object {
  const { id, model, body } = wish
  const { finished } = generation
  return {
    id,
    object: 'text_completion',
    created: now(),
    model,
    system_fingerprint: fingerprint(wish.server),
    choices: finished.map((one) => choice(one, wish)),
    usage: usageOf(generation, body),
  }
}

/** The usage. The token generated for max_tokens = 0 does not count. */
function usageOf(generation: Generation, { max_tokens }: CompletionsBody): Usage {
  const usage = generation.usage()
  return max_tokens === 0 ? { ...usage, completion_tokens: 0, total_tokens: usage.prompt_tokens } : usage
}

function choice(one: Finished, { body, top, spelling, server }: Wish): object {
  const { promptIds } = one.work
  const nothing = body.max_tokens === 0
  const echoed = body.echo === true ? echoText(server, one.work) : ''
  const tokens = nothing ? [] : one.tokens
  let logprobs = null
  if (top !== undefined) {
    const known = one.result.promptLogprobs
    const before: CompletionToken[] =
      body.echo === true
        ? promptIds.map((id, i) => ({ id, logprob: known?.[i]?.logprob ?? null, top: known?.[i] ?? undefined }))
        : []
    const { tokenizer } = server.parts
    const made = new Offsets(tokenizer, one.work.text.skipSpecialTokens, lengthOf(echoed))
    const shown = echoOffsets(server, one.work, echoed)
    logprobs = completionLogprobs([...before, ...tokens], top, spelling, (id, i) => (i < before.length ? shown : made).next(id))
  }
  const asksPrompt = typeof body.prompt_logprobs === 'number'
  return {
    index: one.index,
    text: echoed + (nothing ? '' : one.text),
    logprobs,
    ...endOf(one, body),
    token_ids: body.return_token_ids === true ? tokens.map((token) => token.id) : null,
    prompt_token_ids: body.return_token_ids === true ? promptIds : null,
    prompt_logprobs:
      asksPrompt && one.result.promptLogprobs ? promptLogprobs(promptIds, one.result.promptLogprobs, spelling) : null,
  }
}

/** The finish reason. For max_tokens = 0, that of the omitted token is meaningless. */
function endOf({ finishReason, stopReason }: Finished, { max_tokens }: CompletionsBody) {
  const aside = max_tokens === 0 && finishReason === 'stop'
  return { finish_reason: aside ? 'length' : finishReason, stop_reason: aside ? null : stopReason }
}

/** Where the prompt's tokens begin in its echo; tokens added in front of the text are not part of it. */
function echoOffsets({ parts }: ServerContext, { promptIds, promptText, text }: Work, echoed: string): Offsets {
  const skipSpecialTokens = promptText === undefined && text.skipSpecialTokens
  const added = lengthOf(parts.tokenizer.decode(promptIds, { skipSpecialTokens })) - lengthOf(echoed)
  return new Offsets(parts.tokenizer, skipSpecialTokens, Math.min(0, -added))
}

/** The echoed prompt: the request's text, or the text of its tokens. */
const echoText = ({ parts }: ServerContext, { promptIds, promptText, text }: Work): string =>
  promptText ?? parts.tokenizer.decode(promptIds, { skipSpecialTokens: text.skipSpecialTokens })

async function* chunks(generation: Generation, wish: Wish): AsyncGenerator<SsePiece> {
  const { id, model, body, top, spelling, server } = wish
  const created = now()
  const envelope = { id, object: 'text_completion', created, model, system_fingerprint: fingerprint(server) }
  const offsets = new Map<number, Offsets>()
  const begun = new Set<number>()
  const usage = new StreamUsage(generation, body, () => usageOf(generation, body))
  const ids = body.return_token_ids === true
  const nothing = body.max_tokens === 0
  for await (const { index, tokens: came, text, finished } of generation.pieces()) {
    const tokens = nothing ? [] : came
    usage.made(index, tokens.length)
    const first = !begun.has(index)
    const work = generation.workOf(index)
    const echoed = first && body.echo === true ? echoText(server, work) : ''
    const said = echoed + (nothing ? '' : text)
    // No event for text that is still held back, unless the client asks for tokens.
    if (said === '' && !finished && !((top !== undefined || ids) && tokens.length > 0)) continue
    begun.add(index)
    let logprobs = null
    if (top !== undefined && tokens.length > 0) {
      const { skipSpecialTokens } = work.text
      const offset = offsets.get(index) ?? new Offsets(server.parts.tokenizer, skipSpecialTokens)
      offsets.set(index, offset)
      logprobs = completionLogprobs(tokens, top, spelling, (id) => offset.next(id))
    }
    yield {
      data: {
        ...envelope,
        choices: [
          {
            index,
            text: said,
            logprobs,
            ...(finished ? endOf(finished, body) : { finish_reason: null, stop_reason: null }),
            token_ids: ids ? tokens.map((token) => token.id) : null,
            prompt_token_ids: ids && first ? work.promptIds : null,
          },
        ],
        ...usage.event(index),
      },
    }
  }
  yield* usage.last(envelope)
}
