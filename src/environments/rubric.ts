/**
 * A rubric computes the reward of a finished completion: the weighted sum of named functions.
 * - A function with weight 0 is only a metric. A function that returns null is left out of the sum; the other weights do not change.
 * - Every function has a time limit. If one throws, is late, or returns anything but a finite number or null, the whole rollout fails with an error
 *   that names it. A failure is never a reward of 0.
 * - The functions for one rollout run concurrently. The first failure aborts the others.
 * - Group functions see all rollouts of a task, once all of them have ended, and add to the same sum.
 */
import { messageOf, placeInCode } from '../common/errors.ts'
import { tracer } from '../common/trace.ts'
import type { Message, Rollout } from '../common/types.ts'
import { type KeysOf, refuseUnknown } from './known-options.ts'
import { withLimit } from './limit.ts'
import { Parser } from './parsers.ts'
import type { GroupRewardFunction, RewardArgs, RewardFunction } from './types.ts'

/** A reward function, by itself or with its weight (default 1) and time limit. */
export type RewardSpec = RewardFunction | { reward: RewardFunction; weight?: number; timeoutSeconds?: number }

/** The same for a group function. */
export type GroupRewardSpec = GroupRewardFunction | { reward: GroupRewardFunction; weight?: number; timeoutSeconds?: number }

export interface RubricOptions {
  /** Group functions by name. Each sees all rollouts of a task. */
  group?: Record<string, GroupRewardSpec>
  /** Computes `text` from `rawText`. Default: trims it. */
  parser?: Parser
  /** Time limit in seconds for functions that have none of their own. Default 60. */
  timeoutSeconds?: number
}

const rubricKeys: KeysOf<RubricOptions> = { group: true, parser: true, timeoutSeconds: true }
const specKeys = { reward: true, weight: true, timeoutSeconds: true } as const

/** The parts of a rollout that scoring needs. A `Rollout` that was read from disk has them all. */
export type Scorable = Pick<
  Rollout,
  'prompt' | 'completion' | 'answer' | 'info' | 'completion_tokens' | 'isTruncated' | 'stopCondition'
> &
  Partial<Pick<Rollout, 'turns'>> & {
    state?: Record<string, unknown>
  }

/** The result of scoring one rollout. */
export interface Scores {
  /** null if scoring failed. */
  reward: number | null
  /** Each function's unweighted value. Functions that failed are missing. */
  metrics: Record<string, number | null>
  error: string | null
}

export interface ScoreOptions {
  signal?: AbortSignal
}

interface Entry<Run> {
  name: string
  reward: Run
  weight: number
  timeoutSeconds: number
}

/** The error of a rollout to which no reward function applies. */
const NOTHING = 'no reward function applied: each returned null'

export class Rubric {
  readonly parser: Parser
  readonly #entries: Entry<RewardFunction>[]
  readonly #group: Entry<GroupRewardFunction>[]

  /** `new Rubric({ correct: { reward: isCorrect, weight: 0.8 }, words: { reward: countWords, weight: 0 } })`. @throws Error if all weights are 0 */
  constructor(functions: Record<string, RewardSpec>, options: RubricOptions = {}) {
    refuseUnknown('rubric', options, rubricKeys)
    this.parser = options.parser ?? new Parser()
    const { group = {}, timeoutSeconds = 60 } = options
    this.#entries = Object.entries(functions).map(([name, spec]) => entryOf<RewardFunction>(name, spec, timeoutSeconds))
    this.#group = Object.entries(group).map(([name, spec]) => entryOf<GroupRewardFunction>(name, spec, timeoutSeconds))
    const twice = Object.keys(group).find((name) => name in functions)
    if (twice !== undefined)
      throw new Error(`rubric: "${twice}" names both a function and a group function; give one of them another name`)
    if (![...this.#entries, ...this.#group].some((entry) => entry.weight !== 0)) {
      throw new Error(
        'rubric: no function has a weight other than 0, so there is nothing to train on; give at least one function such a weight',
      )
    }
  }

  /** Names of all functions in order, group functions last. */
  get names(): string[] {
    return [...this.#entries, ...this.#group].map((entry) => entry.name)
  }

  get groupNames(): string[] {
    return this.#group.map((entry) => entry.name)
  }

  get weights(): Record<string, number> {
    return Object.fromEntries([...this.#entries, ...this.#group].map((entry) => [entry.name, entry.weight]))
  }

  /** Scores one rollout without the group functions. Never rejects: a failure is in `error`. */
  async score(rollout: Scorable, options: ScoreOptions = {}): Promise<Scores> {
    const siblings = new AbortController()
    const signal = options.signal ? AbortSignal.any([options.signal, siblings.signal]) : siblings.signal
    let firstError: string | null = null
    const fail = (error: unknown) => {
      firstError ??= messageOf(error)
      siblings.abort('another reward function failed')
    }
    let facts: Omit<RewardArgs, 'signal'>
    try {
      facts = rewardArgs(rollout, this.parser)
    } catch (error) {
      return { reward: null, metrics: {}, error: `the rubric's parser threw: ${messageOf(error)}` }
    }
    const values = await Promise.all(
      this.#entries.map((entry) => runOne(entry, facts, signal).catch((error) => (fail(error), undefined))),
    )
    const metrics: Scores['metrics'] = {}
    this.#entries.forEach(({ name }, i) => {
      const value = values[i]
      if (value !== undefined) metrics[name] = value
    })
    if (firstError !== null) return { reward: null, metrics, error: firstError }
    const scores = this.#sum(metrics)
    // A group function may still apply.
    return scores.error === NOTHING && this.#group.some(({ weight }) => weight !== 0)
      ? { reward: 0, metrics, error: null }
      : scores
  }

  /** Adds the group functions to the scores of a task's rollouts, whose metrics contain the other functions' values. Never rejects. */
  async scoreGroup(rollouts: readonly (Scorable & Pick<Rollout, 'metrics'>)[], options: ScoreOptions = {}): Promise<Scores[]> {
    const metrics = rollouts.map((rollout) => ({ ...rollout.metrics }))
    try {
      const group = rollouts.map((rollout) => rewardArgs(rollout, this.parser))
      for (const entry of this.#group) {
        const values = await runGroup(entry, group, options.signal)
        values.forEach((value, i) => (metrics[i][entry.name] = value))
      }
    } catch (error) {
      return metrics.map((known) => ({ reward: null, metrics: known, error: messageOf(error) }))
    }
    return metrics.map((known) => this.#sum(known))
  }

  #sum(metrics: Scores['metrics']): Scores {
    let reward: number | null = null
    for (const { name, weight } of [...this.#entries, ...this.#group]) {
      const value = metrics[name] ?? null
      if (value !== null && weight !== 0) reward = (reward ?? 0) + weight * value
    }
    return scoresOf(reward, metrics)
  }
}

/** Several rubrics combined: the reward is the sum of theirs. Each keeps its parser. @throws Error if two functions have the same name */
export class RubricGroup extends Rubric {
  readonly #rubrics: readonly Rubric[]

  constructor(rubrics: readonly Rubric[]) {
    const names = rubrics.flatMap((rubric) => rubric.names)
    const twice = names.find((name, i) => names.indexOf(name) < i)
    if (twice !== undefined) throw new Error(`rubrics: two functions are named "${twice}"; give each a name of its own`)
    super(namesOf(rubrics))
    this.#rubrics = rubrics
  }

  override get groupNames(): string[] {
    return this.#rubrics.flatMap((rubric) => rubric.groupNames)
  }

  override async score(rollout: Scorable, options: ScoreOptions = {}): Promise<Scores> {
    return sumOf(await Promise.all(this.#rubrics.map((rubric) => rubric.score(rollout, options))))
  }

  override async scoreGroup(
    rollouts: readonly (Scorable & Pick<Rollout, 'metrics'>)[],
    options: ScoreOptions = {},
  ): Promise<Scores[]> {
    const parts = await Promise.all(this.#rubrics.map((rubric) => rubric.scoreGroup(rollouts, options)))
    return rollouts.map((_, i) => sumOf(parts.map((part) => part[i])))
  }
}

/** Placeholders with the names and weights of the functions of other rubrics, which do the scoring. */
export function namesOf(rubrics: readonly Rubric[]): Record<string, RewardSpec> {
  const never = () => {
    throw new Error('a rubric inside scores this')
  }
  return Object.fromEntries(
    rubrics.flatMap((rubric) => Object.entries(rubric.weights).map(([name, weight]) => [name, { reward: never, weight }])),
  )
}

function sumOf(parts: readonly Scores[]): Scores {
  const metrics = Object.assign({}, ...parts.map((part) => part.metrics)) as Scores['metrics']
  const failed = parts.find(({ error }) => error !== null && error !== NOTHING)
  if (failed) return { reward: null, metrics, error: failed.error }
  const rewards = parts.flatMap((part) => part.reward ?? [])
  return scoresOf(rewards.length > 0 ? rewards.reduce((a, b) => a + b, 0) : null, metrics)
}

/** @param reward the sum; null if no function applied */
function scoresOf(reward: number | null, metrics: Scores['metrics']): Scores {
  if (reward === null) return { reward, metrics, error: NOTHING }
  return Number.isFinite(reward)
    ? { reward, metrics, error: null }
    : { reward: null, metrics, error: 'the sum of the rewards is not finite' }
}

function entryOf<Run>(
  name: string,
  spec: Run | { reward: Run; weight?: number; timeoutSeconds?: number },
  timeoutSeconds: number,
): Entry<Run> {
  const given = typeof spec === 'function' ? { reward: spec as Run } : (spec as Partial<Entry<Run>>)
  refuseUnknown(`rubric: "${name}"`, given ?? {}, specKeys)
  const entry = { weight: 1, timeoutSeconds, ...given, name } as Entry<Run>
  if (typeof entry.reward !== 'function') throw new Error(`rubric: "${name}" has no reward function`)
  if (!Number.isFinite(entry.weight))
    throw new Error(`rubric: the weight of "${name}" is ${show(entry.weight)}; it must be a finite number`)
  if (!(entry.timeoutSeconds > 0))
    throw new Error(`rubric: the time limit of "${name}" is ${entry.timeoutSeconds}; it must be above 0`)
  return entry
}

async function runOne(
  entry: Entry<RewardFunction>,
  facts: Omit<RewardArgs, 'signal'>,
  signal: AbortSignal,
): Promise<number | null> {
  const flight = tracer?.flight('reward', entry.name)
  const what = `reward function "${entry.name}"`
  try {
    return await limited(what, entry.timeoutSeconds, signal, async (own) =>
      checked(what, await entry.reward({ ...facts, ...listsOf(facts), signal: own })),
    )
  } finally {
    flight?.end()
  }
}

async function runGroup(
  { name, reward, timeoutSeconds }: Entry<GroupRewardFunction>,
  group: Omit<RewardArgs, 'signal'>[],
  signal: AbortSignal | undefined,
): Promise<(number | null)[]> {
  const what = `group reward function "${name}"`
  return await limited(what, timeoutSeconds, signal, async (own) => {
    // Frozen: values belong to rollouts by position, so a function must not sort the group in place.
    const members = Object.freeze(group.map((facts) => ({ ...facts, ...listsOf(facts), signal: own })))
    const values: unknown = await reward(members)
    if (!Array.isArray(values) || values.length !== group.length) {
      throw new Error(`${what} must return an array with one value for each of the ${group.length} rollouts`)
    }
    // Not values.map, which skips holes.
    return Array.from(values, (value: unknown) => checked(what, value))
  })
}

/** Adds the function's name to an error that it threw. Our own errors contain it already. */
async function limited<T>(
  what: string,
  seconds: number,
  signal: AbortSignal | undefined,
  work: (own: AbortSignal) => Promise<T>,
) {
  try {
    return await withLimit({ what, seconds, signal }, work)
  } catch (error) {
    const message = messageOf(error)
    if (message.startsWith(what)) throw error
    const place = placeInCode(error)
    throw new Error(`${what} threw: ${message}${place ? ` (${place})` : ''}`, { cause: error })
  }
}

function checked(what: string, value: unknown): number | null {
  if (value === null || (typeof value === 'number' && Number.isFinite(value))) return value
  throw new Error(`${what} returned ${show(value)}; return a finite number, or null if it does not apply`)
}

/** What reward functions see of a rollout, except the signal. */
function rewardArgs(rollout: Scorable, parser: Parser): Omit<RewardArgs, 'signal'> {
  const rawText = lastAssistantText(rollout.completion)
  return {
    prompt: rollout.prompt,
    completion: rollout.completion,
    text: parser.parse(rawText),
    rawText,
    answer: rollout.answer,
    info: rollout.info,
    state: rollout.state ?? {},
    finishReason: rollout.isTruncated ? 'length' : rollout.stopCondition === 'abort' ? 'abort' : 'stop',
    isTruncated: rollout.isTruncated,
    stopCondition: rollout.stopCondition,
    completionIds: rollout.completion_tokens.ids,
    trajectory: rollout.turns ?? [],
    parser,
  }
}

/** Copies for each function: if it changes tokens or messages, neither training nor other functions see that. */
const listsOf = ({ prompt, completion, completionIds, trajectory }: Omit<RewardArgs, 'signal'>) =>
  structuredClone({ prompt, completion, completionIds, trajectory })

function lastAssistantText(completion: Message[]): string {
  return completion.findLast((message) => message.role === 'assistant')?.content ?? ''
}

function show(value: unknown): string {
  if (typeof value === 'number' || value === undefined) return String(value)
  return typeof value === 'string' ? `the string "${value.slice(0, 40)}"` : `a value of type ${typeof value}`
}
