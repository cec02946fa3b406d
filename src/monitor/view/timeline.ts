/** logs/timeline.jsonl of a run (written by ../timeline-writer.ts): what ran when, a line for each step. */
import type { TimelineRow } from '../timeline-writer.ts'
import { GrowingFile, rowAt } from './lines.ts'
import type { TimelineAnswer, TimelineSpan } from './types.ts'

/** An index of the file, which finds the line of a step. */
export class TimelineFile extends GrowingFile {
  /** The offset of each step's line; of a step that was repeated after a resume, the last one. */
  readonly starts = new Map<number, number>()
  #newest = -1

  get steps(): number[] {
    return [...this.starts.keys()].toSorted((a, b) => a - b)
  }

  protected reset(): void {
    this.starts.clear()
    this.#newest = -1
  }

  protected take(line: Buffer | null, start: number): void {
    // The step comes first in the line; the rest is read on demand.
    const found = /^\{"step":(\d{1,9}),/.exec(line?.subarray(0, 32).toString('latin1') ?? '')?.[1]
    if (!found) return
    const step = Number(found)
    // A resumed run repeats steps: later ones from before are dropped.
    if (step < this.#newest) for (const later of this.starts.keys()) if (later > step) this.starts.delete(later)
    this.starts.set(step, start)
    this.#newest = step
  }

  /**
   * What ran during a step, and what ran earlier for it. A line has the spans that ended in its step, so the lines around it are read too.
   * @param step default: the last one
   */
  async answer(step = this.steps.at(-1)): Promise<TimelineAnswer> {
    const steps = this.steps
    const none: TimelineAnswer = { step: step ?? 0, steps, spans: [], began: null, left_out: 0 }
    const row = step === undefined ? null : await this.#row(step)
    if (step === undefined || !row) return none
    const at = steps.indexOf(step)
    const spans: TimelineSpan[] = []
    for (const near of [
      row,
      ...(await this.#near(row, steps.slice(0, at).reverse())),
      ...(await this.#near(row, steps.slice(at + 1))),
    ]) {
      const shift = near.began - row.began
      for (const [track, name, start, end, of, detail] of near.spans) {
        const [a, b] = [start + shift, end + shift]
        if (of !== step && (b <= 0 || a >= row.length)) continue
        spans.push({ track, name, start: rounded(a), end: rounded(b), step: of, ...(detail && { detail }) })
      }
    }
    return { ...none, spans: spans.toSorted((a, b) => a.start - b.start), began: row.began, left_out: row.left_out }
  }

  /** The lines of the next two of `steps`, up to a resume: what an earlier start sampled ahead was dropped with it. */
  async #near(row: TimelineRow, steps: number[]): Promise<TimelineRow[]> {
    const rows: TimelineRow[] = []
    let last = row
    for (const step of steps.slice(0, 2)) {
      const near = await this.#row(step)
      if (!near) continue
      const [first, second] = near.step < last.step ? [near, last] : [last, near]
      // A step begins where the one before it ended, unless a line is missing.
      if (second.step === first.step + 1 && Math.abs(first.began + first.length - second.began) > 1) break
      rows.push(near)
      last = near
    }
    return rows
  }

  async #row(step: number): Promise<TimelineRow | null> {
    const start = this.starts.get(step)
    const row = start === undefined ? null : await rowAt<TimelineRow>(this.path, start)
    return row && Array.isArray(row.spans) && typeof row.began === 'number' && typeof row.length === 'number' ? row : null
  }
}

/** Rounds off digits that are only rounding noise. */
const rounded = (seconds: number): number => Math.round(seconds * 1e6) / 1e6
