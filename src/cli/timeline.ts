/** The phases of a training loop on the timeline of its run, and the file that a line of each step goes to. */
import { startTimeline, stopTimeline, type Timeline } from '../common/timeline.ts'
import { TimelineWriter } from '../monitor/timeline-writer.ts'
import type { LoopParts } from '../orchestrator/loop.ts'

/** Of a run that is open, and rewound where it is resumed. */
export class StepTimeline {
  readonly #timeline: Timeline
  readonly #writer: TimelineWriter
  /** The step that is made; what comes before the first of a fresh run (its evaluation) is step 0's. */
  #step: number
  #began = performance.now()
  readonly #firstStep: number
  /** Whether the loop has what it prepares first still to come. */
  #between = true

  constructor(options: { path: string; firstStep: number; warn: (line: string) => void }) {
    this.#timeline = startTimeline()
    this.#writer = new TimelineWriter({ path: options.path, onWarning: options.warn })
    this.#step = this.#firstStep = options.firstStep
  }

  /** The parts of a training loop, whose phases are spans here; those that metrics have as `time/...` are called so. */
  around(parts: LoopParts): LoopParts {
    const { orchestrator, monitor } = parts
    return {
      ...parts,
      orchestrator: {
        prepare: (step) => {
          if (this.#between) this.begin(step)
          this.#between = false
          orchestrator.prepare(step)
        },
        batch: async (step, version) => {
          this.#between = true
          return await this.during('wait_for_batch', () => orchestrator.batch(step, version))
        },
        evaluate: (source, options) => this.during(`eval ${source.name}`, () => orchestrator.evaluate(source, options)),
        abandonAfter: (step) => orchestrator.abandonAfter(step),
        close: () => orchestrator.close(),
      },
      monitor: {
        console: monitor.console,
        finishStep: (done) => this.during('log', () => monitor.finishStep(done)),
        finishEval: (done) => monitor.finishEval(done),
        writeRow: (step, metrics) => monitor.writeRow(step, metrics),
      },
      publish: (version) => {
        const end = this.#begin('publish', { version })
        const pushed = parts.publish(version)
        if (pushed) pushed.then(end, end)
        else end()
        return pushed
      },
      save: (step, row) => this.during('save_ckpt', () => parts.save(step, row)),
    }
  }

  /** Writes what is left. */
  close(): void {
    this.begin(this.#step + 1)
    stopTimeline()
    this.#writer.close()
  }

  /** A step begins, and the one before it has ended. */
  begin(step: number): void {
    const now = performance.now()
    const spans = this.#timeline.take()
    // Of a resumed run nothing comes before its first step but its opening, and that step has its line already.
    if (this.#step > this.#firstStep || (this.#step === 0 && spans.length > 0))
      this.#writer.write(this.#step, this.#began, now, spans)
    this.#step = step
    this.#began = now
  }

  #begin(name: string, detail?: Record<string, number>): () => void {
    const start = performance.now()
    return () => this.#timeline.add({ track: 'orchestrator', name, start, end: performance.now(), detail })
  }

  /** A phase of the step. */
  async during<T>(name: string, work: () => Promise<T>): Promise<T> {
    const end = this.#begin(name)
    try {
      return await work()
    } finally {
      end()
    }
  }
}
