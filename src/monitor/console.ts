/**
 * The terminal of a run.
 * - What is printed stays: a line, once written, is never drawn over.
 * - In a terminal, one live line below says what is being waited for. Anywhere else (a pipe, a CI log) there is no escape sequence and
 *   no redraw; a wait that takes long is mentioned after 30 s, then after 1, 2, 4 ... minutes.
 * - Its timers never keep the process alive, and a closed pipe (`| head`) never ends a run.
 */
import { styleText } from 'node:util'
import { createLogUpdate } from 'log-update'
import { isGoneReader } from '../common/faults.ts'
import type { Metrics } from '../common/types.ts'
import { formatDuration, oneLine } from './format.ts'
import type { ScoredRollout } from './aggregate.ts'
import type { Logger } from './logger.ts'
import type { Progress, Wait } from './progress.ts'
import { etaSeconds, evalLine, legend, pickSamples, plain, sampleLines, stepLine } from './step-line.ts'
import type { Paint } from './step-line.ts'

/** The part of a stream that is used. */
export type ConsoleStream = NodeJS.WritableStream & { isTTY?: boolean; columns?: number; rows?: number }

export interface ConsoleOptions {
  progress: Progress
  /** Target step of the run, for '3/12' and the time left. */
  maxSteps: number
  stream?: ConsoleStream
  /** Every line is also written here. */
  logger?: Pick<Logger, 'info' | 'warn'>
  /** Print a step's line every so many steps; the first and the last of a run always have one. */
  linesEvery?: number
  /** Print samples every so many steps; 0: never. Step 1 always has some. */
  samplesEvery?: number
  samplesCount?: number
  /** Rewards of the steps before this process, for the sparkline of a resumed run. */
  rewards?: readonly (number | null)[]
  /** Default: the environment's NO_COLOR and FORCE_COLOR, then whether the stream is a terminal. */
  colour?: boolean
  /** First mention of a long wait outside a terminal. */
  longWaitMs?: number
}

const frameMs = 100
const tickMs = 1000

/** True when `stream` should get colours: NO_COLOR (any text) wins, then FORCE_COLOR, then the terminal. */
export function wantsColour(stream: { isTTY?: boolean }, env: NodeJS.ProcessEnv = process.env): boolean {
  if (env.NO_COLOR) return false
  if (env.FORCE_COLOR !== undefined) return env.FORCE_COLOR !== '0'
  return stream.isTTY === true && env.TERM !== 'dumb'
}

export class RunConsole {
  readonly #o: Required<Pick<ConsoleOptions, 'linesEvery' | 'samplesEvery' | 'samplesCount' | 'longWaitMs'>> & ConsoleOptions
  readonly #stream: ConsoleStream
  readonly #live: ReturnType<typeof createLogUpdate> | null
  readonly #paint: Paint
  readonly #tick: NodeJS.Timeout
  readonly #unsubscribe: () => void
  #rewards: (number | null)[]
  readonly #stepSeconds: number[] = []
  // When each wait is next mentioned outside a terminal, in milliseconds after its start.
  readonly #nextMention = new WeakMap<Wait, number>()
  #frame: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: ConsoleOptions) {
    this.#o = { linesEvery: 1, samplesEvery: 5, samplesCount: 2, longWaitMs: 30_000, ...options }
    this.#stream = options.stream ?? process.stdout
    this.#paint =
      (options.colour ?? wantsColour(this.#stream)) ? (style, text) => styleText(style, text, { validateStream: false }) : plain
    // A terminal that says its size is 0 (some containers) cannot hold a live line: it gets what a pipe gets.
    const live = this.#stream.isTTY && this.#stream.columns !== 0 && this.#stream.rows !== 0
    // showCursor: hiding it would put signal handlers of log-update's own beside the run's.
    this.#live = live ? createLogUpdate(this.#stream, { showCursor: true }) : null
    this.#rewards = [...(options.rewards ?? [])]
    this.#stream.on('error', ignoreClosedPipe)
    this.#unsubscribe = options.progress.onChange(() => this.#schedule())
    this.#tick = setInterval(() => (this.#live ? this.#draw() : this.#mentionLongWaits()), tickMs).unref()
  }

  /** Rewards of the steps so far, for the sparkline. */
  set rewards(rewards: readonly (number | null)[]) {
    this.#rewards = [...rewards]
  }

  /** The one line that says which numbers matter. */
  legend(): void {
    this.dim(legend)
  }

  /** Prints lines that stay, in the background. */
  dim(...lines: string[]): void {
    this.print(...lines.map((line) => this.#paint('dim', line)))
  }

  /** Prints lines that stay. Nothing is added to them. */
  print(...lines: string[]): void {
    const text = lines.join('\n')
    this.#o.logger?.info(withoutStyle(text))
    if (this.#closed || !this.#stream.writable) return
    this.#live?.clear()
    this.#stream.write(`${text}\n`)
    this.#draw()
  }

  /** Prints `warning: ...`. */
  warn(message: string): void {
    this.#o.logger?.warn(message)
    if (this.#closed || !this.#stream.writable) return
    this.#live?.clear()
    this.#stream.write(`${this.#paint('yellow', `warning: ${message}`)}\n`)
    this.#draw()
  }

  /** The line of a finished step, and now and then some of its rollouts. `time/step` gives its seconds and the time left. */
  step(step: number, metrics: Metrics, rollouts: readonly ScoredRollout[] = []): void {
    const seconds = metrics['time/step'] ?? undefined
    if (seconds !== undefined) this.#stepSeconds.push(seconds)
    this.#rewards.push(metrics.reward ?? null)
    const { maxSteps, linesEvery, samplesEvery, samplesCount } = this.#o
    const left = maxSteps - step
    const eta = left > 0 ? etaSeconds(this.#stepSeconds, left) : undefined
    if (step === 1 || left === 0 || step % linesEvery === 0)
      this.print(stepLine({ step, maxSteps, metrics, rewards: this.#rewards, seconds, eta }, this.#paint))
    if (samplesEvery > 0 && (step === 1 || step % samplesEvery === 0)) this.samples(rollouts, samplesCount)
  }

  /** Whole samples: the best, the worst, then those between. */
  samples(rollouts: readonly ScoredRollout[], count: number = this.#o.samplesCount): void {
    const lines = pickSamples(rollouts, count).flatMap((r) => sampleLines(r, {}, this.#paint))
    if (lines.length > 0) this.print(...lines)
  }

  /** The line of an evaluation; `when`: 'before training', 'at step 5'. */
  eval(when: string, metrics: Metrics, seconds?: number): void {
    this.print(evalLine(when, metrics, seconds, this.#paint))
  }

  /** Takes the live line away and stops drawing. May be called twice. */
  close(): void {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#tick)
    clearTimeout(this.#frame)
    this.#unsubscribe()
    if (this.#stream.writable) this.#live?.clear()
    this.#stream.off('error', ignoreClosedPipe)
  }

  /** Draws soon: waits may change a thousand times a second, the terminal does ten. */
  #schedule(): void {
    if (!this.#live || this.#frame || this.#closed) return
    this.#frame = setTimeout(() => {
      this.#frame = undefined
      this.#draw()
    }, frameMs).unref()
  }

  #draw(): void {
    if (!this.#live || this.#closed || !this.#stream.writable) return
    const line = this.#o.progress.line()
    if (line === '') this.#live.clear()
    // One column short of the edge: a line that wraps could not be drawn over.
    else this.#live(this.#paint('dim', oneLine(line, Math.max(20, (this.#stream.columns ?? 80) - 1))))
  }

  #mentionLongWaits(): void {
    const now = Date.now()
    for (const wait of this.#o.progress.active) {
      const due = this.#nextMention.get(wait) ?? this.#o.longWaitMs
      const waited = now - wait.startedAt
      if (waited < due) continue
      this.#nextMention.set(wait, Math.max(due * 2, waited + tickMs))
      this.print(`still waiting after ${formatDuration(waited / 1000)}: ${wait.text()}`)
    }
  }
}

function ignoreClosedPipe(error: NodeJS.ErrnoException): void {
  if (!isGoneReader(error)) throw error
}

function withoutStyle(text: string): string {
  // oxlint-disable-next-line no-control-regex
  return text.replace(/\x1b\[[\d;]*m/g, '')
}
