/**
 * The policy's answers in the rollouts of one request, as they were sampled. A Python environment sends the whole conversation with each HTTP call. A
 * call that continues after an earlier answer reuses that answer's tokens, as the turns of TypeScript environments do, so that sampled tokens are
 * never tokenised again.
 */
import { randomUUID } from 'node:crypto'
import { messageOf } from '../../common/errors.ts'
import { hashSeed } from '../../common/random.ts'
import type { ChatCompletion, Message, SamplingParams, ToolDefinition } from '../../common/types.ts'
import { ContextFullError } from '../chat.ts'
import type { RolloutContext } from '../types.ts'

/** One call from an environment. */
export interface Asked {
  messages: Message[]
  tools?: ToolDefinition[]
  /** Chat template variables, which override those of the run. */
  variables?: Record<string, unknown>
  /** Sampling parameters for which the environment does not use the run's values. */
  sampling: Partial<SamplingParams>
}

/** An answer to a call: its id, the message for the environment, and the tokens as sampled. */
export interface Answered {
  id: string
  message: Message
  completion: ChatCompletion
}

interface Call {
  /** Content keys of the messages and the answer (`keyOf`). */
  keys: string[]
  answered: Answered
}

/** One attempt at a rollout. If a worker dies, its rollout is played again in a new session. */
interface Session {
  member: Member
  calls: Call[]
}

/** One rollout of the request. */
class Member {
  readonly #arrival = Promise.withResolvers<RolloutContext>()
  readonly arrived = this.#arrival.promise
  ctx: RolloutContext | undefined
  /** The first error on the TypeScript side of the bridge. */
  failure: string | undefined
  /** How many answers have been requested so far, and how many are being sampled. */
  asked = 0
  inFlight = 0

  arrive(ctx: RolloutContext): void {
    this.ctx = ctx
    this.#arrival.resolve(ctx)
  }
}

/** The rollouts of one request: a single one, or all rollouts of a task. */
export class Calls {
  readonly members: readonly Member[]
  readonly #sessions = new Map<string, Session>()
  #inFlight = 0

  constructor(size: number) {
    this.members = Array.from({ length: size }, () => new Member())
  }

  /** Samples the answer to a call. `session`: the environment server's id for one attempt at a rollout. */
  async answer(session: string, asked: Asked, signal: AbortSignal): Promise<Answered> {
    const { member, calls } = this.#sessionOf(session)
    this.#inFlight++
    member.inFlight++
    const turn = member.asked++
    this.#settle()
    try {
      // The environment server may play a rollout of a group before the orchestrator has started it here.
      const ctx = await member.arrived
      ctx.signal.throwIfAborted()
      const { temperature } = asked.sampling
      if (temperature !== undefined && temperature !== ctx.sampling.temperature)
        throw new Error(
          `the environment requests temperature ${temperature}, but the run samples and trains at ${ctx.sampling.temperature}; leave the temperature to the run`,
        )
      const keys = asked.messages.map(keyOf)
      const before = longestBefore(calls, keys)
      const messages = [...asked.messages]
      if (before) messages[before.keys.length - 1] = before.answered.message
      const seed = turn === 0 ? ctx.sampling.seed : hashSeed(ctx.sampling.seed, 'turn', turn)
      const sampling = { ...ctx.sampling, ...asked.sampling, seed }
      const chat = {
        tools: asked.tools,
        variables: asked.variables,
        previous: before?.answered.completion,
        later: calls.length > 0,
      }
      const completion = await ctx.client.complete(messages, sampling, signal, chat)
      if (completion.finishReason === 'abort') throw new Error('generation was aborted')
      const message = (completion.message ??= { role: 'assistant', content: completion.text })
      const answered = { id: `chatcmpl-${randomUUID()}`, message, completion }
      calls.push({ keys: [...keys, keyOf(message)], answered })
      return answered
    } catch (error) {
      if (!(error instanceof ContextFullError) && !signal.aborted) member.failure ??= messageOf(error)
      throw error
    } finally {
      this.#inFlight--
      member.inFlight--
      this.#settle()
    }
  }

  /** Finds the answer with this id, and its rollout. */
  find(id: string): { answered: Answered; member: Member } | undefined {
    for (const { member, calls } of this.#sessions.values()) {
      const call = calls.find(({ answered }) => answered.id === id)
      if (call) return { answered: call.answered, member }
    }
    return undefined
  }

  /**
   * The answers of a session that have these numbers of tokens, one for each entry. Lengths are compared because the trace of a taskset does not
   * identify answers. Answers that the trace does not contain (because a task stopped the rollout meanwhile) are left out. Undefined if no answer
   * fits an entry.
   */
  taken(session: string, lengths: readonly [prompt: number, answer: number][]): ChatCompletion[] | undefined {
    const left = (this.#sessions.get(session)?.calls ?? []).map(({ answered }) => answered.completion)
    const found = lengths.flatMap(([prompt, answer]) => {
      const index = left.findIndex(({ promptIds, ids }) => promptIds.length === prompt && ids.length === answer)
      return index < 0 ? [] : left.splice(index, 1)
    })
    return found.length === lengths.length ? found : undefined
  }

  /** Assigns new sessions to rollouts in turn. A repeated request opens as many sessions as the first one did. */
  #sessionOf(name: string): Session {
    let session = this.#sessions.get(name)
    if (!session) {
      session = { member: this.members[this.#sessions.size % this.members.length], calls: [] }
      this.#sessions.set(name, session)
    }
    return session
  }

  /** While one rollout of a group is being answered, the others may be waiting for it, so their clocks are stopped. */
  #settle(): void {
    if (this.members.length === 1) return
    for (const { ctx, inFlight } of this.members) {
      if (inFlight === 0) ctx?.step?.(this.#inFlight > 0 ? null : 'the environment')
    }
  }
}

function longestBefore(calls: readonly Call[], keys: readonly string[]): Call | undefined {
  const begins = ({ keys: own }: Call) => own.length <= keys.length && own.every((key, i) => key === keys[i])
  return calls.filter(begins).reduce<Call | undefined>((best, call) => {
    return !best || call.keys.length >= best.keys.length ? call : best
  }, undefined)
}

/** A message's content as a key. Ids of tool calls do not count; null, missing and empty are the same. */
function keyOf({ role, content, tool_calls, tool_call_id }: Message): string {
  const calls = (tool_calls ?? []).map(({ function: { name, arguments: given } }) => [name, given])
  return JSON.stringify([role, content, calls, role === 'tool' ? tool_call_id : undefined])
}
