/**
 * The embedded engine: generates from the very weights that the trainer trains, with continuous batching.
 * - One loop. Each step is one packed batch: the next token of every running sequence, and prompt rows of those that begin. Requests join and
 *   leave between steps. A token's numbers depend on its own sequence alone, so nothing else that runs changes them.
 * - The optimizer changes the weights in place, by commands; the engine's commands come before or after them. So publishing is naming the
 *   version that the next step samples with.
 * - Keys and values that were computed under an older version stay with the sequences that run; new requests compute their own.
 */
import { UserError } from '../common/errors.ts'
import type { GenerationRequest, GenerationResult, Generator, PolicyVersion } from '../common/types.ts'
import type { Decoder } from '../model/decoder.ts'
import { checkRequest } from './request.ts'
import type { Draw, Sampled } from './sampler.ts'
import { Scheduler, type StepRows } from './scheduler.ts'
import { Sequence, type EndRules } from './sequence.ts'
import { StepCommands } from './step.ts'
import type { Decode } from './stop-watch.ts'
import { traceStep } from './trace.ts'

export interface EngineOptions {
  /** Sequences that run together at most; more requests wait. */
  maxSequences: number
  /** Tokens of prompt and completion together, at most. */
  maxLength: number
  /** Tokens that end every completion. */
  eosTokenIds: readonly number[]
  /** Tokens to text. */
  decode: Decode
  /** Rows (tokens) of the KV cache. Default: maxSequences x maxLength, or what the adapter binds. */
  cacheRows?: number
  /** Prompt tokens that a step computes at most; longer prompts take several steps, between which the others go on. Default 256. */
  maxPrefillRows?: number
  /** False: steps are recorded anew each time, not replayed; see StepCommands. Default true. */
  plans?: boolean
  /**
   * Begin a step before the tokens of the one before are known here: their ids stay on the GPU, and a sequence that ended is found one step late, whose
   * token is dropped. Default: on GPUs, which would wait for the host; not on a software adapter, where that token costs more than the wait.
   */
  ahead?: boolean
}

export interface EngineStats {
  version: PolicyVersion
  running: number
  waiting: number
  paused: boolean
  /** Steps that drew tokens. */
  decodeSteps: number
  tokensGenerated: number
  /** Prompt tokens computed, and those that another request had already. */
  prefillTokens: number
  sharedPromptTokens: number
  finished: number
  aborted: number
  failed: number
  kvRows: number
  kvRowsUsed: number
  /** Age of the oldest request that is not done, in ms; 0 where there is none. */
  oldestMs: number
}

export class Engine implements Generator {
  readonly decoder: Decoder
  readonly maxLength: number
  readonly cacheRows: number
  #version: PolicyVersion = 0
  readonly #scheduler: Scheduler
  readonly #commands: StepCommands
  readonly #rules: EndRules
  /** The loop while it runs. */
  #loop: Promise<void> | undefined
  #paused = false
  #closed = false
  #wake: (() => void) | undefined
  #idle: (() => void)[] = []
  readonly #ahead: boolean
  /** Settles when the last step that was begun has landed: its tokens are taken. */
  #landing: Promise<void> = Promise.resolve()
  #inFlight = 0
  /** When the last step landed. */
  #landed = 0
  readonly #counts = { decodeSteps: 0, tokensGenerated: 0, prefillTokens: 0, finished: 0, aborted: 0, failed: 0 }

  /**
   * Allocates the KV cache: 2 x layers x cacheRows x kv heads x head size float32.
   * @throws UserError where maxLength tokens do not fit the adapter's largest binding
   */
  constructor(decoder: Decoder, options: EngineOptions) {
    const { gpu, config } = decoder
    const { maxSequences, maxLength } = options
    this.decoder = decoder
    this.maxLength = maxLength
    const width = config.kvHeads * config.headDim
    const bindable = Math.floor(gpu.facts.limits.maxBinding / (width * 4)) - 1
    this.cacheRows = Math.min(options.cacheRows ?? maxSequences * maxLength, bindable)
    if (bindable < maxLength) {
      throw new UserError(
        `A sequence of ${maxLength} tokens does not fit this adapter's KV cache, which holds ${bindable}. Lower max_seq_len.`,
      )
    }
    const maxPrefillRows = Math.max(1, options.maxPrefillRows ?? 256)
    this.#scheduler = new Scheduler({ maxSequences, maxPrefillRows, cacheRows: this.cacheRows })
    this.#rules = { eosTokenIds: new Set(options.eosTokenIds), decode: options.decode, vocabulary: config.vocabSize }
    const { maxRows } = this.#scheduler
    this.#ahead = options.ahead ?? !gpu.facts.software
    const kinds = { plans: options.plans ?? true, ahead: this.#ahead }
    gpu.share.engines++
    this.#commands = new StepCommands(decoder, { maxSequences, maxRows, maxLength, cacheRows: this.cacheRows + 1, ...kinds })
  }

  get version(): PolicyVersion {
    return this.#version
  }

  /**
   * Names the weights that the next step samples with. To be called in the same turn of the event loop in which the commands that change
   * the weights were recorded: then each token carries the version that made it, without exception.
   */
  publish(version: PolicyVersion): void {
    this.#version = version
  }

  /**
   * Samples a completion. An aborted request resolves with what it has.
   * @throws UserError for a request that can never run; the error of a step that failed, for all requests that were in the engine
   */
  async generate(request: GenerationRequest): Promise<GenerationResult> {
    if (this.#closed) throw new Error('the engine is closed')
    const vocabulary = this.decoder.config.vocabSize
    checkRequest(request, { maxLength: this.maxLength, cacheRows: this.cacheRows, vocabulary })
    return await new Promise((resolve, reject) => {
      const sequence = new Sequence(request, this.#rules, { resolve, reject, abort: (s) => this.#abort(s) })
      if (request.signal?.aborted) return this.#abort(sequence)
      this.#scheduler.waiting.add(sequence)
      this.#start()
    })
  }

  /** No further step begins; resolves when none is in flight. Requests wait. */
  async pause(): Promise<void> {
    this.#paused = true
    await this.#landing.catch(() => {})
  }

  resume(): void {
    this.#paused = false
    this.#wake?.()
  }

  /** Resolves when no request is left. */
  async idle(): Promise<void> {
    if (this.#empty) return
    await new Promise<void>((resolve) => this.#idle.push(resolve))
  }

  /** Ends the engine: requests that are left are rejected, and its memory is given back. The decoder stays. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#wake?.()
    this.#failAll(new Error('the engine was closed'))
    await this.#loop
    await this.#landing.catch(() => {})
    this.#commands.release()
    this.decoder.gpu.share.engines--
  }

  stats(): EngineStats {
    const { running, waiting, rows, sharedTokens } = this.#scheduler
    const oldest = [...running, ...waiting].reduce((time, s) => Math.min(time, s.submitted), Infinity)
    return {
      version: this.#version,
      running: running.size,
      waiting: waiting.size,
      paused: this.#paused,
      ...this.#counts,
      sharedPromptTokens: sharedTokens,
      kvRows: this.cacheRows,
      kvRowsUsed: rows.used,
      oldestMs: oldest === Infinity ? 0 : performance.now() - oldest,
    }
  }

  get #empty(): boolean {
    return this.#scheduler.running.size + this.#scheduler.waiting.size === 0
  }

  #start(): void {
    this.#loop ??= this.#run()
  }

  async #run(): Promise<void> {
    const { share } = this.decoder.gpu
    share.work()
    while (true) {
      // Requests that are made in this turn, and by those whose last request just ended, join the next step.
      await new Promise((resolve) => setImmediate(resolve))
      if (this.#empty) {
        this.#loop = undefined
        share.rest()
        for (const resolve of this.#idle.splice(0)) resolve()
        return
      }
      if (this.#paused) {
        share.rest()
        await new Promise<void>((resolve) => (this.#wake = resolve))
        share.work()
        this.#wake = undefined
        continue
      }
      const before = this.#landing
      try {
        const begun = this.#begin()
        await (begun && this.#runsAhead ? before : this.#landing)
      } catch (error) {
        this.#failAll(error)
        await this.#landing.catch(() => {})
        this.#landing = Promise.resolve()
        this.#inFlight = 0
      }
    }
  }

  /** Penalties and constraints need the tokens so far on the host. */
  get #runsAhead(): boolean {
    return this.#ahead && ![...this.#scheduler.running].some((s) => s.needsHost)
  }

  /** Records and sends the next step, where there is one to be begun before the last one has landed. */
  #begin(): boolean {
    const version = this.#version
    this.#scheduler.admit(version)
    const step = this.#scheduler.next()
    if (!step) {
      if (this.#inFlight === 0) throw new Error('requests wait, none runs, and none could be admitted')
      return false
    }
    const traced = traceStep(this.decoder.gpu, this.#scheduler, step)
    this.#commands.run(step)
    const reading = step.sampled.length > 0 ? this.#commands.read(step) : undefined
    traced?.sent(reading)
    this.#counts.prefillTokens += step.prefillRows
    if (!reading) return true
    step.sampled.forEach(({ sequence, target }, i) => {
      if (target !== undefined) return
      sequence.pending++
      sequence.place = i
    })
    this.#inFlight++
    const landing = this.#land(step, version, reading, this.#landing)
    // The loop, or whoever pauses, sees its error.
    landing.catch(() => {})
    this.#landing = landing
    return true
  }

  /** Takes the tokens of a step, after those of the step before. */
  async #land({ sampled }: StepRows, version: PolicyVersion, reading: Promise<Sampled>, before: Promise<void>): Promise<void> {
    const begin = performance.now()
    const [read] = await Promise.all([reading, before])
    const end = performance.now()
    this.decoder.gpu.share.stepped(end - Math.max(begin, this.#landed))
    this.#landed = end
    this.#inFlight--
    this.#counts.decodeSteps++
    sampled.forEach((draw, i) => {
      if (draw.target === undefined) draw.sequence.pending--
      if (!draw.sequence.ended) this.#take(draw, read, i, version)
    })
  }

  #take({ sequence, target, position }: Draw, { tokens, logprobs, tops }: Sampled, i: number, version: PolicyVersion): void {
    try {
      if (!Number.isFinite(logprobs[i])) {
        const place = target === undefined ? `token ${sequence.ids.length}` : `token ${position} of the prompt`
        throw new Error(`the model's logits at ${place} are not finite (weights of version ${version})`)
      }
      if (target !== undefined) return sequence.takePrompt(position!, logprobs[i], tops[i]!)
      const ending = sequence.push(tokens[i], logprobs[i], version, tops[i])
      this.#counts.tokensGenerated++
      // Whoever was told of the token may have aborted the request.
      if (!ending || sequence.ended) return
      this.#scheduler.remove(sequence)
      this.#counts.finished++
      sequence.finish(ending)
    } catch (error) {
      if (!sequence.ended) this.#fail(sequence, error)
    }
  }

  /** Frees the rows at once: a step that is in flight may still write them, but every later one comes after it. */
  #abort(sequence: Sequence): void {
    if (sequence.ended) return
    this.#scheduler.remove(sequence)
    this.#counts.aborted++
    sequence.abort()
    // A paused loop with nothing left ends.
    if (this.#empty) this.#wake?.()
  }

  #fail(sequence: Sequence, error: unknown): void {
    this.#scheduler.remove(sequence)
    this.#counts.failed++
    sequence.fail(error)
  }

  #failAll(error: unknown): void {
    for (const sequence of [...this.#scheduler.running, ...this.#scheduler.waiting]) this.#fail(sequence, error)
  }
}
