import { describe, expect, test } from 'vitest'
import type { ChatClient, Generator, Message } from '../../src/common/types.ts'
import { PolicyClient } from '../../src/environments/chat.ts'
import { runRollout, scoreRollout, sftRows } from '../../src/environments/rollout.ts'
import { Rubric } from '../../src/environments/rubric.ts'
import { SingleTurnEnv } from '../../src/environments/single-turn.ts'
import type { Environment } from '../../src/environments/types.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

const echoes = () =>
  SingleTurnEnv.create({
    id: 'echo',
    systemPrompt: 'Repeat.',
    rubric: new Rubric({
      same: ({ text, answer }) => (text === answer ? 1 : 0),
      ended: { reward: ({ finishReason }) => (finishReason === 'stop' ? 1 : 0), weight: 0 },
    }),
    dataset: Array.from({ length: 10 }, (_, i) => ({ question: `say ${i}`, answer: `${i}` })),
    evalSize: 2,
    seed: 1,
  })

/** The environment with some of its parts exchanged. */
const changed = (env: Environment, parts: Partial<Environment>): Environment => Object.assign(Object.create(env), parts)

const common = { sampling, group: 'g1', index: 2 }

describe('a rollout', () => {
  test('has prompt, completion with its tokens, reward, metrics and times', async () => {
    const env = await echoes()
    const row = env.dataset[0]
    const client = new ScriptedClient(row.answer)
    const rollout = await runRollout(env, row, { ...common, client })
    expect(client.asked).toEqual([{ messages: [{ role: 'system', content: 'Repeat.' }, row.prompt[1]], sampling }])
    const { ids, logprobs, versions } = completionOf(row.answer)
    const { timing, ...rest } = rollout
    expect(rest).toEqual({
      exampleId: row.exampleId,
      env: 'echo',
      group: 'g1',
      index: 2,
      prompt: row.prompt,
      completion: [{ role: 'assistant', content: row.answer }],
      answer: row.answer,
      info: {},
      reward: 1,
      metrics: { same: 1, ended: 1 },
      promptIds: [1, 2, 3],
      completion_tokens: { ids, logprobs, versions },
      isTruncated: false,
      stopCondition: 'eos',
      error: null,
      seed: 7,
    })
    expect(timing.total_ms).toBeCloseTo(timing.generation_ms + timing.scoring_ms)
  })
  test('has a prompt of its own: an environment that goes on in it leaves the row as it is', async () => {
    const env = await echoes()
    const [row] = env.dataset
    const grows = changed(env, {
      rollout: (own, ctx) => (own.prompt.push({ role: 'user', content: 'more' }), env.rollout(own, ctx)),
    })
    for (let i = 0; i < 2; i++) await runRollout(grows, row, { ...common, client: new ScriptedClient('x') })
    expect(row.prompt).toHaveLength(2)
  })
  test("its row's template variables go with each request, and what the environment asks with stands over them", async () => {
    const env = await echoes()
    const told: unknown[] = []
    const complete: ChatClient['complete'] = (_messages, _sampling, _signal, turn) => {
      told.push(turn?.variables)
      return Promise.resolve(completionOf('x'))
    }
    const asks = changed(env, {
      rollout: (row, ctx) => {
        void ctx.client.complete(row.prompt, ctx.sampling, ctx.signal, { variables: { style: 'own' } })
        return env.rollout(row, ctx)
      },
    })
    const row = { ...env.dataset[0], variables: { style: 'row', enable_thinking: false } }
    await runRollout(asks, row, { ...common, client: { complete } })
    expect(told).toEqual([{ style: 'own', enable_thinking: false }, row.variables])
  })
  test('cut off by max_tokens it is truncated, and scored', async () => {
    const env = await echoes()
    const rollout = await runRollout(env, env.dataset[0], {
      ...common,
      client: new ScriptedClient(() => completionOf('no', 'length')),
    })
    expect(rollout).toMatchObject({
      reward: 0,
      metrics: { same: 0, ended: 0 },
      isTruncated: true,
      stopCondition: 'max_tokens',
      error: null,
    })
  })
  test('can be scored again by another rubric, from what is on disk', async () => {
    const env = await echoes()
    const rollout = await runRollout(env, env.dataset[0], { ...common, client: new ScriptedClient('wrong') })
    const other = changed(env, { rubric: new Rubric({ length: ({ text }) => text.length }) })
    const again = await scoreRollout(other, JSON.parse(JSON.stringify(rollout)))
    expect(again).toMatchObject({ reward: 5, metrics: { length: 5 }, error: null })
    expect(rollout.reward).toBe(0)
  })
})

describe('a rollout that fails has an error and no reward', () => {
  const play = async (client: ScriptedClient, more: object = {}, change: Partial<Environment> = {}) => {
    const env = await echoes()
    const rollout = await runRollout(changed(env, change), env.dataset[0], { ...common, client, ...more })
    expect(rollout.reward).toBeNull()
    return rollout
  }
  const never = new ScriptedClient(() => new Promise(() => {}))
  test('the generator throws', async () => {
    const rollout = await play(
      new ScriptedClient(() => {
        throw new Error('device lost')
      }),
    )
    expect(rollout).toMatchObject({ error: 'device lost', completion: [], stopCondition: 'error', metrics: {} })
  })
  test('the generator does not answer in time', async () => {
    expect((await play(never, { generationTimeoutSeconds: 0.02 })).error).toBe('generation took longer than its limit of 0.02 s')
  })
  test('the run ends, before it and during it', async () => {
    expect((await play(never, { signal: AbortSignal.abort('the run is ending') })).error).toBe(
      'generation was aborted: the run is ending',
    )
    const controller = new AbortController()
    setTimeout(() => controller.abort(), 10)
    let told: AbortSignal | undefined
    const rollout = await play(new ScriptedClient((_, signal) => ((told = signal), new Promise(() => {}))), {
      signal: controller.signal,
    })
    expect(rollout.error).toBe('generation was aborted')
    expect(told?.aborted).toBe(true)
  })
  test('the generator gives up', async () => {
    const rollout = await play(new ScriptedClient(() => completionOf('half', 'abort')))
    expect(rollout).toMatchObject({ error: 'generation was aborted', stopCondition: 'abort', completion: [{ content: 'half' }] })
  })
  test('a reward function throws; what was generated stays to be looked at', async () => {
    const rubric = new Rubric({
      judge: () => {
        throw new Error('no key')
      },
    })
    expect(await play(new ScriptedClient('x'), {}, { rubric })).toMatchObject({
      error: 'reward function "judge" threw: no key (rollout.test.ts:146:15)',
      completion: [{ content: 'x' }],
    })
  })
  test('the run ends while the environment still works: its next step starts no timer', async () => {
    const [working, controller] = [Promise.withResolvers<void>(), new AbortController()]
    const rollout: Environment['rollout'] = async (_, { step }) => {
      await working.promise
      step!('the environment')
      throw new Error('too late')
    }
    const played = play(never, { signal: controller.signal, generationTimeoutSeconds: 9 }, { rollout })
    controller.abort()
    expect((await played).error).toBe('generation was aborted')
    const before = process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
    working.resolve()
    await new Promise(setImmediate)
    expect(process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout')).toHaveLength(before)
  })
  test('an environment whose arrays do not agree, or are empty', async () => {
    const draft = (ids: number[], logprobs: number[], versions = ids, sampled?: number[]) => ({
      rollout: async () => ({
        completion: [],
        promptIds: [1],
        completion_tokens: { ids, logprobs, versions },
        ...(sampled && { turns: sampled.map((count) => ({ branch: true, promptIds: [1], sampled: count })) }),
        isTruncated: false,
        stopCondition: 'eos',
      }),
    })
    expect((await play(never, {}, draft([1, 2], [-1]))).error).toContain('2 tokens, 1 log-probabilities and 2 versions')
    expect((await play(never, {}, draft([1, 2], [-1, -1], [0]))).error).toContain('2 log-probabilities and 1 versions')
    for (const sampled of [[1], [1, 2]])
      expect((await play(never, {}, draft([1, 2], [-1, -1], [0, 0], sampled))).error).toMatch(
        /^the turns have [13] tokens and the completion 2; they must agree/,
      )
    expect((await play(never, {}, draft([], []))).error).toBe('the completion has no tokens')
  })
  test.each([
    ['completion', undefined, 'must return completion, a list of messages'],
    ['completion', 'text', 'must return completion, a list of messages'],
    ['completion', [undefined], 'must return completion, a list of messages'],
    ['completion', ['text'], 'must return completion, a list of messages'],
    ['promptIds', undefined, 'must return promptIds, a list of token ids'],
    ['completion_tokens', undefined, 'must return completion_tokens, three lists of numbers'],
    ['completion_tokens', { ids: [1], logprobs: [-1] }, 'must return completion_tokens, three lists of numbers'],
    ['promptIds', ['1'], 'must return promptIds, a list of token ids'],
    ['promptIds', [undefined], 'must return promptIds, a list of token ids'],
    [
      'completion_tokens',
      { ids: [1.5], logprobs: [-1], versions: [0] },
      "the completion's ids must be token ids (whole numbers)",
    ],
    ['completion_tokens', { ids: [1], logprobs: [undefined], versions: [0] }, "the completion's logprobs must be numbers"],
    ['completion_tokens', { ids: [1], logprobs: [-1], versions: ['0'] }, "the completion's versions must be numbers"],
    ['turns', [{ branch: true, promptIds: [null], sampled: 1 }], 'must return turns, each with promptIds, a list of token ids'],
    ['isTruncated', undefined, 'must return isTruncated, true or false'],
    ['stopCondition', null, 'must return stopCondition, a string'],
    ['metrics', { big: 1n }, 'metric "big" is of type bigint; it must be a number'],
    ['metrics', { none: null, share: 0 / 0 }, 'metric "share" is NaN; it must be a finite number'],
  ])('a draft of an environment whose %s is %o is not taken', async (key, value, words) => {
    const whole = { completion: [], promptIds: [1], completion_tokens: { ids: [2], logprobs: [-1], versions: [0] }, isTruncated: false, stopCondition: 'eos' } // prettier-ignore
    const rollout = await play(never, {}, { rollout: async () => ({ ...whole, [key]: value }) as never })
    expect(rollout.error).toContain(words)
    expect(rollout.completion_tokens.ids).toEqual([])
  })
  test('a rollout function that returns nothing', async () => {
    const { error } = await play(never, {}, { rollout: async () => undefined as never })
    expect(error).toBe("the environment's rollout must return completion, a list of messages; it returned undefined")
  })
})

test('datasets: a held-out set of its own, or a part of the one', async () => {
  const rubric = new Rubric({ one: () => 1 })
  const rows = [{ question: 'a', answer: '1' }, { question: 'b' }, { question: 'c' }]
  const own = await SingleTurnEnv.create({ id: 'x', rubric, dataset: rows, evalDataset: [{ question: 'd' }] })
  expect([own.dataset.length, own.evalDataset.length]).toEqual([3, 1])
  const part = await SingleTurnEnv.create({ id: 'x', rubric, dataset: rows, evalSize: 1 })
  expect([part.dataset.length, part.evalDataset.length]).toEqual([2, 1])
  await expect(SingleTurnEnv.create({ id: 'x', rubric, dataset: rows, evalDataset: rows, evalSize: 1 })).rejects.toThrow(
    'not both',
  )
  expect(sftRows(own)).toEqual([{ prompt: [{ role: 'user', content: 'a' }], completion: [{ role: 'assistant', content: '1' }] }])
})

test('PolicyClient: messages through the template, ids as sampled, prompts over the limit refused', async () => {
  const { promptIds: _, ...result } = completionOf('ok')
  const requests: unknown[] = []
  const generator: Generator = { version: 4, generate: async (request) => (requests.push(request), result) }
  const encode = (messages: { content: string }[]) =>
    messages.flatMap(({ content }) => Array.from(content, (char) => char.charCodeAt(0)))
  const client = new PolicyClient(generator, encode, { maxPromptTokens: 3 })
  const signal = new AbortController().signal
  expect(await client.complete([{ role: 'user', content: 'abc' }], sampling, signal)).toEqual({
    ...result,
    promptIds: [97, 98, 99],
  })
  expect(requests).toEqual([{ promptIds: [97, 98, 99], sampling, signal }])
  await expect(client.complete([{ role: 'user', content: 'abcd' }], sampling)).rejects.toThrow(
    'the prompt has 4 tokens, more than max_prompt_len (3)',
  )
})

test('PolicyClient: each call of a conversation has a name of its own, by which its result is known', async () => {
  const generator: Generator = { version: 0, generate: () => Promise.resolve(completionOf('look, look')) }
  const call = { id: '', type: 'function' as const, function: { name: 'look', arguments: '{}' } }
  const client = new PolicyClient(generator, (messages) => messages.map((_, i) => i), {
    parseTools: () => ({ content: null, tool_calls: [call, call] }),
  })
  const tools = [{ type: 'function' as const, function: { name: 'look', parameters: {} } }]
  const messages: Message[] = [{ role: 'user', content: 'a' }]
  const ids: string[] = []
  for (let turn = 0; turn < 2; turn++) {
    const { message } = await client.complete(messages, sampling, undefined, { tools })
    messages.push(message!)
    ids.push(...message!.tool_calls!.map(({ id }) => id))
  }
  expect(new Set(ids).size).toBe(4)
})

test('a conversation that a group begins with is encoded once, and each rollout has ids of its own', async () => {
  const { promptIds: _, ...result } = completionOf('ok')
  const encoded: string[] = []
  const encode = ([{ content }]: { content: string }[]) => {
    encoded.push(content)
    return Array.from(content, (char) => char.charCodeAt(0))
  }
  const client = new PolicyClient({ version: 0, generate: async () => result }, encode)
  const ask = async (content: string) => (await client.complete([{ role: 'user', content }], sampling)).promptIds
  const [one, two] = [await ask('ab'), await ask('ab')]
  one.push(0)
  expect([two, await ask('b'), await ask('ab')]).toEqual([[97, 98], [98], [97, 98]])
  expect(encoded).toEqual(['ab', 'b', 'ab'])
})

test('an answer that its environment does not wait for is not sampled once the rollout has ended', async () => {
  const env = changed(await echoes(), {
    rollout: async ({ prompt }, { client, sampling: params }) => {
      const { ids, logprobs, versions, promptIds } = await client.complete(prompt, params)
      void client.complete(prompt, params)
      return {
        completion: [],
        completion_tokens: { ids, logprobs, versions },
        promptIds,
        isTruncated: false,
        stopCondition: 'eos',
      }
    },
  })
  const client = new ScriptedClient('1')
  const second = Promise.withResolvers<void>()
  let taken = 0
  const gate = {
    take: async (again: boolean) => {
      taken++
      if (again) await second.promise
    },
    give: () => void taken--,
  }
  expect(await runRollout(env, env.dataset[0], { ...common, client, gate, generationTimeoutSeconds: 60 })).toMatchObject({
    error: null,
  })
  second.resolve()
  await new Promise(setImmediate)
  expect([client.asked.length, taken]).toEqual([1, 0])
})
