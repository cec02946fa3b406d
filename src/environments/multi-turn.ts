/**
 * Multi-turn environments: the policy and the environment answer in turn until something ends the rollout. Names are those of verifiers'
 * MultiTurnEnv.
 *
 * These stop conditions are checked before each of the policy's turns except the first, in this order: `final_env_response` (the environment has
 * ended the rollout), the environment's own conditions, and `max_turns_reached`. So the environment's reason is reported if several hold (verifiers
 * checks conditions in the order of their names). At any time a rollout can end by `timeout_reached` (the environment's limit) or `prompt_too_long`
 * (no room for another answer). The turns so far then count, and the rollout is marked as truncated.
 */
import { hashSeed } from '../common/random.ts'
import type { ChatCompletion, Message, ToolDefinition } from '../common/types.ts'
import { ContextFullError } from './chat.ts'
import { TimeLimitError, withLimit } from './limit.ts'
import type { KeysOf } from './known-options.ts'
import { readTasks, TaskEnv, taskKeys, type TaskOptions, type WithRows } from './task-env.ts'
import { Trajectory } from './turns.ts'
import type { RolloutContext, RolloutDraft, Row } from './types.ts'

/** The state of a rollout while it is played. Environments add values of their own; reward functions see all of it. */
export interface TurnState {
  readonly row: Row
  readonly prompt: readonly Message[]
  readonly answer: string
  readonly info: Record<string, unknown>
  /** All messages after the prompt, the policy's and the environment's. */
  readonly completion: Message[]
  /** Number of the policy's answers so far. */
  turn: number
  /** The text of the policy's last answer; '' before the first. */
  lastText: string
  /** Whether any answer was cut off by max_tokens. */
  isTruncated: boolean
  /** Set this to end the rollout with these messages, without another answer. A string becomes a user message. */
  finalEnvResponse?: EnvResponse
  /** Numbers to report as metrics, by name. */
  counts: Record<string, number>
  /** Aborted when the rollout has to end. */
  readonly signal: AbortSignal
}

export type State<Own extends object = Record<string, unknown>> = TurnState & Own

/** The environment's next messages. A string becomes a user message. */
export type EnvResponse = Message[] | string

export interface MultiTurnOptions<Own extends object = Record<string, unknown>> extends TaskOptions {
  /** The environment's reply to the policy's last answer. `messages`: the whole conversation. */
  envResponse: (messages: Message[], state: State<Own>) => EnvResponse | Promise<EnvResponse>
  /** The most answers of the policy; -1: limited only by max_seq_len. Default 10. */
  maxTurns?: number
  /** Time limit for the whole rollout in seconds, without waiting for the sampler. What was played until then is scored. Default: none. */
  timeoutSeconds?: number
  /** Creates the environment's own values in a rollout's state. */
  setupState?: (row: Row, signal: AbortSignal) => Own | Promise<Own>
  /** Called after each rollout, however it ended, to close what `setupState` opened. */
  cleanup?: (state: State<Own>) => void | Promise<void>
  /** Conditions that end the rollout, checked in this order. The name becomes the rollout's stop condition. */
  stop?: Record<string, (state: State<Own>) => boolean | Promise<boolean>>
  /** Names in `counts` that start at 0, so that every rollout has these metrics. */
  counts?: readonly string[]
  /** The tools that are described to the model. */
  toolDefinitions?: readonly ToolDefinition[]
}

export const multiTurnKeys: KeysOf<MultiTurnOptions> = {
  ...taskKeys,
  envResponse: true,
  maxTurns: true,
  timeoutSeconds: true,
  setupState: true,
  cleanup: true,
  stop: true,
  counts: true,
  toolDefinitions: true,
}

/** Time limit of a cleanup, in seconds. */
const CLEANUP_SECONDS = 30

/** The loop over turns, for subclasses that build its options themselves. */
export class TurnsEnv<Own extends object = Record<string, unknown>> extends TaskEnv {
  readonly maxTurns: number
  readonly tools: readonly ToolDefinition[]
  readonly #options: WithRows<MultiTurnOptions<Own>>

  constructor(options: WithRows<MultiTurnOptions<Own>>) {
    super(options)
    const { maxTurns = 10, timeoutSeconds = Infinity } = options
    if (maxTurns !== -1 && !(Number.isInteger(maxTurns) && maxTurns > 0)) {
      throw new Error(`environment ${options.id}: maxTurns is ${maxTurns}; it must be a whole number of 1 or more, or -1`)
    }
    if (!(timeoutSeconds > 0))
      throw new Error(`environment ${options.id}: timeoutSeconds is ${timeoutSeconds}; it must be above 0`)
    if (typeof options.envResponse !== 'function')
      throw new Error(`environment ${options.id}: envResponse must be a function, which replies to the policy's answers`)
    const { stop = {} } = options
    if (typeof stop !== 'object' || Object.values(stop).some((condition) => typeof condition !== 'function'))
      throw new Error(`environment ${options.id}: stop must be an object of functions by name, as { found: (state) => ... }`)
    this.maxTurns = maxTurns
    this.tools = options.toolDefinitions ?? []
    this.#options = options
  }

  async rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft> {
    const play = new Play(ctx, this.tools)
    const seconds = this.#options.timeoutSeconds ?? Infinity
    const limit = { what: 'the rollout', seconds, signal: ctx.signal, idle: ctx.idle }
    let state: State<Own> | undefined
    let stopCondition: string
    let failed = true
    // If one of several tools fails the rollout, the others must stop before cleanup closes what they use.
    const failing = new AbortController()
    try {
      stopCondition = await withLimit(limit, async (limited) => {
        const signal = AbortSignal.any([limited, failing.signal])
        const counts: Record<string, number> = Object.fromEntries((this.#options.counts ?? []).map((name) => [name, 0]))
        const facts = { row, prompt: row.prompt, answer: row.answer, info: row.info, completion: [] }
        const own = ((await this.#options.setupState?.(row, signal)) ?? {}) as Own
        const made = Object.assign({}, own, facts, { turn: 0, lastText: '', isTruncated: false, counts, signal })
        // The rollout may have ended meanwhile, but what setupState opened must still be closed.
        if (play.over) await this.#cleanup(made)
        state = made
        return play.over ? 'abort' : await this.#play(state, play)
      })
      failed = false
    } catch (error) {
      // At the environment's own time limit the finished turns count. Any other error fails the rollout.
      if (!(error instanceof TimeLimitError && error.what === limit.what) || !state || state.turn === 0) throw error
      failed = false
      stopCondition = 'timeout_reached'
    } finally {
      play.over = true
      if (failed) failing.abort()
      const cleaning = state ? this.#cleanup(state) : Promise.resolve()
      // Report only the first failure.
      await (failed ? cleaning.catch(() => {}) : cleaning)
    }
    const cutShort = stopCondition === 'timeout_reached' || stopCondition === 'prompt_too_long'
    return { ...play.draft(state!), isTruncated: state!.isTruncated || cutShort, stopCondition }
  }

  async #cleanup(state: State<Own>): Promise<void> {
    const { cleanup } = this.#options
    if (cleanup) await withLimit({ what: 'cleanup', seconds: CLEANUP_SECONDS }, () => cleanup(state))
  }

  /** Plays turn after turn. @returns the stop condition */
  async #play(state: State<Own>, play: Play): Promise<string> {
    for (;;) {
      if (state.turn > 0) {
        const stop = await this.#stop(state)
        if (stop !== null) return stop
        const reply = this.#options.envResponse([...state.prompt, ...state.completion], state)
        // Without a pause between a reply and its copy, in which another rollout could change the object.
        const said = reply instanceof Promise ? await reply : reply
        if (play.over) return 'abort'
        const last = state.finalEnvResponse
        for (const message of last === undefined ? messagesOf(said, 'envResponse') : messagesOf(last, 'finalEnvResponse'))
          state.completion.push(message)
        if (last !== undefined) return 'final_env_response'
      }
      const completion = await play.complete(state)
      if (completion === null) return 'prompt_too_long'
      if (play.over || completion.finishReason === 'abort') return 'abort'
    }
  }

  async #stop(state: State<Own>): Promise<string | null> {
    if (state.finalEnvResponse !== undefined) return 'final_env_response'
    for (const [name, isOver] of Object.entries(this.#options.stop ?? {})) if (await isOver(state)) return name
    return state.turn === this.maxTurns ? 'max_turns_reached' : null
  }
}

const ROLES = ['system', 'user', 'assistant', 'tool']

/**
 * Checks an environment's reply and converts it to messages. JavaScript code may forget a `return` or use a list of parts as content; the model would
 * then see "undefined" or "[object Object]", and be trained on it.
 */
function messagesOf(said: EnvResponse, name: string): Message[] {
  if (typeof said === 'string') return [{ role: 'user', content: said }]
  const list: unknown = said
  const isMessage = (one: Partial<Message> | null | undefined) =>
    ROLES.includes(one?.role ?? '') && typeof one?.content === 'string'
  // Copies: an environment may say the same object again, with other words in it, in this rollout or in another one.
  if (Array.isArray(list) && list.every(isMessage)) return (list as Message[]).map((message) => ({ ...message }))
  const found = list === undefined ? 'undefined' : (JSON.stringify(list) ?? typeof list).slice(0, 80)
  throw new Error(
    `the environment's ${name} must be text, or a list of messages {role: ${ROLES.join('|')}, content: text}; it is ${found}`,
  )
}

/** The policy and the environment take turns: `MultiTurnEnv.create({ id, rubric, dataset, envResponse, ... })`. */
export class MultiTurnEnv<Own extends object = Record<string, unknown>> extends TurnsEnv<Own> {
  /** Reads the datasets (file, rows or function) and splits them. @throws UserError for invalid data */
  static async create<Own extends object = Record<string, unknown>>(options: MultiTurnOptions<Own>): Promise<MultiTurnEnv<Own>> {
    return new MultiTurnEnv(await readTasks(options, multiTurnKeys))
  }
}

/** The policy's answers in one rollout, and their tokens. */
class Play {
  /** Set at the end of the rollout; answers that arrive later are dropped. */
  over = false
  readonly #ctx: RolloutContext
  readonly #tools: readonly ToolDefinition[]
  readonly #trajectory = new Trajectory()

  constructor(ctx: RolloutContext, tools: readonly ToolDefinition[]) {
    this.#ctx = ctx
    this.#tools = tools
  }

  /** Gets the policy's next answer; null if there is no room for one. */
  async complete(state: TurnState): Promise<ChatCompletion | null> {
    const { client, sampling } = this.#ctx
    const messages = [...state.prompt, ...state.completion]
    // Sampling noise depends on the seed and the position, so each turn gets a seed of its own.
    const seed = state.turn === 0 ? sampling.seed : hashSeed(sampling.seed, 'turn', state.turn)
    const turn = { tools: this.#tools, previous: this.#trajectory.last }
    let completion: ChatCompletion
    try {
      completion = await client.complete(messages, { ...sampling, seed }, state.signal, turn)
    } catch (error) {
      if (error instanceof ContextFullError && state.turn > 0) return null
      throw error
    }
    if (this.over || (completion.finishReason === 'abort' && completion.ids.length === 0)) return completion
    const message: Message = completion.message ?? { role: 'assistant', content: completion.text }
    completion.message = message
    this.#trajectory.add(completion)
    state.completion.push(message)
    state.lastText = message.content
    state.isTruncated ||= completion.finishReason === 'length'
    state.turn++
    return completion
  }

  draft(state: TurnState): Omit<RolloutDraft, 'isTruncated' | 'stopCondition'> {
    const { promptIds, tokens, turns } = this.#trajectory
    return {
      completion: [...state.completion],
      promptIds,
      completion_tokens: tokens,
      turns,
      state: state as unknown as Record<string, unknown>,
      metrics: { ...state.counts },
    }
  }
}
