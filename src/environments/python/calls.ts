/**
 * The answers of the policy in the rollouts of one request, as they were sampled. An environment's calls come over HTTP as whole
 * conversations; a call whose messages go on after an earlier answer goes on with that answer's tokens, as turns of TypeScript's
 * environments do, so nothing that was sampled is ever tokenised again.
 */
import { randomUUID } from 'node:crypto'
import { messageOf } from '../../common/errors.ts'
import { hashSeed } from '../../common/random.ts'
import type { ChatCompletion, Message, SamplingParams, ToolDefinition } from '../../common/types.ts'
import { ContextFullError } from '../chat.ts'
import type { RolloutContext } from '../types.ts'

/** One call of an environment. */
export interface Asked {
  messages: Message[]
  tools?: ToolDefinition[]
  /** For the chat template, over those of the run. */
  variables?: Record<string, unknown>
  /** What the environment asks otherwise than it was told to. */
  sampling: Partial<SamplingParams>
}

export interface Answered {
  id: string
  message: Message
  completion: ChatCompletion
}

interface Call {
  /** Its messages and the answer, by what they say. */
  keys: string[]
  answered: Answered
}

/** One playing of a rollout: where a worker died it is played again, as another session. */
interface Session {
  member: Member
  calls: Call[]
}

/** A rollout. */
class Member {
  readonly #arrival = Promise.withResolvers<RolloutContext>()
  readonly arrived = this.#arrival.promise
  ctx: RolloutContext | undefined
  /** What went wrong on this side. */
  failure: string | undefined
  /** Answers that were asked for, and those under way. */
  asked = 0
  inFlight = 0

  arrive(ctx: RolloutContext): void {
    this.ctx = ctx
    this.#arrival.resolve(ctx)
  }
}

/** The rollouts of one request: one, or all of a task's. */
export class Calls {
  readonly members: readonly Member[]
  readonly #sessions = new Map<string, Session>()
  #inFlight = 0

  constructor(size: number) {
    this.members = Array.from({ length: size }, () => new Member())
  }

  /** Samples the answer to a call. `session`: which playing of which rollout, by a name that the environment server gives it. */
  async answer(session: string, asked: Asked, signal: AbortSignal): Promise<Answered> {
    const { member, calls } = this.#sessionOf(session)
    this.#inFlight++
    member.inFlight++
    const turn = member.asked++
    this.#settle()
    try {
      // Rollouts of a group may be played before it is their turn here.
      const ctx = await member.arrived
      ctx.signal.throwIfAborted()
      const { temperature } = asked.sampling
      if (temperature !== undefined && temperature !== ctx.sampling.temperature)
        throw new Error(
          `the environment asks at temperature ${temperature}; the run samples at ${ctx.sampling.temperature}, and trains on what was sampled there`,
        )
      const keys = asked.messages.map(keyOf)
      const before = longestBefore(calls, keys)
      const messages = [...asked.messages]
      if (before) messages[before.keys.length - 1] = before.answered.message
      const seed = turn === 0 ? ctx.sampling.seed : hashSeed(ctx.sampling.seed, 'turn', turn)
      const sampling = { ...ctx.sampling, ...asked.sampling, seed }
      const chat = { tools: asked.tools, variables: asked.variables, previous: before?.answered.completion }
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

  /** The answer of that id and whose it is. */
  find(id: string): { answered: Answered; member: Member } | undefined {
    for (const { member, calls } of this.#sessions.values()) {
      const call = calls.find(({ answered }) => answered.id === id)
      if (call) return { answered: call.answered, member }
    }
    return undefined
  }

  /** Sessions take rollouts in turn: those of a request that is played again are as many as those before. */
  #sessionOf(name: string): Session {
    let session = this.#sessions.get(name)
    if (!session) {
      session = { member: this.members[this.#sessions.size % this.members.length], calls: [] }
      this.#sessions.set(name, session)
    }
    return session
  }

  /** While any rollout of a group is answered, the others wait for it, and no clock of theirs runs. */
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

/** What a message says; ids of calls are left out, and so are spellings of nothing. */
function keyOf({ role, content, tool_calls, tool_call_id }: Message): string {
  const calls = (tool_calls ?? []).map(({ function: { name, arguments: given } }) => [name, given])
  return JSON.stringify([role, content, calls, role === 'tool' ? tool_call_id : undefined])
}
