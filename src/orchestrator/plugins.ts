/** Finds an advantage and filters by the name of a built-in or by file. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { messageOf, UserError } from '../common/errors.ts'
import groupMean from './advantages/group_mean.ts'
import type { Algorithm, Plugin } from './algorithm.ts'
import zeroVariance from './filters/zero_variance.ts'
import type { AdvantageFunction, FilterFunction } from './types.ts'

const advantages: Record<string, AdvantageFunction> = { group_mean: groupMean }
const filters: Record<string, FilterFunction> = { zero_variance: zeroVariance }

export interface AlgorithmOptions {
  /** Name of a built-in, or path of a .ts or .js file with the function as its default export. */
  advantage: string
  advantage_args: Record<string, unknown>
  filters: readonly string[]
  /** Handed to each filter. */
  filter_args: Record<string, unknown>
}

/** @throws UserError naming key, file and what is wrong with it */
export async function loadAlgorithm(options: AlgorithmOptions): Promise<Algorithm> {
  const advantageShape = '(group, args) => one number, or one array of numbers a token, for each rollout'
  const filterShape = '(group, args) => true to train on the group'
  const passing = options.filters.map((name) => load('filters', name, filters, options.filter_args, filterShape))
  return {
    advantage: await load('advantage', options.advantage, advantages, options.advantage_args, advantageShape),
    filters: await Promise.all(passing),
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
  let module: { default?: unknown }
  try {
    module = (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    throw new UserError(`trainer.args.${key}: ${name} cannot be loaded: ${messageOf(error)}`)
  }
  if (typeof module.default !== 'function')
    throw new UserError(`trainer.args.${key}: ${name} must export a function as its default: ${shape}.`)
  return { name, args, run: module.default as Run }
}
