/** Progress of an evaluation: on a terminal one line that is redrawn, else a line for every tenth. */
import { mean } from '../monitor/aggregate.ts'
import { formatDuration } from '../monitor/format.ts'
import type { RolloutRow } from '../monitor/rollout-writer.ts'
import { cut } from '../monitor/terminal/text-width.ts'

export class EvalProgress {
  readonly #what: string
  readonly #total: number
  readonly #before: number
  readonly #begin = performance.now()
  #said = 0

  /** @param before answers of an earlier, interrupted evaluation */
  constructor(what: string, total: number, before: number) {
    this.#what = what
    this.#total = total
    this.#before = before
    if (before > 0) console.error(`${what}: ${before} of ${total} answers are there already`)
    // Drawn at once: the first answers of a large model take minutes.
    if (process.stderr.isTTY) this.#draw(`: ${before}/${total} answers`)
  }

  tell(rows: readonly RolloutRow[]): void {
    const now = performance.now()
    const tty = process.stderr.isTTY
    const tenth = Math.floor((rows.length / this.#total) * 10)
    if (!tty && tenth <= this.#said) return
    this.#said = tenth
    const seconds = (now - this.#begin) / 1000
    const left = (seconds / (rows.length - this.#before)) * (this.#total - rows.length)
    const scored = rows.flatMap((row) => row.reward ?? [])
    const failed = rows.length - scored.length
    const reward = mean(scored)?.toFixed(3) ?? '-'
    const eta = rows.length < this.#total ? ` | eta ${formatDuration(left)}` : ` | ${formatDuration(seconds)}`
    const how = `: ${rows.length}/${this.#total} answers | reward ${reward}${failed > 0 ? ` | ${failed} failed` : ''}${eta}`
    if (!tty) return console.error(this.#what + how)
    this.#draw(how)
  }

  /** Cut to the terminal's width, the name first: a wrapped line could not be redrawn. */
  #draw(how: string): void {
    const room = (process.stderr.columns || 80) - 1
    process.stderr.write(`\r\x1b[2K${cut(cut(this.#what, Math.max(8, room - how.length)) + how, room)}`)
  }

  end(): void {
    if (process.stderr.isTTY) process.stderr.write('\n')
  }
}
