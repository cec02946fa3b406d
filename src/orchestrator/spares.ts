/**
 * Groups in the place of those that a step is not trained on (DAPO's dynamic sampling, arXiv 2503.14476), so that batches stay as large as they were
 * meant: as soon as a group is turned down by a filter, or has fewer than two rollouts that did not fail, another task is played, until the step
 * has used up its spares (`oversampling_factor`). How many that are depends on the rollouts alone, and which tasks on the seed and the step: not on who ends first.
 */
import { hashSeed } from '../common/random.ts'
import { TaskOrder, type RunEnvironment, type Task } from './tasks.ts'

export class Spares {
  /** Groups of a step that may be replaced. */
  readonly most: number
  readonly #tasks: TaskOrder

  constructor(environments: readonly RunEnvironment[], seed: number, most = 0) {
    this.most = most
    // An order of their own: where the run is in its data follows from the step alone.
    this.#tasks = new TaskOrder(environments, hashSeed(seed, 'spares'))
  }

  /** The step's next spare task with each call, and its number; undefined when they are used up. */
  of(step: number): () => { task: Task; number: number } | undefined {
    let used = 0
    return () => (used < this.most ? { number: used, task: this.#tasks.at((step - 1) * this.most + used++) } : undefined)
  }
}
