/** Progress of an evaluation: one redrawn line on a terminal, elsewhere a line for each tenth of the answers. */
import { mean } from '../monitor/aggregate.ts'
import { formatDuration } from '../monitor/format.ts'
import type { RolloutRow } from '../monitor/rollout-writer.ts'
import { cut } from '../monitor/terminal/text-width.ts'

/** Environments that a line has room for, with the reward of each. */
const NAMED = 3

interface Part {
  work: { environment: { name: string; rows: readonly unknown[]; k: number } }
  folder: { done: readonly RolloutRow[] }
}

/** Shows how many answers are done, their mean rewards and the time left, on standard error. */
export class EvalProgress {
  readonly #what: string
  readonly #total: number
  readonly #before: number
  /** The rows of each environment so far. */
  readonly #rows: (readonly RolloutRow[])[]
  readonly #begin = performance.now()
  #said = 0

  /** @param parts environments that are played side by side, with the answers that an earlier start left */
  constructor(target: string, parts: readonly Part[]) {
    const names = parts.map(({ work }) => work.environment.name)
    this.#what = `${target} on ${names.length > NAMED ? `${names.length} environments` : names.join(', ')}`
    this.#total = parts.reduce((sum, { work: { environment } }) => sum + environment.rows.length * environment.k, 0)
    this.#rows = parts.map(({ folder }) => folder.done)
    this.#before = this.#rows.flat().length
    const [before, total] = [this.#before, this.#total]
    if (before > 0) console.error(`${this.#what}: ${before} of ${total} answers are done already`)
    // Drawn at once: the first answers of a large model take minutes.
    if (process.stderr.isTTY) this.#draw(`: ${before}/${total} answers`)
  }

  /** @param now all rows of the environment of an index */
  tell(index: number, now: readonly RolloutRow[]): void {
    this.#rows[index] = now
    const rows = this.#rows.flat()
    const tty = process.stderr.isTTY
    const tenth = Math.floor((rows.length / this.#total) * 10)
    if (!tty && tenth <= this.#said) return
    this.#said = tenth
    const seconds = (performance.now() - this.#begin) / 1000
    const left = (seconds / (rows.length - this.#before)) * (this.#total - rows.length)
    const scored = rows.flatMap((row) => row.reward ?? [])
    const failed = rows.length - scored.length
    // Rewards of different tasks have no common mean.
    const rewards = this.#rows.map((part) => mean(part.flatMap((row) => row.reward ?? []))?.toFixed(3) ?? '-')
    const eta = rows.length < this.#total ? ` | eta ${formatDuration(left)}` : ` | ${formatDuration(seconds)}`
    const how = `: ${rows.length}/${this.#total} answers${rewards.length > NAMED ? '' : ` | reward ${rewards.join(', ')}`}${failed > 0 ? ` | ${failed} failed` : ''}${eta}`
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
