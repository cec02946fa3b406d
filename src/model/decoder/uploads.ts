/** Bounds the memory that loading a model takes beside the model itself: staging buffers of the driver, and what was read of the files. */
import { arrayBytes, collectAll, collectYoung } from '../../gpu/heap.ts'
import type { Gpu } from '../../gpu/gpu.ts'

/** Bytes that may wait in staging buffers. Without a bound the driver would hold the model twice, and what was read of the files would be a third copy. */
const mostWaiting = 4 * 2 ** 20
/** Bytes of dead arrays that may pile up before a full collection: an array that survived two minor ones (a large tensor does) is only freed by that. */
const mostPiled = 32 * 2 ** 20

export class Uploads {
  readonly #gpu: Gpu
  #waiting = 0
  /** Bytes of arrays that were left after the last full collection. */
  #kept = arrayBytes()

  constructor(gpu: Gpu) {
    this.#gpu = gpu
  }

  /** Notes a tensor that was read, and will be written. */
  add(bytes: number): void {
    this.#waiting += bytes
  }

  /** To be awaited before another tensor is read: where many bytes wait, until they are copied, and frees what was read of the files. */
  async room(): Promise<void> {
    if (this.#waiting < mostWaiting) return
    this.#waiting = 0
    await this.#gpu.sync('loading')
    collectYoung()
    this.#collect(mostPiled)
  }

  /** Waits until all is copied, and frees what was read of the files and Dawn's staging buffers. */
  async done(): Promise<void> {
    await this.#gpu.sync('loading')
    // Dawn notices with one submit that a staging buffer (4 MiB each, nine for SmolLM2) is done with, and destroys it with the next one: without these
    // two they would still be there beside what the first step allocates. The waits have a name of their own: under 'loading', whose usual length
    // is slept through (gpu/waits.ts), their near 0 would be learned as the time that loading takes.
    for (let turn = 0; turn < 2; turn++) {
      this.#gpu.pool.freeDestroyed()
      await this.#gpu.sync('freeing')
    }
    // For a small model a collection would take longer than loading it.
    this.#collect(mostWaiting)
  }

  #collect(most: number): void {
    if (arrayBytes() - this.#kept <= most) return
    collectAll()
    this.#kept = arrayBytes()
  }
}
