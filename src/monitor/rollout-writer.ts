/**
 * Writes all rollouts to disk, of training and evaluation. A row has the keys of verifiers' RolloutOutput (its results.jsonl), so that tools
 * for those can open it, and further ones. Token ids and log-probabilities go to a second file, row for row.
 */
import { closeSync } from 'node:fs'
import { inspect } from 'node:util'
import type { Message, PolicyVersion, Rollout, RolloutTurn, ToolDefinition } from '../common/types.ts'
import { promptTokens, type ScoredRollout } from './aggregate.ts'
import { appendRows, jsonLines, openForAppend, readJsonLines, settleFile } from './files.ts'
import type { RunFolder } from './run-folder.ts'

export type Split = 'train' | 'eval'

/** A line of rollouts/step_N.jsonl. */
export interface RolloutRow {
  example_id: number
  prompt: Message[]
  completion: Message[]
  answer: string
  info: Record<string, unknown>
  /** What the prompt was rendered with beside the messages, under the names that `sft` reads; absent if there is none. */
  tools?: readonly ToolDefinition[]
  chat_template_kwargs?: Record<string, unknown>
  /** null: the rollout failed. */
  reward: number | null
  metrics: Record<string, number | null>
  error: { error: string; message: string; error_chain_repr: string; error_chain_str: string } | null
  is_completed: boolean
  is_truncated: boolean
  stop_condition: string
  timing: Rollout['timing']
  token_usage: { input_tokens: number; output_tokens: number; final_input_tokens: number; final_output_tokens: number }
  /** null: not trained on (evaluation, failed, filtered out). An array: one value for each completion token. */
  advantage: number | number[] | null
  /** Oldest and newest version of the weights that sampled its tokens; null without tokens. */
  policy_version: { min: PolicyVersion; max: PolicyVersion } | null
  env: string
  group: string
  index: number
  seed: number
  split: Split
  step: number
}

/** A line of rollouts/step_N.tokens.jsonl. */
export interface TokensRow {
  step: number
  split: Split
  group: string
  index: number
  prompt_ids: number[]
  /** All sampled tokens, turn after turn. */
  completion_ids: number[]
  /** Log-probabilities of the completion's tokens from the sampler (float32, nine digits). */
  logprobs: number[]
  versions: PolicyVersion[]
  /**
   * The trainer's values before the step, for a rollout that was trained on: log-probabilities of the same tokens (rounded to 1e-6, unless equal to the
   * sampler's), and entropies of their distributions (to 1e-4); null for a token that the loss left out.
   */
  trainer_logprobs?: (number | null)[]
  entropies?: (number | null)[]
  /** For a rollout of several turns: the tokens before each answer, how many of `completion_ids` are that answer's, and whether it begins a sequence. */
  turns?: { branch: boolean; prompt_ids: number[]; sampled: number }[]
}

/** The trainer's numbers for a rollout's sampled tokens, before the step; null for a token that the loss left out. */
export interface TrainerTokens {
  logprobs: (number | null)[]
  entropies: (number | null)[]
}

/** The readable row of a rollout. Metrics are also flattened to the top level, as verifiers does, where the name is free. */
export function rolloutRow(step: number, split: Split, scored: ScoredRollout): RolloutRow {
  const { rollout, advantage } = scored
  const usage = usageOf(rollout)
  const row: RolloutRow = {
    example_id: rollout.exampleId,
    prompt: rollout.prompt,
    completion: rollout.completion,
    answer: rollout.answer,
    info: writable(rollout.info),
    ...(rollout.tools && { tools: rollout.tools }),
    ...(rollout.variables && { chat_template_kwargs: rollout.variables }),
    reward: rollout.reward,
    metrics: rollout.metrics,
    error: rollout.error === null ? null : errorInfo(rollout.error),
    is_completed: rollout.error === null,
    is_truncated: rollout.isTruncated,
    stop_condition: rollout.stopCondition,
    timing: rollout.timing,
    token_usage: usage,
    advantage: advantage === null || typeof advantage === 'number' ? advantage : Array.from(advantage),
    policy_version: versionRange(rollout.completion_tokens.versions),
    env: rollout.env,
    group: rollout.group,
    index: rollout.index,
    seed: rollout.seed,
    split,
    step,
  }
  return { ...rollout.metrics, ...row }
}

/** Makes any value fit for JSON: an environment may have put a handle, a BigInt or a cycle there, which becomes text instead of ending the run. */
function writable(info: Rollout['info']): Rollout['info'] {
  if (isJson(info)) return info
  return Object.fromEntries(
    Object.entries(info).map(([key, value]) => [key, isJson(value) ? value : inspect(value, { depth: 1 }).slice(0, 1000)]),
  )
}

function isJson(value: unknown): boolean {
  try {
    JSON.stringify(value)
    return true
  } catch {
    return false
  }
}

/** The token row of a rollout. */
export function tokensRow(step: number, split: Split, rollout: Rollout, trainer?: TrainerTokens): TokensRow {
  const tokens = rollout.completion_tokens
  // Nine digits restore a float32 exactly, in half the characters of a double.
  const logprobs = tokens.logprobs.map((x) => Number(x.toPrecision(9)))
  return {
    step,
    split,
    group: rollout.group,
    index: rollout.index,
    prompt_ids: rollout.promptIds,
    completion_ids: tokens.ids,
    logprobs,
    versions: tokens.versions,
    ...(trainer && {
      // Values equal to the sampler's stay equal to the bit.
      trainer_logprobs: trainer.logprobs.map((x, i) => (x === tokens.logprobs[i] ? logprobs[i] : rounded(x, 1e6))),
      entropies: trainer.entropies.map((x) => rounded(x, 1e4)),
    }),
    ...(rollout.turns && {
      turns: rollout.turns.map(({ branch, promptIds, sampled }) => ({ branch, prompt_ids: promptIds, sampled })),
    }),
  }
}

/** Rounds in a tenth of the time of `toPrecision`. */
const rounded = (x: number | null, by: number): number | null => (x === null ? null : Math.round(x * by) / by)

/** Token counts of all sequences of a rollout, and of its last sequence. */
function usageOf(rollout: Rollout): RolloutRow['token_usage'] {
  const input = promptTokens(rollout)
  const output = rollout.completion_tokens.ids.length
  const turns = rollout.turns ?? []
  const last = turns.slice(turns.findLastIndex((turn) => turn.branch))
  const sum = (of: (turn: RolloutTurn) => number) => last.reduce((total, turn) => total + of(turn), 0)
  return {
    input_tokens: input,
    output_tokens: output,
    final_input_tokens: last.length > 0 ? sum((turn) => turn.promptIds.length) : input,
    final_output_tokens: last.length > 0 ? sum((turn) => turn.sampled) : output,
  }
}

function errorInfo(text: string): NonNullable<RolloutRow['error']> {
  const name = /^([A-Z]\w*(?:Error|Exception)): /.exec(text)
  const message = name ? text.slice(name[0].length) : text
  return { error: name?.[1] ?? 'Error', message, error_chain_repr: text, error_chain_str: text }
}

function versionRange(versions: readonly PolicyVersion[]): RolloutRow['policy_version'] {
  if (versions.length === 0) return null
  let [min, max] = [versions[0], versions[0]]
  for (const v of versions) [min, max] = [Math.min(min, v), Math.max(max, v)]
  return { min, max }
}

/** Appends rollouts to the files of their step. No file stays open between two calls. */
export class RolloutWriter {
  readonly #folder: Pick<RunFolder, 'rolloutsPath' | 'tokensPath'>
  readonly #trainer = new WeakMap<Rollout, TrainerTokens>()
  /** Files that are not synced yet. */
  readonly #unsettled = new Set<string>()

  constructor(folder: Pick<RunFolder, 'rolloutsPath' | 'tokensPath'>) {
    this.#folder = folder
  }

  /** Keeps the trainer's numbers for rollouts that are written later. */
  note(tokens: ReadonlyMap<Rollout, TrainerTokens>): void {
    for (const [rollout, known] of tokens) this.#trainer.set(rollout, known)
  }

  /**
   * Writes rollouts of one step: a training batch, a dropped group, an evaluation. The write is synchronous, so a kill loses none; a power failure may
   * lose those since the last `settle`.
   */
  write(step: number, split: Split, rollouts: readonly ScoredRollout[]): void {
    if (rollouts.length === 0) return
    const files = [
      { path: this.#folder.rolloutsPath(step), rows: rollouts.map((r) => rolloutRow(step, split, r)) },
      {
        path: this.#folder.tokensPath(step),
        rows: rollouts.map((r) => tokensRow(step, split, r.rollout, this.#trainer.get(r.rollout))),
      },
    ]
    const open: { fd: number; rows: unknown[] }[] = []
    try {
      for (const { path, rows } of files) {
        this.#unsettled.add(path)
        open.push({ fd: openForAppend(path), rows })
      }
      appendRows(open)
    } finally {
      for (const { fd } of open) closeSync(fd)
    }
  }

  /** Syncs what was written since the last call. Called before a checkpoint, which relies on it, and not for each line. */
  async settle(): Promise<void> {
    const paths = [...this.#unsettled]
    this.#unsettled.clear()
    try {
      for (const path of paths) await settleFile(path)
    } catch (error) {
      for (const path of paths) this.#unsettled.add(path)
      throw error
    }
  }
}

/** The rows of a step's rollouts; none where the step has no file. */
export function readRollouts(folder: Pick<RunFolder, 'rolloutsPath'>, step: number): RolloutRow[] {
  return readJsonLines<RolloutRow>(folder.rolloutsPath(step))
}

/** A rollout's key facts. The whole row is read only when needed: an evaluation may have more rows than fit into memory. */
export interface RolloutBrief extends AnswerKeys, Pick<RolloutRow, 'split' | 'is_truncated' | 'token_usage'> {
  row: () => RolloutRow
}

/** The key facts of a step's rollouts; none where the step has no file. */
export function readBriefs(path: string): RolloutBrief[] {
  const rowAt = (from: number): RolloutRow => {
    for (const { row } of jsonLines<RolloutRow>(path, from)) return row
    throw new Error(`${path} was changed while it was read.`)
  }
  return Array.from(jsonLines<RolloutRow>(path), ({ row, at }) => {
    const { env, example_id, index, split, reward, is_truncated, token_usage } = row
    return { env, example_id, index, split, reward, is_truncated, token_usage, row: () => rowAt(at) }
  })
}

type AnswerKeys = Pick<RolloutRow, 'env' | 'example_id' | 'index' | 'reward'>

/** The answers to a question in two evaluations, and the change of the reward. */
interface AnswerPair<Before, After> {
  before: Before
  after: After
  gain: number
}

/** Pairs of answers that both evaluations have, in the order of the first. Looked up by key, as there may be a hundred thousand. */
export function answerPairs<Before extends AnswerKeys, After extends AnswerKeys>(
  before: readonly Before[],
  after: readonly After[],
): AnswerPair<Before, After>[] {
  const keyOf = ({ env, example_id: id, index }: AnswerKeys) => JSON.stringify([env, id, index])
  const later = new Map(after.map((row) => [keyOf(row), row]))
  return before.flatMap((row) => {
    const pair = later.get(keyOf(row))
    return pair ? [{ before: row, after: pair, gain: (pair.reward ?? 0) - (row.reward ?? 0) }] : []
  })
}
