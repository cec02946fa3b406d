/** Buffers with explicit lifetimes. Everything on the GPU is counted here, so that memory can be shown, limited and tested. */
import { GpuError, GpuMemoryError } from './errors.ts'

/** The most bytes in one binding. Kernels count in 32 bits, while Metal would bind buffers of any size. */
export const widestBinding = 2 ** 32 - 4

let nextId = 1

/** A storage buffer. `release()` returns it to its pool. Using it afterwards is a bug, which checks report. */
export class GpuBuffer {
  readonly id = nextId++
  readonly raw: GPUBuffer
  readonly bytes: number
  /** Where it starts in `raw`, since scratch of plans shares buffers. */
  readonly start: number
  label: string
  released = false
  /** Number of recorded commands that write to it; as long as it does not change, neither do the contents. Replays of plans do not count. */
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

/** A 2-D storage texture, never pooled: a weight (kernels/common/weight.wgsl), a KV cache, or staged activations (kernels/matmul/stage.ts). */
export class GpuTexture {
  readonly id = nextId++
  readonly raw: GPUTexture
  readonly view: GPUTextureView
  readonly bytes: number
  readonly label: string
  released = false
  /** Number of plans that copy into it. They must be released before the texture is. */
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
 * Hands out storage buffers by size class, and takes them back.
 * - `bytesInUse` counts what callers hold; `bytesReserved` what is allocated on the device, including free buffers.
 * - A released buffer may be handed out again at once: commands run in the order of recording, so its next user cannot overtake the last one.
 */
export class BufferPool {
  readonly #device: GPUDevice
  readonly #free = new Map<number, GpuBuffer[]>()
  /** While a plan is recorded: the source of all buffers that are not `exact`. */
  scratch: { take(bytes: number, label: string): GpuBuffer } | undefined
  readonly #parts = new WeakMap<GpuBuffer, Map<string, GpuBuffer>>()
  readonly #staging = new Set<GpuTexture>()
  /** Within `orNothing`: what it would release. */
  #taken: Set<GpuBuffer> | undefined
  bytesInUse = 0
  bytesReserved = 0
  peakBytes = 0
  buffersMade = 0
  /** The most bytes that may be reserved. */
  limitBytes = Infinity
  /** Called before an allocation is refused because of the limit. Each callback releases what its owner can recreate. */
  readonly relief = new Set<() => void>()

  readonly #onDestroy: (id: number) => void
  readonly #flush: () => void

  /**
   * @param onDestroy called with the id of every buffer and texture that is destroyed
   * @param flush submits the commands that may still use free buffers, before these are destroyed to make room
   */
  constructor(device: GPUDevice, onDestroy: (id: number) => void = () => {}, flush: () => void = () => {}) {
    this.#device = device
    this.#onDestroy = onDestroy
    this.#flush = flush
  }

  /**
   * A buffer of at least `bytes` bytes with undefined contents. `exact` buffers (weights) get no extra bytes for a size class. @throws GpuMemoryError
   */
  acquire(bytes: number, label: string, options: { exact?: boolean } = {}): GpuBuffer {
    if (this.scratch && !options.exact) return this.scratch.take(bytes, label)
    const exactly = Math.max(16, Math.ceil(bytes / 16) * 16)
    // The size class may exceed the largest binding even if the requested size does not.
    const most = Math.min(this.#device.limits.maxStorageBufferBindingSize, widestBinding)
    const size = options.exact || (sizeClass(bytes) > most && exactly <= most) ? exactly : sizeClass(bytes)
    const list = options.exact ? undefined : this.#free.get(size)
    const known = list && takeOldest(list)
    const buffer = known ?? this.#make(size, label, (b) => this.#giveBack(b, options.exact === true))
    if (!options.exact) this.#taken?.add(buffer)
    if (!known) return buffer
    known.released = false
    known.label = label
    this.#count(known.bytes, 0)
    return known
  }

  /** Runs `fn`. If it throws, as when memory runs out, the buffers that it acquired and did not release are released, except `exact` ones. */
  orNothing<T>(fn: () => T): T {
    const taken = (this.#taken = new Set())
    try {
      return fn()
    } catch (error) {
      for (const buffer of taken) buffer.release()
      throw error
    } finally {
      this.#taken = undefined
    }
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

  /** A storage texture with 16 bytes per texel, for weights or a KV cache. @throws GpuMemoryError */
  texture(width: number, height: number, format: GPUTextureFormat, label: string): GpuTexture {
    return this.#makeTexture(width, height, format, label, true)
  }

  /**
   * A storage texture for staging activations, which kernels keep between uses. It counts as reserved, and as in use while a plan copies into it
   * (`GpuTexture.plans`). Otherwise it is destroyed when a buffer needs its memory, so its owner must check `released`. It is never destroyed to make
   * room for another staging texture, as a kernel may be about to read both.
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

  /** Destroys buffers that nobody holds, and staging textures that are in no plan. Commands that use them must have been submitted. */
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
   * Makes room within the limit for this many more bytes.
   * @param takesStaging whether staging textures may be destroyed for it
   * @throws GpuMemoryError if it exceeds the limit even without everything that nobody holds
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
      `'${label}' needs ${asked} of GPU memory, but ${held} of the ${limit} that the run may use are taken`,
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

  /** A buffer that plans take turns to use (scratch.ts). It counts as in use until `returnArena`. */
  makeScratch(bytes: number): GpuBuffer {
    return this.#make(bytes, 'scratch', () => {})
  }

  /** A part of such a buffer as a GpuBuffer. The same part is always the same object, so that its bind groups are found again. */
  partOf(scratch: GpuBuffer, start: number, bytes: number): GpuBuffer {
    let parts = this.#parts.get(scratch)
    if (!parts) this.#parts.set(scratch, (parts = new Map()))
    const key = `${start}, ${bytes}`
    let part = parts.get(key)
    if (!part) parts.set(key, (part = new GpuBuffer(scratch.raw, bytes, 'scratch', (b) => (b.released = true), start)))
    return part
  }

  /** Destroys the scratch of plans. The commands that use it must have been submitted. */
  returnArena(arena: GpuBuffer[]): void {
    for (const buffer of arena) {
      this.bytesInUse -= buffer.bytes
      for (const part of this.#parts.get(buffer)?.values() ?? []) this.#onDestroy(part.id)
      this.#destroy(buffer)
    }
    if (arena.length > 0) this.freeDestroyed()
  }

  /**
   * Lets the driver free what was destroyed. Dawn does so once something submitted later is done. Without this empty submit that would be the next
   * real one, whose buffers would be allocated while the old ones still exist.
   */
  freeDestroyed(): void {
    this.#device.queue.submit([])
  }

  #giveBack(buffer: GpuBuffer, exact: boolean): void {
    buffer.released = true
    this.#taken?.delete(buffer)
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

/** Takes the oldest buffer, so that the same work gets the same buffers and their bind groups are found again. */
function takeOldest(list: GpuBuffer[]): GpuBuffer | undefined {
  let first = 0
  for (let i = 1; i < list.length; i++) if (list[i].id < list[first].id) first = i
  return list.splice(first, 1)[0]
}

/** Rounds up to an eighth of a power of two (at least to a multiple of 256): few classes, and from 2 KiB on at most 12.5% waste. */
export function sizeClass(bytes: number): number {
  if (bytes <= 256) return 256
  const step = 2 ** Math.max(8, Math.floor(Math.log2(bytes)) - 3)
  return Math.ceil(bytes / step) * step
}
