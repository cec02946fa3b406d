/** /inference/v1/generate: token ids in, token ids out, with the version of the weights that sampled each token. */
import type { Context } from 'hono'
import type { Generation, Work } from './generation.ts'
import { generateLogprobs, promptLogprobs, Spelling, weightVersions } from './logprobs.ts'
import type { App, ServerContext } from './parts.ts'
import { checkIds } from './prompt.ts'
import { idOf, modelOf, now, respond } from './route.ts'
import { completionsOf, logprobsOf, maxTokensOf, samplingOf, truncate } from './sampling.ts'
import { generateBody, type GenerateBody } from './schemas/completions.ts'
import type { SsePiece } from './stream.ts'
import { constraintOf } from './structured.ts'
import { checkStream, StreamUsage } from './usage.ts'

interface Wish {
  id: string
  model: string
  body: GenerateBody
  work: Work
  top: number | undefined
  server: ServerContext
}

export function addGenerate(app: App, server: ServerContext): void {
  app.post('/inference/v1/generate', async (context: Context) => {
    const body = await server.bodies.read(context, generateBody)
    const { model, adapter } = modelOf(server, body.model)
    const { work, top } = prepare(server, body, adapter)
    const wish: Wish = { id: idOf(context, 'generate-tokens', body.request_id), model, body, work, top, server }
    const how = { answer: (g: Generation) => answer(g, wish), pieces: (g: Generation) => chunks(g, wish) }
    return await respond(context, server, body, { id: wish.id, works: [work], ...how })
  })
}

function prepare(
  server: ServerContext,
  body: GenerateBody,
  adapter: string | null | undefined,
): { work: Work; top: number | undefined } {
  const { parts, engine } = server
  const params = body.sampling_params
  checkStream(body, params.prompt_logprobs, 'sampling_params.prompt_logprobs')
  const top = params.logprobs ?? undefined
  const logprobs = logprobsOf(parts, { top, prompt: params.prompt_logprobs, field: 'sampling_params.logprobs' })
  // Defaults are neutral here, as in vLLM: generation_config.json applies to text routes only.
  const sampling = samplingOf(params)
  const { maxLength } = engine
  const promptIds = truncate(checkIds(server, body.token_ids, 'token_ids'), params, maxLength)
  // Only here, as in vLLM, max_tokens may exceed the context, and then means all of it.
  const max_tokens = maxTokensOf(promptIds.length, null, params.max_tokens ?? Infinity, { maxLength, prompt: 'token_ids' })
  const text = { skipSpecialTokens: params.skip_special_tokens ?? true, includeStop: params.include_stop_str_in_output ?? false }
  const n = completionsOf(params, sampling.temperature)
  const constraint = constraintOf(server, params)
  const cacheSalt = body.cache_salt ?? undefined
  return { top, work: { promptIds, sampling: { ...sampling, max_tokens }, n, text, logprobs, adapter, cacheSalt, constraint } }
}

function answer(generation: Generation, { id, model, body, work, top, server }: Wish): object {
  const spelling = new Spelling(server.parts.tokenizer, false)
  const { finished } = generation
  const known = finished[0]?.result.promptLogprobs
  return {
    request_id: id,
    created: now(),
    model,
    choices: finished.map((one) => ({
      index: one.index,
      logprobs: top === undefined ? null : generateLogprobs(one.tokens, top),
      finish_reason: one.finishReason,
      stop_reason: one.stopReason,
      token_ids: one.tokens.map((token) => token.id),
      weight_versions: versionsOf(one.result.versions, work, server),
    })),
    usage: generation.usage(),
    output_mode: 'tokens',
    prompt_logprobs: known ? promptLogprobs(work.promptIds, known, spelling) : null,
    prompt_token_ids: body.return_token_ids === true ? work.promptIds : null,
  }
}

async function* chunks(generation: Generation, { id, model, body, work, top, server }: Wish): AsyncGenerator<SsePiece> {
  const envelope = { request_id: id, created: now(), model, output_mode: 'tokens' }
  const usage = new StreamUsage(generation, body)
  let first = true
  for await (const { index, tokens, finished } of generation.pieces()) {
    if (tokens.length === 0 && !finished) continue
    usage.made(index, tokens.length)
    const choice = {
      index,
      logprobs: top === undefined || tokens.length === 0 ? null : generateLogprobs(tokens, top),
      finish_reason: finished?.finishReason ?? null,
      stop_reason: finished?.stopReason ?? null,
      token_ids: tokens.map((token) => token.id),
      ...(finished ? { weight_versions: versionsOf(finished.result.versions, work, server) } : {}),
    }
    const prompt = first && body.return_token_ids === true ? { prompt_token_ids: work.promptIds } : {}
    first = false
    yield { data: { ...envelope, ...prompt, choices: [choice], ...usage.event(index) } }
  }
  yield* usage.last(envelope)
}

/** The name of a version. An adapter's versions only count its loads, and have no names. */
function versionsOf(versions: readonly number[], { adapter }: Work, { weightNames }: ServerContext) {
  return weightVersions(versions, typeof adapter === 'string' ? new Map() : weightNames)
}
