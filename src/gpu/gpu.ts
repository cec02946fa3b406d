/**
 * The GPU device as the rest of the code sees it: buffers, kernels, recorded commands, read-back.
 * - Commands are recorded, and many are submitted together. `flush()` submits them; reading back flushes by itself.
 * - `record(fn)` keeps the commands of `fn` as a plan, which `replay(plan)` submits again without creating or looking up anything. Counts that were
 *   left open (size.ts) get their values at replay.
 * - A device error surfaces as a GpuError at the next read-back, with the kernels of the failed submit.
 */
import { openDevice, type GpuFacts, type OpenDevice, type OpenOptions } from './adapter.ts'
import { BindGroups } from './bind-groups.ts'
import { encode, follows, paddedBytes, rangeOf, UniformRing } from './commands.ts'
import type { Binding, BufferRange, Command, TextureRows, Workgroups } from './commands.ts'
import { DeviceErrors, withinMemory } from './device-errors.ts'
import { GpuError, type DeviceLostError } from './errors.ts'
import { keepYoungSpace } from './heap.ts'
import { encodeParams, KernelCache, type Kernel } from './kernel.ts'
import { Pace } from './pace.ts'
import { emptyPlan, fill, isEmpty, type Plan } from './plan.ts'
import { BufferPool, GpuBuffer, GpuTexture } from './pool.ts'
import { ReadBuffers } from './read-buffers.ts'
import { growArena, orAsBefore, PlacedScratch, ScratchTrace, type Piece } from './scratch.ts'
import { SecondCopies, takesSecondCopies } from './second-copies.ts'
import { DeviceShare } from './share.ts'
import { capacityOf, type Count } from './size.ts'
import { DispatchTimer, summed, type KernelTime } from './timing.ts'
import { GpuTrace } from './trace.ts'
import { WaitClock, type WaitFor } from './waits.ts'
import type { Constants } from './wgsl.ts'

export { follows, rangeOf, type Binding, type BufferRange, type Plan, type Workgroups }

/** The most commands in a submit; more would only delay the device. */
const maxPending = 512
/** Dawn's instances, one for each device. The binding polls an instance for events even after its device is closed, so it must never be collected. */
const instances: GPU[] = []

export class Gpu {
  readonly device: GPUDevice
  readonly facts: GpuFacts
  readonly checks: boolean
  readonly pool: BufferPool
  /** Decides whose commands are submitted next if an engine and a trainer use this device at the same time. */
  readonly share = new DeviceShare()
  readonly kernels: KernelCache
  submits = 0
  dispatches = 0
  /** Changes with each recording, replay and cut. What is staged in a buffer or texture can be relied on only within one epoch. */
  epoch = 0
  #pending: Command[] = []
  readonly #groups: BindGroups
  readonly #timer: DispatchTimer<string> | undefined
  readonly #copies: SecondCopies | undefined
  readonly #pace: Pace | undefined // on GPUs: ends a submit before it takes too long
  readonly #trace: GpuTrace
  readonly #errors: DeviceErrors
  /** The plan that is being recorded. */
  #recording: Plan | undefined
  /** Set during the first of a recording's two runs, which only notes its scratch. */
  #tracing: ScratchTrace | undefined
  readonly #uniforms: UniformRing | undefined
  readonly #readBuffers: ReadBuffers
  /** On software adapters most of a wait is slept through (waits.ts). `#sent` counts first submits of kernels, at which these are compiled. */
  readonly #waits = new WaitClock()
  #sent = 0

  static async open(options: OpenOptions = {}): Promise<Gpu> {
    const opened = await openDevice(options)
    if (opened.facts.software) keepYoungSpace()
    return new Gpu(opened)
  }

  constructor(opened: OpenDevice) {
    instances.push(opened.gpu)
    this.device = opened.device
    this.#errors = new DeviceErrors(opened.device)
    this.facts = opened.facts
    this.checks = opened.checks
    this.#groups = new BindGroups(this.device, this.facts.limits)
    this.#readBuffers = new ReadBuffers(this.device)
    this.pool = new BufferPool(
      this.device,
      (id) => this.#groups.forget(id),
      () => this.flush(),
    )
    this.kernels = new KernelCache(this.device, this.facts, this.checks ? undefined : opened.another)
    this.kernels.onError = (error) => this.#errors.report(error)
    this.#uniforms = this.kernels.uniformLayout && new UniformRing(this.device, this.kernels.uniformLayout)
    if (this.facts.timestamps) this.#timer = new DispatchTimer(this.device, ({ kernel }) => kernel.label)
    if (!this.checks && takesSecondCopies(this.facts)) this.#copies = new SecondCopies(this.device)
    if (!this.facts.software) this.#pace = new Pace()
    this.#trace = new GpuTrace(this.device, this.facts.timestamps, () => this.pool.bytesInUse)
  }

  /** Why the device is gone; undefined while it works. */
  get lost(): DeviceLostError | undefined {
    return this.#errors.lost
  }
  /** The first error that the device reported. Nothing on the device can be relied on after it. */
  get failure(): GpuError | undefined {
    return this.#errors.first
  }

  get bindGroups(): number {
    return this.#groups.size
  }
  get readBuffersMade(): number {
    return this.#readBuffers.made
  }

  kernel(path: string, constants: Constants = {}): Kernel {
    return this.kernels.get(path, constants, this.#tracing !== undefined, this.facts.shuffled)
  }

  /** Takes a buffer from the pool and writes `data` to it. */
  upload(data: ArrayBufferView, label: string, options: { exact?: boolean } = {}): GpuBuffer {
    const buffer = this.pool.acquire(data.byteLength, label, options)
    this.write(buffer, data)
    return buffer
  }

  /** Writes to a buffer, after everything recorded so far (while a plan is recorded: at once). Pads with zeros to a multiple of 4 bytes. */
  write(buffer: GpuBuffer, data: ArrayBufferView, offset = 0): void {
    if (data.byteLength === 0) return
    this.#alive(buffer, 'write')
    this.flush()
    buffer.writes++
    if (!this.#tracing) this.device.queue.writeBuffer(buffer.raw, buffer.start + offset, paddedBytes(data))
  }

  /**
   * Records a kernel.
   * @param bindings one for each `@binding`, in order; one dispatch must not both read and write the same buffer
   * @param params the fields of the kernel's `struct Params`
   * @throws GpuError for a missing parameter, a wrong number of bindings, a binding over the adapter's limit, or a `Size` outside of a plan
   */
  dispatch(kernel: Kernel, bindings: Binding[], params: Record<string, Count>, workgroups: Workgroups): void {
    const [x, y, z] = [workgroups[0], workgroups[1] ?? 1, workgroups[2] ?? 1].map(capacityOf)
    if (x === 0 || y === 0 || z === 0) return
    this.#errors.throwIfAny()
    if (x > 65535 || y > 65535 || z > 65535) throw new GpuError(`${kernel.label}: ${x} x ${y} x ${z} workgroups are too many`)
    if (this.#tracing) {
      const buffers = bindings.map((b) => (b instanceof GpuTexture ? undefined : rangeOf(b).buffer))
      return this.#tracing.together(buffers, (i) => kernel.bindings[i]?.kind === 'read_write')
    }
    this.dispatches++
    bindings.forEach((b, i) => {
      if (kernel.bindings[i]?.kind === 'read_write' && !(b instanceof GpuTexture))
        (b instanceof GpuBuffer ? b : b.buffer).writes++
    })
    if (this.checks) for (const b of bindings) if (!(b instanceof GpuTexture)) this.#alive(rangeOf(b).buffer, kernel.label)
    const group = this.#groups.of(kernel, bindings)
    const data = encodeParams(kernel, params, (count, put) => this.#open(count, put))
    const sizes: [number, number, number] = [x, y, z]
    workgroups.forEach((count, i) => this.#open(count, (n) => (sizes[i] = n)))
    this.#push({ kernel, group, params: data, workgroups: sizes })
  }

  /** If a count is open, notes how a replay sets its value. */
  #open(count: Count, put: (value: number) => void): void {
    if (typeof count === 'number') return
    if (!this.#recording)
      throw new GpuError(`'${count.variable.name}' has no value yet: counts may be left open only while a plan is recorded`)
    this.#recording.openings.add(count, put)
  }

  /** Records a copy between buffers. Sizes and offsets are in bytes, multiples of 4. */
  copy(source: Binding, sourceOffset: number, target: Binding, targetOffset: number, bytes: Count): void {
    const [s, t] = [rangeOf(source), rangeOf(target)]
    this.#alive(s.buffer, 'copy')
    this.#alive(t.buffer, 'copy')
    this.#tracing?.together([s.buffer, t.buffer], () => true)
    t.buffer.writes++
    const command = {
      source: s.buffer.raw,
      sourceOffset: s.buffer.start + s.offset + sourceOffset,
      target: t.buffer.raw,
      targetOffset: t.buffer.start + t.offset + targetOffset,
      bytes: capacityOf(bytes),
    }
    this.#open(bytes, (n) => (command.bytes = n))
    this.#push(command)
  }

  /** Records a copy of rows of a buffer into a texture. */
  copyToTexture(
    source: Binding,
    texture: GpuTexture,
    { offset = 0, bytesPerRow, rows, texels, origin = [0, 0] }: TextureRows,
  ): void {
    const { buffer, offset: start } = rangeOf(source)
    this.#alive(buffer, 'copy')
    const most = capacityOf(rows)
    const layout = { offset: buffer.start + start + offset, bytesPerRow, rowsPerImage: most }
    const size: [number, number] = [texels, most]
    this.#open(rows, (n) => (size[1] = n))
    if (this.#recording && !this.#tracing) this.pool.hold(texture, this.#recording.textures)
    this.#push({ source: buffer.raw, layout, texture: texture.raw, origin, size })
  }

  /** Records the zeroing of a buffer or a part of one. */
  clear(binding: GpuBuffer | BufferRange): void {
    const { buffer, offset, bytes } = rangeOf(binding)
    this.#alive(buffer, 'clear')
    buffer.writes++
    this.#push({ clear: buffer.raw, offset: buffer.start + offset, bytes: Math.ceil(bytes / 4) * 4 })
  }

  /**
   * Runs `fn` and keeps its commands instead of submitting them. `fn` runs twice: the first run only notes its scratch (scratch.ts).
   * @param arena scratch shared with other plans, which must never run at the same time. Grows as needed; the caller returns it (`pool.returnArena`).
   *   Default: scratch of the plan's own, until `releasePlan`.
   * @param least the smallest size of a piece of scratch, in bytes (scratch.ts, `roomOf`)
   */
  record(fn: () => void, arena?: GpuBuffer[], least = 0): Plan {
    return this.recordAll([fn], arena, least)[0]
  }

  /** Records plans that are replayed one after another: a later plan may release scratch that an earlier one took. @param least as in `record` */
  recordAll(fns: (() => void)[], arena?: GpuBuffer[], least = 0): Plan[] {
    if (this.#recording) throw new GpuError('a plan is being recorded already')
    this.flush()
    const plans = fns.map(emptyPlan)
    let whole = false
    try {
      this.pool.scratch = new PlacedScratch(this.pool, this.#scratchOf(fns, least), arena ?? plans[0].arena, least)
      for (const [i, fn] of fns.entries()) this.#recordInto(plans[i], fn)
      whole = true
    } finally {
      this.pool.scratch = undefined
      if (!whole) plans.forEach((plan) => this.releasePlan(plan))
    }
    return plans
  }

  /**
   * Allocates what recording these plans needs, compiles their kernels, and waits until the device has confirmed the memory. Call it before plans
   * that may be too large. If the device refuses, the arena is as before.
   * @param used whether all of these plans are about to run @param least as in `record` @throws GpuMemoryError
   */
  async makeRoom(fns: () => (() => void)[], arena: GpuBuffer[], used = true, least = 0): Promise<void> {
    this.flush()
    const grow = () => withinMemory(this.device, () => growArena(this.pool, this.#scratchOf(fns(), least), arena))
    await orAsBefore(this.pool, arena, grow)
    await this.kernels.compile(used)
  }

  #scratchOf(fns: (() => void)[], least: number): Piece[] {
    const nothing = this.pool.acquire(16, 'nothing')
    try {
      const trace = (this.pool.scratch = this.#tracing = new ScratchTrace(nothing.raw, least))
      for (const fn of fns) this.#recordInto(emptyPlan(), fn)
      return trace.end()
    } finally {
      this.pool.scratch = this.#tracing = undefined
      nothing.release()
    }
  }

  #recordInto(plan: Plan, fn: () => void): void {
    this.#recording = plan
    this.epoch++
    try {
      fn()
      plan.commands = this.#pending
    } finally {
      this.#pending = []
      this.#recording = undefined
      this.epoch++
    }
  }

  /** Releases a plan's scratch. The plan must not be replayed afterwards. */
  releasePlan(plan: Plan): void {
    this.flush()
    this.pool.returnArena(plan.arena)
    this.pool.letGo(plan.textures)
    Object.assign(plan, emptyPlan())
  }

  /**
   * Records the commands of a plan again, without creating or looking up anything. They are submitted together with the commands before (if the plan
   * has no open counts) and after, unless that takes a GPU too long (pace.ts). Dispatches without workgroups and empty copies are left out.
   * @param values of the plan's open counts, by name
   * @param section only the commands between two cuts; sections must be recorded in order (share.ts)
   * @throws GpuError for a value that is missing, or larger than the capacity for which the plan was recorded
   */
  replay(plan: Plan, values: Record<string, number> = {}, section?: number): void {
    if (this.#recording) throw new GpuError('a plan that is being recorded cannot contain another plan')
    const { commands, cuts, openings } = plan
    this.epoch++
    if (!section) {
      // Commands of an earlier replay still contain its values.
      if (!openings.none) this.flush()
      fill(plan, values)
    }
    const isEnough = this.#pace?.begin(plan)
    const to = section === undefined ? commands.length : (cuts[section] ?? commands.length)
    for (let i = section ? cuts[section - 1] : 0; i < to; i++) {
      const command = commands[i]
      if (isEmpty(command)) continue
      if ('kernel' in command) this.dispatches++
      this.#pending.push(command)
      if (isEnough?.(command)) this.flush()
    }
  }

  /**
   * Ends a section of the plan being recorded. Other commands may run before the next section (`sendInSections`) and overwrite scratch that does not
   * belong to the plan (staged activations).
   */
  cut(): void {
    if (!this.#recording) return
    this.epoch++
    const { cuts } = this.#recording
    if (this.#pending.length > (cuts.at(-1) ?? 0)) cuts.push(this.#pending.length)
  }

  /** Submits what was recorded. */
  flush(): void {
    if (this.#recording || this.#pending.length === 0) return
    const commands = this.#pending.splice(0)
    this.#submit(commands)
    this.#trace.sent()
  }

  #submit(commands: Command[]): void {
    this.#errors.throwIfAny()
    const encoder = this.device.createCommandEncoder()
    const trace = this.#trace.begin(commands.length)
    const timer = this.#timer?.running ? this.#timer : (trace ?? this.#copies?.timer(commands))
    this.#sent += encode(encoder, commands, { uniforms: this.#uniforms, timer })
    this.submits++
    this.#pace?.sent(commands)
    this.#errors.within(this.checks ? commands : undefined, () => this.device.queue.submit([encoder.finish()]))
  }

  /**
   * Reads a buffer back, after everything recorded so far.
   * @param wait names the wait and its amount of work, from which its length is learned, to sleep through most of it (waits.ts)
   */
  async read(source: GpuBuffer | BufferRange, wait: string | WaitFor = 'read'): Promise<ArrayBuffer> {
    // The recording's second run will throw.
    if (this.#tracing) return new Promise(() => {})
    if (this.#recording) throw new GpuError('a plan that is being recorded has not run yet: nothing can be read back')
    const { buffer, offset, bytes } = rangeOf(source)
    this.#alive(buffer, 'read')
    const size = Math.ceil(bytes / 4) * 4
    const staging = this.#readBuffers.take(size)
    this.#push({ source: buffer.raw, sourceOffset: buffer.start + offset, target: staging, targetOffset: 0, bytes: size })
    this.flush()
    await this.#wait(wait, () => this.#errors.orError(staging.mapAsync(GPUMapMode.READ)))
    const copy = staging.getMappedRange().slice(0, bytes)
    staging.unmap()
    this.#readBuffers.give(staging)
    return copy
  }

  async readF32(source: GpuBuffer | BufferRange, length: number, wait?: string | WaitFor): Promise<Float32Array> {
    const { buffer, offset } = rangeOf(source)
    return new Float32Array(await this.read({ buffer, offset, bytes: length * 4 }, wait))
  }

  /** Waits until the device has done everything recorded so far. */
  async sync(wait: string | WaitFor = 'sync'): Promise<void> {
    this.flush()
    await this.#wait(wait, () => this.#errors.orError(this.device.queue.onSubmittedWorkDone()))
  }

  /** Times every kernel that `fn` runs. (Each runs in a pass of its own, so the sum is slightly too high.) */
  async profile(fn: () => Promise<void>): Promise<KernelTime[]> {
    if (!this.#timer) throw new GpuError(`${this.facts.name} has no timestamp queries`)
    this.flush()
    return summed(await this.#timer.spans(() => fn().then(() => this.sync())))
  }

  /** Destroys the device. The process can exit afterwards. */
  close(): void {
    this.#errors.closing()
    this.device.destroy()
  }

  /** With checks on: @throws GpuError if a released buffer is used */
  #alive(buffer: GpuBuffer, user: string): void {
    if (this.checks && buffer.released) throw new GpuError(`${user} uses '${buffer.label}' after it was released`)
  }

  #push(command: Command): void {
    if (this.#tracing) return
    this.#pending.push(command)
    if (this.#pending.length >= maxPending) this.flush()
  }

  async #wait(wait: string | WaitFor, start: () => Promise<unknown>): Promise<void> {
    const traced = this.#trace.wait(wait)
    const over = this.#pace?.wait()
    if (this.#pace) await start() // a GPU, which needs no core that Dawn spins on
    else await this.#waits.through(typeof wait === 'string' ? { name: wait, work: 1 } : wait, start, this.#sent)
    over?.()
    traced?.end()
  }
}
