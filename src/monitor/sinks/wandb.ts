/**
 * Weights & Biases over the three calls that its own client makes for metrics (recorded from wandb 0.31.0: test/monitor/sinks/wandb.json):
 * `UpsertBucket` makes the run and its config, `file_stream` appends lines of the history by their number and replaces the summary, and
 * the last call marks the run as complete. Between rows, an empty call says that the run goes on. We number the lines, so a line that is sent
 * twice replaces itself.
 * WANDB_API_KEY, WANDB_BASE_URL, WANDB_ENTITY and WANDB_PROJECT mean the same as for wandb.
 */
import { createHash } from 'node:crypto'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { CLI } from '../../common/commands.ts'
import { readMetrics, type MetricsRow } from '../metrics-writer.ts'
import { postJson } from './http.ts'
import type { OpenSink, Sink, SinkRun, SinkState } from './types.ts'

export const openWandb: OpenSink = (run, state) => new WandbSink(run, state)

/** A sentence about what is missing to use this sink; undefined where nothing is. */
export function wandbNeeds(): string | undefined {
  const { WANDB_MODE: mode = '', WANDB_API_KEY: key } = process.env
  if (/^(offline|disabled|dryrun)$/u.test(mode))
    return `WANDB_MODE=${mode} says that nothing is sent, and files of wandb's own are not written here. Leave wandb out; without WANDB_MODE \`${CLI} report outputs/NAME --sync wandb\` sends a run later.`
  return key ? undefined : 'wandb needs a key, but WANDB_API_KEY is not set. Set it, or leave wandb out.'
}

interface Bucket {
  upsertBucket?: { bucket: { name: string; project: { name: string; entity: { name: string } } } }
}

const UPSERT = `mutation UpsertBucket($name: String, $project: String, $entity: String, $displayName: String, $config: JSONString, $host: String) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config, host: $host}) {
    bucket { id name displayName project { name entity { name } } }
    inserted
  }
}`

class WandbSink implements Sink {
  readonly #run: SinkRun
  readonly #base = (process.env.WANDB_BASE_URL ?? 'https://api.wandb.ai').replace(/\/+$/, '')
  readonly #id: string
  readonly #summary: Record<string, number> = {}
  #lines: number
  #started: number
  /** The run's place at W&B: entity, project, run. */
  #place: string | undefined

  constructor(run: SinkRun, state: SinkState) {
    this.#run = run
    this.#id = String(state.id ?? createHash('sha256').update(`${run.path} ${Date.now()}`).digest('hex').slice(0, 8))
    this.#lines = Number(state.lines ?? 0)
    this.#started = Number(state.started ?? 0)
    // The summary is replaced as a whole, so it must include rows of earlier starts.
    if (this.#lines > 0) for (const row of readMetrics(join(run.path, 'metrics.jsonl'))) this.#summarise(row)
  }

  async send(rows: readonly MetricsRow[], signal: AbortSignal): Promise<SinkState> {
    this.#place ??= await this.#upsert(signal)
    this.#started ||= rows[0].time
    const content = rows.map((row, i) => {
      this.#summarise(row)
      const { time, ...metrics } = row
      return { ...metrics, _step: this.#lines + i, _timestamp: time, _runtime: time - this.#started }
    })
    const summary = { ...this.#summary, ...lastOf(content), _wandb: { runtime: Math.floor(content.at(-1)!._runtime) } }
    await this.#stream(
      {
        files: {
          'wandb-history.jsonl': { offset: this.#lines, content: content.map((line) => JSON.stringify(line)) },
          'wandb-summary.json': { offset: 0, content: [JSON.stringify(summary)] },
        },
      },
      signal,
    )
    this.#lines += rows.length
    return { id: this.#id, lines: this.#lines, started: this.#started }
  }

  /** What wandb sends every 30 s without rows; a run that is not heard of for five minutes is shown as crashed. */
  async beat(signal: AbortSignal): Promise<void> {
    await this.#stream({}, signal)
  }

  async finish(signal: AbortSignal, { failed }: { failed: boolean }): Promise<void> {
    this.#place ??= await this.#upsert(signal)
    await this.#stream({ complete: true, exitcode: failed ? 1 : 0 }, signal)
  }

  #summarise(row: MetricsRow): void {
    for (const [key, value] of Object.entries(row)) if (key !== 'time' && value !== null) this.#summary[key] = value
  }

  async #stream(body: unknown, signal: AbortSignal): Promise<void> {
    await postJson(`${this.#base}/files/${this.#place}/file_stream`, body, { headers: this.#headers(), signal })
  }

  async #upsert(signal: AbortSignal): Promise<string> {
    const config = Object.fromEntries(Object.entries(this.#run.config).map(([key, value]) => [key, { value }]))
    // Charts over `step`, which every row has: what `define_metric('*', step_metric='step')` writes.
    const axes = [
      { '1': 'step', '6': [3], '7': [] },
      { '2': '*', '5': 1, '6': [1], '7': [] },
    ]
    const variables = {
      name: this.#id,
      project: process.env.WANDB_PROJECT ?? 'dawn-rl',
      entity: process.env.WANDB_ENTITY ?? null,
      displayName: this.#run.name,
      config: JSON.stringify({ ...config, _wandb: { value: { m: axes } } }),
      host: hostname(),
    }
    const { data, errors } = await postJson<{ data?: Bucket; errors?: { message: string }[] }>(
      `${this.#base}/graphql`,
      { query: UPSERT, variables, operationName: 'UpsertBucket' },
      { headers: this.#headers(), signal },
    )
    const bucket = data?.upsertBucket?.bucket
    if (!bucket) throw new Error(`the run was not made: ${errors?.[0]?.message ?? 'no reason given'}`)
    return [bucket.project.entity.name, bucket.project.name, bucket.name].map(encodeURIComponent).join('/')
  }

  #headers(): Record<string, string> {
    return { authorization: `Basic ${Buffer.from(`api:${process.env.WANDB_API_KEY}`).toString('base64')}` }
  }
}

const lastOf = (content: readonly { _step: number; _timestamp: number; _runtime: number }[]) => {
  const { _step, _timestamp, _runtime } = content.at(-1)!
  return { _step, _timestamp, _runtime }
}
