/**
 * Samples the policy from a vLLM server, and pushes the trainer's weights into it while requests run.
 * - LoRA: each version is an adapter of its own name. New requests go to the newest; one that began earlier ends on the adapter it began on,
 *   which is unloaded after the last of them. So a completion has one version, and nothing waits for a push.
 * - Full weights: generation is frozen (requests keep their KV cache), the weights are replaced, generation goes on: a completion may have
 *   tokens of several versions, and the server says which.
 * - A server that dies is started again, is given the newest weights, and is asked again what it had not finished: nobody above notices.
 * - After every push a probe proves that the weights arrived (probe.ts).
 */
import { rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { UserError } from '../../common/errors.ts'
import type { GenerationRequest, GenerationResult, Generator, Metrics, PolicyVersion } from '../../common/types.ts'
import { checkRequest } from '../request.ts'
import { Sequence, type EndRules } from '../sequence.ts'
import { VllmError } from './api.ts'
import { checkMaxLoras, checkServer, explainRefusal, type Found, type Needs } from './checks.ts'
import { VllmHost, type HostOptions } from './host.ts'
import { loadAdapter, shaOf, type Policy } from './policy.ts'
import { distance, OTHER_MODEL, probePositions, staleBecause } from './probe.ts'
import { checkServed, COMPLETIONS, GENERATE, requestBody, takeStream, tellsLogprob } from './requests.ts'
import { oneAtATime, pauseMs, unlessAborted, withRetries } from './wait.ts'

export interface VllmSamplerOptions extends HostOptions, Needs {
  /** Adapters are named after it. */
  runName: string
  /** Rank of the adapter; 0 for full weights. */
  rank: number
  vocabulary: number
  rules: EndRules
  /** Folder for the weights on their way; what is in it belongs to this sampler. */
  weightsDir: string
  /** Whether the server starts with the trainer's weights, so that the first version need not be pushed. */
  hasFirst: boolean
  /** Writes the trainer's weights of this moment into a folder: a PEFT adapter, or a Hugging Face model. */
  write: (dir: string) => Promise<void>
  /** Log-probabilities at temperature 1, by the trainer's weights of this moment, of all tokens (of the first: 0). */
  score: (ids: readonly number[]) => Promise<ArrayLike<number>>
  /** The probe's sequence. */
  probeIds: readonly number[]
  /** Milliseconds that one push may take. */
  pushMs: number
}

/** A request that fails although the server is well is asked so often. */
const TRIES = 4
/** Milliseconds that what is asked of a server at the start is asked again where it fails in passing. */
const START_MS = 30_000
/** Nats a token: what float32 may differ by in another order of summation. */
const LEAST_NOISE = 1e-5
/** Milliseconds that an adapter's unloading is tried for at the start and at the end. */
const CLOSE_MS = 3000
const SALT = 'dawn-rl-v'

export class VllmSampler implements Generator {
  readonly #options: VllmSamplerOptions
  readonly #host: VllmHost
  #found: Found = { server: '', base: '' }
  #current: Policy | undefined
  /** The version whose weights are being pushed: the server may have them already. */
  #arriving: PolicyVersion | undefined
  /** Settles when the server answers and has the current weights. */
  #ready: Promise<void> = Promise.resolve()
  /** Counts the server's lives, so that many failed requests revive it once. */
  #life = 0
  #reviving: Promise<boolean> | undefined
  /** Settles when the server has heard of every adapter that is to leave it. */
  #leaving: Promise<unknown> = Promise.resolve()
  /** A push, and bringing a new server the current weights, do not mix. */
  readonly #alone = oneAtATime()
  /** While full weights are replaced, new requests wait. */
  #gate: Promise<void> = Promise.resolve()
  /** What ends the requests that the server is working on. */
  readonly #running = new Set<AbortController>()
  #noise = 0
  #retried = 0
  #closed = false
  #gone = false

  /**
   * Starts or finds the server, checks what it can do, and brings it the trainer's weights as `version`.
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

  /** Whether the server could not be brought back: every request ends with the reason. */
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
        // What vLLM refuses it would refuse again; but an adapter that it does not know means that it is another server by now.
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

  /** One request to the server as it is now. */
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
   * Brings the trainer's weights of this moment to the server as `version`; resolves when new requests sample from them.
   * @returns what there is to say about it in the step's metrics
   * @throws Error where the weights do not arrive within the limit, or the probe says that they did not
   */
  async push(version: PolicyVersion): Promise<Metrics> {
    const begin = performance.now()
    const { kind, where, hasFirst, weightsDir, runName, write, pushMs } = this.#options
    const last = this.#current
    // Somebody else's server may have an earlier run's weights: that one has named them.
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
            await withRetries((ms) => this.#install(policy, ms), left(), this.#options.log)
            const found = await this.#probe(policy, last, left())
            this.#current = policy
            return found
          })
          break
        } catch (error) {
          // One that does not know the adapter that it was just given is another one, as in `generate`.
          const passing = error instanceof VllmError && (error.passing || (last && error.status === 404))
          if (!passing || this.#closed) throw error
          // The server may be dying under the push: its next life gets the old weights, and then these, which it has the whole limit for.
          const wasWell = await this.#revive(life)
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

  /** Ends requests that run, and the server where it was started here. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    for (const control of this.#running) control.abort()
    // Somebody else's server is left without our adapters.
    if ('url' in this.#options.where && !this.#gone) await withRetries(() => this.#unloadOthers(), CLOSE_MS).catch(() => {})
    await this.#host.close()
    rmSync(this.#options.weightsDir, { recursive: true, force: true })
  }

  async #ask(request: GenerationRequest, policy: Policy, sequence: Sequence, signal: AbortSignal): Promise<void> {
    const { kind, rules, logprobsMode, vocabulary } = this.#options
    const path = kind === 'lora' ? COMPLETIONS : GENERATE
    const route = { path, model: policy.model, salt: SALT + policy.version, eosTokenIds: [...rules.eosTokenIds] }
    const chunks = this.#host.api.stream(path, requestBody(request, route), signal)
    // An adapter's name is its version; of full weights the server tells at the end, and until then the newest is as good as known.
    const version = () => (kind === 'lora' ? policy.version : this.version)
    await takeStream(chunks, sequence, { version, vocabulary, known: (at) => tellsLogprob(request.sampling, logprobsMode, at) })
    this.#host.worked()
  }

  /** Puts weights into the server. May be called again after a failure. */
  async #install(policy: Policy, limitMs: number): Promise<void> {
    const { api } = this.#host
    if (this.#options.kind === 'lora') {
      await loadAdapter(api, policy, { limitMs, rank: this.#options.rank, leaving: () => this.#leaving })
      return
    }
    const { promise, resolve: open } = Promise.withResolvers<void>()
    this.#gate = promise
    try {
      await api.pause(limitMs)
      if (policy.dir) await api.reloadWeights(policy.dir, limitMs)
      await api.nameWeights(String(policy.version))
    } catch (error) {
      throw explainRefusal(error, api)
    } finally {
      await api.resume().finally(open)
    }
  }

  async #trainerScores(): Promise<number[]> {
    const { score, probeIds } = this.#options
    const logprobs = await score(probeIds)
    return probePositions(probeIds.length).map((t) => logprobs[t])
  }

  /** @throws UserError where the server's weights are others than the trainer's */
  async #probe(policy: Policy, last: Policy | undefined, limitMs: number): Promise<{ error: number; moved: number }> {
    const { probeIds, model } = this.#options
    const { api } = this.#host
    const served = await api.score(policy.model, probeIds, probePositions(probeIds.length), SALT + policy.version, limitMs)
    const error = distance(served, policy.scores)
    if (!last) {
      if (!(error < OTHER_MODEL)) {
        throw new UserError(
          `${api.url} gives other log-probabilities than ${model} (by ${error.toPrecision(2)} nats a token), so it serves another model, or weights that an earlier run left there. Start vLLM anew with --model ${model}.`,
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
   * After a request failed: a server that answers and has the current weights. All that failed in one life of the server share one revival.
   * @returns whether it had been well all along
   */
  async #revive(life: number): Promise<boolean> {
    if (life !== this.#life) {
      await this.#ready
      return false
    }
    this.#reviving ??= this.#restore().finally(() => (this.#reviving = undefined))
    // Where the server can't be brought back this stays rejected: every request then ends with the reason.
    this.#ready = this.#reviving.then(() => void (this.#gone = false))
    this.#ready.catch(() => (this.#gone = true))
    return await this.#reviving
  }

  async #restore(): Promise<boolean> {
    // Until it was started again, or has said that it is another one.
    let same = true
    for (let tries = 1; ; tries++) {
      if (await this.#host.revive()) same = false
      try {
        if (same && (await this.#hasCurrent())) return true
        same = false
        this.#life++
        await this.#equip()
        return false
      } catch (error) {
        // It may die again under this.
        if (!(error instanceof VllmError) || !error.passing || tries >= TRIES || this.#closed) throw error
        await sleep(pauseMs(tries - 1))
      }
    }
  }

  /** Brings the current weights to a server that has none of ours. */
  async #equip(): Promise<void> {
    const { kind, probeIds, pushMs, log } = this.#options
    this.#found = await checkServer(this.#host.api, this.#options, probeIds)
    await this.#alone(async () => {
      // Of now: a push that was under way may have brought its own to the new server meanwhile, and have let the files of those before it go.
      const policy = this.#current
      if (!policy) return
      if (kind === 'full') policy.model = this.#found.base
      await this.#unloadOthers()
      await this.#install(policy, pushMs)
      await this.#probe(policy, policy, pushMs)
      log(`vLLM is back with the weights of version ${policy.version}`)
    })
  }

  /**
   * Unloads adapters under this run's names that it does not use: a run that was killed left them, with weights that need not be those of this one,
   * or the server kept them while it could not be reached; all of them at the end. Requests that still run on one end on it; what is refused shows with the next push.
   */
  async #unloadOthers(): Promise<void> {
    const { kind, runName } = this.#options
    if (kind === 'full') return
    const { api } = this.#host
    const used = this.#closed ? [] : [this.#current?.version, this.#arriving]
    for (const { id } of await api.models()) {
      const version = id.startsWith(`${runName}-v`) ? Number(id.slice(runName.length + 2)) : NaN
      if (!Number.isInteger(version) || used.includes(version)) continue
      await withRetries(() => api.unloadAdapter(id), CLOSE_MS).catch(() => {})
    }
  }

  /** Whether a server that answers is the one that the current weights were pushed into, and not a new one at the same address. */
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
    // Again where no answer came: it would keep its place, which the version after the next one needs. One that a restart has forgotten can't be unloaded.
    const unload = () => this.#host.api.unloadAdapter(model)
    const unloaded = kind === 'lora' ? withRetries(unload, pushMs) : Promise.resolve()
    const left = unloaded.catch(() => {}).then(() => rmSync(dir, { recursive: true, force: true }))
    this.#leaving = Promise.all([this.#leaving, left])
  }
}
