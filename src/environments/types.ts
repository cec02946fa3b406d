/**
 * The types of an environment: tasks, what a rollout gets, and what it returns. A single-turn environment asks the policy once; one with turns or
 * tools calls `ctx.client` as often as it likes within one `rollout`, so the callers of environments need not distinguish them.
 */
import type { ChatClient, FinishReason, Message, Rollout, RolloutTurn, SamplingParams, ToolDefinition } from '../common/types.ts'
import type { Parser } from './parsers.ts'
import type { Rubric } from './rubric.ts'

/** One task. `prompt` includes the system prompt. */
export interface Row {
  /** The row's index in its dataset, or the value of its `example_id` column. */
  exampleId: number
  prompt: Message[]
  /** '' if the task has none. */
  answer: string
  info: Record<string, unknown>
  /** The row's own variables for the chat template. They override the run's. */
  variables?: Record<string, unknown>
}

/** What the environment needs to play a rollout. */
export interface RolloutContext {
  client: ChatClient
  /** `seed` is this rollout's own. */
  sampling: SamplingParams
  /** Aborted when the rollout has to end: it is out of time, or the run ends. */
  signal: AbortSignal
  /** The group of the task's rollouts, all of which are played: its id, and how many they are. */
  group?: { id: string; size: number }
  /** Starts a new step of the rollout's time limit, with this name. null: the rollout waits for others, and no time limit runs. */
  step?: (name: string | null) => void
  /** Milliseconds so far in which the rollout waited (for a place at the sampler, or for others), and no time limit ran. */
  idle?: () => number
}

/** A rollout before scoring. `state` belongs to the environment; reward functions see it. */
export interface RolloutDraft extends Pick<
  Rollout,
  'completion' | 'promptIds' | 'completion_tokens' | 'turns' | 'isTruncated' | 'stopCondition'
> {
  state?: Record<string, unknown>
  /** The environment's own metrics, to which the rubric's are added. */
  metrics?: Rollout['metrics']
}

/** A family of tasks. Bundled and users' environments have the same interface; `SingleTurnEnv` is the usual way to make one. */
export interface Environment {
  readonly id: string
  readonly systemPrompt?: string | undefined
  /** Rows to train on, in a fixed order; a run shuffles them. */
  readonly dataset: readonly Row[]
  /** Held-out rows; may be empty. */
  readonly evalDataset: readonly Row[]
  readonly rubric: Rubric
  /**
   * The correct answer to a row, for supervised training: the assistant's text, or all messages after the prompt (with tool calls and results), of
   * which the assistant's are trained on. Default: the row's answer.
   */
  sftCompletion?(row: Row): string | Message[]
  /** The most answers of the policy in one rollout; -1: no limit. Default 1. */
  readonly maxTurns?: number
  /** The tools that are described to the model. */
  readonly tools?: readonly ToolDefinition[]
  /** The members of an environment group, with their names and weights. */
  readonly members?: readonly EnvMember[]
  /** Whether the rollouts of a task are played together: none ends before all have started. */
  readonly playsGroups?: boolean
  /**
   * Starts servers and the like, before the first rollout. `logs`: the run's folder for log files; `name`: the environment's name in the run
   * (default: its id); `warn` prints a warning.
   */
  open?(run: { logs: string; name?: string; warn?: (message: string) => void }): Promise<void>
  /** Stops them at the end of the run. */
  close?(): Promise<void>
  /** Plays one task. May throw: `runRollout` turns that into a rollout with an error, which is never trained on. */
  rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft>
}

/** A member of an environment group. `weight` is relative to those of the other members. */
export interface EnvMember {
  name: string
  env: Environment
  weight: number
}

/** What a reward function sees of a rollout. */
export interface RewardArgs {
  prompt: Message[]
  completion: Message[]
  /** The last assistant message, as parsed by the rubric's parser. */
  text: string
  /** The last assistant message, unparsed. */
  rawText: string
  answer: string
  info: Record<string, unknown>
  state: Record<string, unknown>
  /** 'length' if `isTruncated`, 'abort' if generation was aborted, otherwise 'stop'. */
  finishReason: FinishReason
  isTruncated: boolean
  stopCondition: string
  completionIds: number[]
  /** The turns as tokens; may be empty if there is only one. */
  trajectory: readonly RolloutTurn[]
  parser: Parser
  /** Aborted at the function's time limit; pass it on to fetch and the like. */
  signal: AbortSignal
}

/** A finite number, or null if the function does not apply to this rollout. Anything else (undefined, NaN, Infinity) fails the rollout. */
export type RewardValue = number | null
export type RewardFunction = (args: RewardArgs) => RewardValue | Promise<RewardValue>
/** Gets the rollouts of one task that did not fail, and returns a value for each, in the same order. */
export type GroupRewardFunction = (group: readonly RewardArgs[]) => RewardValue[] | Promise<RewardValue[]>
