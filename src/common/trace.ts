/**
 * What happened when, for a picture of a few steps (`--trace`): spans, flights and counters, in the words of Chrome's Trace Event format
 * (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which chrome://tracing and ui.perfetto.dev draw.
 * - `tracer` is the one tracer of the process while it records and undefined else. Rooms ask `tracer?.span(...)`: without a trace that is one check.
 *   It is a variable of the module and no parameter, because a rollout, a kernel and a step would all have to carry it, nearly always in vain.
 * - A span lies on a track, where spans only nest: those of one flow of control. Flights (rollouts, waits) overlap freely, each with an id.
 * - What is still open at the end is closed there and marked `unfinished`; what began before the start is left out.
 */

/** Tracks of spans: the steps of the run with their phases, and what JavaScript does between two turns of the event loop. */
export type Track = 'steps' | 'JavaScript'
export type TraceArgs = Record<string, string | number | boolean | null>
/** `kernels`: the GPU's time of every dispatch, each in a pass of its own. `passes`: of the passes as they are, which changes nothing. */
export type TraceLevel = 'kernels' | 'passes'

/** An event of the format; times in microseconds since the trace began. */
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

/** Something that has begun. A second `end`, or one after the trace, does nothing. */
export interface Span {
  end(args?: TraceArgs): void
}

export interface Flight extends Span {
  /** Ends the phase before, and begins one within the flight. */
  phase(name: string): void
}

/** The process of the picture that holds our own tracks, and that of the GPU's. */
const ours = 1
export const gpuProcess = 2
const tracks: readonly Track[] = ['steps', 'JavaScript']

/** The tracer while a trace is recorded. */
export let tracer: Tracer | undefined

/** Begins a trace. @throws Error where one is recorded already */
export function startTrace(options: { level: TraceLevel; maxEvents: number }): Tracer {
  if (tracer) throw new Error('a trace is being recorded already')
  tracer = new Tracer(options)
  return tracer
}

/** Ends the trace that is recorded; `finish` has its events. */
export function stopTrace(): Tracer | undefined {
  const stopped = tracer
  tracer = undefined
  return stopped
}

const nothing: Flight = { end: () => {}, phase: () => {} }

export class Tracer {
  readonly level: TraceLevel
  /** Who records GPU commands at the moment. */
  author: 'trainer' | 'engine' = 'trainer'
  /** Whether events were left out, because there were `maxEvents`. */
  full = false
  /** Sentences about the trace: how exact it is. */
  readonly notes: string[] = []
  readonly #start = performance.now()
  readonly #maxEvents: number
  readonly #events: TraceEvent[] = []
  readonly #open = new Set<Span>()
  /** Room that is taken: events there are, and those that are to come. */
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

  /** Takes room for events; false where there is none left, and they are to be left out. */
  take(count: number): boolean {
    if (this.#taken + count > this.#maxEvents) this.full = true
    if (!this.full) this.#taken += count
    return !this.full
  }

  /** Begins a span: one that ends before all that were open on its track. */
  span(track: Track, name: string, args?: TraceArgs): Span {
    if (!this.take(1)) return nothing
    const ts = this.now()
    const tid = tracks.indexOf(track) + 1
    return this.#opened((more) =>
      this.#events.push({ ph: 'X', name, pid: ours, tid, ts, dur: this.now() - ts, args: more ? { ...args, ...more } : args }),
    )
  }

  /** Begins something that runs beside others of its category. */
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

  /** Values of this moment. */
  counter(name: string, values: Record<string, number>): void {
    if (this.take(1)) this.#events.push({ ph: 'C', name, pid: ours, tid: 0, ts: this.now(), args: values })
  }

  /** A link between two spans (`s` to `f`, under one id): from the one that was open at `ts` to the one of the GPU that came of it. */
  link(id: number, ts: number): void {
    const tid = tracks.indexOf('JavaScript') + 1
    if (this.take(1)) this.#events.push({ ph: 's', name: 'submit', cat: 'submit', pid: ours, tid, ts, id })
  }

  /** Events that are known at the end only, whose room was taken before. */
  onFinish(events: () => Promise<TraceEvent[]>): void {
    this.#finishers.push(events)
  }

  /** Closes what is open; all events by time, names of processes and tracks first. To be called after `stopTrace`. */
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
