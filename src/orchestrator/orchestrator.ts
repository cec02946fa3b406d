/**
 * Keeps the sampler full and turns what comes back into training batches.
 * - `prepare(step)` starts a step's rollouts, `batch(step)` waits for them. The loop prepares `max_async_level` steps ahead, so step n + 1 is sampled
 *   while step n trains; that `+ 1` is the whole of being off-policy.
 * - Every rollout that starts ends exactly once: scored, failed (never trained on), or dropped because its tokens are too old.
 * - A step's tasks and seeds follow from the run's seed and the step's number alone: a resumed run goes on with the same tasks.
 */
import { UserError } from '../common/errors.ts'
import { hashSeed } from '../common/random.ts'
import type { ChatClient, PolicyVersion, Rollout, SamplingParams, TrainingBatch } from '../common/types.ts'
import { runRollout } from '../environments/index.ts'
import type { Progress } from '../monitor/progress.ts'
import { rolloutsLeft } from '../monitor/progress.ts'
import { trainingBatch, type AdvantagedRollout } from './samples.ts'
import { TaskOrder, type RunEnvironment, type Task } from './tasks.ts'
import type { AdvantageFunction, FilterFunction } from './types.ts'

export interface OrchestratorOptions {
  environments: readonly RunEnvironment[]
  client: ChatClient
  /** `seed` is replaced by each rollout's own. */
  sampling: SamplingParams
  seed: number
  /** Groups of a step, and rollouts of a group. */
  groupsPerStep: number
  rolloutsPerExample: number
  maxConcurrent: number
  maxOffPolicySteps: number
  generationTimeoutSeconds: number
  rewardTimeoutSeconds: number
  advantage: AdvantageFunction
  advantageArgs: Record<string, unknown>
  filters: readonly FilterFunction[]
  filterArgs: Record<string, unknown>
  progress: Progress
}

/** What a step's rollouts came to. */
export interface StepBatch {
  batch: TrainingBatch
  /** All rollouts that ended for this step, with what the algorithm gave them. */
  rollouts: AdvantagedRollout[]
  /** Rollouts dropped because they were too old. */
  dropped: number
  waitSeconds: number
}

interface Flight {
  started: number
  state: string
}

export class Orchestrator {
  readonly #options: OrchestratorOptions
  readonly #tasks: TaskOrder
  readonly #steps = new Map<number, Promise<Rollout[]>>()
  readonly #flights = new Map<string, Flight>()
  readonly #queue: (() => void)[] = []
  readonly #abort = new AbortController()
  #inFlight = 0

  constructor(options: OrchestratorOptions) {
    this.#options = options
    this.#tasks = new TaskOrder(options.environments, options.seed)
  }

  /** Starts the rollouts of a step, once. */
  prepare(step: number): void {
    if (this.#steps.has(step)) return
    const { groupsPerStep, rolloutsPerExample } = this.#options
    const rollouts: Promise<Rollout>[] = []
    for (let g = 0; g < groupsPerStep; g++) {
      const task = this.#tasks.at((step - 1) * groupsPerStep + g)
      for (let index = 0; index < rolloutsPerExample; index++) rollouts.push(this.#rollout(task, `${step}.${g}`, index, 'train'))
    }
    this.#steps.set(step, Promise.all(rollouts))
  }

  /**
   * Waits for a step's rollouts and makes its batch, to be trained by weights of `version`.
   * @throws Error when every rollout failed, with the first reason
   */
  async batch(step: number, version: PolicyVersion): Promise<StepBatch> {
    this.prepare(step)
    const begin = performance.now()
    const rollouts = await this.#waitFor(`rollouts of step ${step}`, `${step}.`, this.#steps.get(step)!)
    this.#steps.delete(step)
    const waitSeconds = (performance.now() - begin) / 1000
    failIfAllFailed(rollouts)
    const fresh = rollouts.filter((r) => r.error !== null || version - oldest(r) <= this.#options.maxOffPolicySteps)
    const advantaged = groupsOf(fresh).flatMap((group) => this.#score(group))
    return { batch: trainingBatch(step, advantaged), rollouts: advantaged, dropped: rollouts.length - fresh.length, waitSeconds }
  }

  /** Plays held-out tasks: the same ones with the same seeds each time. */
  async evaluate(
    source: RunEnvironment,
    options: { step: number; examples: number; rolloutsPerExample: number; temperature: number },
  ): Promise<Rollout[]> {
    const rows = source.env.evalDataset.slice(0, options.examples)
    const sampling = { ...this.#options.sampling, temperature: options.temperature }
    const name = `eval ${options.step}.${source.name}.`
    const rollouts = rows.flatMap((row, i) =>
      Array.from({ length: options.rolloutsPerExample }, (_, k) =>
        this.#rollout({ source, row }, `${name}${i}`, k, 'eval', sampling),
      ),
    )
    return await this.#waitFor(`evaluation of ${source.name}`, name, Promise.all(rollouts))
  }

  /** Ends everything in flight; what was waiting comes back as failed. */
  async close(): Promise<void> {
    this.#abort.abort()
    await Promise.allSettled(this.#steps.values())
  }

  /** Failed rollouts, and groups that a filter turns down, get no advantage. */
  #score(group: Rollout[]): AdvantagedRollout[] {
    const { advantage, advantageArgs, filters, filterArgs } = this.#options
    const scored = group.filter((r) => r.reward !== null)
    const kept = scored.length >= 2 && filters.every((filter) => filter(scored, filterArgs))
    const advantages = kept ? advantage(scored, advantageArgs) : []
    if (kept) checkAdvantages(advantages, scored)
    return group.map((rollout) => {
      const i = kept ? scored.indexOf(rollout) : -1
      return { rollout, advantage: i < 0 ? null : advantages[i] }
    })
  }

  async #rollout(
    task: Task,
    group: string,
    index: number,
    split: 'train' | 'eval',
    sampling = this.#options.sampling,
  ): Promise<Rollout> {
    const { client, seed, generationTimeoutSeconds, rewardTimeoutSeconds } = this.#options
    const { source, row } = task
    const key = `${group}.${index}`
    await this.#slot()
    const flight = { started: performance.now(), state: 'generation' }
    this.#flights.set(key, flight)
    try {
      const own = split === 'train' ? hashSeed(seed, group, row.exampleId, index) : hashSeed(seed, split, row.exampleId, index)
      const rollout = await runRollout(source.env, row, {
        client,
        sampling: { ...sampling, seed: own },
        group,
        index,
        signal: this.#abort.signal,
        generationTimeoutSeconds,
        rewardTimeoutSeconds,
        onWait: (what) => (flight.state = what ?? 'done'),
      })
      return { ...rollout, env: source.name }
    } finally {
      this.#flights.delete(key)
      this.#inFlight--
      this.#queue.shift()?.()
    }
  }

  /** Waits for one of the `max_concurrent` permits. */
  async #slot(): Promise<void> {
    if (this.#inFlight >= this.#options.maxConcurrent) await new Promise<void>((resolve) => this.#queue.push(resolve))
    this.#inFlight++
  }

  async #waitFor(name: string, prefix: string, work: Promise<Rollout[]>): Promise<Rollout[]> {
    const { progress, generationTimeoutSeconds, rewardTimeoutSeconds } = this.#options
    let ended = false
    void work.finally(() => (ended = true)).catch(() => {})
    // Every rollout ends by its own limits; this one catches what they do not.
    const rounds = 1 + Math.ceil((this.#flights.size + this.#queue.length) / this.#options.maxConcurrent)
    const limitMs = (generationTimeoutSeconds + rewardTimeoutSeconds) * 1000 * rounds
    const wait = progress.wait(name, { limitMs, hint: 'raise trainer.args.generation_timeout' })
    wait.say(() => (ended ? name : `${name}: ${this.#left(prefix)}`))
    try {
      return await Promise.race([work, wait.expired])
    } finally {
      wait.done()
    }
  }

  #left(prefix: string): string {
    const mine = [...this.#flights].filter(([key]) => key.startsWith(prefix))
    const oldestMs = Math.max(0, ...mine.map(([, f]) => performance.now() - f.started))
    const states = mine.filter(([, f]) => f.state === 'rewards').length
    const state = states > mine.length / 2 ? 'scoring' : 'decoding'
    const total = this.#options.groupsPerStep * this.#options.rolloutsPerExample
    return rolloutsLeft({ left: mine.length, total: Math.max(total, mine.length), oldestMs, state })
  }
}

function oldest(rollout: Rollout): PolicyVersion {
  return Math.min(...rollout.completion_tokens.versions)
}

function groupsOf(rollouts: Rollout[]): Rollout[][] {
  return [...Map.groupBy(rollouts, (r) => r.group).values()]
}

function failIfAllFailed(rollouts: Rollout[]): void {
  if (rollouts.length === 0 || rollouts.some((r) => r.error === null)) return
  throw new Error(`All ${rollouts.length} rollouts of the step failed. The first one: ${rollouts[0].error}`)
}

function checkAdvantages(advantages: unknown[], group: Rollout[]): void {
  const wrong = (what: string) =>
    new UserError(
      `trainer.args.advantage: ${what}. It must give one finite number, or one array with a number a completion token, for each rollout.`,
    )
  if (!Array.isArray(advantages) || advantages.length !== group.length)
    throw wrong(`${group.length} rollouts got ${advantages?.length ?? 'no'} advantages`)
  advantages.forEach((a, i) => {
    const values = typeof a === 'number' ? [a] : Array.from((a as ArrayLike<number> | undefined) ?? [NaN])
    if (typeof a !== 'number' && values.length !== group[i].completion_tokens.ids.length) {
      throw wrong(`rollout ${i} has ${group[i].completion_tokens.ids.length} tokens and ${values.length} advantages`)
    }
    if (!values.every(Number.isFinite)) throw wrong(`an advantage of rollout ${i} is not a finite number`)
  })
}
