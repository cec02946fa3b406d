/**
 * MLflow over its REST interface. MLFLOW_TRACKING_URI names the server (http or https), MLFLOW_EXPERIMENT_NAME the experiment;
 * MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, hold the credentials.
 */
import type { MetricsRow } from '../metrics-writer.ts'
import { HttpError, postJson } from './http.ts'
import { flatConfig, type OpenSink, type Sink, type SinkRun, type SinkState } from './types.ts'

export const openMlflow: OpenSink = (run, state, _, warn) => new MlflowSink(run, state, warn)

/** A sentence about what is missing to use this sink; undefined where nothing is. */
export function mlflowNeeds(): string | undefined {
  return /^https?:\/\//.test(process.env.MLFLOW_TRACKING_URI ?? '')
    ? undefined
    : 'mlflow needs a server, and MLFLOW_TRACKING_URI is not an http address. Start `mlflow server` and set it, for example to http://127.0.0.1:5000.'
}

/** The most metrics of one log-batch call. */
const METRICS = 1000
const PARAMS = 100
/** Longest value of a parameter. */
const VALUE = 6000

interface Metric {
  key: string
  value: number
  timestamp: number
  step: number
}

interface RunInfo {
  run: { info: { run_id: string; status: string } }
}

class MlflowSink implements Sink {
  readonly #run: SinkRun
  readonly #base = `${(process.env.MLFLOW_TRACKING_URI ?? '').replace(/\/+$/, '')}/api/2.0/mlflow`
  readonly #warn: (message: string) => void
  /** Metrics that the server refuses. */
  readonly #refused = new Set<string>()
  #id: string | undefined
  /** Whether the run is new and its config was not sent yet. */
  #untold = false
  #ready = false

  constructor(run: SinkRun, state: SinkState, warn: (message: string) => void) {
    this.#run = run
    this.#warn = warn
    this.#id = state.id === undefined ? undefined : String(state.id)
  }

  async send(rows: readonly MetricsRow[], signal: AbortSignal): Promise<SinkState> {
    await this.#open(rows[0].time, signal)
    const all = rows.flatMap(({ step, time, ...values }) =>
      Object.entries(values).flatMap(([name, value]): Metric[] => {
        const key = metricOf(name)
        return value === null || this.#refused.has(key) ? [] : [{ key, value, timestamp: Math.round(time * 1000), step }]
      }),
    )
    for (let at = 0; at < all.length; at += METRICS) {
      const metrics = all.slice(at, at + METRICS)
      try {
        await this.#log(metrics, signal)
      } catch (error) {
        // Reached with single rows, once several together have failed.
        if (rows.length > 1 || !isRefusal(error)) throw error
        await this.#logEach(metrics, error, signal)
      }
    }
    return { id: this.#id! }
  }

  async finish(signal: AbortSignal, { failed, time }: { failed: boolean; time: number }): Promise<void> {
    const status = failed ? 'FAILED' : 'FINISHED'
    // The run's own end: it may be long ago, and MLflow shows how long a run took.
    await this.#call('runs/update', { run_id: this.#id, status, end_time: Math.round(time * 1000) }, signal)
  }

  /**
   * Finds the metrics that the server refuses while it accepts others, and leaves them out from now on: otherwise it would refuse every batch with
   * them.
   */
  async #logEach(metrics: readonly Metric[], why: Error, signal: AbortSignal): Promise<void> {
    const refused: string[] = []
    for (const metric of metrics) {
      try {
        await this.#log([metric], signal)
      } catch (error) {
        if (!isRefusal(error)) throw error
        refused.push(metric.key)
      }
    }
    // Something else is wrong: perhaps the run was deleted on the server.
    if (refused.length === metrics.length) throw why
    for (const key of refused) this.#refused.add(key)
    this.#warn(`it refuses ${refused.join(', ')} (${why.message}). They are left out there; metrics.jsonl has them.`)
  }

  async #log(metrics: readonly Metric[], signal: AbortSignal): Promise<void> {
    await this.#call('runs/log-batch', { run_id: this.#id, metrics }, signal)
  }

  async #open(time: number, signal: AbortSignal): Promise<void> {
    if (this.#ready) return
    if (this.#id === undefined) {
      const made = await this.#call<RunInfo>(
        'runs/create',
        {
          experiment_id: await this.#experiment(signal),
          run_name: this.#run.name,
          start_time: Math.round(time * 1000),
          tags: [{ key: 'mlflow.source.name', value: 'dawn-rl' }],
        },
        signal,
      )
      this.#id = made.run.info.run_id
      this.#untold = true
    } else if (!this.#untold) {
      await this.#call('runs/update', { run_id: this.#id, status: 'RUNNING' }, signal).catch((error: unknown) => {
        if (!(isRefusal(error) || (error instanceof HttpError && error.status === 404))) throw error
        // The run was deleted, or this is another server.
        throw new Error(`${error.message}. To send all of it as a new run, delete sinks/mlflow.json in the run folder`, {
          cause: error,
        })
      })
    }
    if (this.#untold) await this.#tell(signal)
    this.#ready = true
  }

  /** Sends the config. Parts that the server refuses are left out, as it would refuse them again. */
  async #tell(signal: AbortSignal): Promise<void> {
    const params = flatConfig(this.#run.config).map(([key, value]) => ({ key: keyOf(key), value: value.slice(0, VALUE) }))
    try {
      for (let at = 0; at < params.length; at += PARAMS)
        await this.#call('runs/log-batch', { run_id: this.#id, params: params.slice(at, at + PARAMS) }, signal)
    } catch (error) {
      this.#untold = !isRefusal(error)
      throw error
    }
    this.#untold = false
  }

  async #experiment(signal: AbortSignal): Promise<string> {
    const name = process.env.MLFLOW_EXPERIMENT_NAME ?? 'dawn-rl'
    try {
      const query = new URLSearchParams({ experiment_name: name })
      const found = await this.#call<{ experiment: { experiment_id: string } }>(
        `experiments/get-by-name?${query.toString()}`,
        undefined,
        signal,
        'GET',
      )
      return found.experiment.experiment_id
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 404) throw error
      const made = await this.#call<{ experiment_id: string }>('experiments/create', { name }, signal)
      return made.experiment_id
    }
  }

  #call<T>(path: string, body: unknown, signal: AbortSignal, method?: string): Promise<T> {
    const { MLFLOW_TRACKING_TOKEN: token, MLFLOW_TRACKING_USERNAME: user, MLFLOW_TRACKING_PASSWORD: password } = process.env
    const basic = () => `Basic ${Buffer.from(`${user}:${password ?? ''}`).toString('base64')}`
    const headers = token ? { authorization: `Bearer ${token}` } : user ? { authorization: basic() } : undefined
    return postJson<T>(`${this.#base}/${path}`, body, { headers, signal, method })
  }
}

const isRefusal = (error: unknown): error is HttpError => error instanceof HttpError && error.status === 400

/** A server that stores runs as files cannot have `reward` beside `reward/<func>`: one would be a file, the other a folder of the same name. */
const metricOf = (name: string): string => keyOf(name === 'reward' ? 'reward/all/mean' : name)

/** A name that MLflow accepts: letters and digits of any language, without @, and a clean path, unlike "eval/./my_env.ts/avg". */
function keyOf(name: string): string {
  const taken = name
    .replaceAll('@', '_at_')
    .replace(/[^\p{L}\p{N}_.\-/: ]/gu, '_')
    .slice(0, 250)
  const parts = taken.split('/').filter((part) => part !== '' && part !== '.')
  return parts.map((part) => (part === '..' ? '__' : part)).join('/')
}
