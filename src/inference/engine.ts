/**
 * The embedded engine: generates from the very weights that the trainer trains, with continuous batching.
 * - One loop. Each step is one packed batch: the next token of every running sequence, and prompt rows of those that begin. Requests join and
 *   leave between steps. A token's numbers depend on its own sequence alone, so nothing else that runs changes them.
 * - The optimizer changes the weights in place, by GPU commands; those of an engine step come wholly before or after them. So publishing
 *   weights is no more than naming the version that the next step samples with.
 * - Keys and values that were computed under an older version stay with the sequences that run; new requests compute their own.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { UserError } from '../common/errors.ts'
import type { GenerationRequest, GenerationResult, PolicyVersion } from '../common/types.ts'
import type { Decoder } from '../model/decoder.ts'
import { MixedWeightsError, reloadDecoder } from '../model/decoder-reload.ts'
import type { ModelTensors } from '../model/decoder-load.ts'
import { statefulLayers } from '../model/shapes.ts'
import { Adapters } from './adapters.ts'
import { ReadBlocks } from './blocks.ts'
import { cacheOf } from './cache-size.ts'
import { checkRequest } from './request.ts'
import type { Draw, Sampled } from './sampler.ts'
import { Scheduler } from './scheduler.ts'
import type { StepRows } from './step-rows.ts'
import { Sequence, type EndRules } from './sequence.ts'
import { StepCommands } from './step.ts'
import type { EngineOptions, EngineStats, PauseMode, ServingEngine } from './types.ts'
import { traceStep } from './trace.ts'

export type { EngineOptions, EngineStats } from './types.ts'

export class Engine implements ServingEngine {
  readonly decoder: Decoder
  readonly adapters: Adapters
  readonly maxLength: number
  readonly cacheRows: number
  #version: PolicyVersion = 0
  /** Times that the weights below all adapters were reloaded. */
  #reloads = 0
  #reloading = false
  /** Since a reload broke off in the midst of its writing. */
  #mixed: MixedWeightsError | undefined
  readonly #scheduler: Scheduler
  readonly #commands: StepCommands
  readonly #rules: EndRules
  /** The loop while it runs, which is as long as there are requests. */
  #loop: Promise<void> | undefined
  #paused = false
  /** pause('wait'): only requests that have begun go on. When they have ended the engine is paused, and `#drained` is called. */
  #draining = false
  #drained: (() => void)[] = []
  #closed = false
  #wake: (() => void) | undefined
  readonly #ahead: boolean
  readonly #blocks: ReadBlocks
  /** Settles when the last step has landed: its tokens were read back and handed to their sequences. */
  #landing: Promise<void> = Promise.resolve()
  #inFlight = 0
  /** When the last step landed. */
  #lastLanding = 0
  readonly #counts = { decodeSteps: 0, tokensGenerated: 0, prefillTokens: 0, finished: 0, aborted: 0, failed: 0 }

  /**
   * Allocates the KV cache: 2 x layers x cacheRows x kv heads x head size values.
   * @throws UserError where maxLength tokens, or those of a step, do not fit the adapter's largest binding, or f16 does not fit the model
   */
  constructor(decoder: Decoder, options: EngineOptions) {
    const { gpu, config } = decoder
    const { maxSequences, maxLength } = options
    this.decoder = decoder
    this.maxLength = maxLength
    const { pages, pageSize, f16 } = cacheOf(decoder, options)
    this.cacheRows = pages * pageSize
    // Engines of few short sequences take no memory for more tokens than these have.
    const maxPrefillRows = Math.max(1, Math.min(options.maxPrefillRows ?? 256, maxSequences * maxLength))
    // The states of layers without keys are not in the pages, so a cached prefix would lack it.
    const caching = {
      prefixCaching: (options.prefixCaching ?? true) && statefulLayers(config).length === 0,
      acrossVersions: options.cacheAcrossVersions ?? false,
    }
    this.#scheduler = new Scheduler({ maxSequences, maxPrefillRows, maxLength, pages, pageSize, ...caching })
    this.#rules = { eosTokenIds: new Set(options.eosTokenIds), decode: options.decode, vocabulary: config.vocabSize }
    const { maxRows } = this.#scheduler
    const widest = 4 * Math.max(config.hiddenSize, config.intermediateSize, config.heads * config.headDim)
    const most = Math.floor(gpu.facts.limits.maxBinding / widest)
    if (maxRows > most) {
      throw new UserError(
        `A step of up to ${maxRows} tokens does not fit this adapter, which binds the activations of ${most} at once. Lower max_num_batched_tokens or max_num_seqs.`,
      )
    }
    this.#ahead = options.ahead ?? !gpu.facts.software
    const block = this.#ahead ? (options.readBlock ?? (gpu.facts.software ? 1 : 4)) : 1
    const kinds = { plans: options.plans ?? true, ahead: this.#ahead, block, full: options.full ?? false }
    gpu.share.engines++
    const cache = { pages: pages + 1, pageSize, f16, maxTable: this.#scheduler.maxTable }
    const limits = { maxAdapters: options.maxAdapters ?? 4, maxRank: options.maxAdapterRank ?? 16 }
    this.adapters = new Adapters(decoder, limits, (name, space) => this.#scheduler.forget(name, space))
    this.#commands = new StepCommands(decoder, this.adapters.bank, { maxSequences, maxRows, maxLength, ...cache, ...kinds })
    this.#blocks = new ReadBlocks(this.#commands, block)
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
    this.adapters.bank.changed()
    this.#scheduler.forget(undefined, version)
    // In full fine-tuning the base weights, which named adapters run on, have changed too.
    if (this.decoder.store && !this.adapters.bank.hasOwn) this.adapters.reloaded()
  }

  /**
   * Takes other weights of the same model, below all adapters, between two steps; requests that run go on with them. The version counts on.
   * @throws UserError for weights that do not fit, before anything is written; MixedWeightsError where files fail after that: all requests then get this
   *   error, until a reload goes well
   */
  async reloadWeights(files: ModelTensors): Promise<PolicyVersion> {
    if (this.#reloading) throw new UserError('Weights are being reloaded already; wait until that has ended.')
    this.#reloading = true
    try {
      await this.#landed()
      await reloadDecoder(this.decoder, files)
      this.#mixed = undefined
      this.#scheduler.forget(null, ++this.#reloads)
      this.adapters.reloaded()
      this.publish(this.#version + 1)
    } catch (error) {
      if (error instanceof MixedWeightsError) this.#failAll((this.#mixed = error))
      throw error
    } finally {
      this.#reloading = false
      this.#wake?.()
    }
    return this.#version
  }

  /**
   * Samples a completion. An aborted request resolves with what it has.
   * @throws UserError for a request that can never run; the error of a step that failed, for all requests that were in the engine
   */
  async generate(request: GenerationRequest): Promise<GenerationResult> {
    if (this.#closed) throw new Error('the engine is closed')
    if (this.#mixed) throw this.#mixed
    const vocabulary = this.decoder.config.vocabSize
    checkRequest(request, { maxLength: this.maxLength, cacheRows: this.cacheRows, vocabulary })
    // Where the policy has no adapter, the model without one is the policy.
    const adapter = request.adapter === null && !this.adapters.bank.hasOwn ? undefined : request.adapter
    const weights = this.adapters.hold(
      adapter,
      () => this.#version,
      () => this.#reloads,
    )
    try {
      return await new Promise((resolve, reject) => {
        const settle = { resolve, reject, abort: (s: Sequence) => this.#abort(s) }
        const sequence = new Sequence({ ...request, adapter }, this.#rules, settle, weights)
        if (request.signal?.aborted) return this.#abort(sequence)
        this.#scheduler.waiting.add(sequence)
        this.#start()
      })
    } finally {
      weights.release()
    }
  }

  /**
   * No further step begins until `resume`; resolves when none is in flight. Requests that are made meanwhile wait.
   * @param mode what becomes of those that run: 'keep' leaves them where they are, 'wait' lets them end first, 'abort' ends them, and those that wait, with what they have
   */
  async pause(mode: PauseMode = 'keep'): Promise<void> {
    if (mode === 'abort') for (const sequence of [...this.#scheduler.running, ...this.#scheduler.waiting]) this.#abort(sequence)
    if (mode === 'wait' && !this.#paused && this.#begun) {
      this.#draining = true
      // `#run` pauses when it has drained; `resume` calls the pause off and resolves this too.
      await new Promise<void>((resolve) => this.#drained.push(resolve))
    } else this.#paused = true
    await this.#landed()
  }

  resume(): void {
    this.#paused = this.#draining = false
    this.#wake?.()
    for (const resolve of this.#drained.splice(0)) resolve()
  }

  get paused(): boolean {
    return this.#paused
  }

  /** Forgets the keys and values of requests that have ended. */
  resetPrefixCache(): void {
    this.#scheduler.pool.reset()
  }

  /** Resolves when no request is left. */
  async idle(): Promise<void> {
    await this.#loop
  }

  /** Ends the engine: requests that are left are rejected, and its memory is given back. The decoder stays. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#wake?.()
    this.#failAll(new Error('the engine was closed'))
    await this.#loop
    await this.#landed()
    this.#commands.release()
    this.adapters.release()
    const { gpu } = this.decoder
    gpu.share.engines--
    // The driver frees the buffers only now: without waiting, the next engine's cache would be allocated beside this one's. An error of the
    // device is reported to whoever uses it next.
    gpu.pool.freeDestroyed()
    await gpu.sync().catch(() => {})
  }

  stats(): EngineStats {
    const { running, waiting, pool, counts } = this.#scheduler
    const oldest = [...running, ...waiting].reduce((time, s) => Math.min(time, s.submitted), Infinity)
    return {
      version: this.#version,
      running: running.size,
      waiting: waiting.size,
      paused: this.#paused,
      ...this.#counts,
      promptTokens: counts.queried,
      sharedPromptTokens: counts.shared,
      preemptions: counts.preemptions,
      kvRows: this.cacheRows,
      kvRowsUsed: pool.held * pool.size,
      oldestMs: oldest === Infinity ? 0 : performance.now() - oldest,
    }
  }

  get #empty(): boolean {
    return this.#scheduler.running.size + this.#scheduler.waiting.size === 0
  }

  /** Whether requests have tokens, or are about to get their first. */
  get #begun(): boolean {
    const { running, waiting } = this.#scheduler
    return running.size > 0 || [...waiting].some(({ ids }) => ids.length > 0)
  }

  /** Resolves when no step is in flight. */
  async #landed(): Promise<void> {
    this.#blocks.close()
    await this.#landing.catch(() => {})
  }

  #start(): void {
    this.#loop ??= this.#run()
  }

  async #run(): Promise<void> {
    const { share } = this.decoder.gpu
    share.work()
    // Of the last step before the block of read-backs that is open, or that comes next.
    let before = this.#landing
    while (true) {
      // Requests made in this turn of the event loop join the next step, as do those that follow on one that just ended.
      await turn()
      if (this.#draining && !this.#begun) {
        this.#draining = false
        this.#paused = true
        for (const resolve of this.#drained.splice(0)) resolve()
      }
      if (this.#empty) {
        this.#blocks.close()
        this.#loop = undefined
        share.rest()
        return
      }
      if (this.#paused || this.#reloading) {
        share.rest()
        await new Promise<void>((resolve) => (this.#wake = resolve))
        share.work()
        this.#wake = undefined
        continue
      }
      if (!this.#blocks.isOpen) before = this.#landing
      try {
        if (!this.#commands.ready) {
          await this.#commands.makeReady()
          continue
        }
        const begun = this.#begin()
        if (begun) this.#commands.prepare()
        const goesOn = begun && this.#runsAhead
        if (!goesOn) this.#blocks.close()
        if (!this.#blocks.isOpen) await (goesOn ? before : this.#landing)
      } catch (error) {
        this.#failAll(error)
        // The step's rows count as computed since it was put together, but may never have been sent.
        this.resetPrefixCache()
        await this.#landed()
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
    this.#scheduler.admit(({ weights }) => weights!.space(), this.#draining)
    const step = this.#scheduler.next(this.#commands.sharing)
    if (!step) {
      if (this.#inFlight === 0) throw new Error('requests wait, none runs, and none could be admitted')
      return false
    }
    const traced = traceStep(this.decoder.gpu, this.#scheduler, step)
    this.#commands.run(step)
    const reading = step.sampled.length > 0 ? this.#blocks.take(step) : undefined
    traced?.sent(reading)
    this.#counts.prefillTokens += step.prefillRows
    if (!reading) return true
    step.sampled.forEach(({ sequence, target }, i) => {
      if (target !== undefined) return
      sequence.pending++
      sequence.place = i
    })
    this.#inFlight++
    const versions = step.sampled.map(({ sequence }) => sequence.weights!.version())
    const landing = this.#land(step, versions, reading, this.#landing)
    // The loop, or whoever pauses, sees its error.
    landing.catch(() => {})
    this.#landing = landing
    return true
  }

  /** Takes the tokens of a step, after those of the step before. */
  async #land({ sampled }: StepRows, versions: PolicyVersion[], reading: Promise<Sampled>, before: Promise<void>): Promise<void> {
    const begin = performance.now()
    // Waits for both even if one fails: the loop then resets `#inFlight`, and no older step may land after that.
    await Promise.allSettled([reading, before])
    const [read] = await Promise.all([reading, before])
    const end = performance.now()
    this.decoder.gpu.share.stepped(end - Math.max(begin, this.#lastLanding))
    this.#lastLanding = end
    this.#inFlight--
    this.#counts.decodeSteps++
    sampled.forEach((draw, i) => {
      if (draw.target === undefined) draw.sequence.pending--
      if (!draw.sequence.ended) this.#take(draw, read, i, versions[i])
    })
  }

  #take({ sequence, target, position }: Draw, { tokens, logprobs, tops }: Sampled, i: number, version: PolicyVersion): void {
    try {
      if (!Number.isFinite(logprobs[i])) {
        // A row that is not finite spoils the rows that share a kernel's tile with it. They may be cached, and other requests would find them.
        this.resetPrefixCache()
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

  /** Frees the pages at once: a step in flight may still write to them, but the steps of whoever gets them next come after it. */
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
