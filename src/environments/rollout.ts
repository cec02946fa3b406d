/**
 * One rollout from start to end: play the task, score what came out, note the times. `runRollout` never rejects: what goes wrong
 * in generation, in the environment's code or in a reward function becomes a rollout with `error` set and `reward` null, and such a
 * rollout is never trained on.
 */
import { messageOf } from '../common/errors.ts'
import { tracer } from '../common/trace.ts'
import type { ChatClient, Message, Rollout, SamplingParams } from '../common/types.ts'
import { withLimit } from './limit.ts'
import type { Environment, RolloutDraft, Row } from './types.ts'

export interface RolloutOptions {
  client: ChatClient
  /** `seed` is this rollout's own. */
  sampling: SamplingParams
  /** Shared by the rollouts of one task, unique in a run. */
  group: string
  /** Which rollout of the group. */
  index: number
  /** Ends the rollout early; it then counts as failed. */
  signal?: AbortSignal
  /** Limit of playing the task. Default: none. */
  generationTimeoutSeconds?: number
  /** Limit of scoring it, beside the rubric's own limit of each function. Default: none. */
  rewardTimeoutSeconds?: number
  /** Told what is being waited for: 'generation', 'rewards', and null at the end. */
  onWait?: (what: string | null) => void
}

/** Plays and scores one task. */
export async function runRollout(env: Environment, row: Row, options: RolloutOptions): Promise<Rollout> {
  const { client, sampling, group, index, signal, onWait } = options
  const start = performance.now()
  let draft: RolloutDraft | undefined
  let error: string | null = null
  const flight = tracer?.flight('rollout', `${group} #${index}`, { env: env.id, task: row.exampleId })
  flight?.phase('generation')
  onWait?.('generation')
  try {
    draft = await withLimit({ what: 'generation', seconds: options.generationTimeoutSeconds ?? Infinity, signal }, (own) =>
      env.rollout(row, { client, sampling, signal: own }),
    )
    checkDraft(draft)
    if (draft.stopCondition === 'abort') error = 'generation was aborted'
  } catch (thrown) {
    error = messageOf(thrown)
  }
  const generation_ms = performance.now() - start
  const { state, ...played } = draft ?? nothingPlayed
  const rollout: Rollout = {
    exampleId: row.exampleId,
    env: env.id,
    group,
    index,
    prompt: row.prompt,
    answer: row.answer,
    info: row.info,
    ...played,
    reward: null,
    metrics: {},
    error,
    seed: sampling.seed,
    timing: { generation_ms, scoring_ms: 0, total_ms: generation_ms },
  }
  if (error === null) {
    flight?.phase('rewards')
    onWait?.('rewards')
  }
  const limits = { what: 'scoring', seconds: options.rewardTimeoutSeconds ?? Infinity, signal }
  const scoring = (own: AbortSignal) => scoreRollout(env, rollout, { signal: own, state })
  const scored = error === null ? await withLimit(limits, scoring).catch((e) => ({ ...rollout, error: messageOf(e) })) : rollout
  flight?.end({ tokens: played.completion_tokens.ids.length, reward: scored.reward, error: scored.error })
  onWait?.(null)
  return scored
}

/** A copy of a played rollout with fresh reward, metrics, error and scoring time; also for rollouts read back from disk. */
export async function scoreRollout(
  env: Environment,
  rollout: Rollout,
  options: { signal?: AbortSignal; state?: Record<string, unknown> } = {},
): Promise<Rollout> {
  const start = performance.now()
  const scores = await env.rubric.score({ ...rollout, state: options.state }, { signal: options.signal })
  const scoring_ms = performance.now() - start
  const { generation_ms } = rollout.timing
  return { ...rollout, ...scores, timing: { generation_ms, scoring_ms, total_ms: generation_ms + scoring_ms } }
}

const nothingPlayed: RolloutDraft = {
  completion: [],
  promptIds: [],
  completion_tokens: { ids: [], logprobs: [], versions: [] },
  isTruncated: false,
  stopCondition: 'error',
}

/** An environment is a user's code, and what the trainer indexes by token must be whole: the three arrays of a completion have one length. */
function checkDraft(draft: RolloutDraft): void {
  const { ids, logprobs, versions } = draft.completion_tokens
  if (logprobs.length !== ids.length || versions.length !== ids.length) {
    throw new Error(
      `the completion has ${ids.length} tokens, ${logprobs.length} log-probabilities and ${versions.length} versions; they must agree`,
    )
  }
  if (ids.length === 0 && draft.stopCondition !== 'abort') throw new Error('the completion has no tokens')
}

/** A supervised example: messages, and the assistant's answer to them. */
export interface SftRow {
  prompt: Message[]
  completion: Message[]
}

/** An environment's own answers as supervised examples. Rows without an answer are left out. */
export function sftRows(env: Environment, split: 'train' | 'eval' = 'train'): SftRow[] {
  const rows = split === 'train' ? env.dataset : env.evalDataset
  return rows.flatMap((row) => {
    const content = env.sftCompletion ? env.sftCompletion(row) : row.answer
    return content === '' ? [] : [{ prompt: row.prompt, completion: [{ role: 'assistant' as const, content }] }]
  })
}
