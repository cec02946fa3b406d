/**
 * Records what happened when, for a picture of a few steps (`--trace`): spans, flights and counters, in Chrome's Trace Event format
 * (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which chrome://tracing and ui.perfetto.dev display.
 * - `tracer` is the process's tracer while a trace is recorded, and undefined otherwise. Code calls `tracer?.span(...)`, which without a trace costs
 *   one check. It is a module variable because otherwise rollouts, kernels and steps would all have to pass it on, nearly always for nothing.
 * - A span lies on a track. Spans of a track can only nest, as they belong to one flow of control. Flights (rollouts, waits) overlap freely, and have ids.
 * - Whatever is still open when the trace ends is closed then and marked `unfinished`. What began before the trace is left out.
 */

/** Tracks of spans: the steps of the run with their phases, and what JavaScript does between two turns of the event loop. */
export type Track = 'steps' | 'JavaScript'
export type TraceArgs = Record<string, string | number | boolean | null>
/** `kernels`: GPU time of every dispatch, each in a compute pass of its own. `passes`: GPU time of the passes as they are, which changes nothing. */
export type TraceLevel = 'kernels' | 'passes'

/** An event of the Trace Event format. Times are in microseconds since the trace began. */
export interface TraceEvent {
  ph: 'X' | 'b' | 'e' | 'C' | 'M' | 's' | 'f'
  name: string
  pid: number
  tid: number
  ts: number
  dur?: number
  cat?: string
  id?: number
  bp?: 'e'
  args?: TraceArgs
}

/** Something that has begun. A second `end`, or one after the trace, has no effect. */
export interface Span {
  end(args?: TraceArgs): void
}

/** A span with phases, which may overlap other spans. */
export interface Flight extends Span {
  /** Ends the current phase of the flight, and begins the next. */
  phase(name: string): void
}

/** The process ids in the trace under which our own tracks and the GPU's are shown. */
const ours = 1
export const gpuProcess = 2
const tracks: readonly Track[] = ['steps', 'JavaScript']

/** The tracer while a trace is recorded. */
export let tracer: Tracer | undefined

/** Begins a trace. @throws Error if one is being recorded already */
export function startTrace(options: { level: TraceLevel; maxEvents: number }): Tracer {
  if (tracer) throw new Error('a trace is being recorded already')
  tracer = new Tracer(options)
  return tracer
}

/** Ends the trace that is being recorded. Its `finish` returns the events. */
export function stopTrace(): Tracer | undefined {
  const stopped = tracer
  tracer = undefined
  return stopped
}

const nothing: Flight = { end: () => {}, phase: () => {} }

/** Records the events of a trace, up to `maxEvents`. */
export class Tracer {
  readonly level: TraceLevel
  /** Whose GPU commands are being recorded at the moment. */
  author: 'trainer' | 'engine' = 'trainer'
  /** Whether events were left out because there were `maxEvents` already. */
  full = false
  /** Remarks on the trace, such as how exact it is. */
  readonly notes: string[] = []
  readonly #start = performance.now()
  readonly #maxEvents: number
  readonly #events: TraceEvent[] = []
  readonly #open = new Set<Span>()
  /** Number of events recorded or reserved. */
  #taken = 0
  #ids = 0
  readonly #finishers: (() => Promise<TraceEvent[]>)[] = []

  constructor({ level, maxEvents }: { level: TraceLevel; maxEvents: number }) {
    this.level = level
    this.#maxEvents = maxEvents
    this.#name(ours, 0, 'process_name', 'dawn-rl')
    tracks.forEach((track, i) => this.#name(ours, i + 1, 'thread_name', track))
  }

  /** Microseconds since the trace began. */
  now(): number {
    return (performance.now() - this.#start) * 1000
  }

  /** An id for events that belong together. */
  nextId(): number {
    return ++this.#ids
  }

  /** Reserves room for events. Returns false if there is none left, and the events must be left out. */
  take(count: number): boolean {
    if (this.#taken + count > this.#maxEvents) this.full = true
    if (!this.full) this.#taken += count
    return !this.full
  }

  /** Begins a span. It must end before all spans that are already open on its track. */
  span(track: Track, name: string, args?: TraceArgs): Span {
    if (!this.take(1)) return nothing
    const ts = this.now()
    const tid = tracks.indexOf(track) + 1
    return this.#opened((more) =>
      this.#events.push({ ph: 'X', name, pid: ours, tid, ts, dur: this.now() - ts, args: more ? { ...args, ...more } : args }),
    )
  }

  /** Begins a flight, which may overlap others of its category. */
  flight(category: string, name: string, args?: TraceArgs): Flight {
    if (!this.take(2)) return nothing
    const common = { cat: category, pid: ours, tid: 0, id: this.nextId() }
    const put = (ph: 'b' | 'e', what: string, more?: TraceArgs): void => {
      this.#events.push({ ph, name: what, ts: this.now(), args: more, ...common })
    }
    let phase: string | undefined
    const endPhase = (): void => {
      if (phase !== undefined) put('e', phase)
      phase = undefined
    }
    put('b', name, args)
    const flight = this.#opened((more) => {
      endPhase()
      put('e', name, more)
    })
    const next = (what: string): void => {
      if (!this.#open.has(flight)) return
      endPhase()
      if (this.take(2)) put('b', (phase = what))
    }
    return { end: (more) => flight.end(more), phase: next }
  }

  /** Records the current values of a counter. */
  counter(name: string, values: Record<string, number>): void {
    if (this.take(1)) this.#events.push({ ph: 'C', name, pid: ours, tid: 0, ts: this.now(), args: values })
  }

  /** Links two spans by an arrow (`s` to `f`, with the same id), from the span that was open at `ts` to the GPU's span that resulted from it. */
  link(id: number, ts: number): void {
    const tid = tracks.indexOf('JavaScript') + 1
    if (this.take(1)) this.#events.push({ ph: 's', name: 'submit', cat: 'submit', pid: ours, tid, ts, id })
  }

  /** Registers events that are known only at the end, for which room was reserved with `take`. */
  onFinish(events: () => Promise<TraceEvent[]>): void {
    this.#finishers.push(events)
  }

  /** Closes what is still open, and returns all events by time, after the names of processes and tracks. To be called after `stopTrace`. */
  async finish(): Promise<TraceEvent[]> {
    for (const span of [...this.#open].toReversed()) span.end({ unfinished: true })
    const late = await Promise.all(this.#finishers.map((events) => events()))
    const rank = (event: TraceEvent): number => (event.ph === 'M' ? -1 : event.ts)
    return [...this.#events, ...late.flat()].toSorted((a, b) => rank(a) - rank(b) || (b.dur ?? 0) - (a.dur ?? 0))
  }

  #opened(close: (args?: TraceArgs) => void): Span {
    const span: Span = { end: (args) => this.#open.delete(span) && close(args) }
    this.#open.add(span)
    return span
  }

  #name(pid: number, tid: number, what: 'process_name' | 'thread_name', name: string): void {
    this.#events.push({ ph: 'M', name: what, pid, tid, ts: 0, args: { name } })
  }
}
