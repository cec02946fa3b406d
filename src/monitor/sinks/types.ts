/** The one shape of whatever metrics are sent to beside metrics.jsonl. */
import type { MetricsRow } from '../metrics-writer.ts'

/** Programs that metrics can go to. */
export const SINKS = ['wandb', 'tensorboard', 'mlflow', 'trackio'] as const
export type SinkName = (typeof SINKS)[number]

/** The run that is shown. */
export interface SinkRun {
  /** The run folder's path, and its name, which is the run's name everywhere. */
  path: string
  name: string
  /** The resolved config. */
  config: Record<string, unknown>
}

/** What a sink remembers between two starts, in its cursor file: ids, counts. */
export type SinkState = Record<string, string | number>

export interface Sink {
  /**
   * Sends rows, in order. What is sent twice (a process that was killed before it noted that it had sent) must do no harm.
   * @returns the state from here on
   * @throws anything; the same rows are then sent again later
   */
  send(rows: readonly MetricsRow[], signal: AbortSignal): Promise<SinkState>
  /** The run ended, after its last row was sent; `failed`: with an error. */
  finish(signal: AbortSignal, failed: boolean): Promise<void>
}

/** `rewound`: the run was taken back to an earlier step; the next row goes on after it. `warn` tells the user what a sink can't do. */
export type OpenSink = (run: SinkRun, state: SinkState, rewound: boolean, warn: (message: string) => void) => Sink

/** A flat config of dotted keys, values as text: what dashboards that know no tables show. */
export function flatConfig(value: unknown, prefix = ''): [string, string][] {
  if (value !== null && typeof value === 'object') {
    const entries = Object.entries(value)
    if (!Array.isArray(value) || entries.some(([, item]) => item !== null && typeof item === 'object'))
      return entries.flatMap(([key, item]) => flatConfig(item, prefix === '' ? key : `${prefix}.${key}`))
  }
  return [[prefix, typeof value === 'string' ? value : JSON.stringify(value)]]
}
