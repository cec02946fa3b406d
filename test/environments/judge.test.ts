/** The judge against a real HTTP server on loopback, whose behaviour each test sets. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import promises from 'node:fs/promises'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { syncBuiltinESMExports } from 'node:module'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { Judge, type JudgeOptions, JudgeRubric, yesOrNo } from '../../src/environments/judge.ts'
import { runRollout } from '../../src/environments/rollout.ts'
import { SingleTurnEnv } from '../../src/environments/single-turn.ts'
import { sampling, ScriptedClient } from './scripted.ts'

interface Asked {
  path: string
  key: string | undefined
  body: { model: string; messages: { role: string; content: string }[]; temperature?: number }
}
type Answer = (asked: Asked, response: ServerResponse) => void | Promise<void>

const asked: Asked[] = []
let [running, most] = [0, 0]
let answer: Answer
const reply =
  (text: string | null): Answer =>
  (_, response) =>
    void response.end(JSON.stringify({ choices: [{ message: { role: 'assistant', content: text }, finish_reason: 'stop' }] }))
const fail =
  (status: number, message: string): Answer =>
  (_, response) =>
    void response
      .writeHead(status, { 'content-type': 'application/json', 'retry-after-ms': '1' })
      .end(JSON.stringify({ error: { message } }))

const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
  let text = ''
  for await (const chunk of request) text += chunk
  most = Math.max(most, ++running)
  response.once('close', () => running--)
  response.setHeader('content-type', 'application/json')
  const one = { path: request.url!, key: request.headers.authorization, body: JSON.parse(text) }
  asked.push(one)
  await answer(one, response)
})
let baseURL: string
const folder = mkdtempSync(join(tmpdir(), 'judge-'))
beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  baseURL = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})
beforeEach(() => {
  asked.length = 0
  ;[running, most] = [0, 0]
  answer = reply('yes')
})

const judgeOf = (options: Partial<JudgeOptions> = {}) =>
  new Judge({ model: 'j', baseURL, retries: 2, timeoutSeconds: 20, ...options })
const question = (text: string, q = 'What is 1 + 1?') => ({
  prompt: [
    { role: 'system' as const, content: 's' },
    { role: 'user' as const, content: q },
  ],
  answer: '2',
  text,
})

describe('asking', () => {
  test('fills the prompt, sends what is asked for, with the key', async () => {
    process.env.JUDGE_TEST_KEY = 'secret'
    const judge = judgeOf({
      apiKeyVar: 'JUDGE_TEST_KEY',
      prompt: 'Q {question} A {answer} R {response}',
      sampling: { max_tokens: 3 },
    })
    expect(await judge.ask(question('{answer} $& two'))).toBe('yes')
    delete process.env.JUDGE_TEST_KEY
    expect(asked).toEqual([
      {
        path: '/v1/chat/completions',
        key: 'Bearer secret',
        body: {
          model: 'j',
          temperature: 0,
          max_tokens: 3,
          messages: [{ role: 'user', content: 'Q What is 1 + 1? A 2 R {answer} $& two' }],
        },
      },
    ])
  })
  test('without a time limit', async () => {
    const soon = reply('yes')
    answer = (one, response) => void setTimeout(() => void soon(one, response), 50)
    expect(await judgeOf({ timeoutSeconds: Infinity, retries: 0 }).ask(question('two'))).toBe('yes')
  })
  test('the same question once, also while it is being asked; another one again', async () => {
    const judge = judgeOf()
    await Promise.all([judge.ask(question('two')), judge.ask(question('two'))])
    await judge.ask(question('two'))
    expect([asked.length, judge.requests]).toEqual([1, 1])
    await judge.ask(question('three'))
    expect(asked.length).toBe(2)
  })
  test('a file keeps replies for later runs, also after a line that was cut off', async () => {
    const cacheFile = join(folder, 'deep', 'cache.jsonl')
    await judgeOf({ cacheFile }).ask(question('two'))
    writeFileSync(cacheFile, `${readFileSync(cacheFile, 'utf8')}\n{"key":"cut o`)
    const later = judgeOf({ cacheFile })
    expect(await later.ask(question('two'))).toBe('yes')
    expect(asked.length).toBe(1)
    await later.ask(question('three'))
    await judgeOf({ cacheFile }).ask(question('three'))
    expect(asked.length).toBe(2)
    await judgeOf({ cacheFile, model: 'other' }).ask(question('two'))
    expect(asked.length).toBe(3)
  })
  test('a file tells endpoints apart that OPENAI_BASE_URL names', async () => {
    const cacheFile = join(folder, 'endpoints.jsonl')
    vi.stubEnv('OPENAI_BASE_URL', baseURL)
    expect(await judgeOf({ baseURL: undefined, cacheFile }).ask(question('two'))).toBe('yes')
    answer = reply('no')
    vi.stubEnv('OPENAI_BASE_URL', `${baseURL}/other`)
    expect(await judgeOf({ baseURL: undefined, cacheFile }).ask(question('two'))).toBe('no')
    vi.unstubAllEnvs()
  })
  test('a file that a full disk has no room for: the reply counts', async () => {
    const full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' })
    const spy = vi.spyOn(promises, 'appendFile').mockRejectedValue(full)
    syncBuiltinESMExports()
    try {
      const judge = judgeOf({ cacheFile: join(folder, 'full.jsonl') })
      expect(await judge.ask(question('two'))).toBe('yes')
      expect(await judge.ask(question('two'))).toBe('yes')
      expect(asked.length).toBe(1)
    } finally {
      spy.mockRestore()
      syncBuiltinESMExports()
    }
  })
  test('never more at a time than allowed, and all of them', async () => {
    answer = async (one, response) => {
      await new Promise((resolve) => setTimeout(resolve, 15))
      await reply(one.body.messages[0].content.slice(0, 3))(one, response)
    }
    const judge = judgeOf({ concurrency: 3, prompt: '{response}' })
    const replies = await Promise.all(Array.from({ length: 20 }, (_, i) => judge.ask(question(String(100 + i)))))
    expect(replies).toEqual(Array.from({ length: 20 }, (_, i) => String(100 + i)))
    expect(most).toBeLessThanOrEqual(3)
    expect(most).toBeGreaterThan(1)
  })
  test('a ceiling on requests', async () => {
    const judge = judgeOf({ maxRequests: 1 })
    await judge.ask(question('two'))
    await judge.ask(question('two'))
    await expect(judge.ask(question('three'))).rejects.toThrow('limit of 1 requests is used up')
  })
})

describe('what goes wrong', () => {
  test('a fault that passes is tried again', async () => {
    let times = 0
    answer = (one, response) => (++times < 3 ? fail(times === 1 ? 503 : 429, 'busy')(one, response) : reply('no')(one, response))
    expect(await judgeOf().ask(question('two'))).toBe('no')
    expect(asked.length).toBe(3)
  })
  test.each<[string, number, string, RegExp, number]>([
    ['a wrong key', 401, 'bad key', /^judge j at http:\S+\/v1 rejects the API key in OPENAI_API_KEY: .*bad key/, 1],
    ['no such model', 404, 'no model j', /has no such model or path: .*no model j/, 1],
    ['a bad request', 400, 'too long', /failed: 400 too long/, 1],
    ['a fault that stays', 500, 'broken', /failed: 500 broken/, 3],
    ['too many requests', 429, 'slow down', /still limits the rate of requests after 2 retries: .*Lower concurrency/, 3],
  ])('%s', async (_, status, message, words, tries) => {
    answer = fail(status, message)
    const judge = judgeOf()
    await expect(judge.ask(question('two'))).rejects.toThrow(words)
    expect(asked.length).toBe(tries)
    // A failure is not kept.
    answer = reply('yes')
    expect(await judge.ask(question('two'))).toBe('yes')
  })
  test('an endpoint that hangs, and one that is not there', async () => {
    answer = () => {}
    await expect(judgeOf({ timeoutSeconds: 0.2, retries: 1 }).ask(question('two'))).rejects.toThrow(
      'did not reply within 0.2 s, in 2 attempts',
    )
    const closed = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => closed.once('listening', resolve))
    const { port } = closed.address() as AddressInfo
    await new Promise((resolve) => closed.close(resolve))
    const nobody = judgeOf({ baseURL: `http://127.0.0.1:${port}/v1`, retries: 0 })
    await expect(nobody.ask(question('two'))).rejects.toThrow(/cannot be reached \(ECONNREFUSED\)/)
  })
  test('a reply that breaks off or does not end is a fault that passes, as one without headers', async () => {
    const whole = JSON.stringify({ choices: [{ message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }] })
    const begin = (response: ServerResponse) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': String(whole.length) })
      response.write(whole.slice(0, 20))
    }
    let times = 0
    answer = (one, response) => {
      if (++times > 1) return reply('yes')(one, response)
      begin(response)
      setTimeout(() => response.destroy(), 20)
    }
    expect(await judgeOf().ask(question('two'))).toBe('yes')
    expect(times).toBe(2)
    answer = (_, response) => begin(response)
    await expect(judgeOf({ timeoutSeconds: 0.2, retries: 1 }).ask(question('two'))).rejects.toThrow(
      'did not reply within 0.2 s, in 2 attempts',
    )
    answer = (_, response) => void response.setHeader('content-type', 'application/json').end(whole.slice(0, 20))
    await expect(judgeOf().ask(question('two'))).rejects.toThrow(/^judge j at \S+ replied with something that is not JSON/)
  })
  test('an abort ends the request and frees its place', async () => {
    answer = () => {}
    const judge = judgeOf({ concurrency: 1 })
    const controller = new AbortController()
    const hung = judge.ask({ ...question('two'), signal: controller.signal })
    setTimeout(() => controller.abort(), 100)
    await expect(hung).rejects.toThrow('aborted')
    answer = reply('yes')
    expect(await judge.ask(question('three'))).toBe('yes')
  })
  test('an abort of who asked first is none of who asks the same', async () => {
    let times = 0
    answer = (one, response) => (++times === 1 ? undefined : reply('yes')(one, response))
    const judge = judgeOf()
    const controller = new AbortController()
    const first = judge.ask({ ...question('two'), signal: controller.signal })
    const second = judge.ask(question('two'))
    setTimeout(() => controller.abort(), 100)
    await expect(first).rejects.toThrow('aborted')
    expect(await second).toBe('yes')
    expect(times).toBe(2)
  })
  test('a reply in parts, with the thoughts in one of their own', async () => {
    const content = [
      { type: 'thinking', thinking: [{ type: 'text', text: 'no, or' }] },
      { type: 'text', text: 'ye' },
      { type: 'text', text: 's' },
    ]
    answer = (_, response) =>
      void response.setHeader('content-type', 'application/json').end(JSON.stringify({ choices: [{ message: { content } }] }))
    expect(await judgeOf().ask(question('two'))).toBe('yes')
  })
  test('a reply without text, or that is no JSON', async () => {
    answer = reply(null)
    await expect(judgeOf().ask(question('two'))).rejects.toThrow('replied without text (finish_reason stop)')
    answer = (_, response) =>
      void response.setHeader('content-type', 'application/json').end('{"error": {"message": "the provider is down"}}')
    await expect(judgeOf().ask(question('two'))).rejects.toThrow(/replied without text: .*the provider is down/)
    // What stands before it answers for it.
    for (const [status, type, body, said] of [
      [200, 'application/json', 'null', ''],
      [204, 'application/json', '', ''],
      [200, 'text/html', '<html>back soon', ': "<html>back soon"'],
    ] as const) {
      answer = (_, response) => void response.writeHead(status, { 'content-type': type }).end(body)
      await expect(judgeOf().ask(question('two'))).rejects.toThrow(new RegExp(`/v1 replied without text${said}$`))
    }
    answer = (_, response) => void response.end('<html>')
    await expect(judgeOf({ retries: 0 }).ask(question('two'))).rejects.toThrow(/judge j at/)
  })
  test('options that cannot be', async () => {
    expect(() => judgeOf({ concurrency: 0 })).toThrow('concurrency must be 1 or more')
    expect(() => judgeOf({ model: '' })).toThrow('no model is given')
    expect(() => judgeOf({ prompt: 'Rate {question}: {answer}' })).toThrow('its prompt has no {response}, so it would judge all')
  })
})

test.each<[string, number]>([['yes', 1], ['No.', 0], ['**Yes**', 1], ['<think>no?</think>yes', 1], ['Yes, but the year differs.</think>\n\nNo', 0], ['It agrees, so: yes', 1], ['no, it is not yes, no', 0], ['They differ.\n\n**No.**', 0], ['Both say 4. Yes.', 1], ['**Verdict:**\n- no', 0]])('%j is %d', (text, value) => {
  expect(yesOrNo(text)).toBe(value)
}) // prettier-ignore
test('neither yes nor no is an error', () => {
  expect(() => yesOrNo('maybe')).toThrow('neither yes nor no: "maybe"')
  for (const text of ['The two differ, so the answer is not yes.', 'I cannot decide between yes and no', 'Verdict: not yes'])
    expect(() => yesOrNo(text)).toThrow('neither yes nor no')
  expect(() => yesOrNo('No doubt about it: yes')).toThrow('both yes and no')
  expect(() => yesOrNo('<think>I compare them. The reference says no')).toThrow('neither yes nor no')
})

describe('JudgeRubric', () => {
  const play = async (rubric: JudgeRubric, text: string) => {
    const env = await SingleTurnEnv.create({
      id: 'j',
      rubric,
      dataset: [{ question: 'What is 1 + 1?', answer: '2' }],
      evalSize: 0,
    })
    return await runRollout(env, env.dataset[0], { client: new ScriptedClient(text), sampling, group: 'g', index: 0 })
  }
  test('rewards what the judge says yes to', async () => {
    answer = (one, response) => reply(one.body.messages[0].content.includes('Response:\nTwo') ? 'yes' : 'no')(one, response)
    const rubric = new JudgeRubric({ judge: { model: 'j', baseURL } })
    expect(await play(rubric, 'Two')).toMatchObject({ reward: 1, error: null, metrics: { judge_reward: 1 } })
    expect(await play(rubric, 'Three')).toMatchObject({ reward: 0 })
    expect(await play(rubric, 'Two')).toMatchObject({ reward: 1 })
    expect(asked.length).toBe(2)
  })
  test('functions of its own, beside others', async () => {
    answer = reply('7')
    const judge = judgeOf({ prompt: 'Rate {response}' })
    const rubric = new JudgeRubric({
      judge,
      judged: { rating: { reward: async (args, asks) => Number(await asks.ask(args)) / 10, weight: 2 } },
      functions: { length: { reward: ({ text }) => text.length, weight: 0 } },
    })
    expect(await play(rubric, 'Two')).toMatchObject({ reward: 1.4, metrics: { rating: 0.7, length: 3 } })
    expect(rubric.judge).toBe(judge)
  })
  test('a judge that fails is an error, not a reward of 0', async () => {
    answer = fail(401, 'bad key')
    expect(await play(new JudgeRubric({ judge: { model: 'j', baseURL } }), 'Two')).toMatchObject({
      reward: null,
      error: expect.stringContaining('rejects the API key'),
    })
    answer = reply('perhaps')
    expect(await play(new JudgeRubric({ judge: { model: 'j', baseURL } }), 'Two')).toMatchObject({
      reward: null,
      error: expect.stringContaining('neither yes nor no'),
    })
  })
})
