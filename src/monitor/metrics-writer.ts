/** `metrics.jsonl`: one flat JSON object for each step, on disk before `write` returns. */
import { closeSync, fstatSync } from 'node:fs'
import type { Metrics } from '../common/types.ts'
import { appendRows, openForAppend, readJsonLines } from './files.ts'

/** A row as it is in the file: the metrics, `step`, and `time` (seconds since 1970). */
export type MetricsRow = Metrics & { step: number; time: number }

interface MetricsWriterOptions {
  path: string
  /** Called once for each key that had a value that was not finite. */
  onWarning: (message: string) => void
  now?: () => number
}

/** Appends rows to metrics.jsonl. */
export class MetricsWriter {
  readonly #path: string
  #fd: number
  readonly #onWarning: (message: string) => void
  readonly #now: () => number
  readonly #warned = new Set<string>()
  #closed = false

  constructor({ path, onWarning, now = Date.now }: MetricsWriterOptions) {
    this.#path = path
    this.#fd = openForAppend(path)
    this.#onWarning = onWarning
    this.#now = now
  }

  /**
   * Appends the row of a step and waits for the disk. A value that is not finite is written as null, as JSON cannot hold it.
   * @returns the written row
   * @throws where that fails; the file is then unchanged
   */
  write(step: number, metrics: Metrics): MetricsRow {
    const row: MetricsRow = { step, time: this.#now() / 1000 }
    for (const [key, value] of Object.entries(metrics)) {
      if (key === 'step' || key === 'time') continue
      const finite = value === null || Number.isFinite(value)
      row[key] = finite ? value : null
      if (!finite && !this.#warned.has(key)) {
        this.#warned.add(key)
        this.#onWarning(`${key} was ${value} at step ${step} and is written as null (said once for this metric).`)
      }
    }
    this.#follow()
    appendRows([{ fd: this.#fd, rows: [row] }], { sync: true })
    return row
  }

  /** Opens the file again if it was deleted, or moved and replaced by a link: otherwise later rows would be lost. */
  #follow(): void {
    if (fstatSync(this.#fd).nlink > 0) return
    const before = this.#fd
    this.#fd = openForAppend(this.#path)
    closeSync(before)
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    closeSync(this.#fd)
  }
}

/** The largest time in milliseconds since 1970 that a Date can hold. */
const LAST_DATE = 8.64e15

/** Whether a parsed line is a row: the file may have been edited, or be another program's. */
export function isMetricsRow(value: unknown): value is MetricsRow {
  const { step, time } = (value ?? {}) as Partial<MetricsRow>
  return typeof step === 'number' && typeof time === 'number' && Math.abs(time * 1000) <= LAST_DATE
}

/** Every row of a metrics.jsonl, in the order of the file; other lines are left out. */
export function readMetrics(path: string): MetricsRow[] {
  return readJsonLines(path).filter(isMetricsRow)
}
