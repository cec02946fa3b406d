/** How much is taken in: completions that run or wait, and nothing at all while the server ends. */
import { badRequest, HttpError } from './errors.ts'

/** Completions in the server's hands. */
export class Gate {
  /** Completions that may be here together. */
  readonly #most: number
  #held = 0
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
   * @returns what gives the room back, once
   * @throws HttpError 503 while the server ends, 429 where there is no room now, 400 where there never is
   */
  enter(completions: number): () => void {
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
    let left = false
    return () => {
      if (left) return
      left = true
      this.#held -= completions
      if (this.#held === 0) for (const resolve of this.#idle.splice(0)) resolve()
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

  /** Resolves when nothing is held, or after so many milliseconds. */
  async empty(ms: number): Promise<void> {
    if (this.#held === 0) return
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
