/** The usage in a stream's events: stream_options. */
import { badRequest } from './errors.ts'
import type { Generation, Usage } from './generation.ts'

interface StreamBody {
  stream?: boolean | null
  stream_options?: { include_usage?: boolean | null; continuous_usage_stats?: boolean | null } | null
}

/**
 * @param field name of the field that asks for `promptLogprobs`
 * @throws HttpError for stream_options without a stream, and for anything that streams do not carry
 */
export function checkStream(
  { stream, stream_options }: StreamBody,
  promptLogprobs: number | null | undefined,
  field = 'prompt_logprobs',
): void {
  if (stream_options && stream !== true) throw badRequest('stream_options: it needs stream to be true.', 'stream_options')
  if (stream === true && typeof promptLogprobs === 'number')
    throw badRequest(`${field}: they cannot be streamed. Send the request without stream.`, field)
}

/** Counts the tokens of a stream, and adds the usage to its events. */
export class StreamUsage {
  readonly #generation: Generation
  readonly #whole: () => Usage
  readonly #asked: boolean
  readonly #always: boolean
  /** Number of tokens so far, by completion. */
  readonly #made = new Map<number, number>()

  /** @param whole gives the usage of the whole request, if it is not what the engine computed */
  constructor(generation: Generation, { stream_options: options }: StreamBody, whole = () => generation.usage()) {
    this.#generation = generation
    this.#whole = whole
    this.#asked = options?.include_usage === true
    this.#always = this.#asked && options?.continuous_usage_stats === true
  }

  /** Counts tokens of the index-th completion; also to be called for tokens without an event. */
  made(index: number, tokens: number): void {
    this.#made.set(index, (this.#made.get(index) ?? 0) + tokens)
  }

  /** The usage part of an event of the index-th completion. */
  event(index: number): object {
    if (!this.#always) return this.#asked ? { usage: null } : {}
    const completion_tokens = this.#made.get(index) ?? 0
    const prompt_tokens = this.#generation.workOf(index).promptIds.length
    return { usage: { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens } }
  }

  /** The usage of the whole request, for the last event; nothing if the client did not ask for it. */
  *last(envelope: object): Generator<{ data: object }> {
    if (this.#asked) yield { data: { ...envelope, choices: [], usage: this.#whole() } }
  }
}
