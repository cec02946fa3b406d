/** Finds an advantage or a filter by the name of a built-in or by file. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { messageOf, UserError } from '../common/errors.ts'
import groupMean from './advantages/group_mean.ts'
import zeroVariance from './filters/zero_variance.ts'
import type { AdvantageFunction, FilterFunction } from './types.ts'

const advantages: Record<string, AdvantageFunction> = { group_mean: groupMean }
const filters: Record<string, FilterFunction> = { zero_variance: zeroVariance }

/** @throws UserError naming the key, the name and the built-ins */
export function loadAdvantage(name: string): Promise<AdvantageFunction> {
  return load('advantage', name, advantages, '(group, args) => one number, or one array of numbers a token, for each rollout')
}

/** @throws UserError naming the key, the name and the built-ins */
export function loadFilter(name: string): Promise<FilterFunction> {
  return load('filters', name, filters, '(group, args) => true to train on the group')
}

async function load<T>(key: string, name: string, builtIns: Record<string, T>, shape: string): Promise<T> {
  if (builtIns[name]) return builtIns[name]
  const path = resolve(name)
  if (!existsSync(path)) {
    throw new UserError(`${key}: there is no file '${name}', and the built-in names are ${Object.keys(builtIns).join(', ')}.`)
  }
  let module: { default?: unknown }
  try {
    module = (await import(pathToFileURL(path).href)) as { default?: unknown }
  } catch (error) {
    throw new UserError(`${key}: ${name} cannot be loaded: ${messageOf(error)}`)
  }
  if (typeof module.default !== 'function')
    throw new UserError(`${key}: ${name} must export a function as its default: ${shape}.`)
  return module.default as T
}
