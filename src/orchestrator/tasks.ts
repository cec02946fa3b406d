/** Which task comes when: a mixture of environments, in an order that depends on the seed and the position alone. */
import { EpochOrder, hashSeed, Random } from '../common/random.ts'
import type { EnvMember, Row } from '../environments/index.ts'

/** An environment in a run, under the name that metrics use. Of weight 0: one that is only evaluated. */
export type RunEnvironment = EnvMember

export const isTrained = ({ weight }: RunEnvironment): boolean => weight > 0

/** The rows that an evaluation plays: the held-out ones; all of them where none is held out and none is trained on. */
export const evaluatedRows = (source: RunEnvironment): readonly Row[] =>
  source.env.evalDataset.length > 0 || isTrained(source) ? source.env.evalDataset : source.env.dataset

/** Flattens environment groups: each member stands for itself, with its part of the group's weight. */
export function membersOf(source: RunEnvironment): RunEnvironment[] {
  const { members } = source.env
  if (!members) return [source]
  const total = members.reduce((sum, member) => sum + member.weight, 0)
  return members.flatMap(({ name, env, weight }) =>
    membersOf({ name: `${source.name}/${name}`, env, weight: (source.weight * weight) / total }),
  )
}

export interface Task {
  source: RunEnvironment
  row: Row
}

/**
 * The endless sequence of tasks. Position p takes an environment by weight (a hash of seed and p) and that environment's next row, so a
 * run resumes from its position alone.
 */
export class TaskOrder {
  readonly #sources: { source: RunEnvironment; order: EpochOrder }[]
  readonly #seed: number
  /** For each position that was asked for so far: the source that it falls to, and the position within that source. */
  readonly #place: { index: number; at: number }[] = []
  readonly #taken: number[]

  /** @param options `shuffle` false: each environment's rows in their order. Which environment comes when is drawn all the same. */
  constructor(sources: readonly RunEnvironment[], seed: number, options: { shuffle?: boolean } = {}) {
    // Only those, so that an environment that is only evaluated changes nothing of what is trained on.
    this.#sources = sources
      .filter(isTrained)
      .map((source, i) => ({ source, order: new EpochOrder(source.env.dataset.length, hashSeed(seed, i), options) }))
    this.#taken = this.#sources.map(() => 0)
    this.#seed = seed
  }

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
