/** The common part of all generating routes: model, id, and how a generation becomes an answer or a stream. */
import { randomUUID } from 'node:crypto'
import type { Context } from 'hono'
import { asHttpError, HttpError } from './errors.ts'
import { Generation, type Work } from './generation.ts'
import { jsonText } from './json.ts'
import type { ServerContext } from './parts.ts'
import { sse, sseHeaders, type SsePiece } from './stream.ts'

/** The model's name for the answer, and its adapter. @throws HttpError 404 for an unknown name */
export function modelOf(server: ServerContext, name: string | null | undefined): { model: string; adapter?: string | null } {
  const { names, baseName } = server.parts
  if (name === null || name === undefined || name === '') return { model: names[0] }
  if (names.includes(name)) return { model: name }
  if (name === baseName) return { model: name, adapter: null }
  if (server.engine.adapters.has(name)) return { model: name, adapter: name }
  const known = [
    ...names,
    ...(baseName === undefined ? [] : [baseName]),
    ...server.engine.adapters.list().map((adapter) => adapter.name),
  ]
  throw new HttpError(
    404,
    `model: there is no model ${JSON.stringify(name.slice(0, 200))} on this server; available: ${known.join(', ')}.`,
    { param: 'model' },
  )
}

/** The id of an answer: the request's own, from its body or its X-Request-Id, or a new one. */
export function idOf(context: Context, prefix: string, given: string | null | undefined): string {
  const header = context.req.header('x-request-id')
  return `${prefix}-${given ?? (header && /^[\w.:-]{1,128}$/.test(header) ? header : randomUUID().replaceAll('-', ''))}`
}

/** The log entries of a generation. */
function note(context: Context, id: string, generation: Generation): void {
  const { prompt_tokens, completion_tokens } = generation.usage()
  const ended = [...new Set(generation.finished.map(({ finishReason }) => finishReason))].join(',')
  context.set('note', { request: id, prompt_tokens, completion_tokens, ended })
}

/** How a route answers. */
interface Answering {
  id: string
  works: readonly Work[]
  /** Makes the answer from the finished completions. */
  answer: (generation: Generation) => object
  /** Makes the stream of events. */
  pieces: (generation: Generation) => AsyncGenerator<SsePiece>
  /** Whether the stream ends in [DONE]. Default: yes. */
  done?: boolean
  fault?: (error: HttpError) => SsePiece
}

/** Runs the completions and answers, with a stream if the request asks for one. */
export async function respond(
  context: Context,
  server: ServerContext,
  { stream }: { stream?: boolean | null },
  how: Answering,
): Promise<Response> {
  return stream === true ? await answerStreamed(context, server, how) : await answerWhole(context, server, how)
}

async function answerWhole(context: Context, server: ServerContext, { id, works, answer }: Answering): Promise<Response> {
  const generation = new Generation(context, server, works)
  try {
    await generation.start(false)
    await generation.whole()
    note(context, id, generation)
    return context.body(jsonText(answer(generation)), 200, { 'content-type': 'application/json' })
  } finally {
    await generation.close()
  }
}

/** If the engine refuses, the answer has the error's status; a later failure becomes an event of the stream. */
async function answerStreamed(context: Context, server: ServerContext, how: Answering): Promise<Response> {
  const { id, works, done = true, fault } = how
  const generation = new Generation(context, server, works)
  await generation.start(true)
  const pieces = async function* (): AsyncGenerator<SsePiece> {
    try {
      yield* how.pieces(generation)
    } finally {
      note(context, id, generation)
      await generation.close()
    }
  }
  const body = sse(pieces(), {
    done,
    gone: () => void generation.close(),
    fault: (error) => {
      const known = asHttpError(error, (fid, cause) => server.fault(fid, cause))
      return fault?.(known) ?? { data: known.body }
    },
  })
  return context.body(body, 200, sseHeaders)
}

/** system_fingerprint: identifies what results depend on. If it differs, results may differ in bits. */
export const fingerprint = ({ parts }: ServerContext): string => `dawn-rl-${parts.version}`

/** The current Unix time in seconds. */
export const now = (): number => Math.floor(Date.now() / 1000)
