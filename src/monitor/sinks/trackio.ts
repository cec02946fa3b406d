/**
 * Trackio keeps runs in SQLite files, `<project>.db` in TRACKIO_DIR (else `trackio` in HF_HOME, or in huggingface of the user's cache), and
 * `trackio show` reads them. Rows go into its tables (those of trackio 0.43) by node:sqlite; TRACKIO_PROJECT names the project.
 */
import { createHash, randomUUID } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { hubHome } from '../../common/hub.ts'
import type { MetricsRow } from '../metrics-writer.ts'
import { flatConfig, type OpenSink, type Sink, type SinkRun, type SinkState } from './types.ts'

export const openTrackio: OpenSink = (run, state) => new TrackioSink(run, state)

/** The tables as trackio creates them; it adds its other tables itself. */
const TABLES = [
  `CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT)`,
  `CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, step)`,
  `CREATE UNIQUE INDEX IF NOT EXISTS idx_metrics_log_id ON metrics(log_id) WHERE log_id IS NOT NULL`,
  `CREATE TABLE IF NOT EXISTS configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
    config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id))`,
]

class TrackioSink implements Sink {
  readonly #run: SinkRun
  readonly #id: string
  /** The time of the run's first row. */
  #created: number

  constructor(run: SinkRun, state: SinkState) {
    this.#run = run
    this.#id = String(state.id ?? randomUUID().replaceAll('-', ''))
    this.#created = Number(state.created ?? 0)
  }

  async send(rows: readonly MetricsRow[], signal: AbortSignal): Promise<SinkState> {
    const { DatabaseSync } = await import('node:sqlite')
    const folder = trackioFolder()
    mkdirSync(folder, { recursive: true })
    using db = new DatabaseSync(join(folder, `${projectFile()}.db`), { timeout: 0 })
    await whenFree(() => db.exec('BEGIN IMMEDIATE'), signal)
    for (const sql of TABLES) db.exec(sql)
    const at = (time: number) => new Date(time * 1000).toISOString()
    this.#created ||= rows[0].time
    const config = Object.fromEntries(flatConfig(this.#run.config))
    const about = JSON.stringify({ ...config, _Username: null, _Created: at(this.#created), _Group: null })
    // Replaced, as trackio does: a resumed run may have another config.
    db.prepare('INSERT OR REPLACE INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)').run(
      this.#id,
      this.#run.name,
      about,
      at(this.#created),
    )
    const insert = db.prepare(
      'INSERT OR IGNORE INTO metrics (run_id, timestamp, run_name, step, metrics, log_id) VALUES (?, ?, ?, ?, ?, ?)',
    )
    for (const row of rows) {
      const { step, time, ...metrics } = row
      const text = JSON.stringify(metrics)
      // A row that is sent twice must be stored once.
      const logId = createHash('sha256').update(`${this.#id} ${step} ${time} ${text}`).digest('hex').slice(0, 32)
      insert.run(this.#id, at(time), this.#run.name, step, text, logId)
    }
    await whenFree(() => db.exec('COMMIT'), signal)
    return { id: this.#id, created: this.#created }
  }

  finish(): Promise<void> {
    return Promise.resolve()
  }
}

/** SQLite's code where another connection has the lock. */
const BUSY = 5
/** How long the lock is waited for, and the pauses between the tries, in milliseconds. */
const [PATIENCE, PAUSE] = [5000, 50]

/**
 * Does `work` as soon as the database is free, as trackio itself may be writing or reading. SQLite's own waiting (busy_timeout) would stop the whole
 * process, and with it the run.
 */
async function whenFree(work: () => void, signal: AbortSignal): Promise<void> {
  for (const end = performance.now() + PATIENCE; ;) {
    try {
      return work()
    } catch (error) {
      if (((error as { errcode?: number }).errcode ?? 0) % 256 !== BUSY || performance.now() > end) throw error
      await sleep(PAUSE, undefined, { signal })
    }
  }
}

function trackioFolder(): string {
  return process.env.TRACKIO_DIR || join(hubHome(), 'trackio')
}

/** Trackio's rule for the file name. */
const projectFile = (): string => (process.env.TRACKIO_PROJECT ?? 'dawn-rl').replace(/[^\p{L}\p{N}_-]/gu, '') || 'default'
