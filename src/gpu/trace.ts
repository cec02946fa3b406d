/**
 * The device's part of a trace (common/trace.ts): submits and waits as the host sees them, and the time of every kernel or pass from timestamps.
 * - The device's clock has its own origin. Each submit bounds its difference from the host's clock: it cannot have begun before it was sent, nor
 *   ended after it was known to be done. The largest lower bound is used, since a submit to an idle device comes close to it. The trace's note says
 *   how far off that may be, by the upper bounds.
 * - Timestamps are read when a wait for later work is over, so that nothing waits for them.
 */
import { gpuProcess, tracer, type Span, type TraceArgs, type TraceEvent, type Tracer } from '../common/trace.ts'
import type { Dispatch } from './commands.ts'
import { capacity, type PassTimer } from './timing.ts'
import type { WaitFor } from './waits.ts'

/** Buffers for the timestamps of up to `capacity / 2` passes on their way to the host; reused. */
interface Slots {
  set: GPUQuerySet
  resolved: GPUBuffer
  staging: GPUBuffer
}

/** Passes of a submit whose timestamps are in one query set. */
interface Batch {
  slots: Slots
  passes: { label: string; workgroups: string; more: number }[]
  submit: number
  author: Tracer['author']
  /** When it was sent, and when it was known to be done, in us by the host's clock. */
  sent: number
  done: number
}

/** A pass or a submit with its times by the device's clock, in us since the first timestamp. */
interface Timed {
  name: string
  track: string
  begin: number
  end: number
  args: TraceArgs
  link?: number
}

const tracks = ['submits', 'trainer', 'engine']

export class GpuTrace implements PassTimer {
  readonly #device: GPUDevice
  readonly #timestamps: boolean
  readonly #poolBytes: () => number
  #tracer: Tracer | undefined
  /** The last recorded value of the memory counter. */
  #bytes = 0
  readonly #free: Slots[] = []
  /** The batch being filled, then those resolved but not sent, sent, and being read. */
  #filling: Batch | undefined
  readonly #resolved: Batch[] = []
  #sent: Batch[] = []
  #reading: Promise<void>[] = []
  /** The submit being encoded. */
  #submit: { number: number; commands: number; span: Span } | undefined
  #timed: Timed[] = []
  /** The first timestamp, from which others are counted, and the bounds of the difference between the clocks, in us. */
  #origin: bigint | undefined
  #least = -Infinity
  #most = Infinity

  constructor(device: GPUDevice, timestamps: boolean, poolBytes: () => number) {
    this.#device = device
    this.#timestamps = timestamps
    this.#poolBytes = poolBytes
  }

  get each(): boolean {
    return this.#tracer!.level === 'kernels'
  }

  /** Called when a submit begins to be encoded. Returns its timer if a trace is recorded and has room. */
  begin(commands: number): PassTimer | undefined {
    if (!tracer) return undefined
    if (tracer !== this.#tracer) this.#start(tracer)
    const number = tracer.nextId()
    this.#submit = { number, commands, span: tracer.span('JavaScript', 'submit', { commands, by: tracer.author }) }
    return this.#timestamps && !tracer.full ? this : undefined
  }

  next(encoder: GPUCommandEncoder): GPUComputePassTimestampWrites {
    if (this.#filling && this.#filling.passes.length * 2 + 2 > capacity) this.resolve(encoder)
    this.#filling ??= {
      slots: this.#free.pop() ?? makeSlots(this.#device),
      passes: [],
      submit: this.#submit!.number,
      author: this.#tracer!.author,
      sent: 0,
      done: 0,
    }
    const { slots, passes } = this.#filling
    const begin = passes.length * 2
    passes.push({ label: '', workgroups: '', more: -1 })
    return { querySet: slots.set, beginningOfPassWriteIndex: begin, endOfPassWriteIndex: begin + 1 }
  }

  add({ kernel, workgroups }: Dispatch): void {
    const pass = this.#filling!.passes.at(-1)!
    if (++pass.more > 0) return
    pass.label = kernel.label
    pass.workgroups = workgroups.join(' x ')
  }

  resolve(encoder: GPUCommandEncoder): void {
    if (!this.#filling) return
    const { slots, passes } = this.#filling
    encoder.resolveQuerySet(slots.set, 0, passes.length * 2, slots.resolved, 0)
    encoder.copyBufferToBuffer(slots.resolved, 0, slots.staging, 0, passes.length * 16)
    this.#filling.sent = this.#tracer!.now()
    this.#resolved.push(this.#filling)
    this.#filling = undefined
  }

  /** Called when the submit has been sent to the device. */
  sent(): void {
    if (!this.#submit) return
    const { number, span } = this.#submit
    this.#submit = undefined
    const bytes = this.#poolBytes()
    if (bytes !== this.#bytes) this.#tracer!.counter('pool', { 'MiB in use': bytes / 2 ** 20 })
    this.#bytes = bytes
    if (this.#resolved.length > 0) this.#tracer!.link(number, this.#resolved[0].sent)
    span.end()
    for (const batch of this.#resolved.splice(0)) {
      // One event for each pass, one for the submit, and one for the end of its arrow.
      if (this.#tracer!.take(batch.passes.length + 2)) this.#sent.push(batch)
      else this.#free.push(batch.slots)
    }
  }

  /** Called when a wait for everything sent so far begins; `end` of the result when it is over. */
  wait(wait: string | WaitFor): { end(): void } | undefined {
    if (!tracer || tracer !== this.#tracer) return undefined
    const { name, work } = typeof wait === 'string' ? { name: wait, work: null } : wait
    const flight = tracer.flight('wait for the device', name, { work })
    const last = this.#sent.at(-1)
    const end = (): void => {
      flight.end()
      const until = last ? this.#sent.indexOf(last) + 1 : 0
      for (const batch of this.#sent.splice(0, until)) {
        batch.done = this.#tracer!.now()
        this.#reading.push(this.#read(batch))
      }
    }
    return { end }
  }

  #start(active: Tracer): void {
    this.#tracer = active
    this.#timed = []
    this.#bytes = 0
    this.#origin = undefined
    ;[this.#least, this.#most] = [-Infinity, Infinity]
    active.onFinish(() => this.#finish(active))
  }

  async #read(batch: Batch): Promise<void> {
    const { slots, passes, submit, author, sent } = batch
    // A lost device has no times; its error is reported elsewhere.
    const mapped = await slots.staging.mapAsync(GPUMapMode.READ, 0, passes.length * 16).then(
      () => true,
      () => false,
    )
    if (!mapped) return
    const stamps = new BigUint64Array(slots.staging.getMappedRange(0, passes.length * 16).slice(0))
    slots.staging.unmap()
    this.#free.push(slots)
    this.#origin ??= stamps[0]
    const times = Array.from(stamps, (stamp) => Number(stamp - this.#origin!) / 1000)
    const whole = { begin: Infinity, end: -Infinity }
    passes.forEach(({ label, workgroups, more }, i) => {
      const [begin, end] = [times[2 * i], times[2 * i + 1]]
      // An interrupted driver may leave a timestamp out.
      if (!(end >= begin) || stamps[2 * i] === 0n) return
      whole.begin = Math.min(whole.begin, begin)
      whole.end = Math.max(whole.end, end)
      // All variants of a file's kernel share a name, and so a colour and a sum; their constants are an argument.
      const [name, constants = ''] = label.slice(0, label.endsWith(')') ? -1 : undefined).split('(')
      const args: TraceArgs = more > 0 ? { dispatches: more + 1 } : { workgroups, constants }
      this.#timed.push({ name: more > 0 ? `${name} and ${more} more` : name, track: author, begin, end, args })
    })
    if (whole.end < whole.begin) return
    this.#least = Math.max(this.#least, sent - whole.begin)
    if (batch.done) this.#most = Math.min(this.#most, batch.done - whole.end)
    this.#timed.push({
      name: `submit ${submit}`,
      track: 'submits',
      ...whole,
      args: { by: author, passes: passes.length },
      link: submit,
    })
  }

  /** All timed events, by the host's clock. */
  async #finish(active: Tracer): Promise<TraceEvent[]> {
    for (const batch of this.#sent.splice(0)) this.#reading.push(this.#read(batch))
    await Promise.all(this.#reading.splice(0))
    for (const { set, resolved, staging } of this.#free.splice(0)) for (const made of [set, resolved, staging]) made.destroy()
    const [least, most] = [this.#least, this.#most]
    if (!this.#timestamps) active.notes.push('This adapter has no timestamp queries: the GPU has no tracks.')
    if (this.#timed.length === 0) return []
    const room = Math.abs(most - least).toFixed(0)
    const exact = `by the bounds of its submits it may lie up to ${room} us later`
    const drift = `its clock drifted by ${room} us against the host's, and the middle was taken`
    active.notes.push(`The GPU's tracks: ${most >= least ? exact : drift}.`)
    return layOut(this.#timed, most >= least ? least : (least + most) / 2)
  }
}

function makeSlots(device: GPUDevice): Slots {
  const size = capacity * 8
  return {
    set: device.createQuerySet({ type: 'timestamp', count: capacity }),
    resolved: device.createBuffer({ size, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC }),
    staging: device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }),
  }
}

/** Lays out events on the GPU's tracks. If two overlap (as independent passes may), the later one goes to another lane of its track. */
function layOut(timed: Timed[], offset: number): TraceEvent[] {
  const events: TraceEvent[] = [named('process_name', 0, 'GPU')]
  const lanes = tracks.map((): { tid: number; end: number }[] => [])
  const laneOf = (track: string, begin: number): { tid: number; end: number } => {
    const index = tracks.indexOf(track)
    const own = lanes[index]
    const free = own.find((lane) => lane.end <= begin)
    if (free) return free
    const made = { tid: 1 + index + own.length * tracks.length, end: 0 }
    own.push(made)
    events.push(named('thread_name', made.tid, own.length > 1 ? `${track} (${own.length})` : track))
    return made
  }
  for (const { name, track, begin, end, args, link } of timed.toSorted((a, b) => a.begin - b.begin)) {
    const lane = laneOf(track, begin)
    lane.end = end
    const place = { pid: gpuProcess, tid: lane.tid, ts: begin + offset }
    events.push({ ph: 'X', name, cat: track, ...place, dur: end - begin, args })
    if (link !== undefined) events.push({ ph: 'f', bp: 'e', name: 'submit', cat: 'submit', id: link, ...place })
  }
  return events
}

function named(what: string, tid: number, name: string): TraceEvent {
  return { ph: 'M', name: what, pid: gpuProcess, tid, ts: 0, args: { name } }
}
