/**
 * The interface of src/monitor for runs: a run opens a monitor, reports waits to its `progress`, and gives it each finished step.
 * A step's row is on disk before its line is printed, and both before `finishStep` resolves; while the disk is full it waits.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { whenThereIsRoom } from '../common/faults.ts'
import type { Metrics, PolicyVersion, Rollout } from '../common/types.ts'
import { evalMetrics, rolloutMetrics, totalsOf } from './aggregate.ts'
import type { RunTotals, ScoredRollout } from './aggregate.ts'
import { RunConsole } from './terminal/console.ts'
import type { ConsoleOptions } from './terminal/console.ts'
import { createLogger } from './logger.ts'
import type { Logger } from './logger.ts'
import { MetricsWriter, readMetrics } from './metrics-writer.ts'
import { Progress } from './progress.ts'
import { RolloutWriter, type Split, type TrainerTokens } from './rollout-writer.ts'
import type { RewindReport, RunFolder } from './run-folder.ts'
import { Watch } from './warnings.ts'
import type { WatchOptions } from './warnings.ts'

/** How many rollouts are written in one turn of the event loop. */
const ROLLOUTS_AT_ONCE = 16

interface MonitorOptions extends Omit<ConsoleOptions, 'progress' | 'logger' | 'history'> {
  /** An open run folder. A resumed one is already rewound, or will be with `rewind`. */
  folder: RunFolder
  watch: WatchOptions
  /** Whether the run trains on several environments. */
  mixture?: boolean
}

/** One finished step. */
interface FinishedStep {
  step: number
  /** All rollouts of this step, failed and filtered ones included. */
  rollouts: readonly ScoredRollout[]
  /** Version of the weights that the step's forward pass used. */
  version: PolicyVersion
  /** Rollouts thrown away since the last step because they were too old. */
  dropped?: number
  /** Metrics of the trainer and the orchestrator: loss, optimizer, times, and evaluations of this step. */
  metrics: Metrics
}

/** Writes, prints and watches the steps of one run. */
export class Monitor {
  readonly folder: RunFolder
  readonly progress = new Progress()
  readonly console: RunConsole
  readonly logger: Logger & { close(): void }
  #metrics: MetricsWriter
  readonly #rollouts: RolloutWriter
  readonly #watch: Watch
  readonly #mixture: boolean | undefined
  #totals: RunTotals

  constructor(options: MonitorOptions) {
    const { folder, watch, mixture, ...consoleOptions } = options
    this.folder = folder
    const rows = readMetrics(folder.metricsPath)
    this.#totals = totalsOf(rows)
    this.logger = createLogger(folder.logPath)
    this.console = new RunConsole({ panel: true, ...consoleOptions, progress: this.progress, logger: this.logger, history: rows })
    this.#metrics = this.#openMetrics()
    this.#rollouts = new RolloutWriter(folder)
    this.#watch = new Watch(watch, rows)
    this.#mixture = mixture
  }

  /** Rewinds the folder, and the state read from it, to the end of `step`. */
  rewind(step: number): RewindReport {
    this.#metrics.close()
    const report = this.folder.rewind(step)
    const rows = readMetrics(this.folder.metricsPath)
    this.#totals = totalsOf(rows)
    this.console.history = rows
    this.#metrics = this.#openMetrics()
    return report
  }

  /** Keeps the trainer's numbers for tokens of rollouts until `finishStep` writes them into their token rows. */
  noteTokens(tokens: ReadonlyMap<Rollout, TrainerTokens>): void {
    this.#rollouts.note(tokens)
  }

  /** Writes the step's rollouts and row; prints its line, some samples, and warnings. Returns the row's metrics. */
  async finishStep(done: FinishedStep): Promise<Metrics> {
    const { step, rollouts } = done
    await this.#writeRollouts(`the rollouts of step ${step}`, step, 'train', rollouts)
    const metrics = { ...rolloutMetrics({ ...done, mixture: this.#mixture, totals: this.#totals }), ...done.metrics }
    this.#totals = totalsOf([metrics])
    // Values that are not finite are null from here on, on the screen as in the file.
    const row = await this.#write(`the metrics of step ${step}`, () => this.#metrics.write(step, metrics))
    this.logger.info({ metrics: row }, `step ${step}`)
    this.console.step(step, row, rollouts)
    const all = rollouts.map((r) => r.rollout)
    const trained = rollouts.some((r) => r.advantage !== null)
    for (const warning of this.#watch.check(step, all, trained, row['optim/grad_norm'])) this.console.warn(warning)
    return row
  }

  /**
   * Writes the rollouts of one environment's evaluation after `step` (0: before training), and prints its line. Returns its metrics, for
   * the row of the step (`finishStep`), or for `writeRow` where that step is over.
   */
  async finishEval(done: {
    step: number
    env: string
    rollouts: readonly Rollout[]
    version: PolicyVersion
    seconds?: number
  }): Promise<Metrics> {
    const { step, env, rollouts, version, seconds } = done
    const scored = rollouts.map((rollout) => ({ rollout, advantage: null }))
    await this.#writeRollouts(`the rollouts of the evaluation of ${env}`, step, 'eval', scored)
    const metrics = evalMetrics(env, rollouts, version)
    this.logger.info({ metrics }, `eval at step ${step}`)
    this.console.eval(step === 0 ? 'before training' : `at step ${step}`, metrics, seconds)
    return metrics
  }

  /** Appends a separate row and returns it: for the evaluation before training (step 0), or one that ended after its step's row was written. */
  async writeRow(step: number, metrics: Metrics): Promise<Metrics> {
    return await this.#write(`the metrics of step ${step}`, () => this.#metrics.write(step, metrics))
  }

  /** Waits until all rollouts and rows so far are on disk: a complete checkpoint relies on them. */
  async settle(): Promise<void> {
    await this.#rollouts.settle()
    await this.folder.settle()
  }

  /** Ends the live line, the files and the lock. May be called twice. */
  close(): void {
    this.console.close()
    this.#metrics.close()
    this.logger.close()
    this.folder.close()
  }

  /** Writes in parts, so that the sampler and its clients get a turn in between: two thousand rollouts of a thousand tokens take a second. */
  async #writeRollouts(what: string, step: number, split: Split, rollouts: readonly ScoredRollout[]): Promise<void> {
    for (let from = 0; from < rollouts.length; from += ROLLOUTS_AT_ONCE) {
      await this.#write(what, () => this.#rollouts.write(step, split, rollouts.slice(from, from + ROLLOUTS_AT_ONCE)))
      await turn()
    }
  }

  async #write<T>(what: string, write: () => T): Promise<T> {
    this.folder.check()
    try {
      return await whenThereIsRoom(what, write, (line) => this.console.warn(line))
    } catch (error) {
      throw this.folder.explain(error)
    }
  }

  #openMetrics(): MetricsWriter {
    return new MetricsWriter({ path: this.folder.metricsPath, onWarning: (message) => this.console.warn(message) })
  }
}
