/** Mappable buffers for read-backs; the last few are kept and used again where their size fits. */

/** Number of buffers kept. */
const kept = 8

export class ReadBuffers {
  readonly #device: GPUDevice
  readonly #free: GPUBuffer[] = []
  /** Buffers made so far. */
  made = 0

  constructor(device: GPUDevice) {
    this.#device = device
  }

  /** One of at least `size` bytes. */
  take(size: number): GPUBuffer {
    const known = this.#free.findIndex((b) => b.size >= size && b.size <= Math.max(4096, size * 2))
    if (known >= 0) return this.#free.splice(known, 1)[0]
    this.made++
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST
    return this.#device.createBuffer({ size: Math.max(256, size), usage })
  }

  /** Takes back a buffer, which must be unmapped. */
  give(buffer: GPUBuffer): void {
    this.#free.push(buffer)
    if (this.#free.length > kept) this.#free.shift()!.destroy()
  }
}
