/** `--trace`: records the phases of some steps and writes them to a file. Without the flag nothing here is loaded. */
import { dirname, join } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { makeFolder } from '../common/folders.ts'
import { startTrace, stopTrace, tracer, type Span } from '../common/trace.ts'
import type { PolicyVersion } from '../common/types.ts'
import type { TraceWish } from '../config/load.ts'
import { writeTrace } from '../monitor/trace-file.ts'
import type { Phases, Pushed } from './phases.ts'
import { versionOf } from './version.ts'

/** About 80 MB of text, which the viewers can still open. */
const mostEvents = 500_000

interface TraceOptions {
  /** The folder of the run. */
  folder: string
  adapter: string
  /** Steps done before this process, and the last step of the run. */
  firstStep: number
  maxSteps: number
  print: (line: string) => void
  warn: (line: string) => void
}

/** Records the steps that `--trace` names, and writes the trace file. */
export class StepTrace implements Phases {
  readonly #options: TraceOptions
  readonly #wish: TraceWish
  readonly #first: number
  readonly #last: number
  readonly #file: string
  #step: Span | undefined
  #writing: Promise<void> | undefined
  #seen = 0

  /** @throws UserError where the run will not make these steps, or the file's folder cannot be made */
  constructor(wish: TraceWish, options: TraceOptions) {
    const { firstStep, maxSteps, folder } = options
    // The first step of a process compiles kernels and records plans.
    const second = Math.min(firstStep + 2, maxSteps)
    const [first, last] = wish.steps ?? [second, Math.min(second + 1, maxSteps)]
    if (first > maxSteps || first <= firstStep)
      throw new UserError(
        `--trace ${first}: this run does steps ${firstStep + 1} to ${maxSteps}, so there would be nothing to trace. Name one of these.`,
      )
    this.#wish = wish
    this.#options = options
    ;[this.#first, this.#last] = [first, Math.min(last, maxSteps)]
    this.#file = wish.file ?? join(folder, 'trace.json')
    try {
      makeFolder(dirname(this.#file))
    } catch (error) {
      throw new UserError(`--trace ${this.#file}: its folder cannot be made (${messageOf(error)}).`)
    }
  }

  begin(step: number): void {
    this.#step?.end()
    this.#step = undefined
    if (step > this.#last) this.#stop()
    else if (step === this.#first) startTrace({ level: this.#wish.level, maxEvents: mostEvents })
    if (step >= this.#first && tracer) {
      this.#step = tracer.span('steps', `step ${step}`)
      this.#seen = step
    }
  }

  async during<T>(name: string, work: () => Promise<T>): Promise<T> {
    const span = tracer?.span('steps', name)
    try {
      return await work()
    } finally {
      span?.end()
    }
  }

  publish(version: PolicyVersion, push: () => Pushed): Pushed {
    const pushed = push()
    if (!pushed) return undefined
    const flight = tracer?.flight('weights', 'broadcast_weights', { version })
    const end = (): void => flight?.end()
    pushed.then(end, end)
    return pushed
  }

  /** Ends the recording, and waits for the file. To be called while the device is open. */
  async close(): Promise<void> {
    this.#step?.end()
    this.#stop()
    await this.#writing
    if (!this.#writing) this.#options.warn(`--trace: the run ended before step ${this.#first}, so there is no trace.`)
  }

  #stop(): void {
    const stopped = stopTrace()
    if (!stopped) return
    const { print, warn, adapter } = this.#options
    const steps = this.#seen > this.#first ? `steps ${this.#first} to ${this.#seen}` : `step ${this.#first}`
    const write = async (): Promise<void> => {
      const events = await stopped.finish()
      const full = stopped.full
        ? [`The trace was full too early: events after the first ${events.length} are missing. Trace fewer steps.`]
        : []
      const notes = [...stopped.notes, ...full]
      const about = { 'dawn-rl': versionOf('dawn-rl') ?? 'unknown', adapter, steps, level: stopped.level, notes: notes.join(' ') }
      await writeTrace(this.#file, events, about)
      print(`trace    ${this.#file}: ${steps}, ${events.length} events; open it in ui.perfetto.dev or chrome://tracing`)
      for (const note of full) warn(`--trace: ${note}`)
    }
    this.#writing = write().catch((error: unknown) => warn(`--trace: ${this.#file} could not be written (${messageOf(error)}).`))
  }
}
