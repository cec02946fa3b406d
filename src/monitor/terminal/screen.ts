/**
 * The end of a terminal that is drawn over, below the lines that stay. It keeps what others write (a `console.log` in an environment, a
 * signal's message) from tearing it, and mends itself when the window changes its width.
 */
import { createLogUpdate } from 'log-update'
import type { ConsoleStream } from './console.ts'
import { textWidth } from './text-width.ts'

type Write = ConsoleStream['write']

export class LiveScreen {
  readonly #stream: ConsoleStream
  readonly #live: ReturnType<typeof createLogUpdate>
  readonly #release: (() => void)[] = []
  readonly #disturbed: () => void
  // What is on the screen now; empty: nothing.
  #drawn: readonly string[] = []
  // True while this class itself writes.
  #own = false
  // Somebody wrote a text without a line break at its end: it must not be drawn over.
  #open = false

  /**
   * @param others streams of the same terminal, this one and standard error, whose other writers go above what is drawn
   * @param disturbed called when one of those has written, and what was drawn is gone
   */
  constructor(stream: ConsoleStream, others: readonly ConsoleStream[] = [], disturbed: () => void = () => {}) {
    this.#stream = stream
    this.#disturbed = disturbed
    // showCursor: hiding it would put signal handlers of log-update's own beside the run's.
    this.#live = createLogUpdate(stream, { showCursor: true })
    for (const other of others) this.#guard(other)
  }

  /** Shows these lines instead of the ones before. No line may be wider than the terminal. */
  draw(lines: readonly string[]): void {
    if (!this.#stream.writable) return
    if (lines.length === 0) return this.clear()
    this.#write(() => {
      if (this.#open) this.#stream.write('\n')
      this.#open = false
      this.#live(lines.join('\n'))
    })
    this.#drawn = lines
  }

  /** Text that stays, above what is drawn next. */
  print(text: string): void {
    if (!this.#stream.writable) return
    this.clear()
    this.#write(() => this.#stream.write(text))
  }

  /** Takes away what is drawn. */
  clear(): void {
    if (this.#drawn.length === 0 || !this.#stream.writable) return
    this.#write(() => this.#live.clear())
    this.#drawn = []
  }

  /** Leaves what is drawn where it is: what comes next stands below (another program has written there meanwhile). */
  forget(): void {
    this.#live.done()
    this.#drawn = []
  }

  /** To be called when the terminal has another width now: takes away what is drawn, which the terminal has wrapped anew. */
  resized(columns: number): void {
    if (this.#drawn.length === 0 || !this.#stream.writable) return
    const rows = this.#drawn.reduce((sum, line) => sum + Math.max(1, Math.ceil(textWidth(line) / columns)), 0)
    const more = Math.min(rows - this.#drawn.length, (this.#stream.rows ?? 24) - this.#drawn.length - 1)
    this.clear()
    if (more > 0) this.#write(() => this.#stream.write('\x1b[1A\x1b[2K'.repeat(more)))
  }

  /** Takes away what is drawn, and gives the streams back. */
  close(): void {
    this.clear()
    for (const release of this.#release.splice(0)) release()
  }

  #write(work: () => unknown): void {
    const outer = this.#own
    this.#own = true
    try {
      work()
    } finally {
      this.#own = outer
    }
  }

  /** What others write to the stream goes above what is drawn, which is there again with the next drawing. */
  #guard(stream: ConsoleStream): void {
    // oxlint-disable-next-line typescript/unbound-method
    const { write } = stream
    const guarded: Write = (data: string | Uint8Array, ...more: never[]): boolean => {
      if (!this.#own) {
        this.clear()
        this.#disturbed()
        this.#open = data.length > 0 && data.at(-1) !== (typeof data === 'string' ? '\n' : 10)
      }
      return Boolean(Reflect.apply(write, stream, [data, ...more]))
    }
    stream.write = guarded
    this.#release.push(() => {
      // Somebody else may have put a guard of their own around this one.
      if (stream.write === guarded) stream.write = write
    })
  }
}
