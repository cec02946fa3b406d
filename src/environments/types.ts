/**
 * The words of an environment: what a task is, what playing it needs, what it leaves.
 * A single-turn environment asks the policy once; one with turns or tools calls `ctx.client` as often as it likes inside the same
 * `rollout`, so nothing outside this room has to know the difference.
 */
import type { ChatClient, FinishReason, Message, Rollout, RolloutTurn, SamplingParams, ToolDefinition } from '../common/types.ts'
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
  /** The rollouts of one task, and how many they are; all of them begin. */
  group?: { id: string; size: number }
  /** Begins a step of the rollout's time limit under this name; null: it waits for others, and no clock runs. */
  step?: (name: string | null) => void
}

/** What playing a task leaves, before it is scored. `state` is the environment's own and reaches the reward functions. */
export interface RolloutDraft extends Pick<
  Rollout,
  'completion' | 'promptIds' | 'completion_tokens' | 'turns' | 'isTruncated' | 'stopCondition'
> {
  state?: Record<string, unknown>
  /** Numbers that the environment counted; those of the rubric stand beside them. */
  metrics?: Rollout['metrics']
}

/** A task family. Bundled ones and users' have the same shape; `SingleTurnEnv` is the usual way to make one. */
export interface Environment {
  readonly id: string
  readonly systemPrompt?: string | undefined
  /** Rows to train on, in a fixed order; a run shuffles them. */
  readonly dataset: readonly Row[]
  /** Held-out rows; empty where there are none. */
  readonly evalDataset: readonly Row[]
  readonly rubric: Rubric
  /**
   * What answers a row rightly, for supervised warm-up: the assistant's text, or all messages after the prompt (calls and their results
   * too), of which the assistant's are learned. Default: the row's answer.
   */
  sftCompletion?(row: Row): string | Message[]
  /** Answers of the policy in one rollout at most; -1: no limit. Default 1. */
  readonly maxTurns?: number
  /** The tools that the model is told of. */
  readonly tools?: readonly ToolDefinition[]
  /** The environments of a group, each with a name and a share of the tasks. */
  readonly members?: readonly EnvMember[]
  /** True: its rollouts of one task are played together; none ends before all of them have begun. */
  readonly playsGroups?: boolean
  /** Starts what it plays with, before the first rollout. `logs`: the run's folder for logs; `name`: its own name in the run, default its id; `warn`: tells the user. */
  open?(run: { logs: string; name?: string; warn?: (message: string) => void }): Promise<void>
  /** Ends what it holds open (servers of tools), when the run ends. */
  close?(): Promise<void>
  /** Plays one task. May throw: `runRollout` turns that into a rollout with an error, which is never trained on. */
  rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft>
}

export interface EnvMember {
  name: string
  env: Environment
  weight: number
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
  /** The turns as tokens; empty where there is one. */
  trajectory: readonly RolloutTurn[]
  parser: Parser
  /** Fires at the function's time limit: hand it to fetch and the like. */
  signal: AbortSignal
}

/** A number; or null where the function does not apply to this rollout. Anything else (undefined, NaN, Infinity) fails the rollout. */
export type RewardValue = number | null
export type RewardFunction = (args: RewardArgs) => RewardValue | Promise<RewardValue>
/** Sees the rollouts of one task side by side (those that did not fail) and gives each its value. */
export type GroupRewardFunction = (group: readonly RewardArgs[]) => RewardValue[] | Promise<RewardValue[]>
