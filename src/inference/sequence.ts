/** The state of a request in the engine: its tokens so far, its pages of the KV cache, and the check for its end. */
import type {
  GenerationRequest,
  GenerationResult,
  LogprobsRequest,
  PolicyVersion,
  PromptLogprob,
  SampledToken,
  SamplingParams,
  TopLogprobs,
} from '../common/types.ts'
import type { HeldAdapter } from './adapters.ts'
import type { Page } from './pages.ts'
import { placeOfPolicy } from './step-rows.ts'
import { StopWatch, type Decode } from './stop-watch.ts'
import { TokenChoice } from './token-choice.ts'

/** Why a completion ended, and its text. */
export interface Ending {
  finishReason: GenerationResult['finishReason']
  stopCondition: string
  text: string
}

export interface EndRules {
  eosTokenIds: ReadonlySet<number>
  decode: Decode
  /** The model's vocabulary size, if tokens are drawn in this process. */
  vocabulary?: number
}

export class Sequence {
  readonly promptIds: readonly number[]
  readonly sampling: SamplingParams
  readonly promptKey: string
  readonly submitted = performance.now()
  readonly ids: number[] = []
  readonly logprobs: number[] = []
  readonly versions: PolicyVersion[] = []
  /** The most likely tokens at the position of each token, if requested. */
  readonly tops: TopLogprobs[] = []
  readonly logprobsRequest: LogprobsRequest
  /** Which tokens may be drawn, if that is decided in this process. */
  readonly choice: TokenChoice | undefined
  readonly adapter: string | null | undefined
  readonly cacheSalt: string | undefined
  /** In an engine: the weights with which it runs, and the index of their adapter (step-rows.ts). */
  readonly weights: HeldAdapter | undefined
  readonly adapterIndex: number
  /** Key of the prefill that computes its tokens (see Scheduler), before its first draw and again after a preemption. */
  prefillKey: unknown
  /** After the prefill: its pages, for how many tokens keys and values are computed, and how many of its token ids are recorded in the pages. */
  pages: Page[] = []
  computed = 0
  synced = 0
  /** Slot of its recurrent state, in models that have one. */
  stateSlot: number | undefined
  /** How many prompt tokens were not computed for it when first admitted: they were cached, or shared with another prefill. */
  cachedTokens: number | undefined
  ended = false
  /** Number of tokens drawn by steps in flight, which are not in `ids` yet; and the index of the last one among the draws of its step. */
  pending = 0
  place = 0
  readonly #rules: EndRules
  readonly #watch: StopWatch
  readonly #onToken: ((token: SampledToken) => void) | undefined
  /** Log-probabilities of the prompt's tokens, if requested (null for the first), and how many of them are known. */
  readonly #promptLogprobs: (PromptLogprob | null)[] | undefined
  #promptTaken = 0
  /** For penalties: how often each token occurs in the output (0 for tokens that are only in the prompt). Created on first use. */
  #counts: Map<number, number> | undefined
  readonly #settle: { resolve(result: GenerationResult): void; reject(error: unknown): void }
  readonly #signal: AbortSignal | undefined
  readonly #onAbort: () => void

  constructor(
    request: GenerationRequest,
    rules: EndRules,
    settle: { resolve(result: GenerationResult): void; reject(error: unknown): void; abort(sequence: Sequence): void },
    weights?: HeldAdapter,
  ) {
    this.weights = weights
    this.adapterIndex = weights?.place ?? placeOfPolicy
    this.promptIds = [...request.promptIds]
    this.promptKey = this.promptIds.join(',')
    this.adapter = request.adapter
    this.cacheSalt = request.cacheSalt
    this.sampling = request.sampling
    this.#rules = rules
    const { skipSpecialTokens = false } = request
    this.#watch = new StopWatch((ids) => rules.decode(ids, { skipSpecialTokens }), request.sampling.stop)
    this.logprobsRequest = request.logprobs ?? {}
    if (rules.vocabulary) this.choice = new TokenChoice(request, rules.eosTokenIds, rules.vocabulary)
    this.#onToken = request.onToken
    if (this.logprobsRequest.prompt !== undefined) this.#promptLogprobs = this.promptIds.map(() => null)
    this.#settle = settle
    this.#signal = request.signal
    this.#onAbort = () => settle.abort(this)
    this.#signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  /**
   * Adds a sampled token. @returns the ending, if it ends the completion
   * @throws what onToken and the constraint throw
   */
  push(id: number, logprob: number, version: PolicyVersion, top?: TopLogprobs): Ending | undefined {
    this.ids.push(id)
    this.logprobs.push(logprob)
    this.versions.push(version)
    if (top) this.tops.push(top)
    this.#counts?.set(id, (this.#counts.get(id) ?? 0) + 1)
    this.#onToken?.({ id, logprob, version, ...(top && { top }) })
    const ending = this.#ending(id)
    if (!ending) this.choice?.accept(id)
    return ending
  }

  #ending(id: number): Ending | undefined {
    const { stop_token_ids, max_tokens, min_tokens = 0, ignore_eos } = this.sampling
    if (!ignore_eos && this.#rules.eosTokenIds.has(id)) return { finishReason: 'stop', stopCondition: 'eos', text: this.text(-1) }
    if (stop_token_ids.includes(id)) {
      return { finishReason: 'stop', stopCondition: `stop: token ${id}`, text: this.text(-1) }
    }
    const found = this.#watch.push(id, this.ids.length > min_tokens)
    if (found) return { finishReason: 'stop', stopCondition: `stop: ${found.stop}`, text: found.text }
    if (this.ids.length >= max_tokens) return { finishReason: 'length', stopCondition: 'max_tokens', text: this.text() }
    return undefined
  }

  /** Sets the log-probability of the prompt's token at `position` (1 or more), given the tokens before it. */
  takePrompt(position: number, logprob: number, top: TopLogprobs): void {
    if (!this.#promptLogprobs) return
    if (this.#promptLogprobs[position] === null) this.#promptTaken++
    this.#promptLogprobs[position] = { logprob, ...top }
  }

  /** Whether it was admitted before; it may have been preempted since. */
  get begun(): boolean {
    return this.cachedTokens !== undefined
  }

  /** Number of tokens drawn so far, including those not read back yet. */
  get drawn(): number {
    return this.ids.length + this.pending
  }

  /** Whether log-probabilities of the prompt are requested but not all known yet. */
  get wantsPrompt(): boolean {
    return this.#promptLogprobs !== undefined && this.#promptTaken < this.promptIds.length - 1
  }

  /** Whether the host must know all tokens so far before the next one is drawn. */
  get needsHost(): boolean {
    return this.hasPenalties || this.choice?.constraint !== undefined
  }

  /** Whether the next token is drawn from modified logits (mask, biases, penalties). */
  get changesLogits(): boolean {
    return (
      this.hasPenalties ||
      (this.choice !== undefined && (this.choice.bias.size > 0 || this.choice.mask(this.drawn) !== undefined))
    )
  }

  /** Whether a callback wants each token as it is sampled. */
  get streams(): boolean {
    return this.#onToken !== undefined
  }

  get hasPenalties(): boolean {
    const { repetition_penalty, presence_penalty, frequency_penalty } = this.sampling
    return repetition_penalty !== 1 || presence_penalty !== 0 || frequency_penalty !== 0
  }

  /** How often each distinct token of prompt and output occurs in the output. */
  get counts(): ReadonlyMap<number, number> {
    if (!this.#counts) {
      this.#counts = new Map(this.promptIds.map((id) => [id, 0]))
      for (const id of this.ids) this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1)
    }
    return this.#counts
  }

  /** Resolves the request's promise with the tokens so far. */
  finish(ending: Ending): void {
    this.#end()
    const { ids, logprobs, versions } = this
    const top = this.logprobsRequest.top === undefined ? undefined : { top: this.tops }
    const prompt = this.#promptLogprobs && { promptLogprobs: this.#promptLogprobs }
    this.#settle.resolve({ ids, logprobs, versions, cachedTokens: this.cachedTokens ?? 0, ...top, ...prompt, ...ending })
  }

  abort(): void {
    this.finish({ finishReason: 'abort', stopCondition: 'abort', text: this.text() })
  }

  fail(error: unknown): void {
    this.#end()
    this.#settle.reject(error)
  }

  #end(): void {
    this.ended = true
    this.#signal?.removeEventListener('abort', this.#onAbort)
  }

  /** The text of the tokens so far, or of those before `end` (as in Array.slice). */
  text(end?: number): string {
    return this.#rules.decode(this.ids.slice(0, end))
  }
}
