/** Where the rollouts under way are: queued, answered, or with their environment. */
import type { Rollout, SamplingParams } from '../common/types.ts'
import type { Gate } from '../environments/index.ts'
import { rolloutsLeft } from '../monitor/progress.ts'
import type { Meter, Slots } from './slots.ts'
import type { Task } from './tasks.ts'

/** Rollouts that are waited for together: a step's, or an evaluation's. */
export interface RolloutSet {
  work: Promise<Rollout[]>
  abort: AbortController
  total: number
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
}

/** A rollout that has not ended. */
export interface Flight {
  state: 'queued' | 'decoding' | 'scoring'
  /** Since when it was first decoded; undefined before. */
  since?: number
}

/** A rollout has a place at the sampler while it is answered, not while it waits for its environment or is scored. */
export function gateOf(flight: Flight, samplers: Slots, meters: readonly Meter[]): Gate {
  return {
    take: async (again) => {
      flight.state = 'queued'
      await samplers.take(again)
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

/** 'waiting for 3 of 32 rollouts, oldest 12.0s, decoding' */
export function left(pending: ReadonlySet<Flight>, total: number): string {
  const begun = [...pending].filter((flight) => flight.since !== undefined)
  const oldestMs = begun.length > 0 ? performance.now() - Math.min(...begun.map((flight) => flight.since!)) : undefined
  const scoring = begun.filter((flight) => flight.state === 'scoring').length
  const state = begun.length === 0 ? 'queued' : scoring > begun.length / 2 ? 'scoring' : 'decoding'
  return rolloutsLeft({ left: pending.size, total, oldestMs, state })
}
