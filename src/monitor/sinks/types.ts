/** The interface of sinks, to which metrics are sent beside metrics.jsonl. */
import type { MetricsRow } from '../metrics-writer.ts'

/** Names of the sinks. */
export const SINKS = ['wandb', 'tensorboard', 'mlflow', 'trackio'] as const
export type SinkName = (typeof SINKS)[number]

/** The run whose metrics are sent. */
export interface SinkRun {
  /** Path of the run folder, and its name, which is the run's name in every sink. */
  path: string
  name: string
  /** The resolved config. */
  config: Record<string, unknown>
}

/** What a sink keeps between two starts in its cursor file: ids, counts. */
export type SinkState = Record<string, string | number>

export interface Sink {
  /**
   * Sends rows, in order. Rows may be sent twice (a process may be killed before it records its position); this must do no harm.
   * @returns the new state
   * @throws anything; the same rows are then sent again later
   */
  send(rows: readonly MetricsRow[], signal: AbortSignal): Promise<SinkState>
  /** Tells a server that the run goes on, where no row was sent for a while and it would take the run for dead. A failure does no harm. */
  beat?(signal: AbortSignal): Promise<void>
  /**
   * Called after the last row, which may have been sent by an earlier process.
   * @param end whether the run failed: it ended with an error, or was killed; and the time of its last row, in seconds since 1970
   */
  finish(signal: AbortSignal, end: { failed: boolean; time: number }): Promise<void>
}

/** How a run ended; 'goes on': it is not over, only this sending of its rows. */
export type RunEnd = 'finished' | 'failed' | 'goes on'

/** `rewound`: the run was rewound to an earlier step; the next row follows it. `warn` tells the user what a sink can't do. */
export type OpenSink = (run: SinkRun, state: SinkState, rewound: boolean, warn: (message: string) => void) => Sink

/** A flat config with dotted keys and text values, for dashboards without tables. */
export function flatConfig(value: unknown, prefix = ''): [string, string][] {
  if (value !== null && typeof value === 'object') {
    const entries = Object.entries(value)
    if (!Array.isArray(value) || entries.some(([, item]) => item !== null && typeof item === 'object'))
      return entries.flatMap(([key, item]) => flatConfig(item, prefix === '' ? key : `${prefix}.${key}`))
  }
  return [[prefix, typeof value === 'string' ? value : JSON.stringify(value)]]
}
