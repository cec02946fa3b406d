/**
 * Samples the policy from a vLLM server, and pushes the trainer's weights into it while requests run.
 * - LoRA: each version is an adapter with its own name. New requests use the newest; a request that began earlier finishes on the adapter it began
 *   with, which is unloaded after the last such request. So a completion has a single version, and nothing waits for a push.
 * - Full weights: generation is frozen (requests keep their KV cache), the weights are replaced, and generation continues. A completion may have
 *   tokens of several versions, and the server says which.
 * - A server that dies is restarted and given the newest weights, and unfinished requests are sent again. Callers do not notice.
 * - After every push, a probe verifies that the weights arrived (probe.ts).
 */
import { randomUUID } from 'node:crypto'
import { rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { UserError } from '../../common/errors.ts'
import type { GenerationRequest, GenerationResult, Generator, Metrics, PolicyVersion } from '../../common/types.ts'
import { checkRequest } from '../request.ts'
import { Sequence, type EndRules } from '../sequence.ts'
import { isPassing, VllmError } from './api.ts'
import { checkMaxLoras, checkServer, explainRefusal, type Found, type Needs } from './checks.ts'
import { VllmHost, type HostOptions } from './host.ts'
import { loadAdapter, replaceWeights, shaOf, unloadAdapters, type Policy } from './policy.ts'
import { distance, OTHER_MODEL, probePositions, staleBecause } from './probe.ts'
import { checkServed, COMPLETIONS, GENERATE, requestBody, takeStream, tellsLogprob } from './requests.ts'
import { oneAtATime, pauseMs, unlessAborted, withRetries } from './wait.ts'

export interface VllmSamplerOptions extends HostOptions, Needs {
  /** The prefix of adapter names. */
  runName: string
  /** Rank of the adapter; 0 for full weights. */
  rank: number
  vocabulary: number
  rules: EndRules
  /** Folder for weights on their way to the server; its contents belong to this sampler. */
  weightsDir: string
  /** Whether the server starts with the trainer's weights, so that the first version need not be pushed. */
  hasFirst: boolean
  /** Writes the trainer's current weights to a folder: a PEFT adapter, or a Hugging Face model. */
  write: (dir: string) => Promise<void>
  /** Log-probabilities of all tokens at temperature 1, by the trainer's current weights (0 for the first token). */
  score: (ids: readonly number[]) => Promise<ArrayLike<number>>
  /** The probe's sequence. */
  probeIds: readonly number[]
  /** Time limit of a push in milliseconds. */
  pushMs: number
}

/** Number of tries for a request that fails although the server is well. */
const TRIES = 4
/** Milliseconds during which the requests at the start are repeated if they fail for a passing reason. */
const START_MS = 30_000
/** Lower bound of the noise, in nats per token: what another order of summation may change in float32. */
const LEAST_NOISE = 1e-5
/** Milliseconds during which unloading an adapter is tried, at the start and at the end. */
const CLOSE_MS = 3000

export class VllmSampler implements Generator {
  readonly #options: VllmSamplerOptions
  readonly #host: VllmHost
  #found: Found = { server: '', base: '' }
  #current: Policy | undefined
  /** The version whose weights are being pushed; the server may already have them. */
  #arriving: PolicyVersion | undefined
  /** Settles when the server answers and has the current weights. */
  #ready: Promise<void> = Promise.resolve()
  /** Counts the restarts of the server, so that many failed requests revive it only once. */
  #life = 0
  #reviving: Promise<boolean> | undefined
  /** Settles when all unloads that were due have reached the server or failed. */
  #leaving: Promise<unknown> = Promise.resolve()
  /** Keeps a push, and the loading of the current weights into a new server, apart. */
  readonly #alone = oneAtATime()
  /** While full weights are replaced, new requests wait. */
  #gate: Promise<void> = Promise.resolve()
  /** For aborting the requests that the server is working on. */
  readonly #running = new Set<AbortController>()
  /** Parts of cache salts: one of this sampler alone, and how often full weights were loaded. */
  readonly #mine = randomUUID()
  #loads = 0
  #noise = 0
  #retried = 0
  #closed = false
  #ill = false
  #gone = false

  /**
   * Starts or finds the server, checks what it can do, and gives it the trainer's weights as `version`.
   * @throws UserError for a server that the run can't sample from
   */
  static async open(options: VllmSamplerOptions, version: PolicyVersion): Promise<VllmSampler> {
    const sampler = new VllmSampler(options)
    const { kind, maxAsyncLevel, probeIds, log } = options
    const patiently = <T>(ask: () => Promise<T>) => withRetries(ask, START_MS, log)
    try {
      await sampler.#host.start()
      sampler.#found = await patiently(() => checkServer(sampler.#host.api, options, probeIds))
      await patiently(() => sampler.#unloadOthers())
      await sampler.push(version)
      if (kind === 'lora') await patiently(() => checkMaxLoras(sampler.#host.api, maxAsyncLevel))
      return sampler
    } catch (error) {
      await sampler.close()
      throw error
    }
  }

  private constructor(options: VllmSamplerOptions) {
    this.#options = options
    this.#host = new VllmHost(options)
    this.#host.onGone = () => void this.#revive(this.#life).catch(() => {})
  }

  /** The version that new requests are sampled with. */
  get version(): PolicyVersion {
    return this.#current?.version ?? 0
  }

  /** Whether the server could not be brought back for a reason that stays; every request then fails with it. */
  get gone(): boolean {
    return this.#gone
  }

  get stats(): { server: string; url: string; pid: number | undefined; restarts: number; retried: number } {
    const { api, pid, restarts } = this.#host
    return { server: this.#found.server, url: api.url, pid, restarts, retried: this.#retried }
  }

  /**
   * Samples a completion. An aborted request resolves with the tokens that had arrived.
   * @throws UserError for a request that can never run; VllmError for one that the server refuses
   */
  async generate(request: GenerationRequest): Promise<GenerationResult> {
    const { maxLength, vocabulary } = this.#options
    checkRequest(request, { maxLength, cacheRows: Infinity, vocabulary })
    checkServed(request)
    const { signal } = request
    for (let failed = 0; ; this.#retried++) {
      if (this.#closed) throw new Error('the sampler was closed')
      const life = this.#life
      try {
        await unlessAborted(this.#ready, signal)
        await unlessAborted(this.#gate, signal)
        return await this.#attempt(request)
      } catch (error) {
        if (signal?.aborted)
          return { ids: [], logprobs: [], versions: [], text: '', finishReason: 'abort', stopCondition: 'abort' }
        if (this.#closed) throw new Error('the sampler was closed')
        // vLLM would refuse it again. But if it does not know an adapter, it is another server by now.
        const refused = error instanceof VllmError && !error.passing && error.status !== 404
        if (refused || error instanceof UserError) throw error
        const wasWell = await unlessAborted(this.#revive(life), signal).catch((fatal: unknown) => {
          if (!signal?.aborted) throw fatal
        })
        if (!wasWell) continue
        if (++failed >= TRIES) throw error
        await sleep(pauseMs(failed), undefined, { signal }).catch(() => {})
      }
    }
  }

  /** Sends a request to the current server. */
  async #attempt(request: GenerationRequest): Promise<GenerationResult> {
    const policy = this.#current!
    const control = new AbortController()
    this.#running.add(control)
    policy.inFlight++
    try {
      return await new Promise<GenerationResult>((done, reject) => {
        const abort = (s: Sequence) => (s.abort(), control.abort())
        const sequence = new Sequence(request, this.#options.rules, { resolve: done, reject, abort })
        if (request.signal?.aborted) return sequence.abort()
        this.#ask(request, policy, sequence, control.signal).catch((e) => !sequence.ended && sequence.fail(e))
      })
    } finally {
      control.abort()
      this.#running.delete(control)
      policy.inFlight--
      this.#tidy(policy)
    }
  }

  /**
   * Pushes the trainer's current weights to the server as `version`; resolves when new requests sample from them.
   * @returns metrics of the push, for the step's metrics
   * @throws Error if the weights do not arrive within the time limit, or the probe says that they did not
   */
  async push(version: PolicyVersion): Promise<Metrics> {
    const begin = performance.now()
    const { kind, where, hasFirst, weightsDir, runName, write, pushMs } = this.#options
    const last = this.#current
    // Somebody else's server may have weights of an earlier run, which has named them.
    const isFresh = async () => 'launch' in where || (await this.#host.api.weightsName()) === 'default'
    const loaded = last === undefined && hasFirst && (await isFresh())
    const name = `v${String(version).padStart(6, '0')}`
    const dir = loaded ? '' : resolve(weightsDir, name)
    if (dir) {
      rmSync(dir, { recursive: true, force: true })
      await write(dir)
    }
    const model = kind === 'lora' ? `${runName}-${name}` : this.#found.base
    const policy: Policy = {
      version, dir, model, inFlight: 0, sha: dir ? await shaOf(dir) : '', scores: await this.#trainerScores(),
    } // prettier-ignore
    let end = begin + pushMs
    const left = () => Math.max(1000, end - performance.now())
    let probe
    this.#arriving = version
    try {
      for (let tries = 0; ; tries++) {
        const life = this.#life
        try {
          probe = await this.#alone(async () => {
            await this.#install(policy, (once) => withRetries(once, left(), this.#options.log))
            const found = await this.#probe(policy, last, left())
            this.#current = policy
            return found
          })
          break
        } catch (error) {
          // A server that does not know the adapter that it was just given is another one, as in `generate`.
          const passing = error instanceof VllmError && (error.passing || (last && error.status === 404))
          if (!passing || this.#closed) throw error
          // If the server is dying, its successor gets the old weights, then these, with the full time limit. A revival that an ill one fails is a try.
          const wasWell = await this.#revive(life).catch((ill) => isPassing(ill) || Promise.reject(ill))
          if (wasWell && performance.now() > end) throw error
          if (!wasWell) end = performance.now() + pushMs
          await sleep(pauseMs(tries))
        }
      }
    } finally {
      this.#arriving = undefined
    }
    if (last) this.#tidy(last)
    return {
      'inference/adapter_sha': policy.sha ? parseInt(policy.sha.slice(0, 12), 16) : null,
      'inference/probe_error': probe.error,
      'inference/probe_moved': probe.moved,
      'inference/restarts': this.#host.restarts,
      'inference/retried': this.#retried,
      'time/broadcast_weights': (performance.now() - begin) / 1000,
    }
  }

  /** Aborts running requests, and stops the server if it was started here. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    for (const control of this.#running) control.abort()
    // Our adapters are removed from somebody else's server.
    if ('url' in this.#options.where && !this.#gone) await withRetries(() => this.#unloadOthers(), CLOSE_MS).catch(() => {})
    await this.#host.close()
    rmSync(this.#options.weightsDir, { recursive: true, force: true })
  }

  async #ask(request: GenerationRequest, policy: Policy, sequence: Sequence, signal: AbortSignal): Promise<void> {
    const { kind, rules, logprobsMode, vocabulary } = this.#options
    const path = kind === 'lora' ? COMPLETIONS : GENERATE
    const route = { path, model: policy.model, salt: this.#salt(policy.version), eosTokenIds: [...rules.eosTokenIds] }
    const chunks = this.#host.api.stream(path, requestBody(request, route), signal)
    // An adapter's name is its version. For full weights, the server says at the end; until then the newest is assumed.
    const version = () => (kind === 'lora' ? policy.version : this.version)
    await takeStream(chunks, sequence, { version, vocabulary, known: (at) => tellsLogprob(request.sampling, logprobsMode, at) })
    this.#host.worked()
  }

  /** Loads weights into the server. @param trying calls what it is given with a time limit, and may call it again after a failure */
  async #install(policy: Policy, trying: (once: (limitMs: number) => Promise<void>) => Promise<void>): Promise<void> {
    const about = { rank: this.#options.rank, leaving: () => this.#leaving }
    if (this.#options.kind === 'lora')
      return await trying((limitMs) => loadAdapter(this.#host.api, policy, { limitMs, ...about }))
    const { promise, resolve: open } = Promise.withResolvers<void>()
    this.#gate = promise
    try {
      // Generation goes on only after a try that succeeded: until then, nobody knows which weights would sample, nor under which name.
      await trying((limitMs) => replaceWeights(this.#host.api, policy, limitMs))
    } catch (error) {
      await this.#host.api.resume().catch(() => {})
      throw explainRefusal(error, this.#host.api)
    } finally {
      this.#loads++
      open()
    }
  }

  /** Differs between weights: also those of an earlier run with a version's number, and new ones before their probe (`version` is then the old one). */
  readonly #salt = (version: PolicyVersion): string => `dawn-rl-${this.#mine}-v${version}-${this.#loads}`

  async #trainerScores(): Promise<number[]> {
    const { score, probeIds } = this.#options
    const logprobs = await score(probeIds)
    return probePositions(probeIds.length).map((t) => logprobs[t])
  }

  /** @throws UserError if the first weights differ from the trainer's, Error if a push did not arrive */
  async #probe(policy: Policy, last: Policy | undefined, limitMs: number): Promise<{ error: number; moved: number }> {
    const { probeIds, model } = this.#options
    const { api } = this.#host
    const served = await api.score(policy.model, probeIds, probePositions(probeIds.length), this.#salt(policy.version), limitMs)
    const error = distance(served, policy.scores)
    if (!last) {
      if (!(error < OTHER_MODEL)) {
        throw new UserError(
          `${api.url} gives different log-probabilities from ${model} (by ${error.toPrecision(2)} nats per token), so it serves another model, or weights left by an earlier run. Restart vLLM with --model ${model}.`,
        )
      }
      this.#noise = Math.max(error, LEAST_NOISE)
      return { error, moved: 0 }
    }
    const moved = distance(policy.scores, last.scores)
    const why = staleBecause({ error, moved, stale: distance(served, last.scores) }, this.#noise)
    if (why) throw new Error(`The weights of version ${policy.version} did not arrive in vLLM at ${api.url}: ${why}.`)
    return { error, moved }
  }

  /**
   * After a request failed: resolves when the server answers and has the current weights. Requests that failed in one life of the server share a
   * revival.
   * @returns whether it had been well all along
   */
  async #revive(life: number): Promise<boolean> {
    if (life !== this.#life) {
      await this.#ready
      return false
    }
    this.#reviving ??= this.#restore().finally(() => (this.#reviving = undefined))
    // If the server can't be brought back, this stays rejected. Each request then fails with the reason, or where it may pass, tries a revival.
    this.#ready = this.#reviving.then(() => void (this.#ill = this.#gone = false))
    this.#ready.catch((error) => ((this.#ill = true), (this.#gone = !isPassing(error))))
    return await this.#reviving
  }

  async #restore(): Promise<boolean> {
    // False once the server was restarted, or turned out to be another one. A revival that failed may have left it paused, with the weights' name.
    let same = !this.#ill
    for (let tries = 1; ; tries++) {
      if (await this.#host.revive()) same = false
      try {
        if (same && (await this.#hasCurrent())) return true
        same = false
        this.#life++
        await this.#equip()
        return false
      } catch (error) {
        // The server may die again during this.
        if (!isPassing(error) || tries >= TRIES || this.#closed) throw error
        await sleep(pauseMs(tries - 1))
      }
    }
  }

  /** Loads the current weights into a server that has none of ours. Checking it also resumes it, which must not happen in the midst of a push. */
  async #equip(): Promise<void> {
    const { kind, probeIds, pushMs, log } = this.#options
    await this.#alone(async () => {
      this.#found = await checkServer(this.#host.api, this.#options, probeIds)
      // Read only now: a push in progress may have brought its weights to the new server, and deleted the files of earlier ones.
      const policy = this.#current
      if (!policy) return
      if (kind === 'full') policy.model = this.#found.base
      await this.#unloadOthers()
      await this.#install(policy, (once) => once(pushMs))
      await this.#probe(policy, policy, pushMs)
      log(`vLLM is back with the weights of version ${policy.version}`)
    })
  }

  /**
   * Unloads adapters with this run's names that it does not use; at the end, all of them. A killed run left them (with weights that may differ from
   * this run's), or the server kept them while it could not be reached. Requests still running on one finish on it. A failure to unload shows with
   * the next push.
   */
  async #unloadOthers(): Promise<void> {
    if (this.#options.kind === 'full') return
    const except = this.#closed ? [] : [this.#current?.version, this.#arriving]
    await unloadAdapters(this.#host.api, this.#options.runName, { except, limitMs: CLOSE_MS })
  }

  /** Whether the answering server is the one that the current weights were pushed to, and not a new one at the same address. */
  async #hasCurrent(): Promise<boolean> {
    const { api } = this.#host
    if (!this.#current) return true
    if (this.#options.kind === 'full') {
      const name = await api.weightsName()
      return [this.#current.version, this.#arriving].some((version) => String(version) === name)
    }
    return (await api.models()).some((card) => card.id === this.#current!.model)
  }

  /** Unloads weights that nobody uses any more, and deletes their files. */
  #tidy(policy: Policy): void {
    if (policy === this.#current || policy.inFlight > 0 || this.#closed || !policy.dir) return
    const { dir, model } = policy
    const { kind, pushMs } = this.#options
    policy.dir = ''
    // Repeated if no answer came, to free its place for the version after the next. An adapter lost in a restart can't be unloaded.
    const unload = () => this.#host.api.unloadAdapter(model)
    const unloaded = kind === 'lora' ? withRetries(unload, pushMs) : Promise.resolve()
    const left = unloaded.catch(() => {}).then(() => rmSync(dir, { recursive: true, force: true }))
    this.#leaving = Promise.all([this.#leaving, left])
  }
}
