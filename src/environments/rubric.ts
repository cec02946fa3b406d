/**
 * A rubric turns a finished completion into one reward: the weighted sum of named functions.
 * - Weight 0 makes a function a metric. null from a function takes it out of the sum (the other weights stay as they are).
 * - Every function runs under a time limit. One that throws, is late, or gives anything but a finite number or null fails the whole
 *   rollout with an error that names it: a failure is never a reward of 0.
 * - Functions of one rollout run side by side; the first failure aborts the others.
 */
import { messageOf } from '../common/errors.ts'
import { tracer } from '../common/trace.ts'
import type { Message, Rollout } from '../common/types.ts'
import { withLimit } from './limit.ts'
import { Parser } from './parsers.ts'
import type { RewardArgs, RewardFunction } from './types.ts'

/** A reward function with its weight (default 1) and time limit. A function alone has weight 1. */
export type RewardSpec = RewardFunction | { reward: RewardFunction; weight?: number; timeoutSeconds?: number }

export interface RubricOptions {
  /** Makes `text` from `rawText`. Default: the trimmed text. */
  parser?: Parser
  /** Limit of each function that has none of its own. Default 60. */
  timeoutSeconds?: number
}

/** The facts of a rollout that scoring needs; a `Rollout` read back from disk has them all. */
export type Scorable = Pick<
  Rollout,
  'prompt' | 'completion' | 'answer' | 'info' | 'completion_tokens' | 'isTruncated' | 'stopCondition'
> & {
  state?: Record<string, unknown>
}

export interface Scores {
  /** null when scoring failed. */
  reward: number | null
  /** Each function's own value, unweighted; those of a failed function are left out. */
  metrics: Record<string, number | null>
  error: string | null
}

export interface ScoreOptions {
  signal?: AbortSignal
}

interface Entry {
  name: string
  reward: RewardFunction
  weight: number
  timeoutSeconds: number
}

export class Rubric {
  readonly parser: Parser
  readonly #entries: Entry[]

  /** `new Rubric({ correct: { reward: isCorrect, weight: 0.8 }, words: { reward: countWords, weight: 0 } })`. Throws where no function has a weight. */
  constructor(functions: Record<string, RewardSpec>, options: RubricOptions = {}) {
    this.parser = options.parser ?? new Parser()
    this.#entries = Object.entries(functions).map(([name, spec]) => {
      const given = typeof spec === 'function' ? { reward: spec } : spec
      const entry = { name, weight: 1, timeoutSeconds: options.timeoutSeconds ?? 60, ...given }
      if (typeof entry.reward !== 'function') throw new Error(`rubric: "${name}" has no reward function`)
      if (!Number.isFinite(entry.weight))
        throw new Error(`rubric: the weight of "${name}" is ${entry.weight}, not a finite number`)
      if (!(entry.timeoutSeconds > 0))
        throw new Error(`rubric: the time limit of "${name}" is ${entry.timeoutSeconds}, not above 0`)
      return entry
    })
    if (!this.#entries.some((entry) => entry.weight !== 0)) {
      throw new Error(
        'rubric: no function has a weight, so there is nothing to train on; give at least one a weight other than 0',
      )
    }
  }

  /** Names of all functions, in their order. */
  get names(): string[] {
    return this.#entries.map((entry) => entry.name)
  }

  /** Weight by name. */
  get weights(): Record<string, number> {
    return Object.fromEntries(this.#entries.map((entry) => [entry.name, entry.weight]))
  }

  /** Scores one rollout. Never rejects: what went wrong is in `error`. */
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
    let reward: number | null = null
    this.#entries.forEach(({ name, weight }, i) => {
      const value = values[i]
      if (value === undefined) return
      metrics[name] = value
      if (value !== null && weight !== 0) reward = (reward ?? 0) + weight * value
    })
    if (firstError !== null) return { reward: null, metrics, error: firstError }
    if (reward === null) return { reward, metrics, error: 'no reward function applied: each gave null' }
    return Number.isFinite(reward)
      ? { reward, metrics, error: null }
      : { reward: null, metrics, error: 'the sum of the rewards is not finite' }
  }
}

async function runOne(entry: Entry, facts: Omit<RewardArgs, 'signal'>, signal: AbortSignal): Promise<number | null> {
  const what = `reward function "${entry.name}"`
  const flight = tracer?.flight('reward', entry.name)
  let started = false
  try {
    const value: unknown = await withLimit({ what, seconds: entry.timeoutSeconds, signal }, (own) => {
      started = true
      return entry.reward({ ...facts, signal: own })
    })
    if (value === null || (typeof value === 'number' && Number.isFinite(value))) return value
    throw new Error(`${what} returned ${show(value)}; return a finite number, or null where it does not apply`)
  } catch (error) {
    const message = messageOf(error)
    // Our own sentences name the function already; what the function threw does not.
    throw message.startsWith(what) || !started ? error : new Error(`${what} threw: ${message}`, { cause: error })
  } finally {
    flight?.end()
  }
}

/** What reward functions see of a rollout, but for the signal. */
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
    parser,
  }
}

function lastAssistantText(completion: Message[]): string {
  return completion.findLast((message) => message.role === 'assistant')?.content ?? ''
}

function show(value: unknown): string {
  if (typeof value === 'number' || value === undefined) return String(value)
  return typeof value === 'string' ? `the string "${value.slice(0, 40)}"` : `a value of type ${typeof value}`
}
