/** The base class of all kinds of environments: training rows, held-out rows, a rubric. */
import { UserError } from '../common/errors.ts'
import type { Message } from '../common/types.ts'
import { type KeysOf, refuseUnknown } from './known-options.ts'
import { type DatasetSource, loadRows, splitRows } from './datasets.ts'
import type { Rubric } from './rubric.ts'
import type { Environment, RolloutContext, RolloutDraft, Row } from './types.ts'

export interface TaskOptions {
  /** The environment's name in rollouts and metrics. */
  id: string
  rubric: Rubric
  /** Tasks to train on. */
  dataset: DatasetSource
  /** Held-out tasks. Default: `evalSize` of the dataset is held out. */
  evalDataset?: DatasetSource
  /** Held-out prompts: a number, or a fraction of the dataset if below 1. 0: none. Default 0.1. Not allowed together with `evalDataset`. */
  evalSize?: number
  systemPrompt?: string
  /** Seed of the split, also passed to a dataset function. Default 0. */
  seed?: number
  /** The assistant text of a supervised example, or all messages after the prompt. Default: the row's answer. */
  sftCompletion?: (row: Row) => string | Message[]
}

/** For `readTasks`. */
export const taskKeys: KeysOf<TaskOptions> = {
  id: true,
  rubric: true,
  dataset: true,
  evalDataset: true,
  evalSize: true,
  systemPrompt: true,
  seed: true,
  sftCompletion: true,
}

/** The options with their rows read. */
export type WithRows<Options extends TaskOptions> = Omit<Options, 'dataset' | 'evalDataset' | 'evalSize' | 'seed'> & {
  rows: readonly Row[]
  evalRows: readonly Row[]
}

/** Reads the datasets (file, rows or function) and splits them. Throws UserError for unusable data, and an option that is not among `keys`. */
export async function readTasks<Options extends TaskOptions>(
  options: Options,
  keys: KeysOf<Options>,
): Promise<WithRows<Options>> {
  refuseUnknown(`environment ${options.id}`, options, keys)
  const { id, systemPrompt, seed = 0, evalDataset } = options
  if (evalDataset !== undefined && options.evalSize !== undefined) {
    throw new UserError(`environment ${id}: give evalDataset or evalSize, not both.`)
  }
  const name = `dataset of environment ${id}`
  const rows = await loadRows(options.dataset, { seed, systemPrompt, name })
  if (evalDataset !== undefined) {
    const evalRows = await loadRows(evalDataset, { seed, systemPrompt, name: `evalDataset of environment ${id}` })
    return { ...options, rows, evalRows }
  }
  const { train, held } = splitRows(rows, { seed, evalSize: options.evalSize ?? 0.1, name })
  return { ...options, rows: train, evalRows: held }
}

export abstract class TaskEnv implements Environment {
  readonly id: string
  readonly systemPrompt: string | undefined
  readonly rubric: Rubric
  readonly dataset: readonly Row[]
  readonly evalDataset: readonly Row[]
  readonly #sftCompletion: ((row: Row) => string | Message[]) | undefined

  /** Takes rows that have been read already (`readTasks`). The static method `create` of each kind of environment reads them. */
  constructor(options: WithRows<TaskOptions>) {
    this.id = options.id
    this.systemPrompt = options.systemPrompt
    this.rubric = options.rubric
    this.dataset = options.rows
    this.evalDataset = options.evalRows
    this.#sftCompletion = options.sftCompletion
  }

  sftCompletion(row: Row): string | Message[] {
    return this.#sftCompletion ? this.#sftCompletion(row) : row.answer
  }

  abstract rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft>
}
