/** A semaphore, and a meter for the time spent sampling. */

/**
 * A semaphore with two first-in, first-out queues; the queue of those who come `again` is served first. A caller that takes several permits gets them
 * all at once, and callers behind it in the queue wait until that many are free.
 */
export class Slots {
  #free: number
  readonly #queue = new Queue()
  readonly #again = new Queue()

  constructor(count: number) {
    this.#free = count
  }

  /** Takes `count` permits. @param count must not exceed their total number, or the promise never resolves */
  async take(again = false, count = 1): Promise<void> {
    const queue = again ? this.#again : this.#queue
    await new Promise<void>((begin) => {
      queue.push({ count, begin })
      this.#hand()
    })
  }

  /** Returns one permit, which goes straight to the first in the queue: a later caller cannot overtake. */
  give(): void {
    this.#free++
    this.#hand()
  }

  #hand(): void {
    for (;;) {
      const queue = this.#again.first ? this.#again : this.#queue
      if (!queue.first || queue.first.count > this.#free) return
      const { count, begin } = queue.shift()
      this.#free -= count
      begin()
    }
  }
}

interface Waiting {
  count: number
  begin: () => void
}

/** A first-in, first-out queue in amortised constant time. (Array.shift may move all remaining elements.) */
class Queue {
  #items: Waiting[] = []
  #head = 0

  get first(): Waiting | undefined {
    return this.#items[this.#head]
  }

  push(item: Waiting): void {
    this.#items.push(item)
  }

  /** Removes and returns the first item, which must exist. */
  shift(): Waiting {
    const item = this.#items[this.#head++]
    if (this.#head > 64 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head)
      this.#head = 0
    }
    return item
  }
}

/** Counts sampled tokens and the time during which at least one rollout is being sampled. */
export class Meter {
  #active = 0
  #since = 0
  /** When counting began: at the last `take`. */
  #begin = performance.now()
  #seconds = 0
  #tokens = 0

  enter(): void {
    if (this.#active++ === 0) this.#since = performance.now()
  }

  leave(): void {
    if (--this.#active === 0) this.#seconds += (performance.now() - this.#since) / 1000
  }

  add(tokens: number): void {
    this.#tokens += tokens
  }

  /** Seconds since the last `take` during which nothing was being sampled. */
  get idle(): number {
    return Math.max(0, (performance.now() - this.#begin) / 1000 - this.#busy)
  }

  /** Returns what was counted since the last call, and starts again from 0. */
  take(): { seconds: number; tokens: number } {
    const seconds = this.#busy
    const tokens = this.#tokens
    this.#since = this.#begin = performance.now()
    this.#seconds = this.#tokens = 0
    return { seconds, tokens }
  }

  get #busy(): number {
    return this.#seconds + (this.#active > 0 ? (performance.now() - this.#since) / 1000 : 0)
  }
}
