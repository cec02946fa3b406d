/** The phases of a training loop on the timeline of its run, and the file that a line of each step goes to. */
import { startTimeline, stopTimeline, type Timeline } from '../common/timeline.ts'
import type { PolicyVersion } from '../common/types.ts'
import { TimelineWriter } from '../monitor/timeline-writer.ts'
import type { Phases, Pushed } from './phases.ts'

/** Of a run that is open, and rewound where it is resumed. */
export class StepTimeline implements Phases {
  readonly #timeline: Timeline
  readonly #writer: TimelineWriter
  /** The step that is made; what comes before the first of a fresh run (its evaluation) is step 0's. */
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
    // Of a resumed run nothing comes before its first step but its opening, and that step has its line already.
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

  /** Writes what is left. */
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
