/**
 * Mappable buffers for read-backs. The last few are kept and reused if their size fits, except large ones: a checkpoint reads weights and moments, and
 * their buffers would hold as much memory until the next one.
 */

/** Number of buffers kept, and the largest size that is. A step reads some numbers per token. */
const kept = 8
const mostBytes = 4 * 2 ** 20

export class ReadBuffers {
  readonly #device: GPUDevice
  readonly #free: GPUBuffer[] = []
  /** Number of buffers created so far. */
  made = 0

  constructor(device: GPUDevice) {
    this.#device = device
  }

  /** A buffer of at least `size` bytes. */
  take(size: number): GPUBuffer {
    const known = this.#free.findIndex((b) => b.size >= size && b.size <= Math.max(4096, size * 2))
    if (known >= 0) return this.#free.splice(known, 1)[0]
    this.made++
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST
    return this.#device.createBuffer({ size: Math.max(256, size), usage })
  }

  /** Returns a buffer, which must be unmapped. */
  give(buffer: GPUBuffer): void {
    if (buffer.size > mostBytes) return buffer.destroy()
    this.#free.push(buffer)
    if (this.#free.length > kept) this.#free.shift()!.destroy()
  }
}
