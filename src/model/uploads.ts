/** Bounds what a model's tensors take beside their places on the device while they are written there. */
import type { Gpu } from '../gpu/gpu.ts'
import { collectYoung } from '../gpu/heap.ts'

/** Bytes that may wait on the device to be copied into their places; without a bound the driver holds a model twice, and what was read of the files is a third. */
const mostWaiting = 16 * 2 ** 20

export class Uploads {
  readonly #gpu: Gpu
  #waiting = 0

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
  }
}
