/**
 * The terminal of a run.
 * - Printed lines stay: they are never drawn over.
 * - In a terminal that is large enough, a panel below shows the last step, what is being waited for, and keys (panel.ts, keys.ts); in a
 *   small one, a line says what is being waited for. Anywhere else (a pipe, a CI log, a job in the background) there is no escape sequence
 *   and no redraw; a wait that takes long is mentioned after 30 s, then after 1, 2, 4 ... minutes.
 * - Its timers never keep the process alive, and a closed pipe (`| head`) never ends a run.
 */
import { isatty } from 'node:tty'
import { styleText } from 'node:util'
import { isDeadOutput } from '../../common/faults.ts'
import type { Metrics } from '../../common/types.ts'
import type { ScoredRollout } from '../aggregate.ts'
import { formatDuration, oneLine, printable } from '../format.ts'
import { inForeground } from './keys.ts'
import { LiveScreen } from './screen.ts'
import { withoutStyle } from './text-width.ts'
import { LiveView } from './live-view.ts'
import type { Logger } from '../logger.ts'
import type { Progress, Wait } from '../progress.ts'
import { etaSeconds, evalLine, legend, pickSamples, plain, sampleLines, stepLine, supervisedLine } from './step-line.ts'
import type { Paint } from './step-line.ts'

/** The part of a stream that is used here. */
export type ConsoleStream = NodeJS.WritableStream & {
  isTTY?: boolean
  columns?: number
  rows?: number
  cork?(): void
  uncork?(): void
  getWindowSize?(): [number, number]
}

export interface ConsoleOptions {
  progress: Progress
  /** Last step of the run, for '3/12' and the time left. */
  maxSteps: number
  /** Supervised training (`sft`): lines and panel show its loss. */
  supervised?: boolean
  stream?: ConsoleStream
  /** Every line is also written here. */
  logger?: Pick<Logger, 'info' | 'warn'>
  /** Print a step's line every so many steps; the first of a process and the last of a run always have one. */
  linesEvery?: number
  /** Print samples every so many steps; 0: never. Step 1 always has some. */
  samplesEvery?: number
  samplesCount?: number
  /** Metrics of the steps before this process, for the sparklines of a resumed run. */
  history?: readonly Metrics[]
  /** Show the panel where the terminal has room for it; else, and by default, one line. */
  panel?: boolean
  /** Where keys are read from while there is a panel. Default: standard input where the stream is standard output, else none. */
  keys?: NodeJS.ReadStream
  /** Default: the environment's NO_COLOR and FORCE_COLOR, then whether the stream is a terminal. */
  colour?: boolean
  /** After how long a wait is first mentioned outside a terminal. */
  longWaitMs?: number
  /** Default: the process's. */
  env?: NodeJS.ProcessEnv
}

const frameMs = 100
/** How often the panel is drawn: drawing takes 1 ms, which the run needs too. */
const panelFrameMs = 250
const tickMs = 1000

/** True when `stream` should get colours: NO_COLOR (any text) wins, then FORCE_COLOR, then the terminal. */
export function wantsColour(stream: { isTTY?: boolean }, env: NodeJS.ProcessEnv): boolean {
  if (env.NO_COLOR) return false
  if (env.FORCE_COLOR !== undefined) return env.FORCE_COLOR !== '0'
  return stream.isTTY === true && env.TERM !== 'dumb'
}

/** True when `stream` can be redrawn. Not a terminal that reports size 0 (some containers). */
function canRedraw(stream: ConsoleStream, env: NodeJS.ProcessEnv): boolean {
  return stream.isTTY === true && stream.columns !== 0 && stream.rows !== 0 && env.TERM !== 'dumb'
}

/** Prints the lines of a run and, where the terminal allows it, the panel below them. */
export class RunConsole {
  readonly #o: Required<Pick<ConsoleOptions, 'linesEvery' | 'samplesEvery' | 'samplesCount' | 'longWaitMs'>> &
    Omit<ConsoleOptions, 'history'>
  readonly #stream: ConsoleStream
  readonly #screen: LiveScreen | null
  readonly #view: LiveView | null
  readonly #paint: Paint
  readonly #tick: NodeJS.Timeout
  readonly #unsubscribe: () => void
  #rewards: (number | null)[] = []
  readonly #stepSeconds: number[] = []
  #saidStep = false
  // For each wait, when it is next mentioned outside a terminal, in milliseconds after its start.
  readonly #nextMention = new WeakMap<Wait, number>()
  #frame: NodeJS.Timeout | undefined
  #front: boolean
  #drawnFor = 0
  #closed = false

  constructor(options: ConsoleOptions) {
    // Only the needed numbers are kept: the rows of a long run are tens of megabytes.
    const { history = [], ...rest } = options
    this.#o = { linesEvery: 1, samplesEvery: 5, samplesCount: 2, longWaitMs: 30_000, ...rest }
    const { progress, env = process.env } = options
    this.#stream = options.stream ?? process.stdout
    const ours = this.#stream === process.stdout
    this.#paint =
      (options.colour ?? wantsColour(this.#stream, env))
        ? (style, text) => styleText(style, text, { validateStream: false })
        : plain
    const others: ConsoleStream[] = !ours ? [] : process.stderr.isTTY ? [process.stdout, process.stderr] : [process.stdout]
    this.#screen = canRedraw(this.#stream, env) ? new LiveScreen(this.#stream, others, () => this.#schedule()) : null
    this.#view =
      this.#screen && options.panel
        ? new LiveView({
            progress,
            maxSteps: options.maxSteps,
            supervised: options.supervised,
            stream: this.#stream,
            paint: this.#paint,
            keys: options.keys ?? (ours && isatty(0) ? process.stdin : undefined),
            print: (...lines) => this.print(...lines),
            redraw: () => this.#draw(),
          })
        : null
    this.history = history
    this.#stream.on('error', ignoreDeadOutput)
    this.#unsubscribe = progress.onChange(() => this.#schedule())
    this.#front = !this.#screen || !ours || inForeground()
    if (this.#front) this.#view?.listen()
    if (this.#screen) {
      this.#stream.on('resize', this.#onResize)
      if (ours) process.on('SIGCONT', this.#onContinue).on('exit', this.#onExit)
    }
    this.#tick = setInterval(() => this.#onTick(), tickMs).unref()
  }

  /** Metrics of the steps so far, for the sparklines. */
  set history(rows: readonly Metrics[]) {
    this.#rewards = rows.flatMap((row) => (row.reward === undefined ? [] : row.reward))
    if (this.#view) this.#view.history = rows
  }

  /** The columns that a table may take; undefined where there is no terminal. */
  get width(): number | undefined {
    return this.#screen ? this.#columns : undefined
  }

  /** Sets how to get the bytes of GPU buffers, for the panel. */
  set gpuBytes(ask: () => number) {
    if (this.#view) this.#view.gpuBytes = ask
  }

  /** Prints the line that says which numbers matter; with a panel a key shows it instead. */
  legend(): void {
    if (this.#panelShown) this.#o.logger?.info(legend)
    else this.dim(legend)
  }

  /** Prints lines that stay, in the background. */
  dim(...lines: string[]): void {
    this.print(...lines.map((line) => this.#paint('dim', line)))
  }

  /** Prints lines that stay, as they are. */
  print(...lines: string[]): void {
    this.#o.logger?.info(withoutStyle(lines.join('\n')))
    this.#write(lines.join('\n'))
  }

  /** Prints `warning: ...`. It may quote what a model wrote, so the terminal gets it without control characters; the log has it as it is. */
  warn(message: string): void {
    this.#o.logger?.warn(message)
    this.#write(this.#paint('yellow', `warning: ${printable(message)}`))
  }

  /** The line of a finished step, and now and then some of its rollouts. `time/step` gives its seconds and the time left. */
  step(step: number, metrics: Metrics, rollouts: readonly ScoredRollout[] = []): void {
    const seconds = metrics['time/step'] ?? undefined
    if (seconds !== undefined) this.#stepSeconds.push(seconds)
    this.#rewards.push(metrics.reward ?? null)
    const { maxSteps, linesEvery, samplesEvery, samplesCount, supervised } = this.#o
    const left = maxSteps - step
    const eta = left > 0 ? etaSeconds(this.#stepSeconds, left) : undefined
    this.#view?.step(step, metrics, rollouts, eta)
    if (!this.#saidStep || left === 0 || step % linesEvery === 0) {
      this.#saidStep = true
      const line = { step, maxSteps, metrics, rewards: this.#rewards, seconds, eta }
      const lineOf = supervised ? supervisedLine : stepLine
      const whole = lineOf(line, this.#paint)
      this.#o.logger?.info(withoutStyle(whole))
      // With a panel, which shows the rest, a step is one line.
      this.#write(this.#panelShown ? lineOf(line, this.#paint, this.#columns) : whole)
    }
    if (samplesEvery > 0 && (step === 1 || step % samplesEvery === 0)) this.#samples(rollouts, samplesCount)
  }

  /** The line of an evaluation; `when`: 'before training', 'at step 5'. */
  eval(when: string, metrics: Metrics, seconds?: number): void {
    this.#view?.eval(metrics)
    this.print(evalLine(when, metrics, seconds, this.#paint))
  }

  /** Erases the live lines, stops drawing and restores the terminal. May be called twice. */
  close(): void {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#tick)
    clearTimeout(this.#frame)
    this.#unsubscribe()
    this.#view?.close()
    this.#screen?.close()
    this.#stream.off('resize', this.#onResize).off('error', ignoreDeadOutput)
    process.off('SIGCONT', this.#onContinue).off('exit', this.#onExit)
  }

  /** Prints whole samples: the best, the worst, then those between. */
  #samples(rollouts: readonly ScoredRollout[], count: number): void {
    const lines = pickSamples(rollouts, count).flatMap((r) => sampleLines(r, {}, this.#paint))
    if (lines.length > 0) this.print(...lines)
  }

  get #columns(): number {
    // One column less than the width: a line that wraps could not be redrawn.
    return Math.max(20, Math.min(this.#stream.columns ?? 80, this.#window()) - 1)
  }

  get #panelShown(): boolean {
    return this.#front && this.#view?.fits() === true
  }

  #write(text: string): void {
    if (this.#closed || !this.#stream.writable) return
    if (!this.#screen) return void this.#stream.write(`${text}\n`)
    // In one write, so that the drawing does not flicker.
    this.#stream.cork?.()
    this.#fit()
    this.#screen.print(`${text}\n`)
    this.#draw()
    this.#stream.uncork?.()
  }

  readonly #onResize = (): void => this.#draw()

  /** Erases the drawing where the window's width has changed since. */
  #fit(): void {
    const columns = this.#columns
    if (columns !== this.#drawnFor) this.#screen?.resized(columns + 1)
    this.#drawnFor = columns
  }

  /** After Ctrl-Z the run continues in the foreground (`fg`) or background (`bg`), below the shell's output. */
  readonly #onContinue = (): void => {
    this.#screen?.forget()
    this.#front = inForeground()
    if (this.#front) this.#view?.listen()
    else this.#view?.deaf()
    this.#draw()
  }

  readonly #onExit = (): void => this.close()

  #onTick(): void {
    // A shell may move a running job into the background or foreground without a signal.
    if (this.#screen && this.#stream === process.stdout && process.platform === 'linux' && inForeground() !== this.#front)
      this.#onContinue()
    if (this.#screen && this.#front) this.#draw()
    else this.#mentionLongWaits()
  }

  /** Schedules a drawing: waits may change a thousand times a second, the terminal is redrawn at most ten times. */
  #schedule(): void {
    if (!this.#screen || this.#frame || this.#closed) return
    this.#frame = setTimeout(
      () => {
        this.#frame = undefined
        this.#draw()
      },
      this.#panelShown ? panelFrameMs : frameMs,
    ).unref()
  }

  /** The current columns of the window, which may have changed before the resize event arrives. */
  #window(): number {
    try {
      return this.#stream.getWindowSize?.()[0] ?? Infinity
    } catch {
      // The terminal is gone.
      return Infinity
    }
  }

  #draw(): void {
    if (!this.#screen || this.#closed || !this.#front) return
    this.#fit()
    if (this.#panelShown) return this.#screen.draw(this.#view!.lines(this.#columns))
    const line = oneLine(this.#o.progress.line(), this.#columns)
    this.#screen.draw(line === '' ? [] : [this.#paint('dim', line)])
  }

  #mentionLongWaits(): void {
    const now = performance.now()
    for (const wait of this.#o.progress.active) {
      const due = this.#nextMention.get(wait) ?? this.#o.longWaitMs
      const waited = now - wait.startedAt
      if (waited < due) continue
      this.#nextMention.set(wait, Math.max(due * 2, waited + tickMs))
      this.print(`still waiting after ${formatDuration(waited / 1000)}: ${wait.text()}`)
    }
  }
}

function ignoreDeadOutput(error: NodeJS.ErrnoException): void {
  if (!isDeadOutput(error)) throw error
}
