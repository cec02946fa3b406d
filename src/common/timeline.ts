/**
 * Who ran when, of every run (logs/timeline.jsonl): a few spans a rollout and a step, cheap enough to be always on; a trace (trace.ts) has what is finer.
 * `timeline` is a variable of the module for the same reason that `tracer` is one: nearly everything that happens would have to carry it.
 */
import { tracer, type Span, type TraceArgs } from './trace.ts'

export type TimelineTrack = 'orchestrator' | 'trainer' | 'engine' | 'environment'

/** Times of performance.now(), in milliseconds. */
export interface TimedSpan {
  track: TimelineTrack
  name: string
  start: number
  end: number
  /** The step that it was for; undefined: the current one. */
  step?: number
  detail?: TraceArgs
  /** One of many of its kind: it may be left out where they are too many, or too short to be seen. */
  fine?: boolean
}

/** Most spans kept between two steps, even where a run plays for hours before its first step. */
const mostSpans = 20_000

/** The timeline of the run that this process makes, if it makes one. */
export let timeline: Timeline | undefined

export function startTimeline(): Timeline {
  timeline = new Timeline()
  return timeline
}

export function stopTimeline(): void {
  timeline = undefined
}

export class Timeline {
  #spans: TimedSpan[] = []

  /** Something that is over. */
  add(span: TimedSpan): void {
    if (this.#spans.length < mostSpans) this.#spans.push(span)
  }

  /** What ended since the last call. */
  take(): TimedSpan[] {
    return this.#spans.splice(0)
  }
}

/** The step that a group of rollouts is for: '5.3', 'eval 5.name.3'. */
export const stepOfGroup = (group: string): number | undefined => {
  const step = /^(?:eval )?(\d+)\./.exec(group)?.[1]
  return step === undefined ? undefined : Number(step)
}

/** A phase of the trainer's step, on the timeline and in a trace. */
export function phase(name: string): Span {
  const span = tracer?.span('steps', name)
  const start = performance.now()
  const end = (args?: TraceArgs): void => {
    timeline?.add({ track: 'trainer', name, start, end: performance.now(), ...(args && { detail: args }) })
    span?.end(args)
  }
  return { end }
}
