/** Environments of many turns, played by a scripted policy through the whole way of a rollout. */
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import type { ChatCompletion, Message } from '../../src/common/types.ts'
import { ContextFullError } from '../../src/environments/chat.ts'
import { MultiTurnEnv, type MultiTurnOptions, type TurnState } from '../../src/environments/multi-turn.ts'
import { runRollout, type RolloutOptions } from '../../src/environments/rollout.ts'
import { Rubric } from '../../src/environments/rubric.ts'
import type { RolloutContext, Row } from '../../src/environments/types.ts'
import { Slots } from '../../src/orchestrator/slots.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

interface Game {
  secret: number
  open: boolean
}

let closed: Game[] = []

const game = async (options: Partial<MultiTurnOptions<Game>> = {}) => {
  closed = []
  return await MultiTurnEnv.create<Game>({
    id: 'guess',
    rubric: new Rubric({
      found: ({ text, state }) => Number(text === String(state.secret)),
      turns: { reward: ({ state }) => Number(state.turn), weight: 0 },
      seen: { reward: ({ trajectory }) => trajectory.length, weight: 0 },
    }),
    dataset: [{ question: 'Guess a number.', info: { secret: 7 } }],
    evalSize: 0,
    setupState: ({ info }) => ({ secret: Number(info.secret), open: true }),
    envResponse: (_, state) => (Number(state.lastText) < state.secret ? 'higher' : 'lower'),
    stop: { found: (state) => state.lastText === String(state.secret) },
    cleanup: (state) => void closed.push(state),
    ...options,
  })
}

/** A policy that says these one after the other, and goes on from what it said. */
function saying(...texts: (string | ChatCompletion)[]): ScriptedClient {
  let before: number[] = []
  return new ScriptedClient((messages) => {
    const said = texts[messages.filter((m) => m.role === 'assistant').length]
    const completion = typeof said === 'string' ? completionOf(said) : said
    const promptIds = [...before, 90, 91]
    before = [...promptIds, ...completion.ids]
    return { ...completion, promptIds }
  })
}

const play = async (env: MultiTurnEnv<Game>, client: ScriptedClient, options: Partial<RolloutOptions> = {}) =>
  await runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0, ...options })

const roles = (messages: Message[]) => messages.map((m) => `${m.role}: ${m.content}`)

test('turns alternate until a condition of its own ends it; state and turns reach the rewards', async () => {
  const client = saying('3', '9', '7')
  const rollout = await play(await game(), client)
  expect(rollout).toMatchObject({ error: null, reward: 1, stopCondition: 'found', isTruncated: false })
  expect(roles(rollout.completion)).toEqual(['assistant: 3', 'user: higher', 'assistant: 9', 'user: lower', 'assistant: 7'])
  expect(rollout.metrics).toEqual({ found: 1, turns: 3, seen: 3 })
  // one token a character and a newline, after the two tokens of each prompt
  expect(rollout.turns).toEqual([
    { branch: true, promptIds: [90, 91], sampled: 2 },
    { branch: false, promptIds: [90, 91], sampled: 2 },
    { branch: false, promptIds: [90, 91], sampled: 2 },
  ])
  expect(String.fromCharCode(...rollout.completion_tokens.ids)).toBe('3\n9\n7\n')
  expect(closed).toMatchObject([{ secret: 7, open: true }])
  // noise of its own for each turn, and the first turn as in one of a single turn
  expect(client.asked[0].sampling.seed).toBe(sampling.seed)
  expect(new Set(client.asked.map((asked) => asked.sampling.seed)).size).toBe(3)
})

test('an envResponse or a stop of another form is refused when the environment is made', async () => {
  await expect(game({ envResponse: undefined })).rejects.toThrow('environment guess: envResponse must be a function')
  await expect(game({ stop: (() => true) as never })).rejects.toThrow('environment guess: stop must be an object of functions')
  await expect(game({ stop: { found: true as never } })).rejects.toThrow('environment guess: stop must be an object of functions')
})

test("what setupState gives is beside the rollout's own state, not in its place", async () => {
  const setupState = () => ({ secret: 7, open: true, turn: 9, lastText: '7', isTruncated: true, completion: ['x'] })
  const rollout = await play(await game({ setupState }), saying('3', '7'))
  expect(rollout).toMatchObject({ error: null, isTruncated: false, metrics: { found: 1, turns: 2 } })
  expect(roles(rollout.completion)).toEqual(['assistant: 3', 'user: higher', 'assistant: 7'])
})

test('endless turns end at max_turns, without another word of the environment', async () => {
  const rollout = await play(await game({ maxTurns: 2 }), saying('1', '2', '3'))
  expect(rollout).toMatchObject({ error: null, reward: 0, stopCondition: 'max_turns_reached' })
  expect(roles(rollout.completion)).toEqual(['assistant: 1', 'user: higher', 'assistant: 2'])
  await expect(game({ maxTurns: 0 })).rejects.toThrow('maxTurns is 0')
  expect((await game()).maxTurns).toBe(10)
})

test('finalEnvResponse is the last word', async () => {
  const env = await game({
    envResponse: (_, state) => {
      state.finalEnvResponse = [{ role: 'user', content: 'You lost.' }]
      return ''
    },
  })
  const rollout = await play(env, saying('1', '2'))
  expect(rollout.stopCondition).toBe('final_env_response')
  expect(roles(rollout.completion)).toEqual(['assistant: 1', 'user: You lost.'])
})

test('an answer that was cut off truncates the rollout, which goes on', async () => {
  const rollout = await play(await game(), saying(completionOf('1', 'length'), '7'))
  expect(rollout).toMatchObject({ isTruncated: true, stopCondition: 'found', reward: 1 })
})

test('no room for another answer: what was played is kept, as truncated', async () => {
  const client = saying('1', '2')
  const full = new ScriptedClient((messages) => {
    if (messages.length > 1) throw new ContextFullError('full')
    return completionOf('1')
  })
  const rollout = await play(await game(), full)
  expect(rollout).toMatchObject({ error: null, reward: 0, isTruncated: true, stopCondition: 'prompt_too_long' })
  expect(roles(rollout.completion)).toEqual(['assistant: 1', 'user: higher'])
  expect(client.asked).toEqual([])
})

describe('time', () => {
  test('its own limit leaves the turns that were finished', async () => {
    const slow = { envResponse: () => new Promise<string>(() => {}), timeoutSeconds: 0.05 }
    const rollout = await play(await game(slow), saying('1', '2'))
    expect(rollout).toMatchObject({ error: null, reward: 0, isTruncated: true, stopCondition: 'timeout_reached' })
    expect(rollout.completion_tokens.ids).toHaveLength(2)
    expect(closed).toHaveLength(1)
  })
  test('its own limit before the first answer is a failure', async () => {
    const never = new ScriptedClient(() => new Promise(() => {}))
    const rollout = await play(await game({ timeoutSeconds: 0.02 }), never)
    expect(rollout).toMatchObject({ reward: null, error: 'the rollout took longer than its limit of 0.02 s' })
    expect(closed).toHaveLength(1)
  })
  test('its own limit does not run while an answer waits for its place', async () => {
    const gate = { take: async () => await sleep(60), give: () => {} }
    const limit = { generationTimeoutSeconds: 9, gate }
    const rollout = await play(await game({ timeoutSeconds: 0.05 }), saying('1', '7'), limit)
    expect(rollout).toMatchObject({ error: null, stopCondition: 'found' })
    const slow = { envResponse: () => new Promise<string>(() => {}), timeoutSeconds: 0.05 }
    expect(await play(await game(slow), saying('1', '2'), limit)).toMatchObject({ stopCondition: 'timeout_reached' })
  })
  test('what comes back too late changes nothing any more, and what it opened is closed', async () => {
    const late = { timeoutSeconds: 0.03, envResponse: async () => (await sleep(60), 'higher') }
    const rollout = await play(await game(late), saying('1', '2', '3'))
    const before = JSON.stringify(rollout)
    await sleep(80)
    expect(JSON.stringify(rollout)).toBe(before)
    expect(rollout.completion).toHaveLength(1)
    expect((closed[0] as Game & TurnState).completion).toHaveLength(1)
    const setup = { setupState: async () => (await sleep(40), { secret: 1, open: true }), timeoutSeconds: 0.01 }
    expect((await play(await game(setup), saying('1'))).error).toContain('longer than its limit')
    await sleep(60)
    expect(closed).toHaveLength(1)
  })
  test('the limit of an answer starts anew with each, and covers the environment too', async () => {
    const steps = { envResponse: async () => (await sleep(30), 'higher'), maxTurns: 4 }
    const rollout = await play(await game(steps), saying('1', '2', '3', '4'), { generationTimeoutSeconds: 0.08 })
    expect(rollout).toMatchObject({ error: null, stopCondition: 'max_turns_reached' })
    const hangs = { envResponse: () => new Promise<string>(() => {}) }
    const long = await play(await game(steps), saying('1', '2', '3', '4'), { generationTimeoutSeconds: 9, rolloutTimeoutSeconds: 0.08 }) // prettier-ignore
    expect(long.error).toMatch(/^the rollout took longer than its limit of 0\.08 s \(in (the environment|generation)\)$/)
    const stuck = await play(await game(hangs), saying('1', '2'), { generationTimeoutSeconds: 0.03 })
    expect(stuck).toMatchObject({ reward: null, error: 'the environment took longer than its limit of 0.03 s' })
  })
})

describe('failures fail the rollout with their cause, and cleanup runs', () => {
  test.each<[string, Partial<MultiTurnOptions<Game>>, string]>([
    ['the environment throws', { envResponse: () => { throw new Error('no board') } }, 'no board'],
    ['a stop condition throws', { stop: { odd: () => { throw new Error('which?') } } }, 'which?'],
    ['cleanup throws', { cleanup: () => { throw new Error('still open') } }, 'still open'],
    ['the environment throws, and cleanup', { envResponse: () => { throw new Error('no board') }, cleanup: () => { throw new Error('x') } }, 'no board'],
  ])('%s', async (_, options, why) => {
    const { reward, error } = await play(await game(options), saying('1', '7'))
    expect(reward).toBeNull()
    // With the place in the environment's file.
    expect(error).toMatch(new RegExp(`^the environment threw: ${why.replace('?', '.')} \\(multi-turn.test.ts:\\d+:\\d+\\)$`))
    if (!options.cleanup) expect(closed).toHaveLength(1)
  }) // prettier-ignore
  test('the generator gives up in a later turn', async () => {
    const rollout = await play(await game(), saying('1', completionOf('half', 'abort')))
    expect(rollout).toMatchObject({ reward: null, error: 'generation was aborted', stopCondition: 'abort' })
  })
})

test('answers asked for at once wait for their turns, and no clock runs meanwhile', async () => {
  const slots = new Slots(1)
  const gate = { take: (again: boolean) => slots.take(again), give: () => slots.give() }
  const slow = new ScriptedClient(async () => (await sleep(30), completionOf('x')))
  const env = Object.assign(Object.create(await game()) as MultiTurnEnv<Game>, {
    rollout: async (row: Row, ctx: RolloutContext) => {
      const answers = await Promise.all([1, 2, 3, 4].map(() => ctx.client.complete(row.prompt, ctx.sampling, ctx.signal)))
      const { promptIds, ids, logprobs, versions } = answers[3]
      const completion_tokens = { ids, logprobs, versions }
      return {
        completion: [],
        promptIds,
        completion_tokens,
        isTruncated: false,
        stopCondition: 'eos',
        state: { secret: 1, turn: 1 },
      }
    },
  })
  expect(await play(env, slow, { gate, generationTimeoutSeconds: 0.08 })).toMatchObject({ error: null, reward: 0 })
})

test('the limit of an answer runs on while another one waits for its turn', async () => {
  const slots = new Slots(1)
  const gate = { take: (again: boolean) => slots.take(again), give: () => slots.give() }
  const env = Object.assign(Object.create(await game()) as MultiTurnEnv<Game>, {
    rollout: async (row: Row, ctx: RolloutContext) => {
      const ask = () => ctx.client.complete(row.prompt, ctx.sampling, ctx.signal)
      const first = ask()
      await sleep(5)
      await Promise.all([first, ask()])
      throw new Error('not reached')
    },
  })
  const { error } = await play(env, new ScriptedClient(() => new Promise(() => {})), { gate, generationTimeoutSeconds: 0.05 })
  expect(error).toBe('generation took longer than its limit of 0.05 s')
})

test('the time that an answer waits for its turn is no part of its generation', async () => {
  const gate = { take: () => sleep(300), give: () => {} }
  const begin = performance.now()
  // Nor of the rollout's limit, which else would pass while it waits.
  const slow = new ScriptedClient(async () => (await sleep(20), completionOf('7')))
  const { timing, error } = await play(await game(), slow, { gate, rolloutTimeoutSeconds: 0.25 })
  expect(error).toBeNull()
  // A timer may be a millisecond early.
  expect(timing.total_ms).toBeLessThanOrEqual(performance.now() - begin - 298)
})

test('a gate is passed once an answer and given back, whatever happens', async () => {
  let [taken, given] = [0, 0]
  const again: boolean[] = []
  const gate = { take: async (more: boolean) => void (taken++, again.push(more)), give: () => void given++ }
  await play(await game(), saying('3', '9', '7'), { gate })
  expect([taken, given, again]).toEqual([3, 3, [false, true, true]])
  const never = new ScriptedClient(() => new Promise(() => {}))
  const rollout = await play(await game(), never, { gate, generationTimeoutSeconds: 0.02 })
  expect(rollout.error).toBe('generation took longer than its limit of 0.02 s')
  expect([taken, given]).toEqual([4, 4])
  // one that ended while it waited gives the place back when it comes
  const slow = { ...gate, take: async () => (await sleep(50), void taken++) }
  const signal = AbortSignal.timeout(10)
  expect((await play(await game(), saying('7'), { gate: slow, signal })).error).toContain('aborted')
  await sleep(60)
  expect([taken, given]).toEqual([5, 5])
})

test.each<[string, unknown, string]>([
  ['a forgotten return', undefined, 'it is undefined'],
  ['null', null, 'it is null'],
  ['one message', { role: 'user', content: 'one' }, 'it is {"role":"user","content":"one"}'],
  ['a list of parts', [{ role: 'user', content: [{ type: 'text', text: 'hi' }] }], 'it is [{"role":"user","content":[{'],
  ['no content', [{ role: 'user' }], 'it is [{"role":"user"}]'],
])('what the environment says is checked: %s', async (_, said, words) => {
  const { error } = await play(await game({ envResponse: () => said as string }), saying('3', '9'))
  expect(error).toMatch(/^the environment's envResponse must be text, or a list of messages/)
  expect(error).toContain(words)
})

test('an environment that says the same object each time, changed, changes nothing that was said before or in another rollout', async () => {
  const reply: Message = { role: 'user', content: '' }
  const env = await game({
    envResponse: (_, state) => {
      reply.content = `${state.lastText} is wrong`
      return [reply]
    },
  })
  const [one, two] = await Promise.all([play(env, saying('1', '2', '7')), play(env, saying('3', '4', '7'))])
  expect(roles(one.completion).filter((said) => said.startsWith('user'))).toEqual(['user: 1 is wrong', 'user: 2 is wrong'])
  expect(roles(two.completion).filter((said) => said.startsWith('user'))).toEqual(['user: 3 is wrong', 'user: 4 is wrong'])
})

test.each(['the end', ''])('last words may be a text too, and an empty one: %j', async (words) => {
  const env = await game({
    envResponse: (_, state) => {
      state.finalEnvResponse = words
      return ''
    },
  })
  const { error, completion } = await play(env, saying('3'))
  expect([error, roles(completion)]).toEqual([null, ['assistant: 3', `user: ${words}`]])
})

test("what a rollout does to its info is its own: the task's other rollouts and the dataset do not see it", async () => {
  const env = await game({
    rubric: new Rubric({ asked: ({ info }) => Number(info.asked ?? 0) }),
    envResponse: (_, state) => {
      state.info.asked = Number(state.info.asked ?? 0) + 1
      return 'more'
    },
    maxTurns: 3,
  })
  const rollouts = await Promise.all([0, 1].map(async (index) => await play(env, saying('1', '2', '3'), { index })))
  expect(rollouts.map(({ reward }) => reward)).toEqual([2, 2])
  expect(env.dataset[0].info).toEqual({ secret: 7 })
})
