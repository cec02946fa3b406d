/** A cache for what the viewer has read from large files. */

/** Keeps the most recently used values, up to a total weight. */
export class Cache<T> {
  readonly #most: number
  readonly #weigh: (value: T) => number
  readonly #items = new Map<string, T>()

  /** @param weigh the current weight of a value, which may grow between two calls of `get` */
  constructor(most: number, weigh: (value: T) => number) {
    this.#most = most
    this.#weigh = weigh
  }

  get(key: string, make: () => T): T {
    const value = this.#items.get(key) ?? make()
    this.#items.delete(key)
    this.#items.set(key, value)
    return value
  }

  delete(key: string): void {
    this.#items.delete(key)
  }

  /** Drops the least recently used values; the newest one stays, whatever it weighs. */
  trim(): void {
    let total = [...this.#items.values()].reduce((sum, value) => sum + this.#weigh(value), 0)
    for (const [key, value] of this.#items) {
      if (total <= this.#most || this.#items.size === 1) return
      this.#items.delete(key)
      total -= this.#weigh(value)
    }
  }
}
