/** logs/timeline.jsonl: what ran when, a line for each step, for the timeline of `node cli.js view`. */
import { closeSync, fstatSync } from 'node:fs'
import { isFullDisk } from '../common/faults.ts'
import type { TimedSpan } from '../common/timeline.ts'
import { appendRows, openForAppend } from './files.ts'

/** Track, name, start and end in seconds since the step began, the step that it was for, details. */
type SpanCells = [string, string, number, number, number, Record<string, string | number | boolean | null>?]

/** A line of logs/timeline.jsonl. */
export interface TimelineRow {
  step: number
  /** Seconds since 1970. */
  began: number
  /** Seconds until the next step began. */
  length: number
  /** Spans that ended in the step, without omitted ones. */
  spans: SpanCells[]
  left_out: number
}

interface TimelineWriterOptions {
  path: string
  /** Called once when nothing can be written any more. */
  onWarning: (message: string) => void
  /** The most spans of a step; the longest are kept. Default 400. */
  spansAtMost?: number
  /** The most bytes of the file: beyond half of it a step keeps 64 spans, beyond it nothing is written. Default 64 MiB. */
  bytesAtMost?: number
}

/** Shorter parts of a step than this are too small to see. */
const unseen = 0.001

/** Appends the lines of steps to logs/timeline.jsonl. */
export class TimelineWriter {
  readonly #options: TimelineWriterOptions
  #fd: number | undefined
  #bytes = 0

  constructor(options: TimelineWriterOptions) {
    this.#options = options
    try {
      this.#fd = openForAppend(options.path)
      this.#bytes = fstatSync(this.#fd).size
    } catch (error) {
      this.#giveUp(String(error))
    }
  }

  /**
   * Writes the line of a step. Times are those of performance.now(), in milliseconds.
   * On a full disk this line is lost; after any other error the rest of the timeline is. Neither ends the run.
   */
  write(step: number, began: number, ended: number, spans: readonly TimedSpan[]): void {
    const { bytesAtMost = 64 << 20, spansAtMost = 400 } = this.#options
    if (this.#fd === undefined || this.#bytes > bytesAtMost) return
    const most = this.#bytes > bytesAtMost / 2 ? Math.min(64, spansAtMost) : spansAtMost
    const kept = longest(spans, most, (ended - began) * unseen)
    const seconds = (time: number): number => Math.round((time - began) * 10) / 10_000
    const row: TimelineRow = {
      step,
      began: Math.round((Date.now() - performance.now() + began) * 10) / 10_000,
      length: seconds(ended),
      spans: kept.map(({ track, name, start, end, step: of, detail }) => [track, name, seconds(start), seconds(end), of ?? step, ...(detail ? [detail] : [])] as SpanCells), // prettier-ignore
      left_out: spans.length - kept.length,
    }
    try {
      appendRows([{ fd: this.#fd, rows: [row] }])
      this.#bytes = fstatSync(this.#fd).size
    } catch (error) {
      if (!isFullDisk(error)) this.#giveUp(String(error))
    }
  }

  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd)
    this.#fd = undefined
  }

  #giveUp(why: string): void {
    this.close()
    this.#options.onWarning(`${this.#options.path} cannot be written (${why}): this run has no further timeline.`)
  }
}

/** In order of time: the phases of the step, and those fine spans that can be seen, of which the longest are kept. */
function longest(spans: readonly TimedSpan[], most: number, shortest: number): TimedSpan[] {
  const length = ({ start, end }: TimedSpan): number => end - start
  const phases = spans.filter((span) => !span.fine).slice(0, most)
  const others = spans.filter((span) => span.fine && length(span) >= shortest)
  const room = most - phases.length
  const chosen = others.length > room ? others.toSorted((a, b) => length(b) - length(a)).slice(0, room) : others
  const kept = new Set([...phases, ...chosen])
  return spans.filter((span) => kept.has(span))
}
