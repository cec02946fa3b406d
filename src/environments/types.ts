/**
 * The words of an environment: what a task is, what playing it needs, what it leaves.
 * A single-turn environment asks the policy once; one with turns or tools calls `ctx.client` as often as it likes inside the same
 * `rollout`, so nothing outside this room has to know the difference.
 */
import type { ChatClient, FinishReason, Message, Rollout, SamplingParams } from '../common/types.ts'
import type { Parser } from './parsers.ts'
import type { Rubric } from './rubric.ts'

/** One task, whole: the system prompt is already in `prompt`. */
export interface Row {
  /** Index in the dataset the row came from, or its `example_id` column. */
  exampleId: number
  prompt: Message[]
  /** '' where the task has none. */
  answer: string
  info: Record<string, unknown>
}

/** What a rollout is played with. */
export interface RolloutContext {
  client: ChatClient
  /** Its `seed` belongs to this rollout alone. */
  sampling: SamplingParams
  /** Fires when the rollout has to end: out of time, or the run is ending. */
  signal: AbortSignal
}

/** What playing a task leaves, before it is scored. `state` is the environment's own and reaches the reward functions. */
export interface RolloutDraft extends Pick<
  Rollout,
  'completion' | 'promptIds' | 'completion_tokens' | 'isTruncated' | 'stopCondition'
> {
  state?: Record<string, unknown>
}

/** A task family. Bundled ones and users' have the same shape; `SingleTurnEnv` is the usual way to make one. */
export interface Environment {
  readonly id: string
  readonly systemPrompt?: string
  /** Rows to train on, in a fixed order; `RowOrder` shuffles. */
  readonly dataset: readonly Row[]
  /** Held-out rows; empty where there are none. */
  readonly evalDataset: readonly Row[]
  readonly rubric: Rubric
  /** The assistant text that answers a row rightly, for supervised warm-up. Default: the row's answer. */
  sftCompletion?(row: Row): string
  /** Plays one task. May throw: `runRollout` turns that into a rollout with an error, which is never trained on. */
  rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft>
}

/** What a reward function sees. */
export interface RewardArgs {
  prompt: Message[]
  completion: Message[]
  /** The last assistant message as the rubric's parser gives it. */
  text: string
  /** The last assistant message as it came. */
  rawText: string
  answer: string
  info: Record<string, unknown>
  state: Record<string, unknown>
  /** 'stop': it ended by itself; 'length': cut off by max_tokens. */
  finishReason: FinishReason
  isTruncated: boolean
  stopCondition: string
  completionIds: number[]
  parser: Parser
  /** Fires at the function's time limit: hand it to fetch and the like. */
  signal: AbortSignal
}

/** A number; or null where the function does not apply to this rollout. Anything else (undefined, NaN, Infinity) fails the rollout. */
export type RewardValue = number | null
export type RewardFunction = (args: RewardArgs) => RewardValue | Promise<RewardValue>
