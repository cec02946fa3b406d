/** Bounds what a model's tensors take beside their places on the device while they are written there. */
import { arrayBytes, collectAll, collectYoung } from '../gpu/heap.ts'
import type { Gpu } from '../gpu/gpu.ts'

/** Bytes that may wait on the device to be copied into their places; without a bound the driver holds a model twice, and what was read of the files is a third. */
const mostWaiting = 4 * 2 ** 20
/** Bytes of arrays that may have piled up: one that outlived two collections of young objects (a large tensor does) is not seen by a third. */
const mostPiled = 32 * 2 ** 20

export class Uploads {
  readonly #gpu: Gpu
  #waiting = 0
  /** Bytes of arrays that are there for good, as far as is known. */
  #kept = arrayBytes()

  constructor(gpu: Gpu) {
    this.#gpu = gpu
  }

  /** Notes a tensor that was read, and will be written. */
  add(bytes: number): void {
    this.#waiting += bytes
  }

  /** Waits, before another is read, until those that were written are in their places, where they are many; what was read of them is freed. */
  async room(): Promise<void> {
    if (this.#waiting < mostWaiting) return
    this.#waiting = 0
    await this.#gpu.sync('loading')
    collectYoung()
    this.#collect(mostPiled)
  }

  /** Waits until all are in their places, and frees what was read of them, and what Dawn wrote them through. */
  async done(): Promise<void> {
    await this.#gpu.sync('loading')
    // Dawn sees that a piece of what it wrote through (4 MiB each, nine of them for SmolLM2) is through with one submit, and destroys it with the next: else they lie
    // beside what a first step makes. Waits of another name, as nothing is computed: those that load would be slept through, and learn that loading takes no time.
    for (let turn = 0; turn < 2; turn++) {
      this.#gpu.pool.freeDestroyed()
      await this.#gpu.sync('freeing')
    }
    // A small model's load takes less time than a collection.
    this.#collect(mostWaiting)
  }

  #collect(most: number): void {
    if (arrayBytes() - this.#kept <= most) return
    collectAll()
    this.#kept = arrayBytes()
  }
}
