/**
 * Scores of an evaluation's rows: means with confidence intervals, the spread of rewards, the table, and advice about training.
 * - avg@k: the mean reward of an example's k answers, then the mean over examples.
 * - pass@k: the chance that k answers hold a solved one, by the unbiased estimator of arXiv 2107.03374, then the mean over examples.
 * - Intervals are 95 % percentile bootstraps over examples (the answers of one example stay together), of 2,000 resamples from a fixed
 *   seed: the same rows give the same interval. They say how much another draw of examples would change the number.
 * - An answer that failed has no reward and counts in `errors` alone.
 */
import { hashSeed, Random } from '../common/random.ts'
import { hasVariance, mean, passAtK, populationStd, reaches } from '../monitor/aggregate.ts'
import { formatPercent, printable } from '../monitor/format.ts'
import { textWidth } from '../monitor/terminal/text-width.ts'
import type { RolloutRow } from '../monitor/rollout-writer.ts'

/** A mean with its interval; no interval where there are fewer than two examples. */
interface Estimate {
  mean: number
  low?: number
  high?: number
}

/** The scores of one model on one environment. */
export interface EvalScore {
  env: string
  /** The model: its name, `base`, `step_10`. */
  target: string
  examples: number
  /** Answers of an example. */
  k: number
  rollouts: number
  errors: number
  firstError?: string
  avg: Estimate | null
  /** By k: 1, 2, 4 ... and the number of answers for each example. */
  pass: Record<number, Estimate>
  truncated: number | null
  tokens: number | null
  /** Share of examples whose answers differ in reward; null with one answer for each. */
  mixed: number | null
  /** Standard deviation of the rewards of an example's answers, averaged. */
  within: number | null
  /** Mean reward of each example by its key, in the order of the environment. */
  perExample: Map<number, number>
}

const RESAMPLES = 2000

/**
 * The mean of values with a 95 % percentile bootstrap interval.
 * @returns null for no values
 */
export function estimate(values: readonly number[], seed = 0): Estimate | null {
  const middle = mean(values)
  if (middle === null || values.length < 2) return middle === null ? null : { mean: middle }
  const random = new Random(hashSeed(seed, 'bootstrap', values.length))
  const means = Float64Array.from({ length: RESAMPLES }, () => {
    let sum = 0
    for (let i = 0; i < values.length; i++) sum += values[random.int(values.length)]
    return sum / values.length
  }).toSorted()
  const at = (q: number) => means[Math.round(q * (RESAMPLES - 1))]
  return { mean: middle, low: at(0.025), high: at(0.975) }
}

/** The values of k for pass@k with n answers for each example: powers of two, and n. */
export function passKs(k: number): number[] {
  const ks: number[] = []
  for (let n = 1; n <= k; n *= 2) ks.push(n)
  return ks.at(-1) === k ? ks : [...ks, k]
}

/** The chance that all of k answers, of n with c solved ones, are solved: C(c, k) / C(n, k). */
export function passAllK(n: number, c: number, k: number): number {
  let all = 1
  for (let i = 0; i < k; i++) all *= Math.max(0, c - i) / (n - i)
  return all
}

/** @param solvedAt a reward of at least this counts as solved */
export function scoreOf(
  rows: readonly RolloutRow[],
  about: { env: string; target: string; k: number; solvedAt: number },
): EvalScore {
  const { k, solvedAt } = about
  const perExample = [...Map.groupBy(rows, (row) => row.example_id)]
  const rewards = perExample
    .map(([id, group]) => ({ id, rewards: group.flatMap((row) => row.reward ?? []) }))
    .filter((group) => group.rewards.length > 0)
  const scored = rows.filter((row) => row.reward !== null)
  const several = rewards.filter((group) => group.rewards.length > 1)
  const pass: Record<number, Estimate> = {}
  for (const n of passKs(k)) {
    const enough = rewards.filter((group) => group.rewards.length >= n)
    const solved = (group: number[]) => group.filter((r) => reaches(r, solvedAt)).length
    const value = estimate(enough.map((group) => passAtK(group.rewards.length, solved(group.rewards), n)))
    if (value) pass[n] = value
  }
  return {
    ...about,
    examples: perExample.length,
    rollouts: rows.length,
    errors: rows.length - scored.length,
    firstError: rows.find((row) => row.error)?.error?.message,
    avg: estimate(rewards.map((group) => mean(group.rewards)!)),
    pass,
    truncated: mean(scored.map((row) => Number(row.is_truncated))),
    tokens: mean(scored.map((row) => row.token_usage.output_tokens)),
    mixed: mean(several.map((group) => Number(hasVariance(group.rewards)))),
    within: mean(several.map((group) => populationStd(group.rewards)!)),
    perExample: new Map(rewards.map((group) => [group.id, mean(group.rewards)!])),
  }
}

/** The change of the mean reward on the examples that both have, paired by example. */
export function changeOf(before: EvalScore, after: EvalScore): Estimate | null {
  const both = [...after.perExample].flatMap(([id, reward]) => {
    const old = before.perExample.get(id)
    return old === undefined ? [] : reward - old
  })
  return estimate(both)
}

const number = (value: number | null | undefined): string => (value === null || value === undefined ? '-' : value.toFixed(3))

/** '0.312 [0.281, 0.344]' */
function withInterval(value: Estimate | null | undefined): string {
  if (!value) return '-'
  return value.low === undefined ? number(value.mean) : `${number(value.mean)} [${number(value.low)}, ${number(value.high)}]`
}

/** The table of an evaluation, a line for each model and environment, with the change from the first model where there are several. */
export function evalTable(scores: readonly EvalScore[]): string {
  const ks = [...new Set(scores.flatMap((score) => Object.keys(score.pass).map(Number)))].toSorted((a, b) => a - b)
  const compared = scores.some((score) => baseOf(score, scores) !== score)
  const head = ['env', 'model', 'avg@k', ...ks.map((k) => `pass@${k}`), 'mixed', 'cut off', 'tokens', 'answers', 'errors']
  if (compared) head.push('change')
  const lines = scores.map((score) => {
    const base = baseOf(score, scores)
    const cells = [
      score.env,
      score.target,
      `${withInterval(score.avg)} @${score.k}`,
      ...ks.map((k) => (ks.length > 3 && k !== 1 && k !== score.k ? number(score.pass[k]?.mean) : withInterval(score.pass[k]))),
      formatPercent(score.mixed),
      formatPercent(score.truncated),
      score.tokens === null ? '-' : score.tokens.toFixed(0),
      `${score.examples} x ${score.k}`,
      String(score.errors),
    ]
    if (compared) cells.push(base === score ? '' : signed(changeOf(base, score)))
    return cells
  })
  const widths = head.map((_, column) => Math.max(...[head, ...lines].map((cells) => textWidth(cells[column]))))
  return [head, ...lines]
    .map((cells) =>
      cells
        .map((cell, i) => cell + ' '.repeat(widths[i] - textWidth(cell)))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

const baseOf = (score: EvalScore, scores: readonly EvalScore[]): EvalScore => scores.find((other) => other.env === score.env)!

const signed = (value: Estimate | null): string => (value && value.mean >= 0 ? `+${withInterval(value)}` : withInterval(value))

/** 'examples by mean reward: 0-0.2: 12, 0.2-0.4: 3, ...' */
export function spreadLine(score: EvalScore): string {
  const values = [...score.perExample.values()]
  const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 1])
  const width = (most - least) / 5
  const edge = (i: number) => Number((least + i * width).toFixed(2))
  // The small addend is for rounding: 0.6 / 0.2 is a little less than 3.
  const binOf = (value: number) => Math.min(4, Math.floor((value - least) / width + 1e-9))
  const counts = [0, 1, 2, 3, 4].map((i) => values.filter((value) => binOf(value) === i).length)
  const bins = counts.map((count, i) => `${edge(i)}-${edge(i + 1)}: ${count}`).join(', ')
  const within = score.within === null ? '' : `; standard deviation within an example: ${number(score.within)}`
  return `examples by mean reward: ${bins}${within}`
}

/** Advice about training the model on this environment, one sentence each; only the first rule about difficulty that applies is used. */
export function adviceOf(score: EvalScore): string[] {
  const { avg, rollouts, errors, mixed, truncated, k } = score
  const attempts = rollouts - errors
  const advice: string[] = []
  if (errors > 0)
    advice.push(
      `${errors} of ${rollouts} answers failed and have no reward; --resume plays them again. The first: ${printable(score.firstError ?? 'no reward')}`,
    )
  if (!avg) return advice
  const spread = [...score.perExample.values()]
  const allZero = spread.every((value) => value === 0)
  if (allZero && attempts >= 10)
    advice.push(
      `All ${attempts} attempts earned 0: the tasks are too hard for this model. Use easier tasks, partial rewards or a larger model, or train on a few rows with sft first.`,
    )
  else if (allZero) advice.push(`All ${attempts} attempts earned 0, but that is too few to judge: sample 10 or more (-n, -r).`)
  else if (avg.mean >= 0.8)
    advice.push(`The mean reward is ${number(avg.mean)} already, so there is little left to learn: take harder tasks.`)
  else if (mixed !== null && mixed < 0.3)
    advice.push(
      `Only ${formatPercent(mixed)} of the examples have answers that differ in reward, and only these teach anything. Raise rollouts_per_example or the temperature, or leave out examples that are always or never solved.`,
    )
  else if (mixed !== null)
    advice.push(
      `Base score ${number(avg.mean)}, and ${formatPercent(mixed)} of the examples have answers that differ in reward: there is something to learn here.`,
    )
  if (k < 2)
    advice.push('With one answer to each example, the spread within groups is unknown: use -r 4 or more before training.')
  if (truncated !== null && truncated > 0.1)
    advice.push(`${formatPercent(truncated)} of the answers were cut off: raise max_tokens (-t), or ask for shorter answers.`)
  return advice
}
