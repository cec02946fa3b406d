/**
 * The redrawn lines at the end of a terminal, below the lines that stay. Other output (a `console.log` in an environment, a signal
 * handler's message) does not break them, nor does a change of the window's width.
 */
import { createLogUpdate } from 'log-update'
import type { ConsoleStream } from './console.ts'
import { textWidth } from './text-width.ts'

type Write = ConsoleStream['write']

/** Draws the live lines, and puts other output above them. */
export class LiveScreen {
  readonly #stream: ConsoleStream
  readonly #live: ReturnType<typeof createLogUpdate>
  readonly #release: (() => void)[] = []
  readonly #disturbed: () => void
  // The lines on the screen now; empty: none.
  #drawn: readonly string[] = []
  // True while this class itself writes.
  #own = false
  // True after other output without a final line break, which must not be drawn over.
  #open = false

  /**
   * @param others streams of the same terminal (this one and standard error); other output to them goes above the drawing
   * @param disturbed called after such output, when the drawing is gone
   */
  constructor(stream: ConsoleStream, others: readonly ConsoleStream[] = [], disturbed: () => void = () => {}) {
    this.#stream = stream
    this.#disturbed = disturbed
    // showCursor: to hide it, log-update would add its own signal handlers.
    this.#live = createLogUpdate(stream, { showCursor: true })
    for (const other of others) this.#guard(other)
  }

  /** Shows these lines instead of the ones before. No line may be wider than the terminal. */
  draw(lines: readonly string[]): void {
    if (!this.#stream.writable) return
    if (lines.length === 0) return this.clear()
    this.#write(() => {
      this.#endLine()
      this.#live(lines.join('\n'))
    })
    this.#drawn = lines
  }

  /** Text that stays, above what is drawn next. */
  print(text: string): void {
    if (!this.#stream.writable) return
    this.clear()
    this.#write(() => {
      this.#endLine()
      this.#stream.write(text)
    })
  }

  /** Erases the drawing. */
  clear(): void {
    if (this.#drawn.length === 0 || !this.#stream.writable) return
    this.#write(() => this.#live.clear())
    this.#drawn = []
  }

  /** Leaves the drawing where it is and continues below, as another program has written there meanwhile. */
  forget(): void {
    this.#live.done()
    this.#drawn = []
  }

  /** To be called when the width has changed: erases the drawing, which the terminal has wrapped again. */
  resized(columns: number): void {
    if (this.#drawn.length === 0 || !this.#stream.writable) return
    const rows = this.#drawn.reduce((sum, line) => sum + Math.max(1, Math.ceil(textWidth(line) / columns)), 0)
    const more = Math.min(rows - this.#drawn.length, (this.#stream.rows ?? 24) - this.#drawn.length - 1)
    this.clear()
    if (more > 0) this.#write(() => this.#stream.write('\x1b[1A\x1b[2K'.repeat(more)))
  }

  /** Erases the drawing, and restores the streams. */
  close(): void {
    this.clear()
    for (const release of this.#release.splice(0)) release()
  }

  /** Ends a line that others have begun. */
  #endLine(): void {
    if (this.#open) this.#stream.write('\n')
    this.#open = false
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

  /** Puts others' output to the stream above the drawing, which comes back with the next one. */
  #guard(stream: ConsoleStream): void {
    // oxlint-disable-next-line typescript/unbound-method
    const { write } = stream
    const guarded: Write = (data: string | Uint8Array, ...more: never[]): boolean => {
      if (!this.#own) {
        this.clear()
        this.#disturbed()
        if (data.length > 0) this.#open = data.at(-1) !== (typeof data === 'string' ? '\n' : 10)
      }
      return Boolean(Reflect.apply(write, stream, [data, ...more]))
    }
    stream.write = guarded
    this.#release.push(() => {
      // Others may have wrapped this function in the meantime.
      if (stream.write === guarded) stream.write = write
    })
  }
}
