/** What an endpoint is sent and how its answers are taken, on a server that answers as OpenAI's reference has it. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { EndpointClient, endpointNamed, readEndpoints } from '../../src/cli/eval-endpoints.ts'
import { neutralSampling } from '../../src/common/sampling.ts'
import { MultiTurnEnv } from '../../src/environments/multi-turn.ts'
import { runRollout } from '../../src/environments/rollout.ts'
import { Rubric } from '../../src/environments/rubric.ts'

const sampling = { ...neutralSampling, temperature: 0.5, top_p: 0.9, max_tokens: 7, seed: 3 }
const call = { id: 'call_1', type: 'function' as const, function: { name: 'add', arguments: '{"a":1}' } }

test('tools and their answers, failures that pass, and what is cut off', async () => {
  const got: Record<string, unknown>[] = []
  const replies = [
    { message: { role: 'assistant', content: null, tool_calls: [call] }, finish_reason: 'tool_calls' },
    undefined,
    { message: { role: 'assistant', content: 'It is' }, finish_reason: 'length' },
  ]
  const server = createServer((request, response) => {
    let text = ''
    request.on('data', (chunk: Buffer) => (text += chunk.toString()))
    request.on('end', () => {
      got.push({ ...(JSON.parse(text) as object), path: request.url, key: request.headers.authorization })
      const choice = replies.shift()
      response.statusCode = choice ? 200 : 503
      response.setHeader('content-type', 'application/json')
      response.end(
        choice ? JSON.stringify({ choices: [{ index: 0, ...choice }], usage: { prompt_tokens: 5, completion_tokens: 2 } }) : '{}',
      )
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    process.env.DAWN_RL_TEST_ENDPOINT = 'secret'
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
    const client = new EndpointClient(
      { model: 'm', url, keyVar: 'DAWN_RL_TEST_ENDPOINT' },
      { extra: { reasoning_effort: 'low', chat_template_kwargs: { a: 1, b: 1 } } },
    )
    const tools = [{ type: 'function' as const, function: { name: 'add', parameters: {} } }]
    const first = await client.complete([{ role: 'user', content: '1+2?' }], sampling, undefined, { tools })
    expect(first).toMatchObject({
      text: '',
      message: { role: 'assistant', tool_calls: [call] },
      ids: [-1, -1],
      finishReason: 'stop',
    })
    expect(got[0]).toEqual({
      path: '/v1/chat/completions', key: 'Bearer secret', model: 'm', messages: [{ role: 'user', content: '1+2?' }], temperature: 0.5, top_p: 0.9,
      max_tokens: 7, seed: 3, tools, reasoning_effort: 'low', chat_template_kwargs: { a: 1, b: 1 },
    }) // prettier-ignore
    const turns = [{ role: 'tool' as const, content: '3', tool_call_id: 'call_1', name: 'add' }]
    const second = await client.complete(turns, sampling, undefined, { tools, previous: first, variables: { b: 2 } })
    expect(got[1]).toMatchObject({
      chat_template_kwargs: { a: 1, b: 2 },
      messages: [{ role: 'tool', content: '3', tool_call_id: 'call_1' }],
    })
    expect((got[1].messages as object[])[0]).not.toHaveProperty('name')
    expect(got).toHaveLength(3)
    expect(second).toMatchObject({
      text: 'It is',
      finishReason: 'length',
      stopCondition: 'max_tokens',
      promptIds: [-1, -1, -1, -1, -1],
    })
  } finally {
    delete process.env.DAWN_RL_TEST_ENDPOINT
    server.close()
  }
})

test('an answer that says little, and a failure with status 200', async () => {
  const replies: unknown[] = [
    { choices: [{ message: { content: 'yes' } }] },
    { choices: [{ message: { content: [{ type: 'text', text: 'yes' }] } }] },
    { choices: [{ message: { content: 'yes' }, finish_reason: null }], usage: null },
    { error: { message: 'the provider is down', code: 502 } },
    { choices: [{ error: { message: 'overloaded' }, message: { role: 'assistant', content: '' }, finish_reason: 'error' }] },
    { choices: [{ finish_reason: 'stop' }] },
    null,
  ]
  const server = createServer((_, response) => {
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify(replies.shift()))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const client = new EndpointClient({ model: 'm', url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` })
    const ask = () => client.complete([{ role: 'user', content: '?' }], sampling)
    const answer = { text: 'yes', ids: [-1], finishReason: 'stop', stopCondition: 'unknown' }
    for (let i = 0; i < 3; i++) expect(await ask()).toMatchObject(answer)
    await expect(ask()).rejects.toThrow(/^m at http.* replied without an answer: .*the provider is down/)
    await expect(ask()).rejects.toThrow('overloaded')
    await expect(ask()).rejects.toThrow('without an answer: {"choices"')
    await expect(ask()).rejects.toThrow('without an answer: null')
  } finally {
    server.close()
  }
})

test('an endpoint that is not there: with the cause', async () => {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  const client = new EndpointClient({ model: 'm', url: `http://127.0.0.1:${port}/v1` }, { retries: 0 })
  await expect(client.complete([{ role: 'user', content: '?' }], sampling)).rejects.toThrow(/^m at http.*: .*\(ECONNREFUSED\)$/)
})

test('an endpoint that hangs: in words, and with no number of an exception', async () => {
  const server = createServer(() => {})
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
    const client = new EndpointClient({ model: 'm', url }, { retries: 0, timeoutSeconds: 0.2 })
    const asked = client.complete([{ role: 'user', content: '?' }], sampling)
    await expect(asked).rejects.toThrow(/^m at http.*: .*timed out\. \([^\d]*abort[^\d]*\)$/)
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

test('a page of HTML in place of an answer is told in its first words', async () => {
  const page = `<html><title>502 Bad Gateway</title>${'x'.repeat(5000)}`
  const server = createServer((_, response) => void response.writeHead(502, { 'content-type': 'text/html' }).end(page))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
    const client = new EndpointClient({ model: 'm', url }, { retries: 0 })
    await expect(client.complete([{ role: 'user', content: '?' }], sampling)).rejects.toThrow(/^m at .*502 Bad Gateway.{1,300}$/)
  } finally {
    server.close()
  }
})

test.each([
  "This model's maximum context length is 64 tokens. However, you requested 80 tokens.",
  'the request exceeds the available context size, try increasing it',
  'The input (80 tokens) is longer than the maximum model length of 64.',
  "max_tokens: 16 is too large: with the prompt's 60 tokens that makes 76, but this model's maximum context length is 64 tokens.",
])('a conversation that fills the context ends, and its answers are scored: %s', async (message) => {
  let asked = 0
  const server = createServer((_, response) => {
    response.writeHead(++asked % 2 === 1 ? 200 : 400, { 'content-type': 'application/json' })
    response.end(JSON.stringify(asked % 2 === 1 ? { choices: [{ message: { content: 'yes' } }] } : { error: { message } }))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const client = new EndpointClient({ model: 'm', url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` })
    const rubric = new Rubric({ said: ({ completion }) => completion.length })
    const env = await MultiTurnEnv.create({
      id: 'talk',
      rubric,
      dataset: [{ prompt: '?' }],
      evalSize: 0,
      envResponse: () => 'go on',
    })
    const play = () => runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0 })
    expect(await play()).toMatchObject({ error: null, reward: 2, stopCondition: 'prompt_too_long', isTruncated: true })
    // Without any answer there is nothing to score.
    asked = 1
    expect(await play()).toMatchObject({ error: expect.stringContaining(message) as string, reward: null })
  } finally {
    server.close()
  }
})

test('an answer that breaks off is asked for again', async () => {
  let asked = 0
  const whole = JSON.stringify({ choices: [{ message: { content: 'yes' } }] })
  const server = createServer((_, response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': String(whole.length) })
    if (++asked > 1) return void response.end(whole)
    response.write(whole.slice(0, 20))
    setTimeout(() => response.destroy(), 20)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const client = new EndpointClient({ model: 'm', url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` })
    expect(await client.complete([{ role: 'user', content: '?' }], sampling)).toMatchObject({ text: 'yes' })
    expect(asked).toBe(2)
  } finally {
    server.close()
  }
})

test.each(['localhost:8000/v1', '127.0.0.1:8000/v1', 'ftp://127.0.0.1/v1', ''])('no address: %j', (url) => {
  expect(() => new EndpointClient({ model: 'm', url })).toThrow(`address ${JSON.stringify(url)} is not a URL`)
})

test('a key that is not there is told before anything is asked', () => {
  const endpoint = { model: 'm', url: 'http://127.0.0.1:8000/v1', keyVar: 'DAWN_RL_TEST_NO_KEY' }
  expect(() => new EndpointClient(endpoint)).toThrow('DAWN_RL_TEST_NO_KEY, which should hold the key')
})

test('endpoints.toml: names, replicas, and what is missing in one', () => {
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-endpoints-'))
  const file = join(dir, 'endpoints.toml')
  const entry = (id: string, rest = '') => `[[endpoint]]\nendpoint_id = "${id}"\n${rest}`
  try {
    writeFileSync(file, entry('a', 'url = "http://x/v1"\nkey = "K"\n') + entry('a', 'url = "http://y/v1"\n') + entry('b', 'model = "m"\nurl = "http://z"\n')) // prettier-ignore
    const endpoints = readEndpoints(file)
    expect([...endpoints.keys()]).toEqual(['a', 'b'])
    expect(endpoints.get('a')).toMatchObject({ model: 'a', url: 'http://x/v1', keyVar: 'K' })
    expect(endpoints.get('b')).toMatchObject({ model: 'm', url: 'http://z' })
    writeFileSync(file, entry('c'))
    expect(() => readEndpoints(file)).toThrow('c has no url')
    writeFileSync(file, 'x = 1')
    expect(() => readEndpoints(file)).toThrow('there is no [[endpoint]]')
    // Without the line: it has a key.
    writeFileSync(file, entry('a', 'extra_headers = { "api-key" = "sk-1" oops }'))
    expect(() => readEndpoints(file)).toThrow(/endpoints\.toml:3:\d+ is not valid TOML: [^\n-]*\.$/)
  } finally {
    rmSync(dir, { recursive: true })
  }
})

test('a name that is no model and no endpoint: which endpoints there are', () => {
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-endpoints-'))
  const back = process.cwd()
  try {
    process.chdir(dir)
    expect(() => endpointNamed('mine')).toThrow(
      /^There is no model at mine: .* and no configs\/endpoints\.toml or endpoints\.toml/,
    )
    expect(endpointNamed('owner/name')).toBeUndefined()
    writeFileSync('endpoints.toml', '[[endpoint]]\nendpoint_id = "my-endpoint"\nmodel = "m"\nurl = "http://z"\n')
    expect(() => endpointNamed('my-endpont')).toThrow(
      'There is no model at my-endpont: no such folder or file, and endpoints.toml has no endpoint of that name; did you mean my-endpoint?',
    )
    expect(() => endpointNamed('far')).toThrow('has no endpoint of that name. It has my-endpoint.')
    expect(endpointNamed('owner/name')).toBeUndefined()
  } finally {
    process.chdir(back)
    rmSync(dir, { recursive: true })
  }
})
