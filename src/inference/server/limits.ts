/** How much is taken in: completions that run or wait, and nothing at all while the server ends. */
import { badRequest, HttpError } from './errors.ts'

/** What a request takes of the server. */
export interface Place {
  /** One of its completions has ended, so another may come, though its client may still read. */
  ended(): void
  /** Its answer is out, or its client gone. */
  leave(): void
}

/** Completions in the server's hands. */
export class Gate {
  /** Completions that may run or wait together. */
  readonly #most: number
  #held = 0
  /** Requests that are not answered to their end. */
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
   * Takes room for so many completions.
   * @throws HttpError 503 while the server ends, 429 where there is no room now, 400 where there never is
   */
  enter(completions: number): Place {
    if (this.#draining) throw shuttingDown()
    this.check(completions)
    if (this.#held + completions > this.#most) {
      throw new HttpError(
        429,
        `The queue is full: ${this.#held} completions run or wait, and ${this.#most} may. Ask again in a while.`,
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

  /** @throws HttpError 400 for so many completions that there is never room for them */
  check(completions: number): void {
    if (completions <= this.#most) return
    throw badRequest(
      `n: the request asks for ${completions} completions, and this server takes ${this.#most} at once (--max-num-seqs and --max-queue). Ask for fewer.`,
      'n',
    )
  }

  /** Nothing more is taken in. */
  drain(): void {
    this.#draining = true
  }

  /** Resolves when all requests are answered to their end, or after so many milliseconds. */
  async empty(ms: number): Promise<void> {
    if (this.#open === 0) return
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)))
    await Promise.race([late, new Promise<void>((resolve) => this.#idle.push(resolve))])
    clearTimeout(timer)
  }
}

export function shuttingDown(): HttpError {
  return new HttpError(503, 'The server is shutting down and takes no new requests.', {
    headers: { 'retry-after': '5', connection: 'close' },
  })
}
