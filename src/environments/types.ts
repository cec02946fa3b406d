/**
 * The types of an environment: a task, what a rollout of it gets, what it returns.
 * A single-turn environment asks the policy once; one with turns or tools calls `ctx.client` as often as it likes inside the same
 * `rollout`, so other rooms need not know the difference.
 */
import type { ChatClient, FinishReason, Message, Rollout, RolloutTurn, SamplingParams, ToolDefinition } from '../common/types.ts'
import type { Parser } from './parsers.ts'
import type { Rubric } from './rubric.ts'

/** One task. The system prompt is already in `prompt`. */
export interface Row {
  /** The row's index in its dataset, or its `example_id` column. */
  exampleId: number
  prompt: Message[]
  /** '' where the task has none. */
  answer: string
  info: Record<string, unknown>
  /** Of its own for the chat template, over those of the run. */
  variables?: Record<string, unknown>
}

/** What the environment gets to play a rollout. */
export interface RolloutContext {
  client: ChatClient
  /** `seed` is this rollout's own. */
  sampling: SamplingParams
  /** Fires when the rollout has to end: out of time, or the run is ending. */
  signal: AbortSignal
  /** The group of the task's rollouts: id and size. All of them are played. */
  group?: { id: string; size: number }
  /** Begins a step of the rollout's time limit with this name; null: it waits for other rollouts, and no clock runs. */
  step?: (name: string | null) => void
}

/** A played task, before it is scored. `state` is the environment's own; reward functions see it. */
export interface RolloutDraft extends Pick<
  Rollout,
  'completion' | 'promptIds' | 'completion_tokens' | 'turns' | 'isTruncated' | 'stopCondition'
> {
  state?: Record<string, unknown>
  /** The environment's own metrics; the rubric's are added to them. */
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
   * The right answer to a row, for supervised training: the assistant's text, or all messages after the prompt (with calls and results),
   * of which the assistant's are learned. Default: the row's answer.
   */
  sftCompletion?(row: Row): string | Message[]
  /** The most answers of the policy in one rollout; -1: no limit. Default 1. */
  readonly maxTurns?: number
  /** The tools that the model is told of. */
  readonly tools?: readonly ToolDefinition[]
  /** The members of an environment group, each with a name and a share of the tasks. */
  readonly members?: readonly EnvMember[]
  /** True where the rollouts of a task are played together: none ends before all have begun. */
  readonly playsGroups?: boolean
  /** Starts servers and the like before the first rollout. `logs`: the run's folder for logs; `name`: the environment's name in the run, default its id; `warn` prints a warning. */
  open?(run: { logs: string; name?: string; warn?: (message: string) => void }): Promise<void>
  /** Closes such servers at the end of the run. */
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
  /** The last assistant message, unparsed. */
  rawText: string
  answer: string
  info: Record<string, unknown>
  state: Record<string, unknown>
  /** 'stop': it ended by itself; 'length': cut off by max_tokens. */
  finishReason: FinishReason
  isTruncated: boolean
  stopCondition: string
  completionIds: number[]
  /** The turns as tokens; empty where there is only one. */
  trajectory: readonly RolloutTurn[]
  parser: Parser
  /** Fires at the function's time limit: pass it to fetch and the like. */
  signal: AbortSignal
}

/** A number, or null where the function does not apply to this rollout. Anything else (undefined, NaN, Infinity) fails the rollout. */
export type RewardValue = number | null
export type RewardFunction = (args: RewardArgs) => RewardValue | Promise<RewardValue>
/** Gets the rollouts of one task that did not fail, and returns a value for each. */
export type GroupRewardFunction = (group: readonly RewardArgs[]) => RewardValue[] | Promise<RewardValue[]>
