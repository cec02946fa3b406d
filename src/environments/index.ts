/** The exports of 'dawn-rl/environments', for environment files: `import { SingleTurnEnv, Rubric, z } from 'dawn-rl/environments'`. */
export { z } from 'zod'
export { UserError } from '../common/errors.ts'
export { hashSeed, Random } from '../common/random.ts'
export type {
  ChatClient,
  ChatCompletion,
  ChatTurn,
  Message,
  Rollout,
  RolloutTurn,
  SamplingParams,
  ToolCall,
  ToolDefinition,
} from '../common/types.ts'
export {
  ContextFullError,
  PolicyClient,
  type PolicyClientOptions,
  type PromptEncoder,
  type ToolCallParser,
  type TrajectoryStrategy,
} from './chat.ts'
export { type DatasetOptions, type DatasetSource, loadRows, type RowInput, splitRows, type StoredDataset } from './datasets.ts'
export type { SplitOptions } from './datasets-hub.ts'
export { EnvGroup, type EnvGroupOptions } from './env-group.ts'
export { Judge, type JudgeOptions, type JudgeRewardFunction, JudgeRubric, type JudgeRubricOptions, yesOrNo } from './judge.ts'
export {
  ArgsError,
  bundledEnvironments,
  hookResolve,
  loadEnvironment,
  type LoadOptions,
  parseArgs,
  resolveEnvironment,
} from './load.ts'
export {
  extractAnswer,
  lastBoxed,
  mathEqual,
  type MathEqualOptions,
  MathRubric,
  type MathRubricOptions,
  type MathVerdict,
} from './math/index.ts'
export { connectMcp, type McpConnection, type McpServer } from './mcp.ts'
export { type EnvResponse, MultiTurnEnv, type MultiTurnOptions, type State, type TurnState } from './multi-turn.ts'
export { MaybeThinkParser, Parser, ThinkParser, type XMLField, XMLParser } from './parsers.ts'
export { type Gate, type RolloutOptions, runRollout, scoreGroup, scoreRollout, type SftRow, sftRows } from './rollout.ts'
export {
  type GroupRewardSpec,
  type RewardSpec,
  Rubric,
  RubricGroup,
  type RubricOptions,
  type Scorable,
  type Scores,
} from './rubric.ts'
export { runSandboxed, type SandboxCall, type SandboxCause, type SandboxOptions, type SandboxResult } from './sandbox/index.ts'
export { SingleTurnEnv, type SingleTurnOptions } from './single-turn.ts'
export { type TaskOptions } from './task-env.ts'
export { ChatTemplate, type ChatTokenizer } from './template.ts'
export { readTable, type TableOptions, type TableRow } from './tables.ts'
export { containsWords, lastNumber, lcsLength, lcsRatio, words } from './text.ts'
export { StatefulToolEnv, type StatefulToolEnvOptions, ToolEnv, type ToolEnvOptions } from './tool-env.ts'
export { definitionOf, type JsonSchema, type Tool, tool, type ToolContext } from './tools.ts'
export { Trajectory } from './turns.ts'
export type {
  EnvMember,
  Environment,
  GroupRewardFunction,
  RewardArgs,
  RewardFunction,
  RewardValue,
  RolloutContext,
  RolloutDraft,
  Row,
} from './types.ts'
