/** The state of a run's panel, and its keys. console.ts decides whether and when it is drawn. */
import type { Metrics } from '../../common/types.ts'
import { heldOutEnv, type ScoredRollout } from '../aggregate.ts'
import type { ConsoleStream } from './console.ts'
import { oneLine, wrap } from '../format.ts'
import { Keys } from './keys.ts'
import { PANEL_METRICS, panelHeight, panelLines } from './panel.ts'
import { metricInfo } from '../metrics-table.ts'
import type { Progress } from '../progress.ts'
import { pickSamples, sampleLines, type Paint } from './step-line.ts'

export interface ViewOptions {
  progress: Progress
  maxSteps: number
  /** Supervised training: no samples to show, and other numbers. */
  supervised?: boolean
  stream: ConsoleStream
  paint: Paint
  keys?: NodeJS.ReadStream
  /** Prints lines that stay. */
  print: (...lines: string[]) => void
  redraw: () => void
}

/** How many values are kept for a sparkline. */
const KEPT = 200
/** Rows that are left for the lines above, and the least width for a panel. */
const ABOVE = 6
const NARROWEST = 48
/** How many samples the key `s` shows: the best and the worst. */
const SAMPLES = 2

/** From this width on the keys are explained in full. */
const KEYS_WIDTH = 72
const KEYS = 's samples   l what is healthy   p hide this   q stop after this step'
const SHORT_KEYS = 's samples  l legend  p hide  q stop'
/** The keys of supervised training. */
const withoutSamples = (keys: string): string => keys.replace(/^s samples +/, '')

/** Holds the state of the panel, and answers its keys. */
export class LiveView {
  readonly #o: ViewOptions
  readonly #keys: Keys | undefined
  readonly #began = performance.now()
  readonly #history = new Map<string, (number | null)[]>()
  readonly #heldOut = new Map<string, { first: number | null; last: number | null }>()
  #step = 0
  #metrics: Metrics = {}
  #samples: ScoredRollout[] = []
  // The expected end of the run, by `performance.now()`.
  #end: number | undefined
  #hidden = false
  #stopping = false
  /** Returns the bytes of GPU buffers. */
  gpuBytes: (() => number) | undefined

  constructor(options: ViewOptions) {
    this.#o = options
    this.#keys = options.keys && new Keys(options.keys, (key) => this.#onKey(key))
  }

  /** Metrics of the steps before this process. */
  set history(rows: readonly Metrics[]) {
    this.#history.clear()
    this.#heldOut.clear()
    for (const row of rows) {
      this.#keep(row)
      this.eval(row)
    }
    const last = rows.findLast((row) => row.reward !== undefined || row['optim/lr'] !== undefined)
    this.#step = last?.step ?? 0
    this.#metrics = last ?? {}
  }

  /** Takes a finished step, and the seconds to the end of the run. */
  step(step: number, metrics: Metrics, rollouts: readonly ScoredRollout[], left: number | undefined): void {
    this.#step = step
    this.#metrics = metrics
    this.#keep(metrics)
    this.#samples = pickSamples(rollouts, SAMPLES)
    this.#end = left === undefined ? undefined : performance.now() + left * 1000
  }

  /** Takes the metrics of an evaluation, or any others. */
  eval(metrics: Metrics): void {
    for (const [key, value] of Object.entries(metrics)) {
      const env = heldOutEnv(key)
      if (env !== undefined) this.#heldOut.set(env, { first: this.#heldOut.get(env)?.first ?? value, last: value })
    }
  }

  /** Starts reading keys, where there is a source. */
  listen(): void {
    this.#keys?.listen()
  }

  /** The run is in the background: another program has the terminal. */
  deaf(): void {
    this.#keys?.close(false)
  }

  close(): void {
    this.#keys?.close()
  }

  /** True when the terminal has room for the panel, and the user has not hidden it. */
  fits(): boolean {
    const { columns = 80, rows = 24 } = this.#o.stream
    return !this.#hidden && columns >= NARROWEST && rows >= panelHeight(columns) + ABOVE
  }

  /** The current lines of the panel. */
  lines(width: number): string[] {
    const now = performance.now()
    const state = {
      supervised: this.#o.supervised,
      step: this.#step,
      maxSteps: this.#o.maxSteps,
      metrics: this.#metrics,
      history: this.#history,
      heldOut: this.#heldOut,
      waits: this.#o.progress.lines().map((line) => oneLine(line, width)),
      elapsed: (now - this.#began) / 1000,
      left: this.#end === undefined ? undefined : Math.max(0, this.#end - now) / 1000,
      gpuBytes: this.gpuBytes?.(),
      processBytes: process.memoryUsage.rss(),
      keys: this.#keyLine(width),
    }
    return panelLines(state, width, this.#o.paint)
  }

  #keyLine(width: number): string {
    if (!this.#keys?.listening) return ''
    if (this.#stopping) return 'stops after this step; Ctrl-C stops now'
    const keys = width < KEYS_WIDTH ? SHORT_KEYS : KEYS
    return this.#o.supervised ? withoutSamples(keys) : keys
  }

  #keep(metrics: Metrics): void {
    for (const key of PANEL_METRICS) {
      const value = metrics[key]
      if (value === undefined) continue
      const values = this.#history.get(key) ?? []
      values.push(value)
      if (values.length > KEPT) values.shift()
      this.#history.set(key, values)
    }
  }

  #onKey(key: string): void {
    const { print, redraw } = this.#o
    if (key === 's' && !this.#o.supervised) print(...this.#sampleText())
    else if (key === 'l' || key === '?' || key === 'h') print(...this.#legend())
    else if (key === 'p') {
      this.#hidden = !this.#hidden
      if (this.#hidden) print('the panel is hidden; p shows it again')
      else redraw()
    } else if (key === 'q' && !this.#stopping) {
      this.#stopping = true
      // Like a single Ctrl-C: its handler prints what happens next.
      process.emit('SIGINT', 'SIGINT')
      redraw()
    }
  }

  #sampleText(): string[] {
    if (this.#samples.length === 0) return ['no sample yet: the first ones come with step 1']
    const { paint } = this.#o
    const head = `best and worst of step ${this.#step}`
    return [paint('bold', head), ...this.#samples.flatMap((sample) => sampleLines(sample, {}, paint))]
  }

  /** Prints what each number of the panel means, and its healthy range. */
  #legend(): string[] {
    const { paint, stream } = this.#o
    const indent = 11
    const width = Math.min(stream.columns ?? 80, 110) - indent - 1
    const marks = `${paint('yellow', '!')} is worth a look, ${paint('red', '!!')} means that something is broken`
    const lines = (this.#o.supervised ? SUPERVISED_LEGEND : LEGEND).flatMap(([label, key]) => {
      const [first, ...rest] = wrap(metricInfo(key)?.healthy ?? '', width)
      return [`${paint('bold', label.padEnd(indent))}${first}`, ...rest.map((line) => ' '.repeat(indent) + line)]
    })
    return [...lines, marks]
  }
}

const LEGEND: readonly [string, string][] = [
  ['reward', 'reward'], ['mixed', 'solved_some'], ['entropy', 'entropy/all/mean'], ['truncated', 'is_truncated/mean'],
  ['kl', 'mismatch_kl/all/mean'], ['gradient', 'optim/grad_norm'], ['length', 'tokens/completion'], ['failed', 'has_error/mean'],
  ['sampling', 'perf/generation_throughput'], ['training', 'perf/throughput'], ['trainer', 'time/wait_for_batch'],
  ['sampler', 'time/wait_for_trainer'], ['memory', 'perf/peak_memory'],
] // prettier-ignore
const SUPERVISED_LEGEND: readonly [string, string][] = [
  ['loss', 'loss/mean'], ['gradient', 'optim/grad_norm'], ['training', 'perf/throughput'], ['memory', 'perf/peak_memory'],
] // prettier-ignore
