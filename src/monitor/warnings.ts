/**
 * Warnings about a run that learns nothing. Each sentence says what is wrong, and names the key to change.
 * Printed after the first batch, when the condition has held for 3 steps in a row, and then at 12, 48, ... steps.
 */
import { sentenceOf } from '../common/errors.ts'
import type { Metrics, Rollout } from '../common/types.ts'
import { groupRewards, hasVariance, rewardKey } from './aggregate.ts'
import { formatNumber, oneLine } from './format.ts'
import { LIMITS } from './health.ts'

export interface WatchOptions {
  /** trainer.args.max_tokens */
  maxTokens: number
  /** Names of the reward functions with a weight; mere metrics may be the same for all answers. Default: all. */
  rewardFunctions?: readonly string[]
}

type Condition = 'errors' | 'truncated' | 'zero' | 'variance' | 'filtered' | `function ${string}`

/** Watches the batches of a run. `check` once a step. */
export class Watch {
  readonly #options: WatchOptions
  // For how many steps in a row each condition has held; absent: 0.
  #streaks = new Map<Condition, number>()
  #first = true
  /** Reward functions whose values have differed in this run: if one is the same for all answers later, it has been learned. */
  readonly #varied = new Set<string>()

  /** @param history the rows of a resumed run: where a function's mean has changed, its values have differed */
  constructor(options: WatchOptions, history: readonly Metrics[] = []) {
    this.#options = options
    for (const name of options.rewardFunctions ?? []) {
      const means = new Set(history.flatMap((row) => row[rewardKey(name)] ?? []))
      if (means.size > 1) this.#varied.add(`function ${name}`)
    }
  }

  /**
   * The warnings after this step's rollouts (failed ones included), of which some were `trained` on; often none.
   * @param norm gradient norm of the step: if it is above 0 without differences in rewards, something else trains the model
   */
  check(step: number, rollouts: readonly Rollout[], trained = true, norm: number | null = 0): string[] {
    const found = conditions(step, rollouts, this.#options, { trained, norm })
    const next = new Map<Condition, number>()
    const said: string[] = []
    for (const name of this.#options.rewardFunctions ?? []) {
      const values = valuesOf(name, rollouts)
      if (values.some((v) => v !== values[0])) this.#varied.add(`function ${name}`)
    }
    for (const [condition, text] of found) {
      if (this.#varied.has(condition)) continue
      const streak = (this.#streaks.get(condition) ?? 0) + 1
      next.set(condition, streak)
      if (this.#first || isDue(streak)) said.push(streak > 1 ? `for ${streak} steps: ${text}` : text)
    }
    this.#streaks = next
    this.#first = false
    return said
  }
}

/** 3, 12, 48, ... */
function isDue(streak: number): boolean {
  for (let due = 3; due <= streak; due *= 4) if (due === streak) return true
  return false
}

/** What is wrong with one batch. A cause hides its consequences: where all rewards are 0, it is not said that they are equal. */
function conditions(
  step: number,
  rollouts: readonly Rollout[],
  options: WatchOptions,
  { trained, norm }: { trained: boolean; norm: number | null },
): Map<Condition, string> {
  const found = new Map<Condition, string>()
  const scored = rollouts.filter((r) => r.reward !== null)
  const failed = rollouts.filter((r) => r.reward === null)
  if (failed.length > 0 && failed.length >= rollouts.length * LIMITS['has_error/mean'].bad) {
    found.set('errors', errorText(step, failed, rollouts.length))
  }
  if (scored.length === 0) return found
  const n = scored.length
  if (scored.every((r) => r.isTruncated)) {
    found.set(
      'truncated',
      `all ${n} completions hit max_tokens=${options.maxTokens}: raise trainer.args.max_tokens or shorten the task.`,
    )
  }
  const groups = groupRewards(scored)
  // With a teacher or a custom advantage, rewards are only a measure.
  if (norm && !groups.some(hasVariance)) return found
  if (scored.every((r) => r.reward === 0)) {
    found.set(
      'zero',
      `all ${n} rewards are 0, so nothing can be learned: read the answers in rollouts/step_${step}.jsonl, then make the task easier ` +
        `(env.args), fix its reward functions, or raise trainer.args.temperature.`,
    )
  } else if (!groups.some(hasVariance)) {
    const why = groups.every((g) => g.length < 2)
      ? 'each has one rollout: raise trainer.args.rollouts_per_example to 8 or more.'
      : 'all answers to a question earn the same: raise trainer.args.rollouts_per_example or trainer.args.temperature, or change the ' +
        "task's difficulty (env.args)."
    found.set('variance', `0 of ${groups.length} groups have reward variance, so nothing is learned from this batch; ${why}`)
  } else if (!trained) {
    found.set(
      'filtered',
      `none of ${groups.length} groups is left to train on, so nothing is learned from this batch: they were dropped by trainer.args.filters, ` +
        `mask_truncated_completions or max_off_policy_steps.`,
    )
  } else {
    for (const name of options.rewardFunctions ?? Object.keys(scored[0].metrics)) {
      const values = valuesOf(name, scored)
      if (values.length < 2 || values[0] === null || values.some((v) => v !== values[0])) continue
      found.set(
        `function ${name}`,
        `reward function ${name} gave ${formatNumber(values[0])} to all ${values.length} answers, so it teaches nothing. ` +
          `${values[0] > 0 ? 'Unless that is its highest value, fix it' : 'Fix it'}, or remove it from the environment (env.id, env.args).`,
      )
    }
  }
  return found
}

/** A function's value for each answer; null, which leaves it out of the sum, counts as a different value from any number. */
const valuesOf = (name: string, rollouts: readonly Rollout[]): (number | null)[] =>
  rollouts.flatMap((r) => (r.reward === null || r.metrics[name] === undefined ? [] : [r.metrics[name]]))

/** The messages of environments/clock.ts and limit.ts when a time limit has passed, with the limit's key. */
const RUN_LIMITS: readonly [RegExp, string][] = [
  [/^(?:generation|the environment) took longer than its limit/, 'generation_timeout'],
  [/^the rollout took longer than its limit of .* \(in /, 'rollout_timeout'],
  [/^scoring(?: a group)? took longer than its limit/, 'reward_timeout'],
]

/** The key of the time limit that a rollout's error names. */
export function limitKey(error: string): string | undefined {
  const found = RUN_LIMITS.find(([sentence]) => sentence.test(error))
  return found && `trainer.args.${found[1]}`
}

function errorText(step: number, failed: readonly Rollout[], total: number): string {
  const counts = new Map<string, number>()
  for (const r of failed) {
    const message = r.error ?? 'no reward'
    counts.set(message, (counts.get(message) ?? 0) + 1)
  }
  const [top, times] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))
  const limit = limitKey(top)
  const todo = limit ? `raise ${limit}` : `see "error" in rollouts/step_${step}.jsonl and fix the environment (env.id, env.args)`
  return `${failed.length} of ${total} rollouts failed and are not trained on; ${times} of them with: ${sentenceOf(oneLine(top, 200))} To fix this, ${todo}.`
}
