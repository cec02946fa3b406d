/**
 * Starts rollouts and turns them into training batches.
 * - `prepare(step)` starts a step's rollouts, `batch(step)` waits for them. The loop prepares `max_async_level` steps ahead, so that step n + 1 is
 *   sampled while step n trains. Nothing else makes a run off-policy.
 * - Each rollout ends in exactly one way: scored, failed (never trained on), or dropped because its tokens are too old.
 * - A step's tasks and seeds depend only on the run's seed and the step number, so a resumed run continues with the same tasks.
 */
import { hashSeed } from '../common/random.ts'
import type { Metrics, PolicyVersion, Rollout, TrainingBatch } from '../common/types.ts'
import { runRollout, scoreGroup } from '../environments/index.ts'
import { Replays } from './again.ts'
import { assignAdvantages, trainedOn } from './algorithm.ts'
import { gateOf, left, limitMs, type Course, type Flight, type Plan, type RolloutSet } from './flights.ts'
import { checkPlaces, type OrchestratorOptions } from './options.ts'
import { trainingBatch } from './samples.ts'
import { Meter, Slots } from './slots.ts'
import { Spares } from './spares.ts'
import { evaluatedRows, TaskOrder, type RunEnvironment, type Task } from './tasks.ts'

/** The rollouts of a step and the batch made from them. */
interface StepBatch {
  batch: TrainingBatch
  /** All rollouts of the step with their advantages; the advantage is null if the rollout is not trained on. */
  rollouts: ReturnType<typeof assignAdvantages>
  /** How many of them were too old. */
  dropped: number
  /** Times spent waiting, and the sampling throughput since the last batch. */
  metrics: Metrics
}

export class Orchestrator {
  readonly #options: OrchestratorOptions
  readonly #tasks: TaskOrder
  readonly #spares: Spares
  readonly #places: Slots
  readonly #replays: Replays
  readonly #samplers: Slots
  /** `#meter` counts the sampling of training rollouts; `#sampled` also counts evaluations, during which the sampler is not idle either. */
  readonly #meter = new Meter()
  readonly #sampled = new Meter()
  #begun = false
  readonly #steps = new Map<number, RolloutSet>()
  readonly #sets = new Set<RolloutSet>()

  constructor(options: OrchestratorOptions) {
    this.#options = options
    this.#tasks = new TaskOrder(options.environments, options.seed, options)
    this.#spares = new Spares(options.environments, options.seed, options.spareGroups, options)
    this.#places = new Slots(options.maxConcurrent)
    this.#replays = new Replays(options.again, options.warn)
    this.#samplers = new Slots(options.maxSampling)
    checkPlaces(options)
  }

  /** Starts the rollouts of a step. Does nothing if they were started before. */
  prepare(step: number): void {
    if (this.#steps.has(step)) return
    const { groupsPerStep, rolloutsPerExample, sampling, seed, algorithm, zeroTruncated, vocabulary } = this.#options
    // Do not count the time before the first rollout as idle.
    if (!this.#begun) this.#sampled.take()
    this.#begun = true
    const plansOf = (task: Task, g: number, soon: boolean): Plan[] => {
      const group = `${step}.${g}`
      const own = (index: number) => hashSeed(seed, group, task.row.exampleId, index)
      const common = { task, group, sampling, zeroTruncated, soon, vocabulary }
      return range(rolloutsPerExample).map((index): Plan => ({ ...common, index, seed: own(index) }))
    }
    const spare = this.#spares.of(step, this.tasksBefore(step + 1))
    const replace = (rollouts: Rollout[]): Plan[] => {
      const next = this.#spares.most === 0 || trainedOn(rollouts, algorithm) ? undefined : spare()
      return next ? plansOf(next.task, groupsPerStep + next.number, true) : []
    }
    const plans = range(groupsPerStep).flatMap((g) => plansOf(this.#tasks.at(this.tasksBefore(step) + g), g, false))
    this.#steps.set(step, this.#begin(plans, this.#meter, replace))
  }

  /** The number of tasks in all steps before this one, which is the step's position in the data. */
  tasksBefore(step: number): number {
    const { groupsPerStep, done = { step: 0, tasks: 0 } } = this.#options
    return done.tasks + (step - 1 - done.step) * groupsPerStep
  }

  /**
   * Waits for a step's rollouts and makes the batch from them, on which weights of `version` will be trained.
   * @throws Error if every rollout failed (on every try), with the first one's reason; UserError if the environment, advantage or a filter is at
   *   fault
   */
  async batch(step: number, version: PolicyVersion): Promise<StepBatch> {
    this.prepare(step)
    const idle = this.#sampled.idle
    const begin = performance.now()
    const rollouts = await this.#replays.scored(step, () => this.#played(step))
    const waited = (performance.now() - begin) / 1000
    const { algorithm, maxOffPolicySteps } = this.#options
    const tooOld = (r: Rollout) => r.reward !== null && version - oldest(r) > maxOffPolicySteps
    const advantaged = assignAdvantages(rollouts, algorithm, tooOld)
    const { seconds, speed } = this.#meter.take()
    this.#sampled.take()
    const metrics = {
      'time/wait_for_batch': waited,
      'time/wait_for_trainer': idle,
      'time/generate': seconds,
      'perf/generation_throughput': speed,
    }
    return { batch: trainingBatch(step, advantaged), rollouts: advantaged, dropped: rollouts.filter(tooOld).length, metrics }
  }

  async #played(step: number): Promise<Rollout[]> {
    if (!this.#steps.has(step)) this.prepare(step)
    const rollouts = await this.#finish(`rollouts of step ${step}`, this.#steps.get(step)!)
    this.#steps.delete(step)
    return rollouts
  }

  /** Runs an evaluation: the same tasks with the same seeds each time. Rollouts that `signal` aborts count as failed. */
  async evaluate(
    source: RunEnvironment,
    options: { step: number; examples: number; rolloutsPerExample: number; temperature: number; signal?: AbortSignal },
  ): Promise<Rollout[]> {
    const { sampling, seed } = this.#options
    const own = { ...sampling, temperature: options.temperature }
    const plans = evaluatedRows(source)
      .slice(0, options.examples)
      .flatMap((row, i) =>
        range(options.rolloutsPerExample).map((index): Plan => ({
          task: { source, row },
          group: `eval ${options.step}.${source.name}.${i}`,
          index,
          sampling: own,
          seed: hashSeed(seed, 'eval', row.exampleId, index),
        })),
      )
    const set = this.#begin(plans)
    const stop = () => set.abort.abort('the run ends')
    options.signal?.addEventListener('abort', stop, { once: true })
    try {
      return this.#replays.evaluated(source.name, await this.#finish(`evaluation of ${source.name}`, set))
    } finally {
      options.signal?.removeEventListener('abort', stop)
    }
  }

  /** Makes `step` the last one: aborts the rollouts of later steps, and stops retrying steps whose rollouts all failed. */
  abandonAfter(step: number): void {
    this.#replays.stop()
    for (const [later, set] of [...this.#steps].filter(([later]) => later > step)) {
      set.abort.abort('the run ends')
      this.#steps.delete(later)
    }
  }

  /** Aborts all rollouts and waits until they have ended. Whoever still awaits them gets them as failed rollouts. */
  async close(): Promise<void> {
    for (const set of this.#sets) set.abort.abort('the run ends')
    await Promise.allSettled([...this.#sets].map((set) => set.ended))
  }

  /** Starts rollouts. @param replace gets each finished group and returns spare rollouts to play in its place, or none if it can be trained on */
  #begin(plans: Plan[], meter = new Meter(), replace?: (rollouts: Rollout[]) => Plan[]): RolloutSet {
    const abort = new AbortController()
    const pending = new Set<Flight>()
    const groups = [...Map.groupBy(plans, (plan) => plan.group).values()]
    const replaced: Rollout[][] = []
    const play = async (group: Plan[]): Promise<Rollout[]> => {
      const rollouts = await this.#group(group, { pending, signal: abort.signal, meter })
      const others = (!abort.signal.aborted && replace?.(rollouts)) || []
      if (others.length === 0) return rollouts
      set.total += others.length
      const place = replaced.push([]) - 1
      replaced[place] = await play(others)
      return rollouts
    }
    const plays = groups.map(play)
    const work = Promise.all(plays).then((all) => [...all, ...replaced].flat())
    const ended = Promise.allSettled(plays)
    const set: RolloutSet = { work, ended, abort, total: plans.length, spares: replace ? this.#spares.most : 0, pending }
    this.#sets.add(set)
    // `work` may reject (a filter may throw) before anyone awaits it: that must not count as an unhandled rejection, and later awaiters still get it.
    // The remaining groups are then no longer needed.
    work.catch(() => abort.abort('a group of its step failed'))
    void ended.finally(() => this.#sets.delete(set))
    return set
  }

  /** Plays the rollouts of one task and scores them as a group. */
  async #group(plans: Plan[], course: Course): Promise<Rollout[]> {
    const { rewardTimeoutSeconds } = this.#options
    const { task, zeroTruncated, soon } = plans[0]
    const { source } = task
    // A group that plays together takes all its places at once. Two groups that each held some of theirs would deadlock.
    const places = source.env.playsGroups ? this.#places.take(soon, plans.length) : undefined
    const start = (plan: Plan) => this.#rollout(plan, plans.length, places ?? this.#places.take(soon), course)
    const played = await Promise.all(plans.map(start))
    const rollouts = await scoreGroup(source.env, played, { signal: course.signal, rewardTimeoutSeconds })
    const reward = (r: Rollout) => (zeroTruncated && r.isTruncated && r.reward !== null ? 0 : r.reward)
    return rollouts.map((rollout) => ({ ...rollout, env: source.name, reward: reward(rollout) }))
  }

  /** @param place resolves when the rollout may start (max_concurrent) */
  async #rollout(plan: Plan, size: number, place: Promise<void>, { pending, signal, meter }: Course): Promise<Rollout> {
    const { client, generationTimeoutSeconds, rolloutTimeoutSeconds, rewardTimeoutSeconds } = this.#options
    const { task, sampling, seed } = plan
    const flight: Flight = { state: 'queued' }
    pending.add(flight)
    await place
    const gate = gateOf(flight, this.#samplers, [meter, this.#sampled], plan.soon)
    try {
      return await runRollout(task.source.env, task.row, {
        ...plan,
        client,
        sampling: { ...sampling, seed },
        size,
        signal,
        generationTimeoutSeconds,
        rolloutTimeoutSeconds,
        rewardTimeoutSeconds,
        gate,
      })
    } finally {
      this.#places.give()
      pending.delete(flight)
    }
  }

  /** Waits for a set of rollouts and shows progress under `name`. Its time limit is only a safety net, as each rollout has time limits of its own. */
  async #finish(name: string, set: RolloutSet): Promise<Rollout[]> {
    const { progress } = this.#options
    const inFlight = [...this.#sets].reduce((sum, { pending }) => sum + pending.size, 0)
    const spares = [...this.#sets].reduce((sum, one) => sum + one.spares, 0)
    const limit = limitMs({ spares }, inFlight, this.#options)
    const wait = progress.wait(name, { limitMs: limit, hint: 'raise trainer.args.generation_timeout' })
    wait.say(() => `${name}: ${left(set.pending, set.total)}`)
    try {
      return await Promise.race([set.work, wait.expired])
    } finally {
      wait.done()
      set.abort.abort('nobody waits for it any more')
    }
  }
}

const oldest = (r: Rollout): PolicyVersion => r.completion_tokens.versions.reduce((a, b) => Math.min(a, b), Infinity)

const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i)
