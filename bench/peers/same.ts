/** Whether two contestants compute the same: checked before anything is timed, and reported beside the timings. */
import { ChildError, type Result } from './job.ts'

/** Log-probabilities may differ by this. */
const LOGPROBS = 1e-3

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b)

/** The result of the checks of all models. */
export class Differences {
  /** The largest difference of a log-probability. */
  worst = 0
  /** Log-probabilities, and greedy answers, that were compared. */
  logprobs = 0
  answers = 0

  /**
   * Compares the two sides of a check.
   * @throws ChildError naming what differs
   */
  compare(ours: Result, theirs: Result): void {
    if (!same(ours.promptIds, theirs.promptIds)) throw new ChildError('the check: both sides make other ids of the same prompts')
    const [a, b] = [ours.logprobs!, theirs.logprobs!]
    if (a.length !== b.length) throw new ChildError(`the check: ${a.length} and ${b.length} log-probabilities`)
    const worst = a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0)
    if (!(worst <= LOGPROBS)) throw new ChildError(`the check: log-probabilities of the same ids differ by ${worst}`)
    const other = ours.answers!.findIndex((answer, i) => !same(answer, theirs.answers![i]))
    if (other >= 0) throw new ChildError(`the check: greedy answers to prompt ${other} differ`)
    this.worst = Math.max(this.worst, worst)
    this.logprobs += a.length
    this.answers += ours.answers!.length
  }

  line(): string {
    return `${this.logprobs} log-probabilities to ${this.worst.toExponential(1)}, ${this.answers} greedy answers to the token`
  }
}

/** A sentence that compares the results of two contestants for the same work; '' where there is nothing to compare. */
export function agreement(ours: readonly Result[], theirs: readonly Result[]): string {
  const notes: string[] = []
  for (const mine of ours) {
    const other = theirs.find(({ name }) => name === mine.name)
    if (mine.answers && other?.answers) {
      const equal = mine.answers.filter((answer, i) => same(answer, other.answers![i])).length
      notes.push(`${mine.name}: ${equal} of ${mine.answers.length} greedy continuations equal`)
    }
    if (mine.name === 'lora step' && mine.losses && other?.losses)
      notes.push(
        `losses ${mine.losses.map((l) => l.toFixed(4)).join(' ')}, theirs ${other.losses.map((l) => l.toFixed(4)).join(' ')}`,
      )
    if (mine.promptTokens !== undefined && other?.promptTokens !== undefined)
      notes.push(`prompt tokens of the last step ${mine.promptTokens}, theirs ${other.promptTokens}`)
  }
  return notes.join('; ')
}
