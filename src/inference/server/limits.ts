/** Admission control: limits the completions that run or wait, and refuses new ones while the server shuts down. */
import { badRequest, HttpError } from './errors.ts'

/** A request's share of the limits. */
export interface Place {
  /** One of its completions has ended, so another may be admitted even while the client still reads. */
  ended(): void
  /** The answer is complete (for a stream, its last event), or the client is gone. */
  leave(): void
}

/** Completions that run or wait. */
export class Gate {
  /** The most completions that may run or wait. */
  readonly #most: number
  #held = 0
  /** Number of requests whose answer is not complete yet. */
  #open = 0
  #draining = false
  #idle: (() => void)[] = []

  constructor(most: number) {
    this.#most = most
  }

  get draining(): boolean {
    return this.#draining
  }

  /**
   * Admits a request with this many completions.
   * @throws HttpError 503 while the server shuts down, 429 if there is no room now, 400 if there can never be
   */
  enter(completions: number): Place {
    if (this.#draining) throw shuttingDown()
    this.check(completions)
    if (this.#held + completions > this.#most) {
      throw new HttpError(
        429,
        `The queue is full: ${this.#held} completions are running or waiting, and at most ${this.#most} may. Try again later.`,
        { headers: { 'retry-after': '1' } },
      )
    }
    this.#held += completions
    this.#open++
    let left = completions
    let isOpen = true
    const free = (count: number) => {
      left -= count
      this.#held -= count
    }
    return {
      ended: () => free(Math.min(left, 1)),
      leave: () => {
        if (!isOpen) return
        isOpen = false
        free(left)
        if (--this.#open === 0) for (const resolve of this.#idle.splice(0)) resolve()
      },
    }
  }

  /** @throws HttpError 400 for more completions than may ever be admitted */
  check(completions: number): void {
    if (completions <= this.#most) return
    throw badRequest(
      `n: the request asks for ${completions} completions, but this server takes at most ${this.#most} at once (--max-num-seqs and --max-queue). Ask for fewer.`,
      'n',
    )
  }

  /** Refuses all new requests from here on. */
  drain(): void {
    this.#draining = true
  }

  /** Resolves when the answers to all requests are complete (they may still be on their way), or after `ms` milliseconds. */
  async empty(ms: number): Promise<void> {
    if (this.#open === 0) return
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)))
    await Promise.race([late, new Promise<void>((resolve) => this.#idle.push(resolve))])
    clearTimeout(timer)
  }
}

/** The error for requests that arrive while the server shuts down: 503. */
export function shuttingDown(): HttpError {
  return new HttpError(503, 'The server is shutting down and takes no new requests.', {
    headers: { 'retry-after': '5', connection: 'close' },
  })
}
