/**
 * Rollouts on disk: all of them, training and evaluation. A row has the keys of verifiers' RolloutOutput (its results.jsonl), so that
 * what opens those opens these, and ours beside them. Token ids and log-probabilities go to a sibling file, row for row.
 */
import { closeSync } from 'node:fs'
import { inspect } from 'node:util'
import type { Message, PolicyVersion, Rollout, RolloutTurn } from '../common/types.ts'
import { promptTokens, type ScoredRollout } from './aggregate.ts'
import { appendRows, jsonLines, openForAppend, readJsonLines, settleFile } from './files.ts'
import type { RunFolder } from './run-folder.ts'

export type Split = 'train' | 'eval'

export interface RolloutRow {
  example_id: number
  prompt: Message[]
  completion: Message[]
  answer: string
  info: Record<string, unknown>
  /** null: the rollout failed. */
  reward: number | null
  metrics: Record<string, number | null>
  error: { error: string; message: string; error_chain_repr: string; error_chain_str: string } | null
  is_completed: boolean
  is_truncated: boolean
  stop_condition: string
  timing: Rollout['timing']
  token_usage: { input_tokens: number; output_tokens: number; final_input_tokens: number; final_output_tokens: number }
  /** null: not trained on (evaluation, failed, filtered out). An array: one value a completion token. */
  advantage: number | number[] | null
  /** Oldest and newest weights that sampled a token of it; null without tokens. */
  policy_version: { min: PolicyVersion; max: PolicyVersion } | null
  env: string
  group: string
  index: number
  seed: number
  split: Split
  step: number
}

export interface TokensRow {
  step: number
  split: Split
  group: string
  index: number
  prompt_ids: number[]
  /** All sampled tokens, turn after turn. */
  completion_ids: number[]
  /** Of the completion's tokens, as the sampler had them (float32, nine digits). */
  logprobs: number[]
  versions: PolicyVersion[]
  /**
   * Of a rollout that was trained on: log-probabilities of the same tokens before the step (to 1e-6, and those that are the sampler's to the bit as they
   * are), and entropies of what they were drawn from (to 1e-4), as the trainer computed them; null for a token that the loss left out.
   */
  trainer_logprobs?: (number | null)[]
  entropies?: (number | null)[]
  /** Of a rollout of several turns: the tokens before each answer, how many of `completion_ids` are the answer's, whether it begins a sequence. */
  turns?: { branch: boolean; prompt_ids: number[]; sampled: number }[]
}

/** What the trainer computed of a rollout's sampled tokens, before the step: null for one that the loss left out. */
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

/** An environment may have put anything there (a handle, a BigInt, what holds itself): what JSON has no word for is a text, and ends no run. */
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
  // Nine digits bring a float32 back exactly, in half the characters of a double.
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
      // What is the same to the bit stays so.
      trainer_logprobs: trainer.logprobs.map((x, i) => (x === tokens.logprobs[i] ? logprobs[i] : rounded(x, 1e6))),
      entropies: trainer.entropies.map((x) => rounded(x, 1e4)),
    }),
    ...(rollout.turns && {
      turns: rollout.turns.map(({ branch, promptIds, sampled }) => ({ branch, prompt_ids: promptIds, sampled })),
    }),
  }
}

/** A tenth of the time that `toPrecision` takes. */
const rounded = (x: number | null, by: number): number | null => (x === null ? null : Math.round(x * by) / by)

/** Tokens of all its sequences, and of the last one. */
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

/** Appends rollouts to the files of their step. Nothing is kept open or in memory between two calls. */
export class RolloutWriter {
  readonly #folder: Pick<RunFolder, 'rolloutsPath' | 'tokensPath'>
  readonly #trainer = new WeakMap<Rollout, TrainerTokens>()
  /** Files that the disk may not have yet. */
  readonly #unsettled = new Set<string>()

  constructor(folder: Pick<RunFolder, 'rolloutsPath' | 'tokensPath'>) {
    this.#folder = folder
  }

  /** Takes what the trainer knows of rollouts that are written later. */
  note(tokens: ReadonlyMap<Rollout, TrainerTokens>): void {
    for (const [rollout, known] of tokens) this.#trainer.set(rollout, known)
  }

  /**
   * Writes rollouts of one step: a training batch, a dropped group, an evaluation. Synchronous, so a killed run has them; a machine that loses power has
   * those before the last `settle`.
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

  /** Waits until the disk has what was written since the last call. Once a checkpoint, which counts on it, and not once a line. */
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

/** The rollouts of a step as they were written; none where the step has no file. */
export function readRollouts(folder: Pick<RunFolder, 'rolloutsPath'>, step: number): RolloutRow[] {
  return readJsonLines<RolloutRow>(folder.rolloutsPath(step))
}

/** What tells how a rollout went. Its row is read when it is asked for: those of an evaluation may be more than the memory holds. */
export interface RolloutBrief extends AnswerKeys, Pick<RolloutRow, 'split' | 'is_truncated' | 'token_usage'> {
  row: () => RolloutRow
}

/** The rollouts of a step in short; none where the step has no file. */
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

/** One answer to a question in two evaluations, and by how much its reward grew. */
interface AnswerPair<Before, After> {
  before: Before
  after: After
  gain: number
}

/** The answers that both evaluations have, in the order of the first. Found by their keys: there may be a hundred thousand. */
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
