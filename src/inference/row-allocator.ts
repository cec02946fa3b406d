/** Hands out ranges of rows of the KV cache: first fit, neighbours joined again when they come back. */

export class RowAllocator {
  readonly capacity: number
  /** Rows handed out. */
  used = 0
  /** Free ranges by start, never touching one another. */
  #free: { start: number; rows: number }[]

  constructor(capacity: number) {
    this.capacity = capacity
    this.#free = [{ start: 0, rows: capacity }]
  }

  /** The first row of a range of `rows` rows, or undefined where no free range is that long. */
  allocate(rows: number): number | undefined {
    const range = this.#free.find((r) => r.rows >= rows)
    if (!range) return undefined
    const { start } = range
    range.start += rows
    range.rows -= rows
    if (range.rows === 0) this.#free.splice(this.#free.indexOf(range), 1)
    this.used += rows
    return start
  }

  /** Takes back a range that `allocate` gave. */
  release(start: number, rows: number): void {
    let at = this.#free.findIndex((r) => r.start > start)
    if (at < 0) at = this.#free.length
    const [before, after] = [this.#free[at - 1], this.#free[at]]
    if ((before && before.start + before.rows > start) || (after && start + rows > after.start) || start + rows > this.capacity) {
      throw new Error(`KV rows ${start} to ${start + rows - 1} are given back, but some of them are free`)
    }
    this.#free.splice(at, 0, { start, rows })
    this.used -= rows
    if (after && start + rows === after.start) {
      this.#free[at].rows += after.rows
      this.#free.splice(at + 1, 1)
    }
    if (before && before.start + before.rows === start) {
      before.rows += this.#free[at].rows
      this.#free.splice(at, 1)
    }
  }

  /** Longest range that could be handed out now. */
  get longestFree(): number {
    return this.#free.reduce((most, r) => Math.max(most, r.rows), 0)
  }
}
