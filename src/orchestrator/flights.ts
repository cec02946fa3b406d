/** Rollouts that have not ended: which state each is in (queued, decoding, scoring), and how long a set of them may take. */
import type { Rollout, SamplingParams } from '../common/types.ts'
import type { Gate } from '../environments/index.ts'
import { rolloutsLeft } from '../monitor/progress.ts'
import type { Meter, Slots } from './slots.ts'
import type { RunEnvironment, Task } from './tasks.ts'

/** Rollouts that are awaited together: a step's, or an evaluation's. */
export interface RolloutSet {
  work: Promise<Rollout[]>
  /** Settles when all groups have ended, even where one of them made `work` reject early. */
  ended: Promise<unknown>
  abort: AbortController
  total: number
  /** Groups that may replace others (spares.ts): at worst one after the other. */
  spares: number
  /** Those that have not ended. */
  pending: Set<Flight>
}

/** A rollout that is to be played. */
export interface Plan {
  task: Task
  group: string
  index: number
  seed: number
  sampling: SamplingParams
  /** Whether its reward is 0 if it is cut off. */
  zeroTruncated?: boolean
  /** Whether it goes before rollouts that wait already, since it replaces one of a step that may wait for it alone. */
  soon?: boolean
}

/** A rollout that has not ended. */
export interface Flight {
  state: 'queued' | 'decoding' | 'scoring'
  /** When it first got a place at the sampler, by performance.now(). */
  since?: number
}

/** What the rollouts of a set share while they are played. */
export interface Course extends Pick<RolloutSet, 'pending'> {
  signal: AbortSignal
  meter: Meter
}

/** How a rollout takes and gives up its place at the sampler: it holds one while the model answers, not while its environment works or it is scored. */
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

/** Turns to allow for where an environment has no limit of its own; such a rollout ends at max_seq_len. */
const ENDLESS = 1000

/**
 * The longest that a set of rollouts may take: a safety net, since each rollout has time limits of its own.
 * @param inFlight rollouts of all sets that have not ended
 * @param atOnce how many of them are played at once
 */
export function limitMs(
  { spares }: RolloutSet,
  inFlight: number,
  atOnce: number,
  options: { generationTimeoutSeconds: number; rewardTimeoutSeconds: number; environments: readonly RunEnvironment[] },
): number {
  const { generationTimeoutSeconds, rewardTimeoutSeconds, environments } = options
  const rounds = 1 + spares + Math.ceil(inFlight / atOnce)
  // Each turn is an answer and the environment's response (none after the last answer); then the rollout and its group are scored.
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
