/**
 * Spare groups replace those that a step cannot train on (DAPO's dynamic sampling, arXiv 2503.14476), so that batches keep their size: as soon
 * as a group is turned down by a filter, or has fewer than two rollouts that did not fail, another task is played, until the step has used up
 * its spares (`oversampling_factor`). How many are played depends on the rollouts alone, and which tasks they are on the seed and the step, but
 * never on which group ends first. Where rows are not shuffled they are the rows that come next, which their own step plays again: others would
 * not be as easy or hard as the step's own.
 */
import { hashSeed } from '../common/random.ts'
import { TaskOrder, type RunEnvironment, type Task } from './tasks.ts'

export class Spares {
  /** Groups of a step that may be replaced. */
  readonly most: number
  readonly #tasks: TaskOrder
  readonly #shuffle: boolean

  constructor(environments: readonly RunEnvironment[], seed: number, most = 0, { shuffle = true }: { shuffle?: boolean } = {}) {
    this.most = most
    this.#shuffle = shuffle
    // An order of their own, so that a step's position in the data does not depend on how many spares earlier steps played.
    this.#tasks = new TaskOrder(environments, shuffle ? hashSeed(seed, 'spares') : seed, { shuffle })
  }

  /** The step's next spare task with each call, and its number; undefined when they are used up. @param next position of the task after the step's own */
  of(step: number, next: number): () => { task: Task; number: number } | undefined {
    const first = this.#shuffle ? (step - 1) * this.most : next
    let used = 0
    return () => (used < this.most ? { number: used, task: this.#tasks.at(first + used++) } : undefined)
  }
}
