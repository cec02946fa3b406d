/**
 * Spare groups keep batches full by replacing groups that cannot be trained on (DAPO's dynamic sampling, arXiv 2503.14476). As soon as a filter
 * rejects a group, or fewer than two of its rollouts succeed, another task is played, until the step's spares (`oversampling_factor`) are used up.
 * How many spares are played depends only on the rollouts. Which tasks they are depends only on the seed and the step, never on which group ends
 * first. If rows are not shuffled, spares are the next rows in order, which the next step then plays again: rows from elsewhere might be easier or
 * harder than the step's own.
 */
import { hashSeed } from '../common/random.ts'
import { TaskOrder, type RunEnvironment, type Task } from './tasks.ts'

export class Spares {
  /** The most groups of a step that are replaced. */
  readonly most: number
  readonly #tasks: TaskOrder
  readonly #shuffle: boolean

  constructor(environments: readonly RunEnvironment[], seed: number, most = 0, { shuffle = true }: { shuffle?: boolean } = {}) {
    this.most = most
    this.#shuffle = shuffle
    // A separate order: a step's position in the data must not depend on how many spares earlier steps played.
    this.#tasks = new TaskOrder(environments, shuffle ? hashSeed(seed, 'spares') : seed, { shuffle })
  }

  /**
   * Returns a function that gives the step's next spare task and its number, or undefined when they are used up. @param next position of the first
   * task after the step's own
   */
  of(step: number, next: number): () => { task: Task; number: number } | undefined {
    const first = this.#shuffle ? (step - 1) * this.most : next
    let used = 0
    return () => (used < this.most ? { number: used, task: this.#tasks.at(first + used++) } : undefined)
  }
}
