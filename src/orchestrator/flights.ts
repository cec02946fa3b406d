/** Where the rollouts under way are: queued, answered, or with their environment. */
import type { Rollout, SamplingParams } from '../common/types.ts'
import type { Gate } from '../environments/index.ts'
import { rolloutsLeft } from '../monitor/progress.ts'
import type { Meter, Slots } from './slots.ts'
import type { RunEnvironment, Task } from './tasks.ts'

/** Rollouts that are waited for together: a step's, or an evaluation's. */
export interface RolloutSet {
  work: Promise<Rollout[]>
  /** All its groups have ended, also where `work` has failed by one of them. */
  ended: Promise<unknown>
  abort: AbortController
  total: number
  /** Groups that may take the place of others, one after the other at worst. */
  spares: number
  /** Those that have not ended. */
  pending: Set<Flight>
}

/** A rollout to be. */
export interface Plan {
  task: Task
  group: string
  index: number
  seed: number
  sampling: SamplingParams
  /** Whether its reward is 0 where it is cut off. */
  zeroTruncated?: boolean
  /** Before those that wait already: others of its step are through. */
  soon?: boolean
}

/** A rollout that has not ended. */
export interface Flight {
  state: 'queued' | 'decoding' | 'scoring'
  /** Since when it was first decoded; undefined before. */
  since?: number
}

/** What the rollouts of a set have in common while they are played. */
export interface Course extends Pick<RolloutSet, 'pending'> {
  signal: AbortSignal
  meter: Meter
}

/** A rollout has a place at the sampler while it is answered, not while it waits for its environment or is scored. */
export function gateOf(flight: Flight, samplers: Slots, meters: readonly Meter[], soon = false): Gate {
  return {
    take: async (again) => {
      flight.state = 'queued'
      await samplers.take(again || soon)
      flight.since ??= performance.now()
      flight.state = 'decoding'
      for (const meter of meters) meter.enter()
    },
    give: () => {
      flight.state = 'scoring'
      for (const meter of meters) meter.leave()
      samplers.give()
    },
  }
}

/** Turns that are reckoned with where an environment has no limit of its own; max_seq_len ends such a rollout. */
const ENDLESS = 1000

/**
 * Time for a set of rollouts at most: each ends by its own limits, and this catches what they do not.
 * @param inFlight rollouts that have not ended, of all sets
 * @param atOnce those that are played at once
 */
export function limitMs(
  { spares }: RolloutSet,
  inFlight: number,
  atOnce: number,
  options: { generationTimeoutSeconds: number; rewardTimeoutSeconds: number; environments: readonly RunEnvironment[] },
): number {
  const { generationTimeoutSeconds, rewardTimeoutSeconds, environments } = options
  const rounds = 1 + spares + Math.ceil(inFlight / atOnce)
  // An answer and what the environment makes of it, turn after turn, and then scoring: of the rollout, and of its group.
  const turns = Math.max(...environments.map(({ env }) => (env.maxTurns === -1 ? ENDLESS : (env.maxTurns ?? 1))))
  const scorings = environments.some(({ env }) => env.rubric.groupNames?.length > 0) ? 2 : 1
  return ((2 * turns - 1) * generationTimeoutSeconds + scorings * rewardTimeoutSeconds) * 1000 * rounds
}

/** 'waiting for 3 of 32 rollouts, oldest 12.0s, decoding' */
export function left(pending: ReadonlySet<Flight>, total: number): string {
  const begun = [...pending].filter((flight) => flight.since !== undefined)
  const oldestMs = begun.length > 0 ? performance.now() - Math.min(...begun.map((flight) => flight.since!)) : undefined
  const scoring = begun.filter((flight) => flight.state === 'scoring').length
  const state = begun.length === 0 ? 'queued' : scoring > begun.length / 2 ? 'scoring' : 'decoding'
  return rolloutsLeft({ left: pending.size, total, oldestMs, state })
}
