/**
 * From rollouts to the metrics of a step. Pure functions; every key is defined in metrics-table.ts, and a test holds the two together.
 *
 * - A rollout that failed (reward null) counts in `has_error/mean`, in `stop_condition/*` and in the progress counts, nowhere else.
 * - A standard deviation is of the population: divided by n.
 * - Rewards of a group differ when they are more than 1e-6 apart: rounding of equal sums is no signal.
 */
import type { Metrics, PolicyVersion, Rollout } from '../common/types.ts'

/** A rollout with its advantage: one number, one for each completion token, or null when it is not trained on. */
export interface ScoredRollout {
  rollout: Rollout
  advantage: number | ArrayLike<number> | null
}

/** Totals over a whole run, across resumes. */
export interface RunTotals {
  tokens: number
  rollouts: number
}

interface StepRollouts {
  /** All rollouts of this step: trained on, filtered out, failed, too old. */
  rollouts: readonly ScoredRollout[]
  /** Version of the weights that this step's forward pass uses; a token sampled with version v is `version - v` steps old. */
  version: PolicyVersion
  /** Rollouts that were not trained on because they were too old. */
  dropped?: number
  /** Whether the run trains on several environments: a small batch may have tasks of only one of them. */
  mixture?: boolean
  /** Totals of the run before this step; on resume `totalsOf` the rows of metrics.jsonl. */
  totals: RunTotals
}

/** A reward of at least this counts as solved, in `solved_*` and `pass@k`. verifiers has the same default. */
const solvedAt = 0.5

/** Rewards this close count as equal, because of rounding: 0.7 + 0.2 + 0.1 is 0.9999999999999999. */
const sameReward = 1e-6

/** Mean; null for no values. */
export function mean(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((a, b) => a + b, 0) / values.length
}

/** Standard deviation of the population (divided by n); null for no values. */
export function populationStd(values: readonly number[]): number | null {
  const m = mean(values)
  return m === null ? null : Math.sqrt(values.reduce((a, b) => a + (b - m) ** 2, 0) / values.length)
}

/** The metrics of a step's rollouts. Keys without a value are null; keys that contain a name are left out then. */
export function rolloutMetrics(input: StepRollouts): Metrics {
  const all = input.rollouts.map((r) => r.rollout)
  const scored = all.filter((r) => r.reward !== null)
  const rewards = scored.map((r) => r.reward!)
  const metrics: Metrics = { reward: mean(rewards), 'reward/std': populationStd(rewards) }

  for (const name of metricNames(scored)) {
    metrics[rewardKey(name)] = mean(scored.flatMap((r) => r.metrics[name] ?? []))
  }
  // Over all rollouts, so that an environment whose rollouts all failed is included.
  const envs = [...new Set(all.map((r) => r.env))]
  if (input.mixture || envs.length > 1) for (const env of envs) Object.assign(metrics, ofOneEnvironment(env, all))
  metrics['advantage/absmean'] = mean(input.rollouts.flatMap((r) => (r.advantage === null ? [] : absMean(r.advantage))))
  Object.assign(metrics, solvedFractions(scored))

  metrics['is_truncated/mean'] = mean(scored.map((r) => Number(r.isTruncated)))
  metrics['tokens/completion'] = mean(scored.map((r) => r.completion_tokens.ids.length))
  metrics['num_turns/mean'] = mean(scored.map(turnsOf))
  metrics['num_branches/mean'] = mean(scored.map((r) => r.turns?.filter((turn) => turn.branch).length ?? 1))
  metrics['history_rewritten/mean'] = mean(scored.map((r) => r.turns?.filter((turn) => turn.rewritten).length ?? 0))
  metrics['has_error/mean'] = mean(all.map((r) => Number(r.reward === null)))
  Object.assign(metrics, stopConditions(all))

  const trained = input.rollouts.filter((r) => r.advantage !== null)
  Object.assign(
    metrics,
    ages(
      trained.map((r) => r.rollout),
      input.version,
    ),
  )
  metrics['off_policy/dropped'] = input.dropped ?? 0
  metrics['discarded/mean'] = mean(input.rollouts.map((r) => Number(r.advantage === null)))

  const tokens = all.reduce((n, r) => n + promptTokens(r) + r.completion_tokens.ids.length, 0)
  metrics['progress/tokens'] = tokens
  metrics['progress/total_tokens'] = input.totals.tokens + tokens
  metrics['progress/total_rollouts'] = input.totals.rollouts + all.length
  return metrics
}

/** The metric of a reward function's mean; `reward/std` is the deviation of the reward. */
export const rewardKey = (name: string): string => (name === 'std' ? 'reward/std_' : `reward/${name}`)

/** Metrics by environment, where there are several. */
function ofOneEnvironment(env: string, all: readonly Rollout[]): Metrics {
  const own = all.filter((r) => r.env === env)
  const scored = own.filter((r) => r.reward !== null)
  const metrics: Metrics = { [`reward/${env}/mean`]: mean(scored.map((r) => r.reward!)) }
  // `reward/<env>/mean` is the reward itself.
  for (const name of metricNames(scored)) {
    metrics[`reward/${env}/${name === 'mean' ? 'mean_' : name}`] = mean(scored.flatMap((r) => r.metrics[name] ?? []))
  }
  metrics[`is_truncated/${env}/mean`] = mean(scored.map((r) => Number(r.isTruncated)))
  metrics[`num_turns/${env}/mean`] = mean(scored.map(turnsOf))
  metrics[`has_error/${env}/mean`] = mean(own.map((r) => Number(r.reward === null)))
  return metrics
}

const turnsOf = (r: Rollout): number => r.turns?.length ?? r.completion.filter((m) => m.role === 'assistant').length

/** Tokens that were not sampled: the prompt, and what came between the turns. */
export function promptTokens(r: Rollout): number {
  return r.turns?.reduce((sum, turn) => sum + turn.promptIds.length, 0) ?? r.promptIds.length
}

/** The totals after the last row; zeros where there are no rows. */
export function totalsOf(rows: readonly Metrics[]): RunTotals {
  const last = (key: string) => rows.findLast((row) => typeof row[key] === 'number')?.[key] ?? 0
  return { tokens: last('progress/total_tokens'), rollouts: last('progress/total_rollouts') }
}

/**
 * The metrics of one evaluation of one environment, under `eval/<env>/`. k of `avg@k` is the number of rollouts an example; `pass@k`
 * is given for 1, 2, 4 ... up to that.
 */
export function evalMetrics(env: string, rollouts: readonly Rollout[], version: PolicyVersion): Metrics {
  const perExample = groupBy(rollouts, (r) => String(r.exampleId))
  const k = perExample.reduce((most, g) => Math.max(most, g.length), 0)
  const rewards = perExample.map((g) => g.flatMap((r) => r.reward ?? [])).filter((g) => g.length > 0)
  const scored = rollouts.filter((r) => r.reward !== null)
  const at = (key: string) => `eval/${env}/${key}`
  const metrics: Metrics = { [at(`avg@${k}`)]: mean(rewards.map((g) => mean(g)!)) }
  for (let n = 1; n <= k; n *= 2) {
    const enough = rewards.filter((g) => g.length >= n)
    metrics[at(`pass@${n}`)] = mean(enough.map((g) => passAtK(g.length, g.filter((r) => reaches(r, solvedAt)).length, n)))
  }
  for (const name of metricNames(scored)) metrics[at(`reward/${name}`)] = mean(scored.flatMap((r) => r.metrics[name] ?? []))
  metrics[at('is_truncated/mean')] = mean(scored.map((r) => Number(r.isTruncated)))
  metrics[at('tokens/completion')] = mean(scored.map((r) => r.completion_tokens.ids.length))
  metrics[at('has_error/mean')] = mean(rollouts.map((r) => Number(r.reward === null)))
  metrics[at('policy_version')] = version
  return metrics
}

/** The environment of a metric `eval/<env>/avg@<k>`. */
export const heldOutEnv = (key: string): string | undefined => /^eval\/(.+)\/avg@\d+$/.exec(key)?.[1]

/**
 * The chance that k of n answers, drawn without replacement, hold a right one, when c of the n are right:
 * 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374), as a product that cannot overflow.
 */
export function passAtK(n: number, c: number, k: number): number {
  if (n - c < k) return 1
  let allWrong = 1
  for (let i = n - c + 1; i <= n; i++) allWrong *= 1 - k / i
  return 1 - allWrong
}

/** Whether a group's rewards differ, so that training on it has an effect. */
export function hasVariance(rewards: readonly number[]): boolean {
  return Math.max(...rewards) - Math.min(...rewards) > sameReward
}

/** Whether a reward is at least this, up to rounding. */
export const reaches = (reward: number, least: number): boolean => reward >= least - sameReward

/** The rewards of each group, without failed rollouts and empty groups. */
export function groupRewards(rollouts: readonly Rollout[]): number[][] {
  return groupBy(rollouts, (r) => r.group)
    .map((g) => g.flatMap((r) => r.reward ?? []))
    .filter((g) => g.length > 0)
}

function solvedFractions(scored: readonly Rollout[]): Metrics {
  const groups = groupRewards(scored)
  const fraction = (test: (rewards: number[]) => boolean) => mean(groups.map((g) => Number(test(g))))
  return {
    solved_none: fraction((g) => !hasVariance(g) && !reaches(g[0], solvedAt)),
    solved_all: fraction((g) => !hasVariance(g) && reaches(g[0], solvedAt)),
    solved_some: fraction(hasVariance),
  }
}

function stopConditions(all: readonly Rollout[]): Metrics {
  const counts: Record<string, number> = {}
  for (const r of all) {
    // 'stop: <string>' contains the stop string: one key for all, or dashboards would fill up.
    const name = r.stopCondition.split(':')[0].trim() || 'unknown'
    counts[name] = (counts[name] ?? 0) + 1
  }
  return Object.fromEntries(Object.entries(counts).map(([name, n]) => [`stop_condition/${name}`, n / all.length]))
}

function ages(trained: readonly Rollout[], version: PolicyVersion): Metrics {
  let [sum, count, max] = [0, 0, 0]
  for (const r of trained) {
    for (const v of r.completion_tokens.versions) {
      sum += version - v
      count++
      max = Math.max(max, version - v)
    }
  }
  return { 'off_policy/mean': count > 0 ? sum / count : null, 'off_policy/max': count > 0 ? max : null }
}

function absMean(advantage: number | ArrayLike<number>): number | [] {
  if (typeof advantage === 'number') return Math.abs(advantage)
  return mean(Array.from(advantage, Math.abs)) ?? []
}

function metricNames(rollouts: readonly Rollout[]): string[] {
  return [...new Set(rollouts.flatMap((r) => Object.keys(r.metrics)))]
}

function groupBy<T>(items: readonly T[], key: (item: T) => string): T[][] {
  return [...Map.groupBy(items, key).values()]
}
