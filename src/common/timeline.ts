/**
 * Records who worked when, in every run (logs/timeline.jsonl): a few spans for each rollout and step, cheap enough to be always on. A trace
 * (trace.ts) has the details. `timeline` is a module variable for the same reason as `tracer`: nearly all code would have to pass it on.
 */
import { tracer, type Span, type TraceArgs } from './trace.ts'

export type TimelineTrack = 'orchestrator' | 'trainer' | 'engine' | 'environment'

/** A finished span. Times are those of performance.now(), in milliseconds. */
export interface TimedSpan {
  track: TimelineTrack
  name: string
  start: number
  end: number
  /** The step that the span belongs to. Undefined: the current step. */
  step?: number
  detail?: TraceArgs
  /** One of many of its kind, which may be left out if there are too many, or if it is too short to be seen. */
  fine?: boolean
}

/** Maximum number of spans kept between two steps, even if a run plays for hours before its first step. */
const mostSpans = 20_000

/** The timeline of this process's run, if it has one. */
export let timeline: Timeline | undefined

export function startTimeline(): Timeline {
  timeline = new Timeline()
  return timeline
}

export function stopTimeline(): void {
  timeline = undefined
}

/** Collects the spans of a run between two steps. */
export class Timeline {
  #spans: TimedSpan[] = []

  /** Adds a finished span. */
  add(span: TimedSpan): void {
    if (this.#spans.length < mostSpans) this.#spans.push(span)
  }

  /** Removes and returns the spans that were added since the last call. */
  take(): TimedSpan[] {
    return this.#spans.splice(0)
  }
}

/** The step that a group of rollouts belongs to, from its id: '5.3', 'eval 5.name.3'. */
export const stepOfGroup = (group: string): number | undefined => {
  const step = /^(?:eval )?(\d+)\./.exec(group)?.[1]
  return step === undefined ? undefined : Number(step)
}

/** Begins a phase of the trainer's step, on the timeline and in the trace. */
export function phase(name: string): Span {
  const span = tracer?.span('steps', name)
  const start = performance.now()
  const end = (args?: TraceArgs): void => {
    timeline?.add({ track: 'trainer', name, start, end: performance.now(), ...(args && { detail: args }) })
    span?.end(args)
  }
  return { end }
}
