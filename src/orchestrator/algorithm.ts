/** From finished rollouts to advantages: filters decide which groups are trained on, then each rollout of those groups gets an advantage. */
import { messageOf, placeInCode, UserError } from '../common/errors.ts'
import type { Rollout } from '../common/types.ts'
import type { ScoredRollout } from '../monitor/aggregate.ts'
import { counted } from '../monitor/format.ts'
import { frozen } from './samples.ts'
import type { AdvantageFunction, FilterFunction, Group } from './types.ts'

/** A function that plugs in, built-in or the user's, with its name from the config. */
export interface Plugin<Run> {
  name: string
  run: Run
  args: Record<string, unknown>
}

export interface Algorithm {
  advantage: Plugin<AdvantageFunction>
  filters: readonly Plugin<FilterFunction>[]
  /** Rollouts that were cut off count in their group's advantages, but are not trained on themselves. */
  maskTruncated?: boolean
}

/**
 * Computes the advantages of a step's rollouts, in the same order. Null for what is not trained on: rollouts that failed, are too old or were cut off
 * (`maskTruncated`), groups with fewer than 2 rollouts left, and groups that a filter rejects. Groups and rollouts are frozen first (`frozen`).
 * @throws UserError if a filter or the advantage function throws or returns something invalid
 */
export function assignAdvantages(
  rollouts: readonly Rollout[],
  algorithm: Algorithm,
  tooOld: (rollout: Rollout) => boolean = () => false,
): ScoredRollout[] {
  const advantages = new Map<Rollout, ScoredRollout['advantage']>()
  const all = [...Map.groupBy(rollouts, (r) => r.group).values()].map((group) => trainedOn(group, algorithm, tooOld))
  const groups = Object.freeze(all.filter((group) => group !== undefined))
  for (const group of groups) {
    const masked = (r: Rollout) => algorithm.maskTruncated && r.isTruncated
    advantagesOf(algorithm.advantage, group, groups).forEach((a, i) => masked(group[i]) || advantages.set(group[i], a))
  }
  return rollouts.map((rollout) => ({ rollout, advantage: advantages.get(rollout) ?? null }))
}

/** The rollouts of a group that get advantages; undefined if fewer than 2 are left, all are masked (`maskTruncated`), or a filter rejects them. */
export function trainedOn(group: Group, algorithm: Algorithm, tooOld?: (rollout: Rollout) => boolean): Group | undefined {
  const scored = Object.freeze(group.filter((r) => r.reward !== null && !tooOld?.(r)).map(frozen))
  if (scored.length < 2 || (algorithm.maskTruncated && scored.every((r) => r.isTruncated))) return undefined
  return algorithm.filters.every((filter) => passes(filter, scored)) ? scored : undefined
}

function passes({ name, run, args }: Plugin<FilterFunction>, group: Group): boolean {
  const verdict: unknown = call('filter', name, () => run(group, args))
  if (typeof verdict === 'boolean') return verdict
  throw new UserError(`The filter ${name} must return true or false, not ${show(verdict)}.`)
}

function advantagesOf(
  { name, run, args }: Algorithm['advantage'],
  group: Group,
  groups: readonly Group[],
): (number | ArrayLike<number>)[] {
  const advantages: unknown = call('advantage', name, () => run(group, args, groups))
  const wrong = (what: string) =>
    new UserError(
      `The advantage ${name} ${what}. It must return one finite number, or an array with one per completion token, for each rollout of the group.`,
    )
  if (!Array.isArray(advantages)) throw wrong(`returned ${show(advantages)}`)
  if (advantages.length !== group.length)
    throw wrong(`returned ${counted(advantages.length, 'value')} for ${group.length} rollouts`)
  for (const [i, advantage] of (advantages as unknown[]).entries()) {
    const tokens = group[i].completion_tokens.ids.length
    const values = typeof advantage === 'number' ? [advantage] : listOf(advantage)
    if (!values) throw wrong(`gave rollout ${i} ${show(advantage)}`)
    if (typeof advantage !== 'number' && values.length !== tokens)
      throw wrong(`gave rollout ${i}, which has ${counted(tokens, 'token')}, ${counted(values.length, 'value')}`)
    const bad = values.findIndex((value) => !Number.isFinite(value))
    if (bad >= 0) throw wrong(`gave rollout ${i} the value ${show(values[bad])}`)
  }
  return advantages as (number | ArrayLike<number>)[]
}

function call<T>(kind: string, name: string, run: () => T): T {
  try {
    return run()
  } catch (error) {
    const place = placeInCode(error)
    throw new UserError(`The ${kind} ${name} threw: ${messageOf(error).replace(/\.$/, '')}${place ? ` (${place})` : ''}.`)
  }
}

const listOf = (value: unknown): number[] | undefined =>
  Array.isArray(value) || ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<number>) : undefined

function show(value: unknown): string {
  if (value instanceof Promise) return 'a promise (the function must not be async)'
  if (typeof value === 'object' && value !== null) return 'an object'
  return typeof value === 'function' ? 'a function' : `${typeof value === 'string' ? 'the string ' : ''}${String(value)}`
}
