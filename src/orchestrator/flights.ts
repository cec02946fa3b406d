/** Rollouts in flight ("flights"): the state of each (queued, decoding, scoring), and the time limit for a set of them. */
import type { Rollout, SamplingParams } from '../common/types.ts'
import type { Gate } from '../environments/index.ts'
import { rolloutsLeft } from '../monitor/progress.ts'
import type { OrchestratorOptions } from './options.ts'
import type { Meter, Slots } from './slots.ts'
import type { Task } from './tasks.ts'

/** Rollouts that are awaited together: those of a training step or of an evaluation. */
export interface RolloutSet {
  work: Promise<Rollout[]>
  /** Resolves when all groups have ended, even if one of them made `work` reject earlier. */
  ended: Promise<unknown>
  abort: AbortController
  total: number
  /** Spare groups that may be played in addition (spares.ts), in the worst case one after the other. */
  spares: number
  /** The rollouts that have not ended. */
  pending: Set<Flight>
}

/** A rollout to be played. */
export interface Plan {
  task: Task
  group: string
  index: number
  seed: number
  sampling: SamplingParams
  /** Whether its reward becomes 0 if it is cut off. */
  zeroTruncated?: boolean
  /** How many tokens the policy has, where it is trained on this. */
  vocabulary?: number
  /** Whether it skips the queue: it replaces a rollout of a step that may be waiting for it alone. */
  soon?: boolean
}

/** A rollout that has not ended. It is 'scoring' whenever the model is not answering, also while its environment works. */
export interface Flight {
  state: 'queued' | 'decoding' | 'scoring'
  /** When it first got a place at the sampler, as performance.now(). */
  since?: number
}

/** Shared by the rollouts of a set while they are played. */
export interface Course extends Pick<RolloutSet, 'pending'> {
  signal: AbortSignal
  meter: Meter
}

/**
 * The gate at which a rollout takes and returns its place at the sampler. It holds one only while the model answers, not while the environment works
 * or the rollout is scored.
 */
export function gateOf(flight: Flight, samplers: Slots, meters: readonly Meter[], soon = false): Gate {
  // One entry for each answer that is being sampled: what the meters returned. A rollout that has several at once gets the oldest one's first, which
  // is the same in their sum.
  const begun: number[][] = []
  return {
    take: async (again) => {
      flight.state = 'queued'
      await samplers.take(again || soon)
      flight.since ??= performance.now()
      flight.state = 'decoding'
      begun.push(meters.map((meter) => meter.enter()))
    },
    give: (tokens = 0) => {
      flight.state = 'scoring'
      const entered = begun.shift()!
      meters.forEach((meter, i) => meter.leave(entered[i], tokens))
      samplers.give()
    },
  }
}

/** Number of turns assumed for environments without a limit, whose rollouts end at max_seq_len. */
const ENDLESS = 1000

type LimitOptions = Pick<
  OrchestratorOptions,
  | 'generationTimeoutSeconds'
  | 'rewardTimeoutSeconds'
  | 'environments'
  | 'maxConcurrent'
  | 'maxSampling'
  | 'rolloutsPerExample'
  | 'evalRolloutsPerExample'
>

/**
 * The longest that a set of rollouts may take, in milliseconds. A safety net, since each rollout has time limits of its own.
 * @param spares of all sets, as spare groups skip the queue
 * @param inFlight rollouts of all sets that have not ended
 */
export function limitMs({ spares }: Pick<RolloutSet, 'spares'>, inFlight: number, options: LimitOptions): number {
  const { generationTimeoutSeconds, rewardTimeoutSeconds, environments, maxConcurrent, maxSampling } = options
  // A group that plays together waits until it has all its places, and up to one less than these are free meanwhile.
  const group = environments.some(({ env }) => env.playsGroups)
    ? Math.max(options.rolloutsPerExample, options.evalRolloutsPerExample ?? 1)
    : 1
  const atOnce = Math.max(1, Math.min(maxSampling, maxConcurrent + 1 - group))
  const rounds = 1 + spares * Math.ceil(options.rolloutsPerExample / atOnce) + Math.ceil(inFlight / atOnce)
  // Each turn is an answer and the environment's response (none after the last answer). Then the rollout is scored, and possibly its group.
  const turns = Math.max(...environments.map(({ env }) => (env.maxTurns === -1 ? ENDLESS : (env.maxTurns ?? 1))))
  const scorings = environments.some(({ env }) => env.rubric.groupNames?.length > 0) ? 2 : 1
  return ((2 * turns - 1) * generationTimeoutSeconds + scorings * rewardTimeoutSeconds) * 1000 * rounds
}

/** Describes progress, such as 'waiting for 3 of 32 rollouts, oldest 12.0s, decoding'. */
export function left(pending: ReadonlySet<Flight>, total: number): string {
  const begun = [...pending].filter((flight) => flight.since !== undefined)
  const oldestMs = begun.length > 0 ? performance.now() - Math.min(...begun.map((flight) => flight.since!)) : undefined
  const scoring = begun.filter((flight) => flight.state === 'scoring').length
  const state = begun.length === 0 ? 'queued' : scoring > begun.length / 2 ? 'scoring' : 'decoding'
  return rolloutsLeft({ left: pending.size, total, oldestMs, state })
}
