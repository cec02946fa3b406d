/**
 * One rollout from start to end: plays the task, scores the result, measures the times. `runRollout` never rejects. A failure in generation, in the
 * environment's code or in a reward function becomes a rollout with `error` set and `reward` null, which is never trained on.
 */
import { messageOf, placeInCode } from '../common/errors.ts'
import { stepOfGroup, timeline, type TimelineTrack } from '../common/timeline.ts'
import { tracer, type TraceArgs } from '../common/trace.ts'
import type { ChatClient, ChatCompletion, Message, Rollout, SamplingParams, ToolDefinition } from '../common/types.ts'
import { StepClock } from './clock.ts'
import { withLimit } from './limit.ts'
import type { Scores } from './rubric.ts'
import type { Environment, RolloutContext, RolloutDraft, Row } from './types.ts'

export interface RolloutOptions {
  client: ChatClient
  /** `seed` is this rollout's own. */
  sampling: SamplingParams
  /** Shared by the rollouts of one task; unique in a run. */
  group: string
  /** Index of the rollout within the group. */
  index: number
  /** Number of rollouts in the group. Default 1. */
  size?: number
  /** Aborts the rollout, which then counts as failed. */
  signal?: AbortSignal
  /** Time limit for each answer of the policy, and for the environment's work between two answers. Default: none. */
  generationTimeoutSeconds?: number
  /** Time limit for all of these together. Default: none. */
  rolloutTimeoutSeconds?: number
  /** Time limit for scoring, besides the rubric's limit for each function. Default: none. */
  rewardTimeoutSeconds?: number
  /** Limits how many answers are sampled at once. Time limits do not run while an answer waits for it. */
  gate?: Gate
  /** How many tokens the trained model has; every id must then be one of them. Default: rollouts are only scored, and ids may be unknown (-1). */
  vocabulary?: number
}

/** Where a rollout waits for a place at the sampler (`take`), and returns it (`give`). */
export interface Gate {
  /** `again`: this is not the rollout's first answer. */
  take(again: boolean): Promise<void>
  /** @param tokens of the answer; none if it failed */
  give(tokens?: number): void
}

/** The environment's state of each rollout whose group is still to be scored. */
const states = new WeakMap<Rollout, Record<string, unknown>>()

/** Plays and scores one task. Never rejects. */
export async function runRollout(env: Environment, given: Row, options: RolloutOptions): Promise<Rollout> {
  const row = { ...given, prompt: own(given.prompt), info: own(given.info) }
  const { sampling, group, index, signal } = options
  const start = performance.now()
  let draft: RolloutDraft | undefined
  let error: string | null = null
  const flight = tracer?.flight('rollout', `${group} #${index}`, { env: env.id, task: row.exampleId })
  flight?.phase('generation')
  const clock = new StepClock(options.generationTimeoutSeconds ?? Infinity, signal, options.rolloutTimeoutSeconds)
  const mark = markerOf(group, index)
  const client = new GatedClient(withVariables(options.client, row.variables), clock, options.gate, mark)
  try {
    clock.step('the environment')
    const ctx: RolloutContext = {
      client,
      sampling,
      signal: clock.signal,
      group: { id: group, size: options.size ?? 1 },
      step: (name) => clock.step(name),
      idle: () => clock.idle,
    }
    const played = Promise.resolve(ctx).then(() => env.rollout(row, ctx))
    draft = checked(await Promise.race([clock.ended, played]))
    if (options.vocabulary !== undefined) checkVocabulary(draft, options.vocabulary)
    if (draft.stopCondition === 'abort') error = 'generation was aborted'
  } catch (thrown) {
    error = client.failures.has(thrown) ? messageOf(thrown) : told(thrown)
  } finally {
    client.close()
    clock.close()
  }
  const generation_ms = performance.now() - start - client.queuedMs
  const { state, metrics = {}, ...played } = draft ?? nothingPlayed
  const rollout: Rollout = {
    exampleId: row.exampleId,
    env: env.id,
    group,
    index,
    prompt: row.prompt,
    answer: row.answer,
    info: row.info,
    ...(env.tools?.length && { tools: env.tools }),
    ...(row.variables && { variables: row.variables }),
    ...played,
    reward: null,
    metrics,
    error,
    seed: sampling.seed,
    timing: { generation_ms, scoring_ms: 0, total_ms: generation_ms },
  }
  if (error === null) flight?.phase('rewards')
  const limits = { what: 'scoring', seconds: options.rewardTimeoutSeconds ?? Infinity, signal }
  const scoringBegan = performance.now()
  const scoring = (own: AbortSignal) => scoreRollout(env, rollout, { signal: own, state, metrics })
  const scored = error === null ? await withLimit(limits, scoring).catch((e) => ({ ...rollout, error: messageOf(e) })) : rollout
  if (error === null) mark('environment', 'score', scoringBegan, { reward: scored.reward })
  if (state && env.rubric.groupNames?.length > 0) states.set(scored, state)
  flight?.end({ tokens: played.completion_tokens.ids.length, reward: scored.reward, error: scored.error })
  return scored
}

/**
 * Copies a value for each rollout: an environment may change its `info` or prompt, which must not affect other rollouts of the task or later epochs.
 */
function own<T>(value: T): T {
  try {
    return structuredClone(value)
  } catch {
    return value // it contains a function, which cannot be copied
  }
}

/** The message of an error thrown by a user's environment, with the place in its code. Our own errors are clear without it. */
function told(thrown: unknown): string {
  if (!(thrown instanceof Error)) return `the environment threw: ${messageOf(thrown)}`
  const place = placeInCode(thrown)
  return place ? `the environment threw: ${thrown.message} (${place})` : thrown.message
}

/** Adds a span to the timeline: what the rollout has done since `start`. */
type Mark = (track: TimelineTrack, name: string, start: number, detail?: TraceArgs) => void

function markerOf(group: string, index?: number): Mark {
  const step = stepOfGroup(group)
  const who = { group, ...(index !== undefined && { index }) }
  return (track, name, start, detail) =>
    timeline?.add({ track, name, start, end: performance.now(), step, detail: { ...who, ...detail }, fine: true })
}

/** Adds a row's own template variables to each of its requests. A request's variables override them. */
const withVariables = (client: ChatClient, variables: Row['variables']): ChatClient =>
  variables
    ? {
        complete: (messages, sampling, signal, turn) =>
          client.complete(messages, sampling, signal, { ...turn, variables: { ...variables, ...turn?.variables } }),
      }
    : client

/** The policy as a rollout sees it: each answer waits at the gate, and is one step of the clock. */
class GatedClient implements ChatClient {
  queuedMs = 0
  /** Errors that come from the sampler. */
  readonly failures = new Set<unknown>()
  readonly #client: ChatClient
  readonly #clock: StepClock
  readonly #gate: Gate | undefined
  #held = 0
  #waiting = 0
  #sampling = 0
  #again = false
  #closed = false
  readonly #mark: Mark
  /** When the last answer ended. The environment has been working since then. */
  #answered: number | undefined

  constructor(client: ChatClient, clock: StepClock, gate: Gate | undefined, mark: Mark) {
    this.#client = client
    this.#clock = clock
    this.#gate = gate
    this.#mark = mark
  }

  complete(...asked: Parameters<ChatClient['complete']>): Promise<ChatCompletion> {
    const answer = this.#complete(...asked)
    // An answer that the environment does not await fails when the rollout ends. That must not be an unhandled rejection.
    answer.catch(() => {})
    return answer
  }

  async #complete(...[messages, sampling, signal, turn]: Parameters<ChatClient['complete']>): Promise<ChatCompletion> {
    const own = this.#clock.signal
    this.#markTurn()
    if (this.#gate) {
      const since = performance.now()
      this.#waiting++
      if (this.#sampling === 0) this.#clock.step(null)
      await this.#gate.take(this.#again)
      this.#waiting--
      // The rollout may have ended meanwhile.
      if (this.#closed) this.#gate.give()
      else this.#held++
      this.queuedMs += performance.now() - since
      this.#mark('orchestrator', 'queued', since)
    }
    own.throwIfAborted()
    if (this.#closed) throw new Error('the rollout has ended')
    this.#again = true
    this.#sampling++
    this.#clock.step('generation')
    const begin = performance.now()
    let tokens = 0
    try {
      const both = signal && signal !== own ? AbortSignal.any([signal, own]) : own
      const completion = await this.#client.complete(messages, sampling, both, turn)
      tokens = completion.ids.length
      return completion
    } catch (error) {
      this.failures.add(error)
      throw error
    } finally {
      this.#mark('engine', 'generate', begin, { tokens })
      this.#answered = performance.now()
      this.#sampling--
      if (!this.#closed) {
        // The environment may have requested several answers at once, of which others still wait at the gate.
        if (this.#sampling === 0) this.#clock.step(this.#waiting > 0 ? null : 'the environment')
        if (this.#gate) this.#give(tokens)
      }
    }
  }

  /** Returns the places that are still held by a generator that ignores the abort signal. */
  close(): void {
    this.#markTurn()
    this.#closed = true
    while (this.#held > 0) this.#give()
  }

  #markTurn(): void {
    if (this.#answered !== undefined) this.#mark('environment', 'turn', this.#answered)
    this.#answered = undefined
  }

  #give(tokens = 0): void {
    this.#held--
    this.#gate!.give(tokens)
  }
}

/** Scores a rollout anew and returns a copy with the result. Also for rollouts that were read from disk. */
export async function scoreRollout(
  env: Environment,
  rollout: Rollout,
  options: { signal?: AbortSignal; state?: Record<string, unknown>; metrics?: Rollout['metrics'] } = {},
): Promise<Rollout> {
  const start = performance.now()
  const scores = await env.rubric.score({ ...rollout, state: options.state }, { signal: options.signal })
  const scoring_ms = performance.now() - start
  const { generation_ms } = rollout.timing
  const timing = { generation_ms, scoring_ms, total_ms: generation_ms + scoring_ms }
  return { ...rollout, ...scores, metrics: { ...options.metrics, ...scores.metrics }, timing }
}

/**
 * Adds the rewards of group functions to the rollouts of one task, all of which have ended. Failed rollouts stay as they are. If a group function
 * fails, all the others fail. Never rejects.
 */
export async function scoreGroup(
  env: Environment,
  rollouts: readonly Rollout[],
  options: { signal?: AbortSignal; rewardTimeoutSeconds?: number } = {},
): Promise<Rollout[]> {
  if (!(env.rubric.groupNames?.length > 0)) return [...rollouts]
  const scored = rollouts.filter((r) => r.error === null)
  if (scored.length === 0) return [...rollouts]
  const limits = { what: 'scoring a group', seconds: options.rewardTimeoutSeconds ?? Infinity, signal: options.signal }
  const members = scored.map((r) => ({ ...r, state: states.get(r) }))
  const failed = (error: unknown): Scores[] => scored.map((r) => ({ reward: null, metrics: r.metrics, error: messageOf(error) }))
  const begin = performance.now()
  const scores = await withLimit(limits, (signal) => env.rubric.scoreGroup(members, { signal })).catch(failed)
  markerOf(rollouts[0].group)('environment', 'score group', begin)
  const made = new Map(scored.map((r, i) => [r, { ...r, ...scores[i] }]))
  return rollouts.map((r) => made.get(r) ?? r)
}

const nothingPlayed: RolloutDraft = {
  completion: [],
  promptIds: [],
  completion_tokens: { ids: [], logprobs: [], versions: [] },
  isTruncated: false,
  stopCondition: 'error',
}

/** The trainer would read anything else as another token. Endpoints, whose answers are only scored, give -1 for each. */
const areIds = (list: unknown): boolean => Array.isArray(list) && list.every((id) => Number.isInteger(id) && id >= -1)

/** Checks what an environment returned: the trainer needs three arrays of the same length for a completion. */
function checked(draft: RolloutDraft): RolloutDraft {
  const {
    completion,
    promptIds,
    completion_tokens,
    isTruncated,
    stopCondition,
    metrics = {},
    turns,
  } = (draft ?? {}) as Partial<RolloutDraft>
  const { ids, logprobs, versions } = completion_tokens ?? nothingPlayed.completion_tokens
  const isThere = {
    'completion, a list of messages': Array.isArray(completion) && completion.every((m) => typeof m?.role === 'string'),
    'promptIds, a list of token ids': areIds(promptIds),
    'turns, each with promptIds, a list of token ids': turns === undefined || turns.every((turn) => areIds(turn?.promptIds)),
    'completion_tokens, three lists of numbers': completion_tokens && [ids, logprobs, versions].every(Array.isArray),
    'isTruncated, true or false': typeof isTruncated === 'boolean',
    'stopCondition, a string': typeof stopCondition === 'string',
  }
  const missing = Object.entries(isThere).find(([, there]) => !there)
  if (missing)
    throw new Error(`the environment's rollout must return ${missing[0]}; it returned ${draft ? 'another value' : String(draft)}`)
  const [name] = Object.entries(metrics).find(([, value]) => value !== null && typeof value !== 'number') ?? []
  if (name !== undefined)
    throw new Error(`the environment's metric "${name}" is of type ${typeof metrics[name]}; it must be a number`)
  // The mean over a step would not be a number either.
  const [lost] = Object.entries(metrics).find(([, value]) => value !== null && !Number.isFinite(value)) ?? []
  if (lost !== undefined)
    throw new Error(
      `the environment's metric "${lost}" is ${metrics[lost]}; it must be a finite number, or null if it does not apply`,
    )
  if (logprobs.length !== ids.length || versions.length !== ids.length) {
    throw new Error(
      `the completion has ${ids.length} tokens, ${logprobs.length} log-probabilities and ${versions.length} versions; they must agree`,
    )
  }
  if (ids.length === 0 && draft.stopCondition !== 'abort') throw new Error('the completion has no tokens')
  // A log-probability may be NaN, if the sampler is broken: its token is then left out of the loss.
  if (!areIds(ids)) throw new Error(`the completion's ids must be token ids (whole numbers)`)
  const [kind] = Object.entries({ logprobs, versions }).find(([, list]) => !list.every((x) => typeof x === 'number')) ?? []
  if (kind) throw new Error(`the completion's ${kind} must be numbers`)
  const sampled = turns?.reduce((sum, turn) => sum + turn.sampled, 0) ?? ids.length
  if (sampled !== ids.length)
    throw new Error(`the turns have ${sampled} tokens and the completion ${ids.length}; they must agree`)
  return draft
}

/** The trainer would read no row of the embedding, or that of another token, and train on noise. */
function checkVocabulary({ promptIds, turns = [], completion_tokens: { ids } }: RolloutDraft, vocabulary: number): void {
  const lists = { promptIds, ...Object.fromEntries(turns.map((turn, i) => [`turns[${i}].promptIds`, turn.promptIds])) }
  for (const [name, list] of Object.entries({ ...lists, 'completion_tokens.ids': ids })) {
    const at = list.findIndex((id) => id < 0 || id >= vocabulary)
    if (at >= 0)
      throw new Error(
        `the environment's rollout returned ${name}[${at}] = ${list[at]}, and the trained model's token ids are 0 to ${vocabulary - 1}; only answers of \`client\` can be trained on`,
      )
  }
}

/** A supervised example: a prompt and the messages after it, of which the assistant's are trained on. */
export interface SftRow {
  prompt: Message[]
  completion: Message[]
  /** The tools that are described in the prompt; absent if there are none. */
  tools?: readonly ToolDefinition[]
  /** The row's own variables for the chat template. */
  variables?: Row['variables']
}

/** Supervised examples from an environment's own answers or conversations. Rows without one are left out. */
export function sftRows(env: Environment, split: 'train' | 'eval' = 'train'): SftRow[] {
  // A group's rows are each shown with their member's tools.
  if (env.members) return env.members.flatMap((member) => sftRows(member.env, split))
  const rows = split === 'train' ? env.dataset : env.evalDataset
  return rows.flatMap((row) => {
    const given = env.sftCompletion ? env.sftCompletion(row) : row.answer
    const completion = typeof given === 'string' ? [{ role: 'assistant' as const, content: given }] : given
    if (given.length === 0) return []
    return [
      {
        prompt: row.prompt,
        completion,
        ...(env.tools?.length && { tools: env.tools }),
        ...(row.variables && { variables: row.variables }),
      },
    ]
  })
}
