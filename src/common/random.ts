/** Seeded randomness. Everything random in a run comes from here, so that a run can be repeated from its seed. */

/** Hashes numbers and strings into one 32-bit seed (FNV-1a over the parts, then murmur3's finaliser). */
export function hashSeed(...parts: (number | string)[]): number {
  let h = 0x811c9dc5
  for (const part of parts) {
    const text = `${typeof part}:${part};`
    for (let i = 0; i < text.length; i++) {
      h ^= text.charCodeAt(i)
      h = Math.imul(h, 0x01000193)
    }
  }
  h ^= h >>> 16
  h = Math.imul(h, 0x85ebca6b)
  h ^= h >>> 13
  h = Math.imul(h, 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}

/** A small, fast random number generator (mulberry32). Its state is accessible, so that a checkpoint can store it. */
export class Random {
  state: number
  constructor(seed: number) {
    this.state = seed >>> 0
  }
  /** Uniform in [0, 1). */
  next(): number {
    this.state = (this.state + 0x6d2b79f5) >>> 0
    let t = this.state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  /** Uniform integer in [0, n). */
  int(n: number): number {
    return Math.floor(this.next() * n)
  }
  /** Standard normal (Box-Muller). */
  normal(): number {
    const u = 1 - this.next()
    return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * this.next())
  }
  pick<T>(items: readonly T[]): T {
    return items[this.int(items.length)]
  }
  /** Fisher-Yates, in place. */
  shuffle<T>(items: T[]): T[] {
    for (let i = items.length - 1; i > 0; i--) {
      const j = this.int(i + 1)
      ;[items[i], items[j]] = [items[j], items[i]]
    }
    return items
  }
}

/**
 * An endless order of `count` items, given by index. Each epoch contains every item once, shuffled by seed and epoch, or in the original order. The
 * item at a position depends on nothing else, so the position is all that is needed to resume.
 */
export class EpochOrder {
  readonly #count: number
  readonly #seed: number
  readonly #shuffle: boolean
  #epoch = -1
  /** The order of #epoch. Cached because positions are mostly requested one after another. */
  #order: number[] = []

  constructor(count: number, seed: number, { shuffle = true }: { shuffle?: boolean } = {}) {
    this.#count = count
    this.#seed = seed
    this.#shuffle = shuffle
  }

  /** The index of the item at `position` (0, 1, 2, ... without end). */
  at(position: number): number {
    if (!this.#shuffle) return position % this.#count
    const epoch = Math.floor(position / this.#count)
    if (epoch !== this.#epoch) {
      this.#order = new Random(hashSeed(this.#seed, 'epoch', epoch)).shuffle(Array.from({ length: this.#count }, (_, i) => i))
      this.#epoch = epoch
    }
    return this.#order[position % this.#count]
  }
}
