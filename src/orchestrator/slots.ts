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

/**
 * Counts the time during which at least one answer is being sampled, and the speed at which answers were sampled. Answers that are sampled at the same
 * time share that time equally, and each brings its tokens and its share of the time when it ends. Tokens counted at the end of answers, over the
 * time of all answers, would give 0 while none ends, and too much after that.
 */
export class Meter {
  #active = 0
  /** When the number of active answers changed last, or at the last `take`. */
  #since = 0
  /** When counting began: at the last `take`. */
  #begin = performance.now()
  #seconds = 0
  /** The share of an answer that has been active from the beginning on, in seconds. */
  #share = 0
  /** Of the answers that ended since the last `take`. */
  #tokens = 0
  #shares = 0

  /** An answer begins. Returns what `leave` needs. */
  enter(): number {
    this.#pass()
    this.#active++
    return this.#share
  }

  /** @param entered what `enter` returned @param tokens of the answer; one with 0 tokens (it failed or was aborted) tells nothing about the speed */
  leave(entered: number, tokens: number): void {
    this.#pass()
    this.#active--
    if (tokens === 0) return
    this.#tokens += tokens
    this.#shares += this.#share - entered
  }

  /** Seconds since the last `take` during which nothing was being sampled. */
  get idle(): number {
    this.#pass()
    return Math.max(0, (this.#since - this.#begin) / 1000 - this.#seconds)
  }

  /** Returns the seconds since the last call, and the tokens per second of the answers that ended since then (null: none did). Starts again from 0. */
  take(): { seconds: number; speed: number | null } {
    this.#pass()
    const [seconds, speed] = [this.#seconds, this.#shares > 0 ? this.#tokens / this.#shares : null]
    this.#begin = this.#since
    this.#seconds = this.#tokens = this.#shares = 0
    return { seconds, speed }
  }

  /** Counts the time since the last call. */
  #pass(): void {
    const now = performance.now()
    const seconds = (now - this.#since) / 1000
    this.#since = now
    if (this.#active === 0) return
    this.#seconds += seconds
    this.#share += seconds / this.#active
  }
}
