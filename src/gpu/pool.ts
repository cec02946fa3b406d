/** Buffers with an explicit lifetime. Everything on the GPU is counted here, so that memory can be shown, limited and tested. */
import { GpuError, GpuMemoryError } from './errors.ts'

/** Most bytes in one binding: kernels count in 32 bits, and Metal would bind buffers of any size. */
export const widestBinding = 2 ** 32 - 4

let nextId = 1

/** A storage buffer. `release()` gives it back to its pool; using it afterwards is a bug that checks report. */
export class GpuBuffer {
  readonly id = nextId++
  readonly raw: GPUBuffer
  readonly bytes: number
  /** Where it begins in `raw`: scratch of plans shares buffers. */
  readonly start: number
  label: string
  released = false
  /** Commands recorded so far that write it: while the number stays, so does the content. Replays of plans do not count. */
  writes = 0
  readonly #onRelease: (buffer: GpuBuffer) => void
  constructor(raw: GPUBuffer, bytes: number, label: string, onRelease: (buffer: GpuBuffer) => void, start = 0) {
    this.raw = raw
    this.start = start
    this.bytes = bytes
    this.label = label
    this.#onRelease = onRelease
  }
  release(): void {
    if (this.released) throw new GpuError(`buffer '${this.label}' is released twice`)
    this.#onRelease(this)
  }
}

/** A 2-D storage texture: a weight (kernels/common/weight.wgsl), or activations staged for a CPU driver (kernels/matmul/stage.ts); never pooled. */
export class GpuTexture {
  readonly id = nextId++
  readonly raw: GPUTexture
  readonly view: GPUTextureView
  readonly bytes: number
  readonly label: string
  released = false
  /** Plans that copy into it: they must be released before it is. */
  plans = 0
  readonly #onRelease: (texture: GpuTexture) => void
  constructor(raw: GPUTexture, bytes: number, label: string, onRelease: (texture: GpuTexture) => void) {
    this.raw = raw
    this.view = raw.createView()
    this.bytes = bytes
    this.label = label
    this.#onRelease = onRelease
  }
  release(): void {
    if (this.released) throw new GpuError(`texture '${this.label}' is released twice`)
    this.released = true
    this.#onRelease(this)
    this.raw.destroy()
  }
}

/**
 * Hands out storage buffers by size class and takes them back.
 * - `bytesInUse` counts what callers hold, `bytesReserved` what the device holds for us (free buffers included).
 * - A released buffer may be handed out at once: commands run in the order they were recorded, so a later user cannot overtake.
 */
export class BufferPool {
  readonly #device: GPUDevice
  readonly #free = new Map<number, GpuBuffer[]>()
  /** While a plan is recorded: where buffers come from that are not `exact`. */
  scratch: { take(bytes: number, label: string): GpuBuffer } | undefined
  readonly #parts = new WeakMap<GpuBuffer, Map<string, GpuBuffer>>()
  readonly #staging = new Set<GpuTexture>()
  bytesInUse = 0
  bytesReserved = 0
  peakBytes = 0
  buffersMade = 0
  /** Bytes that may be reserved. */
  limitBytes = Infinity
  /** Called before the limit refuses anything: each releases what its owner can make again. */
  readonly relief = new Set<() => void>()

  readonly #onDestroy: (id: number) => void
  readonly #flush: () => void

  /**
   * @param onDestroy is told the id of every buffer and texture that is destroyed
   * @param flush sends the commands that may still use free buffers, before these are destroyed to make room
   */
  constructor(device: GPUDevice, onDestroy: (id: number) => void = () => {}, flush: () => void = () => {}) {
    this.#device = device
    this.#onDestroy = onDestroy
    this.#flush = flush
  }

  /** A buffer of at least `bytes` bytes with undefined content. `exact` ones are made to measure (weights). */
  acquire(bytes: number, label: string, options: { exact?: boolean } = {}): GpuBuffer {
    if (this.scratch && !options.exact) return this.scratch.take(bytes, label)
    const exactly = Math.max(16, Math.ceil(bytes / 16) * 16)
    // A class may pass the largest binding although the bytes asked for do not.
    const most = Math.min(this.#device.limits.maxStorageBufferBindingSize, widestBinding)
    const size = options.exact || (sizeClass(bytes) > most && exactly <= most) ? exactly : sizeClass(bytes)
    const list = options.exact ? undefined : this.#free.get(size)
    const known = list && takeOldest(list)
    if (!known) return this.#make(size, label, (b) => this.#giveBack(b, options.exact === true))
    known.released = false
    known.label = label
    this.#count(known.bytes, 0)
    return known
  }

  #make(size: number, label: string, onRelease: (buffer: GpuBuffer) => void): GpuBuffer {
    const max = this.#device.limits.maxBufferSize
    if (size > max)
      throw new GpuMemoryError(`buffer '${label}' needs ${size} bytes; this adapter makes buffers of at most ${max}`)
    this.#haveRoom(size, label)
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST
    const raw = this.#device.createBuffer({ size, usage, label })
    this.buffersMade++
    this.#count(size)
    return new GpuBuffer(raw, size, label, onRelease)
  }

  /** A storage texture of 16 bytes a texel, for weights or a cache. */
  texture(width: number, height: number, format: GPUTextureFormat, label: string): GpuTexture {
    return this.#makeTexture(width, height, format, label, true)
  }

  /**
   * A storage texture to stage activations in, which kernels keep between uses. It counts as reserved, and as in use while a plan copies into it
   * (`GpuTexture.plans`). Otherwise it is freed when a buffer needs its room, so whoever keeps it must check `released`. The room of one is never
   * taken for another: a kernel may be about to read both.
   */
  staging(width: number, height: number): GpuTexture {
    const texture = this.#makeTexture(width, height, 'rgba32float', 'staged', false)
    this.#staging.add(texture)
    return texture
  }

  /** Notes that a plan copies into a texture. @param held the plan's own set of such textures */
  hold(texture: GpuTexture, held: Set<GpuTexture>): void {
    if (held.has(texture)) return
    held.add(texture)
    if (texture.plans++ === 0 && this.#staging.has(texture)) this.#count(texture.bytes, 0)
  }

  /** Undoes `hold` for the textures of a released plan. */
  letGo(held: Set<GpuTexture>): void {
    for (const texture of held) if (--texture.plans === 0 && this.#staging.has(texture)) this.#count(-texture.bytes, 0)
  }

  #makeTexture(width: number, height: number, format: GPUTextureFormat, label: string, inUse: boolean): GpuTexture {
    const usage = GPUTextureUsage.STORAGE_BINDING | GPUTextureUsage.COPY_DST | GPUTextureUsage.COPY_SRC
    const bytes = width * height * 16
    this.#haveRoom(bytes, label, inUse)
    const raw = this.#device.createTexture({ size: [width, height], format, usage, label })
    const used = inUse ? bytes : 0
    this.#count(used, bytes)
    return new GpuTexture(raw, bytes, label, (texture) => {
      this.#count(-used, -bytes)
      this.#onDestroy(texture.id)
    })
  }

  /** Destroys the buffers nobody holds, and the staging textures that are in no plan. Commands that use them must have been sent. */
  trim(): void {
    this.#trim(true)
  }

  #trim(staging: boolean): void {
    for (const list of this.#free.values()) {
      for (const buffer of list) {
        this.#destroy(buffer)
      }
    }
    this.#free.clear()
    for (const texture of staging ? this.#staging : []) {
      if (texture.plans > 0) continue
      this.#staging.delete(texture)
      texture.release()
    }
    this.freeDestroyed()
  }

  /**
   * @param takesStaging whether the room of staging textures may be taken
   * @throws GpuMemoryError where so many bytes more are over the limit, even without what nobody holds
   */
  #haveRoom(bytes: number, label: string, takesStaging = true): void {
    const fits = (): boolean => this.bytesReserved + bytes <= this.limitBytes
    if (fits()) return
    this.#flush()
    this.#trim(takesStaging)
    if (fits()) return
    for (const give of this.relief) give()
    this.#trim(takesStaging)
    if (fits()) return
    const [asked, held, limit] = [bytes, this.bytesReserved, this.limitBytes].map((n) => `${(n / 2 ** 20).toPrecision(4)} MiB`)
    throw new GpuMemoryError(
      `'${label}' needs ${asked} of GPU memory, and ${held} of the ${limit} that the run may fill are taken`,
    )
  }

  #destroy(buffer: GpuBuffer): void {
    buffer.raw.destroy()
    this.bytesReserved -= buffer.bytes
    this.#onDestroy(buffer.id)
  }

  #count(used: number, reserved = used): void {
    this.bytesInUse += used
    this.bytesReserved += reserved
    this.peakBytes = Math.max(this.peakBytes, this.bytesInUse)
  }

  /** A buffer that plans take turns to use (scratch.ts); it counts as in use until `returnArena`. */
  makeScratch(bytes: number): GpuBuffer {
    return this.#make(bytes, 'scratch', () => {})
  }

  /** Part of such a buffer, as a GpuBuffer; the same object for the same part, so that bind groups are found again. */
  partOf(scratch: GpuBuffer, start: number, bytes: number): GpuBuffer {
    let parts = this.#parts.get(scratch)
    if (!parts) this.#parts.set(scratch, (parts = new Map()))
    const key = `${start}, ${bytes}`
    let part = parts.get(key)
    if (!part) parts.set(key, (part = new GpuBuffer(scratch.raw, bytes, 'scratch', (b) => (b.released = true), start)))
    return part
  }

  /** Destroys the scratch of plans. What they recorded must have been sent. */
  returnArena(arena: GpuBuffer[]): void {
    for (const buffer of arena) {
      this.bytesInUse -= buffer.bytes
      for (const part of this.#parts.get(buffer)?.values() ?? []) this.#onDestroy(part.id)
      this.#destroy(buffer)
    }
    if (arena.length > 0) this.freeDestroyed()
  }

  /**
   * Lets the driver free what was destroyed. Dawn does so when something that was submitted afterwards is done. Without this empty submit that
   * would be the next real one, and its buffers would be allocated while the old ones are still there.
   */
  freeDestroyed(): void {
    this.#device.queue.submit([])
  }

  #giveBack(buffer: GpuBuffer, exact: boolean): void {
    buffer.released = true
    this.bytesInUse -= buffer.bytes
    if (exact) {
      this.#destroy(buffer)
      return
    }
    const list = this.#free.get(buffer.bytes)
    if (list) list.push(buffer)
    else this.#free.set(buffer.bytes, [buffer])
  }
}

/** Takes the oldest buffer, so that the same work takes the same buffers and their bind groups are found again. */
function takeOldest(list: GpuBuffer[]): GpuBuffer | undefined {
  let first = 0
  for (let i = 1; i < list.length; i++) if (list[i].id < list[first].id) first = i
  return list.splice(first, 1)[0]
}

/** Rounds up to an eighth of a power of two: at most 14% waste, few classes. */
export function sizeClass(bytes: number): number {
  if (bytes <= 256) return 256
  const step = 2 ** Math.max(8, Math.floor(Math.log2(bytes)) - 3)
  return Math.ceil(bytes / step) * step
}
