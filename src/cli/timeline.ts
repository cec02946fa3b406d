/** Records the phases of a training loop for its timeline, and writes a line for each step. */
import { startTimeline, stopTimeline, type Timeline } from '../common/timeline.ts'
import type { PolicyVersion } from '../common/types.ts'
import { TimelineWriter } from '../monitor/timeline-writer.ts'
import type { Phases, Pushed } from './phases.ts'

/** Timeline file of an open run, already rewound where the run is resumed. */
export class StepTimeline implements Phases {
  readonly #timeline: Timeline
  readonly #writer: TimelineWriter
  /** The current step; the evaluation before the first step of a new run counts as step 0. */
  #step: number
  #began = performance.now()
  readonly #firstStep: number

  constructor(options: { path: string; firstStep: number; warn: (line: string) => void }) {
    this.#timeline = startTimeline()
    this.#writer = new TimelineWriter({ path: options.path, onWarning: options.warn })
    this.#step = this.#firstStep = options.firstStep
  }

  begin(step: number): void {
    const now = performance.now()
    const spans = this.#timeline.take()
    // A resumed run has only its opening before its first step, and the step that it resumes from has its line already.
    if (this.#step > this.#firstStep || (this.#step === 0 && spans.length > 0))
      this.#writer.write(this.#step, this.#began, now, spans)
    this.#step = step
    this.#began = now
  }

  async during<T>(name: string, work: () => Promise<T>): Promise<T> {
    const end = this.#begin(name)
    try {
      return await work()
    } finally {
      end()
    }
  }

  publish(version: PolicyVersion, push: () => Pushed): Pushed {
    const end = this.#begin('publish', { version })
    const pushed = push()
    if (pushed) pushed.then(end, end)
    else end()
    return pushed
  }

  /** Writes the last line. */
  close(): void {
    this.begin(this.#step + 1)
    stopTimeline()
    this.#writer.close()
  }

  #begin(name: string, detail?: Record<string, number>): () => void {
    const start = performance.now()
    return () => this.#timeline.add({ track: 'orchestrator', name, start, end: performance.now(), detail })
  }
}
