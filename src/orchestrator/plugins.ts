/** Loads the advantage function and the filters, by the name of a built-in or from a file, and tries them out. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { importOf } from '../common/loading.ts'
import groupMean from './advantages/group_mean.ts'
import type { Rollout } from '../common/types.ts'
import { assignAdvantages, type Algorithm, type Plugin } from './algorithm.ts'
import zeroVariance from './filters/zero_variance.ts'
import type { AdvantageFunction, FilterFunction } from './types.ts'

const advantages: Record<string, AdvantageFunction> = { group_mean: groupMean }
const filters: Record<string, FilterFunction> = { zero_variance: zeroVariance }

export interface AlgorithmOptions {
  /** Name of a built-in, or path of a .ts or .js file whose default export is the function. */
  advantage: string
  advantage_args: Record<string, unknown>
  filters: readonly string[]
  /** Passed to every filter. */
  filter_args: Record<string, unknown>
  mask_truncated_completions?: boolean
}

/** @throws UserError that names the key, the file and what is wrong with it */
export async function loadAlgorithm(options: AlgorithmOptions): Promise<Algorithm> {
  const advantageShape = '(group, args) => one number, or an array with one number per token, for each rollout'
  const filterShape = '(group, args) => true to train on the group'
  const [advantage, passing] = await Promise.all([
    load('advantage', options.advantage, advantages, options.advantage_args, advantageShape),
    Promise.all(options.filters.map((name) => load('filters', name, filters, options.filter_args, filterShape))),
  ])
  return { advantage, filters: passing, maskTruncated: options.mask_truncated_completions }
}

/**
 * Runs the advantage function and the filters once on made-up answers to a real task, so that mistakes in a file show before the model is loaded.
 * @throws UserError as `assignAdvantages` does
 */
export function tryAlgorithm(
  algorithm: Algorithm,
  example: Pick<Rollout, 'env' | 'prompt' | 'answer' | 'info' | 'metrics'>,
): void {
  const group = [0, 0.25, 1, 0.5].map((reward, index): Rollout => ({
    ...example, exampleId: 0, group: 'trial', index, completion: [{ role: 'assistant', content: example.answer || 'answer' }], reward, promptIds: [0, 1],
    completion_tokens: { ids: [2, 3, 4], logprobs: [-0.5, -1, -0.1], versions: [0, 0, 0] }, isTruncated: false, stopCondition: 'eos', error: null,
    seed: index, timing: { generation_ms: 1, scoring_ms: 1, total_ms: 2 },
  })) // prettier-ignore
  try {
    for (const filter of algorithm.filters) assignAdvantages(group, { ...algorithm, filters: [filter] })
    assignAdvantages(group, { ...algorithm, filters: [] })
  } catch (error) {
    throw new UserError(`${messageOf(error)} (Tried on 4 made-up answers to the first task of ${example.env}.)`)
  }
}

async function load<Run>(
  key: string,
  name: string,
  builtIns: Record<string, Run>,
  args: Record<string, unknown>,
  shape: string,
): Promise<Plugin<Run>> {
  if (Object.hasOwn(builtIns, name)) return { name, args, run: builtIns[name] }
  const path = resolve(name)
  if (!existsSync(path)) {
    const known = Object.keys(builtIns).join(', ')
    throw new UserError(`trainer.args.${key}: there is no file '${name}', and the built-in names are ${known}.`)
  }
  const module = await importOf(`trainer.args.${key}: ${name}`, path)
  if (typeof module.default !== 'function')
    throw new UserError(`trainer.args.${key}: ${name} must export a function as its default: ${shape}.`)
  return { name, args, run: module.default as Run }
}
