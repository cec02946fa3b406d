/**
 * Wraps environments written in Python for verifiers as an `Environment`. verifiers plays and scores the rollouts in its own server (`EnvHost`), and
 * the answers come from the run's policy (`PolicyEndpoint`). The tokens to train on are those sampled for the answers in the rollout's trajectory.
 */
import type { ChildProcess } from 'node:child_process'
import { tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { randomUUID } from 'node:crypto'
import { UserError } from '../../common/errors.ts'
import type { ChatCompletion, SamplingParams, ToolDefinition } from '../../common/types.ts'
import { Rubric, type Scores, type Scorable } from '../rubric.ts'
import { Trajectory } from '../turns.ts'
import type { Environment, RolloutContext, RolloutDraft, Row } from '../types.ts'
import { describe, killGroup, needPython, type Described, type PythonWish } from './bridge.ts'
import { Calls } from './calls.ts'
import { PolicyEndpoint, REQUEST_FIELD, SESSION_HEADER } from './endpoint.ts'
import { EnvHost } from './host.ts'
import { messagesOf, toolOf, type Description, type Output, type PythonRow } from './types.ts'
import { EnvWire, type Reply } from './wire.ts'

export interface PythonOptions {
  /** The Python executable, which has verifiers installed. true: that of scripts/setup-verifiers.sh. */
  python?: boolean | string
  /** verifiers' extra_env_kwargs: attributes that are set on the loaded environment, such as max_turns. */
  kwargs?: Record<string, unknown>
  /** Number of processes that play rollouts. Default 1. */
  workers?: number
  /** Folder that relative paths start from. Default: the working directory. */
  base?: string
  /** Seconds within which a cancelled rollout must end. Otherwise its worker counts as stuck, and the server is restarted. Default 60. */
  stuckSeconds?: number
}

/** The environment variable that passes the key of `PolicyEndpoint` to the server. */
const KEY_VARIABLE = 'DAWN_RL_POLICY_KEY'
/** Effectively no time limit on the Python side, as the run has its own. */
const CALL_SECONDS = 7 * 86_400

/**
 * Loads an environment that Python knows by `id`.
 * @throws UserError if Python or verifiers is missing, the id is unknown, or the environment raises
 */
export async function loadPythonEnvironment(
  id: string,
  args: Record<string, unknown> = {},
  options: PythonOptions = {},
): Promise<PythonEnv> {
  const base = resolve(options.base ?? '.')
  const wish: PythonWish = { id, args, kwargs: options.kwargs ?? {}, python: needPython(id, options.python, base), base }
  const about = await describe(wish)
  const wrong =
    about.message_type !== 'chat'
      ? `its message_type is ${about.message_type}; only chat environments can be trained on`
      : about.train === 0
        ? 'it has no rows to train on'
        : undefined
  if (wrong === undefined) return new PythonEnv(wish, about, options)
  if (about.waiting) killGroup(about.waiting)
  throw new UserError(`environment ${id}: ${wrong}.`)
}

/** An environment that runs in Python. */
export class PythonEnv implements Environment {
  readonly id: string
  readonly systemPrompt: string | undefined
  readonly dataset: readonly PythonRow[]
  readonly evalDataset: readonly PythonRow[]
  readonly rubric: Rubric
  readonly maxTurns: number
  readonly tools: readonly ToolDefinition[]
  readonly playsGroups: boolean
  readonly #wish: PythonWish
  readonly #options: PythonOptions
  readonly #groups = new Map<string, GroupRequest>()
  readonly #columns: string[]
  readonly #tasksets: boolean
  #opened: Promise<Opened> | undefined
  #warn: ((message: string) => void) | undefined
  /** The process that described the environment, until it serves it. */
  #waiting: ChildProcess | undefined
  #closed = false

  constructor(wish: PythonWish, about: Described, options: PythonOptions) {
    this.id = basename(wish.id, '.py')
    this.#wish = wish
    this.#options = options
    this.#waiting = about.waiting
    this.systemPrompt = about.system_prompt ?? undefined
    this.dataset = numbered(about.rows.slice(0, about.train))
    this.evalDataset = numbered(about.rows.slice(about.train))
    this.rubric = new PythonRubric(about.rewards)
    // In verifiers, a function's score overwrites an output field of the same name. If a function is named "reward", the total is requested as an
    // extra column.
    this.#columns = ['trajectory', ...about.rewards.flatMap(([name]) => (name === 'reward' ? [name] : []))]
    this.#tasksets = about.tasksets === true
    this.maxTurns = about.max_turns
    this.playsGroups = about.group
    this.tools = about.tools.map(toolOf)
  }

  /** Starts the environment server. Without this call the first rollout starts it, with its log in the folder for temporary files. */
  async open({ logs, name = this.id, warn }: Parameters<NonNullable<Environment['open']>>[0]): Promise<void> {
    this.#warn = warn
    await this.#start(join(logs, `env-${plain(name)}.log`))
  }

  /** The environment server, for tests and benchmarks that monitor it. */
  async server(): Promise<EnvHost> {
    return (await this.#start()).hosts[0]
  }

  async close(): Promise<void> {
    this.#closed = true
    if (this.#waiting) killGroup(this.#waiting)
    const opened = await this.#opened?.catch(() => undefined)
    await Promise.all(opened?.hosts.map((host) => host.close()) ?? [])
    await opened?.endpoint.close()
  }

  async rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft> {
    ctx.step?.(null)
    const { hosts, endpoint } = await this.#start()
    const host = hosts.reduce((least, next) => (next.rollouts < least.rollouts ? next : least))
    // Counted at once: requests that are only counted once they are sent would all choose the same server.
    host.rollouts++
    try {
      return await this.#play(row, ctx, host, endpoint)
    } finally {
      host.rollouts--
    }
  }

  async #play(row: Row, ctx: RolloutContext, host: EnvHost, endpoint: PolicyEndpoint): Promise<RolloutDraft> {
    ctx.step?.('the environment')
    const { packed } = row as PythonRow
    if (!(packed instanceof Uint8Array)) throw new Error(`the row ${row.exampleId} does not come from the environment ${this.id}`)
    if (this.playsGroups) return await this.#inGroup(packed, ctx, host, endpoint)
    const calls = new Calls(1)
    calls.members[0].arrive(ctx)
    const payload = (fields: Record<string, unknown>) =>
      EnvWire.pack({ request_type: 'run_rollout', ...fields }, { input: packed })
    const reply = await this.#request({ host, endpoint, calls, payload, sampling: ctx.sampling, signal: ctx.signal })
    return draftOf(outputOf(reply.output), calls, 0)
  }

  /** Plays a rollout of a group. The first one sends the request for all of them, and each gets its own part of the reply. */
  async #inGroup(packed: Uint8Array, ctx: RolloutContext, host: EnvHost, endpoint: PolicyEndpoint): Promise<RolloutDraft> {
    const { id, size } = ctx.group ?? { id: randomUUID(), size: 1 }
    let group = this.#groups.get(id)
    if (!group) {
      const calls = new Calls(size)
      const abort = new AbortController()
      const payload = (fields: Record<string, unknown>) =>
        EnvWire.pack(
          { request_type: 'run_group', ...fields },
          { group_inputs: EnvWire.packArray(Array.from({ length: size }, () => packed)) },
        )
      const request = { host, endpoint, calls, payload, sampling: ctx.sampling, signal: abort.signal }
      const drafts = this.#request(request).then((reply) => draftsOf(reply, calls))
      drafts.catch(() => {}) // the members that still wait see the error
      group = { calls, drafts, abort, arrived: 0, left: 0 }
      this.#groups.set(id, group)
    }
    const { calls, drafts, abort } = group
    calls.members[group.arrived++].arrive(ctx)
    const index = group.arrived - 1
    if (group.arrived === size) this.#groups.delete(id)
    try {
      const ended = new Promise<never>((_, reject) => {
        const stop = () => reject(new Error('the rollout was cancelled'))
        if (ctx.signal.aborted) stop()
        ctx.signal.addEventListener('abort', stop, { once: true })
      })
      const draft = (await Promise.race([drafts, ended]))[index]
      if (draft instanceof Error) throw draft
      return draft
    } finally {
      // The request is cancelled once the last member has left.
      if (++group.left === size) abort.abort()
    }
  }

  async #request(request: {
    host: EnvHost
    endpoint: PolicyEndpoint
    calls: Calls
    payload: (fields: Record<string, unknown>) => Promise<Uint8Array>
    sampling: SamplingParams
    signal: AbortSignal
  }): Promise<Reply> {
    const { host, endpoint, calls, payload, sampling, signal } = request
    const name = randomUUID()
    endpoint.expect(name, calls)
    try {
      const fields = {
        client_config: {
          client_type: 'openai_chat_completions',
          api_base_url: endpoint.url,
          api_key_var: KEY_VARIABLE,
          timeout: CALL_SECONDS,
          connect_timeout: 300,
          max_retries: 2,
          extra_headers_from_state: { [SESSION_HEADER]: 'trajectory_id' },
        },
        model: 'policy',
        sampling_args: samplingArgs(sampling, name),
        max_retries: 0,
        state_columns: this.#columns,
      }
      const reply = await host.request(await payload(fields), signal)
      if (!reply.success)
        throw new Error(calls.members.find(({ failure }) => failure)?.failure ?? `the environment raised ${reply.error}`)
      return reply
    } finally {
      endpoint.forget(name)
    }
  }

  async #start(logFile = join(tmpdir(), `dawn-rl-env-${plain(this.id)}-${process.pid}.log`)): Promise<Opened> {
    return await (this.#opened ??= this.#open(logFile))
  }

  async #open(logFile: string): Promise<Opened> {
    if (this.#closed) throw new Error(`the environment ${this.id} is closed`)
    const endpoint = await PolicyEndpoint.open()
    const noProxy = [process.env.NO_PROXY ?? process.env.no_proxy, '127.0.0.1'].filter(Boolean).join(',')
    const { workers = 1, stuckSeconds } = this.#options
    const env = { [KEY_VARIABLE]: endpoint.key, NO_PROXY: noProxy, no_proxy: noProxy }
    const options = { ...this.#wish, stuckSeconds, logFile, warn: this.#warn, env }
    // verifiers' own server starts its workers itself. The server for tasksets is a single process.
    const servers = this.#tasksets ? Array.from({ length: workers }, () => 1) : [workers]
    const waiting = this.#waiting
    this.#waiting = undefined
    const opened = await Promise.allSettled(
      servers.map((own, i) => EnvHost.open({ ...options, workers: own, waiting: i === 0 ? waiting : undefined })),
    )
    const hosts = opened.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
    const failed = opened.find((one) => one.status === 'rejected')
    if (!failed) return { hosts, endpoint }
    await Promise.all(hosts.map((host) => host.close()))
    await endpoint.close()
    throw failed.reason
  }
}

/** Answers are grouped by exampleId. If rows share ids (in merged datasets), they are renumbered here; Python keeps its own ids. */
const numbered = (rows: PythonRow[]): PythonRow[] =>
  new Set(rows.map((row) => row.exampleId)).size === rows.length ? rows : rows.map((row, exampleId) => ({ ...row, exampleId }))

const plain = (name: string) => name.replaceAll(/[^\w.-]/gu, '_')

/** The servers that play the rollouts, and the policy endpoint that they call. */
interface Opened {
  hosts: EnvHost[]
  endpoint: PolicyEndpoint
}

/** The rollouts of one task, played and scored by a single request. */
interface GroupRequest {
  calls: Calls
  drafts: Promise<(RolloutDraft | Error)[]>
  abort: AbortController
  arrived: number
  left: number
}

/** The run's sampling parameters in verifiers' format, so that environments see them. Changes that environments make come back with their calls. */
function samplingArgs(sampling: SamplingParams, request: string): Record<string, unknown> {
  const { temperature, top_p, max_tokens, presence_penalty, frequency_penalty, stop, top_k, min_p, repetition_penalty } = sampling
  return {
    temperature,
    top_p,
    max_tokens,
    presence_penalty,
    frequency_penalty,
    ...(stop.length > 0 ? { stop } : {}),
    logprobs: true,
    extra_body: { return_token_ids: true, top_k, min_p, repetition_penalty, [REQUEST_FIELD]: request },
  }
}

function outputOf(value: unknown): Output {
  const output = value as Partial<Output> | null | undefined
  if (output === null || typeof output !== 'object' || !Array.isArray(output.trajectory))
    throw new Error('the environment server returned no rollout with a trajectory')
  return output as Output
}

/** Assigns each output to the rollout whose answers it contains. Outputs without answers go to the remaining rollouts. */
function draftsOf(reply: Reply, calls: Calls): (RolloutDraft | Error)[] {
  const outputs = Array.isArray(reply.outputs) ? reply.outputs.map(outputOf) : []
  const { members } = calls
  if (outputs.length !== members.length)
    throw new Error(`the environment server returned ${outputs.length} rollouts for a group of ${members.length}`)
  const places = new Map<number, Output>()
  const others: Output[] = []
  for (const output of outputs) {
    const owner = output
      .trajectory!.map((step) => calls.find(step.response?.id ?? '')?.member)
      .find((member) => member !== undefined)
    const index = owner ? members.indexOf(owner) : -1
    if (index >= 0 && !places.has(index)) places.set(index, output)
    else others.push(output)
  }
  return members.map((_, index) => {
    try {
      return draftOf(places.get(index) ?? others.shift()!, calls, index)
    } catch (error) {
      return error as Error
    }
  })
}

/** Returns a rollout's messages, and the tokens of the answers in its trajectory. Throws if the rollout failed. */
function draftOf(output: Output, calls: Calls, index: number): RolloutDraft {
  const { error } = output
  if (error) {
    const { failure } = calls.members[index]
    throw new Error(failure ?? `the environment ended with ${error.error_chain_repr ?? `${error.error}: ${error.message}`}`)
  }
  const trajectory = new Trajectory()
  for (const completion of answersOf(output, calls)) trajectory.add(completion)
  if (trajectory.turns.length === 0) throw new Error('its trajectory has no answer from the policy')
  return {
    completion: messagesOf(output.completion ?? [], 'its completion'),
    promptIds: trajectory.promptIds,
    completion_tokens: trajectory.tokens,
    ...(trajectory.turns.length > 1 ? { turns: trajectory.turns } : {}),
    isTruncated: output.is_truncated === true,
    stopCondition: output.stop_condition ?? 'completed',
    state: { output },
  }
}

/** The policy's answers in a rollout's trajectory. Answers of other models that an environment uses are not trained on. */
function answersOf({ session, trajectory }: Output, calls: Calls): ChatCompletion[] {
  const others = new Error('the tokens of its trajectory are not those that were sampled')
  if (session !== undefined) {
    const taken = calls.taken(session, trajectory!.map(({ lengths }) => lengths!)) // prettier-ignore
    if (!taken) throw others
    return taken
  }
  return trajectory!.flatMap(({ response, tokens }) => {
    const found = calls.find(response?.id ?? '')
    if (!found) return []
    const { completion } = found.answered
    const told = tokens?.completion_ids ?? []
    if (told.length > completion.ids.length || told.some((id, i) => id !== completion.ids[i])) throw others
    return [completion]
  })
}

/** Takes over the scores that Python computed. */
class PythonRubric extends Rubric {
  constructor(rewards: Description['rewards']) {
    const given = () => {
      throw new Error('a Python environment scores its rollouts itself')
    }
    const functions = rewards.map(([name, weight]) => [name, { reward: given, weight }])
    // A custom rubric class may have no functions, or may weight them in its own way.
    const weighed = rewards.some(([, weight]) => weight !== 0)
    super(Object.fromEntries(weighed ? functions : [...functions, ['reward', { reward: given }]]))
  }

  // oxlint-disable-next-line require-await -- the interface is async
  override async score({ state }: Scorable): Promise<Scores> {
    const output = state?.output as Output | undefined
    if (!output) return { reward: null, metrics: {}, error: 'a Python environment scores its rollouts when they are played' }
    const { reward } = output
    const metrics = Object.fromEntries(
      Object.entries(output.metrics ?? {})
        .filter(([, value]) => typeof value === 'number' || value === null)
        .map(([name, value]) => [name, Number.isFinite(value) ? (value as number) : null]),
    )
    if (typeof reward === 'number' && Number.isFinite(reward)) return { reward, metrics, error: null }
    return { reward: null, metrics, error: `the environment's reward is ${String(reward)}, which is not a finite number` }
  }
}
