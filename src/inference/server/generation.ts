/**
 * The completions of one HTTP request: started together, streamed or awaited whole, and aborted at once when the client disconnects. `close` must
 * always be called; it frees their resources.
 */
import { setImmediate as turn } from 'node:timers/promises'
import type { Context } from 'hono'
import { UserError } from '../../common/errors.ts'
import type { GenerationRequest, GenerationResult, SampledToken, SamplingParams } from '../../common/types.ts'
import type { GrammarConstraint } from '../grammar/types.ts'
import type { Place } from './limits.ts'
import type { ServerContext } from './parts.ts'
import { nextSeed } from './sampling.ts'
import { OutputText, type TextRules } from './text.ts'

/** One prompt, to be completed n times. */
export interface Work {
  promptIds: number[]
  /** The prompt as the request wrote it, to be echoed. */
  promptText?: string
  sampling: SamplingParams
  n: number
  text: Pick<TextRules, 'skipSpecialTokens' | 'includeStop'>
  logprobs?: GenerationRequest['logprobs']
  adapter?: string | null
  cacheSalt?: string
  /** A constraint for each completion. */
  constraint?: () => Promise<GrammarConstraint>
}

/** A completion that has ended. */
export interface Finished {
  index: number
  work: Work
  result: GenerationResult
  tokens: SampledToken[]
  text: string
  finishReason: string
  /** The stop string or token that ended it; null for others and the model's own end. */
  stopReason: string | number | null
}

/** The next piece of a completion: new tokens, new text that can no longer change, and at the end the finish reason. */
export interface Piece {
  index: number
  tokens: SampledToken[]
  text: string
  finished?: Finished
}

/** Counters of a generation. */
export interface Usage {
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  prompt_tokens_details: { cached_tokens: number } | null
}

export class Generation {
  readonly #server: ServerContext
  readonly #items: { index: number; work: Work; seed: number }[]
  readonly #place: Place
  readonly #abort = new AbortController()
  readonly #cleanups: (() => void)[] = []
  #starting: Promise<void> = Promise.resolve()
  #started: Promise<Finished>[] = []
  #closing: Promise<void> | undefined
  #queue: Piece[] = []
  #wake: (() => void) | undefined
  #streamed = false
  readonly #done: Finished[] = []

  /** @throws HttpError if the server accepts no more completions */
  constructor(context: Context, server: ServerContext, works: readonly Work[]) {
    this.#server = server
    this.#items = works.flatMap((work) => Array.from({ length: work.n }, (_, i) => ({ work, seed: nextSeed(work.sampling.seed, i) })))
      .map((item, index) => ({ ...item, index })) // prettier-ignore
    this.#place = server.gate.enter(this.#items.length)
    // If the client is gone or the server shuts down, nobody may be left to call `close`.
    const abort = () => void this.close()
    const signals: AbortSignal[] = [context.req.raw.signal, server.ending.signal]
    for (const signal of signals) {
      if (signal.aborted) abort()
      signal.addEventListener('abort', abort, { once: true })
      this.#cleanups.push(() => signal.removeEventListener('abort', abort))
    }
  }

  /** The completions that have ended, in order. */
  get finished(): Finished[] {
    return this.#done.toSorted((a, b) => a.index - b.index)
  }

  /** The prompt of the index-th completion. */
  workOf(index: number): Work {
    return this.#items[index].work
  }

  /**
   * Starts all completions, and waits until the engine has accepted them.
   * @throws the engine's error if it refuses one
   */
  async start(streamed: boolean): Promise<void> {
    this.#streamed = streamed
    this.#starting = this.#startAll()
    try {
      await this.#starting
      // The engine refuses impossible requests in the same turn of the event loop.
      await Promise.race([Promise.all(this.#started), turn()])
    } catch (error) {
      await this.close()
      throw error
    }
  }

  async #startAll(): Promise<void> {
    for (const item of this.#items) {
      const run = this.#run(item, await item.work.constraint?.())
      run.catch(() => {})
      this.#started.push(run)
    }
  }

  /** All completions, in order, when they have ended. */
  async whole(): Promise<Finished[]> {
    return await Promise.all(this.#started)
  }

  /**
   * Pieces as they arrive.
   * @throws errors of the engine
   */
  async *pieces(): AsyncGenerator<Piece> {
    let failure: unknown
    let left = this.#started.length
    for (const run of this.#started) {
      run.then(
        () => left--,
        (error: unknown) => {
          failure ??= error ?? new Error('a completion failed')
          this.#wake?.()
        },
      )
    }
    while (true) {
      // Everything that has arrived becomes one piece: the last token with the finish reason, or all that arrived while the client was slow.
      await turn()
      for (const piece of joined(this.#queue.splice(0))) yield piece
      if (this.#queue.length > 0) continue
      if (failure !== undefined) throw failure
      if (left === 0) return
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        if (this.#queue.length > 0 || failure !== undefined || left === 0) resolve()
      })
      this.#wake = undefined
    }
  }

  /** Aborts running completions, waits until the engine has dropped them, and frees everything. */
  close(): Promise<void> {
    this.#abort.abort()
    return (this.#closing ??= this.#free())
  }

  async #free(): Promise<void> {
    await this.#starting.catch(() => {})
    await Promise.allSettled(this.#started)
    for (const cleanup of this.#cleanups.splice(0)) cleanup()
    this.#place.leave()
  }

  usage(): Usage {
    const works = new Map<Work, number>()
    // Each prompt counts once, with the cached part that its first completion found; its other completions find what the first one computed.
    for (const { work, result } of this.#done) works.set(work, Math.min(works.get(work) ?? Infinity, result.cachedTokens ?? 0))
    const prompt_tokens = [...new Set(this.#items.map(({ work }) => work))].reduce(
      (sum, { promptIds }) => sum + promptIds.length,
      0,
    )
    const completion_tokens = this.#done.reduce((sum, { result }) => sum + result.ids.length, 0)
    const known = this.#done.some(({ result }) => result.cachedTokens !== undefined)
    const cached_tokens = [...works.values()].reduce((sum, count) => sum + count, 0)
    return {
      prompt_tokens,
      completion_tokens,
      total_tokens: prompt_tokens + completion_tokens,
      prompt_tokens_details: known ? { cached_tokens } : null,
    }
  }

  async #run(
    { index, work, seed }: { index: number; work: Work; seed: number },
    constraint: GrammarConstraint | undefined,
  ): Promise<Finished> {
    const { parts, metrics } = this.#server
    const { sampling } = work
    const begin = performance.now()
    let last: number | undefined
    const stopTokens = new Set([...(sampling.ignore_eos ? [] : parts.eosTokenIds), ...sampling.stop_token_ids])
    const { stop, min_tokens: minTokens = 0 } = sampling
    const text = new OutputText(parts.tokenizer, { ...work.text, stop, stopTokens, minTokens })
    const tokens: SampledToken[] = []
    let whole = ''
    const take = (token: SampledToken): string => {
      tokens.push(token)
      const piece = text.push(token.id)
      whole += piece
      return piece
    }
    const result = await this.#generate({
      promptIds: work.promptIds,
      sampling: { ...sampling, seed },
      signal: this.#abort.signal,
      adapter: work.adapter,
      cacheSalt: work.cacheSalt,
      logprobs: work.logprobs,
      constraint,
      // Stop strings must be searched for in the text as it is shown.
      skipSpecialTokens: work.text.skipSpecialTokens,
      onToken: (token) => {
        const now = performance.now()
        if (last === undefined) metrics.firstToken(now - begin)
        else metrics.nextToken(now - last)
        last = now
        const piece = take(token)
        if (this.#streamed) this.#emit({ index, tokens: [token], text: piece })
      },
    })
    // Tokens that were not reported one by one.
    const rest: Piece = { index, tokens: [], text: '' }
    for (let i = tokens.length; i < result.ids.length; i++) {
      const token: SampledToken = {
        id: result.ids[i],
        logprob: result.logprobs[i],
        version: result.versions[i],
        top: result.top?.[i],
      }
      rest.text += take(token)
      rest.tokens.push(token)
    }
    const end = endOf(result, sampling)
    const flushed = text.flush(typeof end.stopReason === 'string' ? { stop: end.stopReason, text: result.text } : undefined)
    whole += flushed
    rest.text += flushed
    const finished: Finished = { index, work, result, tokens, text: whole, ...end }
    metrics.finished(finished.finishReason, performance.now() - begin)
    this.#done.push(finished)
    if (this.#streamed) this.#emit({ ...rest, finished })
    return finished
  }

  async #generate(request: GenerationRequest): Promise<GenerationResult> {
    try {
      const result = await this.#server.engine.generate(request)
      this.#server.failuresInARow = 0
      return result
    } catch (error) {
      if (!(error instanceof UserError)) this.#server.failuresInARow++
      throw error
    } finally {
      this.#place.ended()
    }
  }

  #emit(piece: Piece): void {
    this.#queue.push(piece)
    this.#wake?.()
  }
}

/** Merges the pieces of each completion, in the order of their first pieces. There may be as many pieces as tokens. */
export function joined(pieces: readonly Piece[]): Piece[] {
  const byIndex = new Map<number, Piece>()
  for (const { index, tokens, text, finished } of pieces) {
    const before = byIndex.get(index)
    if (!before) byIndex.set(index, { index, tokens: [...tokens], text, finished })
    else {
      for (const token of tokens) before.tokens.push(token)
      before.text += text
      before.finished = finished
    }
  }
  return [...byIndex.values()]
}

function endOf(result: GenerationResult, sampling: SamplingParams): Pick<Finished, 'finishReason' | 'stopReason'> {
  const { finishReason, stopCondition, ids } = result
  if (finishReason !== 'stop' || !stopCondition.startsWith('stop: ')) return { finishReason, stopReason: null }
  const last = ids.at(-1)
  const byToken = stopCondition === `stop: token ${last}` && sampling.stop_token_ids.includes(last!)
  return { finishReason, stopReason: byToken ? last! : stopCondition.slice('stop: '.length) }
}
