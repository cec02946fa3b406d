/** The order of tasks: a mixture of environments that depends only on the seed and the position. */
import { EpochOrder, hashSeed, Random } from '../common/random.ts'
import type { EnvMember, Row } from '../environments/index.ts'

/** An environment of a run, under the name that metrics use. Weight 0 means that it is only evaluated. */
export type RunEnvironment = EnvMember

export const isTrained = ({ weight }: RunEnvironment): boolean => weight > 0

/** The rows to evaluate: the evaluation dataset. If that is empty and the environment is not trained on, all rows of its dataset. */
export const evaluatedRows = (source: RunEnvironment): readonly Row[] =>
  source.env.evalDataset.length > 0 || isTrained(source) ? source.env.evalDataset : source.env.dataset

/** Flattens environment groups: each member becomes an environment of its own, with its share of the group's weight. */
export function membersOf(source: RunEnvironment): RunEnvironment[] {
  const { members } = source.env
  if (!members) return [source]
  const total = members.reduce((sum, member) => sum + member.weight, 0)
  return members.flatMap(({ name, env, weight }) =>
    membersOf({ name: `${source.name}/${name}`, env, weight: (source.weight * weight) / total }),
  )
}

/** A row of a dataset, and its environment. */
export interface Task {
  source: RunEnvironment
  row: Row
}

/**
 * The endless sequence of tasks. Each position draws an environment by weight (from a hash of seed and position) and takes that environment's next
 * row. A run can therefore resume from its position alone.
 */
export class TaskOrder {
  readonly #sources: { source: RunEnvironment; order: EpochOrder }[]
  readonly #seed: number
  /** For each position requested so far: the index of its environment, and its position within that environment. */
  readonly #place: { index: number; at: number }[] = []
  readonly #taken: number[]

  /** @param options `shuffle` false keeps each environment's rows in order; which environment comes next is still random */
  constructor(sources: readonly RunEnvironment[], seed: number, options: { shuffle?: boolean } = {}) {
    // Environments that are only evaluated are left out, so that adding one does not change the training data.
    this.#sources = sources
      .filter(isTrained)
      .map((source, i) => ({ source, order: new EpochOrder(source.env.dataset.length, hashSeed(seed, i), options) }))
    this.#taken = this.#sources.map(() => 0)
    this.#seed = seed
  }

  /** The task at a position, from 0. */
  at(position: number): Task {
    while (this.#place.length <= position) {
      const index = this.#pick(this.#place.length)
      this.#place.push({ index, at: this.#taken[index]++ })
    }
    const { index, at } = this.#place[position]
    const { source, order } = this.#sources[index]
    return { source, row: source.env.dataset[order.at(at)] }
  }

  #pick(position: number): number {
    const total = this.#sources.reduce((sum, { source }) => sum + source.weight, 0)
    let left = new Random(hashSeed(this.#seed, 'environment', position)).next() * total
    for (const [i, { source }] of this.#sources.entries()) {
      left -= source.weight
      if (left < 0) return i
    }
    return this.#sources.length - 1
  }
}
