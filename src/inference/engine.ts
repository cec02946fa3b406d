/**
 * The embedded engine: generates from the trainer's own weights, with continuous batching.
 * - Each step of its loop is one packed batch: the next token of every running sequence, and prompt rows of those that start. Requests join and leave
 *   between steps. A token's log-probability depends only on its own sequence, whatever else runs.
 * - The optimizer changes the weights in place by GPU commands, and an engine step's commands come entirely before or after those. So publishing
 *   weights just means naming the version with which the next step samples.
 * - Running sequences keep the keys and values that older versions computed; new requests compute their own.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { UserError } from '../common/errors.ts'
import type { GenerationRequest, GenerationResult, PolicyVersion } from '../common/types.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { MixedWeightsError, reloadDecoder } from '../model/decoder/reload.ts'
import type { ModelTensors } from '../model/decoder/load.ts'
import { statefulLayers } from '../model/decoder/shapes.ts'
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
  /** How often the base weights (below all adapters) were reloaded. */
  #reloads = 0
  /** The reload in progress; never rejects. */
  #reloading: Promise<void> | undefined
  /** Set if a reload failed in the middle of writing weights. */
  #mixed: MixedWeightsError | undefined
  readonly #scheduler: Scheduler
  readonly #commands: StepCommands
  readonly #rules: EndRules
  /** The running loop, while there are requests. */
  #loop: Promise<void> | undefined
  #paused = false
  /** After pause('wait'): only requests that have begun continue. When they have finished, the engine is paused and `#drained` is called. */
  #draining = false
  #drained: (() => void)[] = []
  readonly #closing = new AbortController()
  #wake: (() => void) | undefined
  readonly #ahead: boolean
  readonly #blocks: ReadBlocks
  /** Settles when the last step has landed: its tokens were read back and passed to their sequences. */
  #landing: Promise<void> = Promise.resolve()
  #inFlight = 0
  /** When the last step landed. */
  #lastLanding = 0
  readonly #counts = { decodeSteps: 0, tokensGenerated: 0, prefillTokens: 0, finished: 0, aborted: 0, failed: 0 }

  /**
   * Allocates the KV cache: 2 x layers x cacheRows x kv heads x head size values.
   * @throws UserError if maxLength tokens, or those of a step, exceed the adapter's largest binding, or if the model does not support f16
   */
  constructor(decoder: Decoder, options: EngineOptions) {
    const { gpu, config } = decoder
    const { maxSequences, maxLength } = options
    this.decoder = decoder
    this.maxLength = maxLength
    const { pages, pageSize, f16 } = cacheOf(decoder, options)
    this.cacheRows = pages * pageSize
    // An engine for few short sequences reserves no memory for more tokens than these can have.
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
        `A step of up to ${maxRows} tokens does not fit this GPU, which can bind the activations of at most ${most} at once. Lower max_num_batched_tokens or max_num_seqs.`,
      )
    }
    this.#ahead = options.ahead ?? !gpu.facts.software
    const block = this.#ahead ? (options.readBlock ?? (gpu.facts.software ? 1 : 4)) : 1
    const kinds = { plans: options.plans ?? true, ahead: this.#ahead, block, full: options.full ?? false }
    const cache = { pages: pages + 1, pageSize, f16, maxTable: this.#scheduler.maxTable, sharedKeys: options.sharedKeys ?? 64 }
    const limits = { maxAdapters: options.maxAdapters ?? 4, maxRank: options.maxAdapterRank ?? 16 }
    this.adapters = new Adapters(decoder, limits, (name, space) => this.#scheduler.forget(name, space))
    this.#commands = new StepCommands(decoder, this.adapters.bank, { maxSequences, maxRows, maxLength, ...cache, ...kinds })
    this.#blocks = new ReadBlocks(this.#commands, block)
    gpu.share.engines++
  }

  get version(): PolicyVersion {
    return this.#version
  }

  /**
   * Names the version of the weights with which the next step samples. Call this in the same turn of the event loop in which the commands that change
   * the weights are recorded. Then each token always carries the version that sampled it.
   */
  publish(version: PolicyVersion): void {
    this.#version = version
    this.adapters.bank.changed()
    this.#scheduler.forget(undefined, version)
    // In full fine-tuning, the base weights of named adapters have changed as well.
    if (this.decoder.store && !this.adapters.bank.hasOwn) this.adapters.reloaded()
  }

  /**
   * Loads other base weights of the same model, between two steps; running requests continue with them. @returns the policy's new version
   * @throws UserError for weights that do not fit, before anything is written; MixedWeightsError if reading fails later: all requests then fail with
   *   it until a reload succeeds
   */
  async reloadWeights(files: ModelTensors): Promise<PolicyVersion> {
    if (this.#reloading) throw new UserError('Weights are being reloaded already; wait until that has ended.')
    if (this.#closing.signal.aborted) throw new Error('the engine is closed')
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#reloading = promise
    try {
      await this.#landed()
      await reloadDecoder(this.decoder, files, this.#closing.signal)
      this.#mixed = undefined
      this.#scheduler.forget(null, ++this.#reloads)
      this.adapters.reloaded()
      this.publish(this.#version + 1)
    } catch (error) {
      if (error instanceof MixedWeightsError) this.#failAll((this.#mixed = error))
      throw error
    } finally {
      this.#reloading = undefined
      resolve()
      this.#wake?.()
    }
    return this.#version
  }

  /**
   * Samples a completion. An aborted request resolves with the tokens so far.
   * @throws UserError for a request that can never run; the error of a failed step, for all requests in the engine
   */
  async generate(request: GenerationRequest): Promise<GenerationResult> {
    if (this.#closing.signal.aborted) throw new Error('the engine is closed')
    if (this.#mixed) throw this.#mixed
    const vocabulary = this.decoder.config.vocabSize
    checkRequest(request, { maxLength: this.maxLength, cacheRows: this.cacheRows, vocabulary })
    // If the policy has no adapter, it is the model without one.
    const adapter = request.adapter === null && !this.adapters.bank.hasOwn ? undefined : request.adapter
    const [policy, none] = [() => this.#version, () => this.#reloads]
    const weights = this.adapters.hold(adapter, policy, none)
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
   * Stops starting steps until `resume`; resolves when none is in flight. New requests wait.
   * @param mode for running requests: 'keep' freezes them, 'wait' lets them finish first; 'abort' ends all requests with their tokens so far
   */
  async pause(mode: PauseMode = 'keep'): Promise<void> {
    if (mode === 'abort') for (const sequence of [...this.#scheduler.running, ...this.#scheduler.waiting]) this.#abort(sequence)
    if (mode === 'wait' && !this.#paused && this.#begun) {
      this.#draining = true
      // `#run` pauses when all have finished; `resume` cancels the pause and resolves this too.
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

  /** Drops the keys and values of requests that have ended. */
  resetPrefixCache(): void {
    this.#scheduler.pool.reset()
  }

  /** Resolves when there are no requests left. */
  async idle(): Promise<void> {
    await this.#loop
  }

  /** Closes the engine: rejects the remaining requests and releases its memory. The decoder stays. */
  async close(): Promise<void> {
    if (this.#closing.signal.aborted) return
    const closed = new Error('the engine was closed')
    this.#closing.abort(closed)
    this.#wake?.()
    this.#failAll(closed)
    await Promise.all([this.#loop, this.#reloading])
    await this.#landed()
    this.#commands.release()
    this.adapters.release()
    const { gpu } = this.decoder
    gpu.share.engines--
    // The driver frees buffers only here. Otherwise the next engine's cache would be allocated in addition to this one. A device error is reported to
    // whoever uses the device next.
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

  /** Whether any request has been admitted, even if it was preempted before its first token. */
  get #begun(): boolean {
    const { running, waiting } = this.#scheduler
    return running.size > 0 || [...waiting].some(({ begun }) => begun)
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
    // The landing of the last step before the current block of read-backs, or before the next one if none is open.
    let before = this.#landing
    while (true) {
      // Requests made in this turn of the event loop join the next step, as do those that follow a request that just ended.
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
        // The step's rows count as computed since it was assembled, but may never have been submitted.
        this.resetPrefixCache()
        await this.#landed()
        this.#landing = Promise.resolve()
        this.#inFlight = 0
      }
    }
  }

  /** Whether the next step may start ahead of the host: not if penalties or constraints need the latest tokens there. */
  get #runsAhead(): boolean {
    return this.#ahead && ![...this.#scheduler.running].some((s) => s.needsHost)
  }

  /** Records and submits the next step, if one can start before the last one has landed. */
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

  /** Waits for a step's tokens and passes them to their sequences, after those of the step before. */
  async #land({ sampled }: StepRows, versions: PolicyVersion[], reading: Promise<Sampled>, before: Promise<void>): Promise<void> {
    const begin = performance.now()
    // Wait for both even if one fails: the loop then resets `#inFlight`, and no older step may land after that.
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
        // A row that is not finite spoils the rows in the same kernel tile. These may be cached, and other requests would find them.
        this.resetPrefixCache()
        const place = target === undefined ? `token ${sequence.ids.length}` : `token ${position} of the prompt`
        throw new Error(`the model's logits at ${place} are not finite (weights of version ${version})`)
      }
      if (target !== undefined) return sequence.takePrompt(position!, logprobs[i], tops[i]!)
      const ending = sequence.push(tokens[i], logprobs[i], version, tops[i])
      this.#counts.tokensGenerated++
      // The callback that was told of the token may have aborted the request.
      if (!ending || sequence.ended) return
      this.#scheduler.remove(sequence)
      this.#counts.finished++
      sequence.finish(ending)
    } catch (error) {
      if (!sequence.ended) this.#fail(sequence, error)
    }
  }

  /** Aborts a request. Its pages are free at once: a step in flight may still write to them, but steps of their next owners come after it. */
  #abort(sequence: Sequence): void {
    if (sequence.ended) return
    this.#scheduler.remove(sequence)
    this.#counts.aborted++
    sequence.abort()
    // A paused loop without requests ends.
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
