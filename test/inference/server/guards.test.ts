/** What the server refuses, and how: shapes of errors, keys, browsers, sizes, slow and broken clients, a full queue. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, afterEach, describe, expect, test, vi } from 'vitest'
import { chatBody, responsesBody } from '../../../src/inference/server/schemas/chat.ts'
import { completionsBody, detokenizeBody } from '../../../src/inference/server/schemas/completions.ts'
import { VllmApi } from '../../../src/inference/vllm/api.ts'
import { checkServer } from '../../../src/inference/vllm/checks.ts'
import { canLink, isWindows } from '../../windows.ts'
import { ask, expectError, rawBytes, rawGet, Tiny, tinyPath } from './helpers.ts'

const tiny = await Tiny.open()
const { client, url } = await tiny.serve({ bodySeconds: 1, maxBodyBytes: 20_000 })
const root = mkdtempSync(join(tmpdir(), 'dawn-rl-server-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))
afterEach(() => tiny.expectIdle())

const completions = (body: object) => ask(`${url}/v1/completions`, { model: 'tiny', prompt: 'a', max_tokens: 1, ...body })
const chat = (body: object) =>
  ask(`${url}/v1/chat/completions`, { messages: [{ role: 'user', content: 'a' }], max_tokens: 1, ...body })

describe('a request that is wrong', () => {
  test.each([
    [{ temperature: -1 }, 'temperature', /temperature/],
    [{ temperature: 'hot' }, 'temperature', /expected number/],
    [{ top_p: 0 }, 'top_p', /top_p/],
    [{ n: 0 }, 'n', /n/],
    [{ n: 2, temperature: 0 }, 'n', /must be 1 at temperature 0/],
    [{ max_tokens: 0 }, 'max_tokens', /1 or more/],
    [{ max_tokens: 600 }, 'max_tokens', /600 is too large: with the prompt's 1 tokens.*maximum context length is 512/],
    [{ prompt: 'a'.repeat(600) }, 'prompt', /600 tokens.*this model's maximum context length is 512 tokens/],
    [{ prompt: 'ab '.repeat(3000) }, 'prompt', /more than 4096 tokens \(9000 characters\).*maximum context length is 512/],
    [{ prompt: [] }, 'prompt', /a string, token ids/],
    [{ prompt: '' }, 'prompt', /no tokens/],
    [{ prompt: [1, 2, 9999] }, 'prompt', /9999 is not one of the model's 262/],
    [{ prompt: { text: 'a' } }, 'prompt', /a string, token ids/],
    [{ prompt: [1.5] }, 'prompt', /a string, token ids/],
    [{ prompt: ['a', [1]] }, 'prompt', /a string, token ids/],
    [{ prompt: [-1] }, 'prompt.0', />=0/],
    [{ prompt: [[1], []] }, 'prompt.1', /it must not be empty/],
    [{ logprobs: 21 }, 'logprobs', /more than the 20/],
    [{ logprobs: -1 }, 'logprobs', /vocabulary/],
    [{ logit_bias: { x: 1 } }, 'logit_bias.x', /token ids|Invalid key/],
    [{ logit_bias: { 5000: 1 } }, 'logit_bias', /5000/],
    [{ stop: [''] }, 'stop.0', /stop/],
    [{ allowed_token_ids: [9999] }, 'allowed_token_ids', /9999/],
    [{ min_tokens: 5 }, 'min_tokens', /max_tokens/],
    [{ truncate_prompt_tokens: 0 }, 'truncate_prompt_tokens', /at least 1/],
    [{ stream: true, prompt_logprobs: 1 }, 'prompt_logprobs', /cannot be streamed/],
    // Known, and not there.
    [{ bad_words: ['no'] }, 'bad_words', /supported/],
    [{ best_of: 3 }, 'best_of', /only 1/],
    [{ priority: 2 }, 'priority', /only 0/],
    [{ store: true }, 'store', /only false/],
    [{ suffix: 'end' }, 'suffix', /supported/],
    [{ use_beam_search: true }, 'use_beam_search', /supported/],
    [{ guided_choice: ['a'] }, 'guided_choice', /older name.*use structured_outputs\.choice/],
    [{ structured_outputs: { choice: ['a'], regex: 'b' } }, 'structured_outputs', /one of/],
  ])('%j', async (body, param, words) => {
    expectError(await completions(body), 400, words, param)
  })

  test.each([
    [{ messages: [] }, 'messages'],
    [{ messages: [{ role: 'king', content: 'a' }] }, 'messages.0.role'],
    [
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
      'messages.0.content.0.type',
      /must be "text"; images, audio and files/,
    ],
    [{ top_logprobs: 2 }, 'top_logprobs'],
    [{ max_completion_tokens: 4000 }, 'max_completion_tokens'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ chat_template: '{{ 1 }}' }, 'chat_template'],
    [{ continue_final_message: true, add_generation_prompt: true }, 'continue_final_message'],
    [{ functions: [{ name: 'f' }] }, 'functions', /use tools/],
  ] as [object, string, RegExp?][])('in a chat: %j', async (body, param, words = /./) => {
    const answer = await chat(body)
    expectError(answer, 400, words, param)
  })

  test('names no model that is there', async () => {
    expectError(await completions({ model: 'gpt-5' }), 404, /no model "gpt-5" on this server; available: tiny/, 'model')
    await expect(client.completions.create({ model: 'gpt-5', prompt: 'a' })).rejects.toThrow(OpenAI.NotFoundError)
    await expect(client.completions.create({ model: 'tiny', prompt: 'a', temperature: -1 })).rejects.toThrow(
      OpenAI.BadRequestError,
    )
  })

  test('is not JSON, not an object, not UTF-8, of another type', async () => {
    expectError(await ask(`${url}/v1/completions`, '{"model":'), 400, /not JSON/)
    expectError(await ask(`${url}/v1/completions`, '[1]'), 400, /JSON object/)
    expectError(await ask(`${url}/v1/completions`, '{}', { headers: { 'content-type': 'text/plain' } }), 400, /application\/json/)
    expectError(
      await ask(`${url}/v1/completions`, '{}', { headers: { 'content-encoding': 'gzip' } }),
      400,
      /content-encoding gzip/,
    )
    const broken = {
      body: Uint8Array.from([0x7b, 0x22, 0xff, 0x22, 0x7d]),
      method: 'POST',
      headers: { 'content-type': 'application/json' },
    }
    expectError(await ask(`${url}/v1/completions`, undefined, broken), 400, /UTF-8/)
  })

  test('asks for no route, or by the wrong method', async () => {
    expectError(await ask(`${url}/v2/models`), 404, /no such route/)
    const answer = await ask(`${url}/v1/completions`)
    expectError(answer, 405, /takes POST, not GET/)
    expect(answer.headers.get('allow')).toBe('POST')
  })

  test('has unknown fields: they are ignored, and named once in the log', async () => {
    for (let i = 0; i < 2; i++) expect((await completions({ extra_thing: 1, temperature: null })).status).toBe(200)
    expect(tiny.lines.filter((line) => line.message.includes('extra_thing'))).toHaveLength(1)
    // In objects and lists too; null is as good as left out.
    const call = { function: { name: 'f', argument: { a: 1 } } }
    const talk = [
      { role: 'user', content: [{ type: 'text', text: 'a', cache: 1 }], refusal: null },
      { role: 'assistant', tool_calls: [call, call] },
    ]
    const told = tiny.lines.length
    const tools = [{ type: 'function', function: { name: 'f', params: {}, parameters: { type: 'object', own: 1 } } }]
    const answer = await chat({
      messages: talk,
      tools,
      response_format: { type: 'text', strict: true },
      chat_template_kwargs: { b: 1 },
    })
    expect(answer.status).toBe(200)
    expect(tiny.lines.slice(told).flatMap(({ message }) => / the field (\S+) is unknown/.exec(message)?.[1] ?? [])).toEqual([
      'messages.content.cache',
      'messages.tool_calls.function.argument',
      'tools.function.params',
      'response_format.strict',
    ])
  })
})

describe('sizes and times', () => {
  test('a body that is too large, with a length and without', async () => {
    expectError(await completions({ prompt: 'a'.repeat(30_000) }), 413, /20000 bytes/)
    const piece = `${(5000).toString(16)}\r\n${'a'.repeat(5000)}\r\n`
    const head =
      'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n'
    const answer = await rawBytes(url, [head, piece, piece, piece, piece, piece], 5)
    expect(answer).toMatch(/^HTTP\/1\.1 413 [\s\S]*connection: close[\s\S]*PayloadTooLargeError/i)
    // Many at once, all of which hear of it.
    const many = await Promise.all(Array.from({ length: 20 }, () => completions({ prompt: 'a'.repeat(30_000) })))
    for (const one of many) expect(one.status).toBe(413)
  })

  test.each([
    [completionsBody, { prompt: Array(1000).fill({}) }, 'prompt'],
    [completionsBody, { prompt: [...Array(1000).fill(1), -1] }, 'prompt'],
    [completionsBody, { prompt: Array(1000).fill([1, -1, -1]) }, 'prompt'],
    [completionsBody, { prompt: 'a', stop: Array(60).fill('') }, 'stop'],
    [completionsBody, { prompt: 'a', allowed_token_ids: Array(1000).fill('a') }, 'allowed_token_ids'],
    [
      completionsBody,
      { prompt: 'a', logit_bias: Object.fromEntries([...Array(1000).keys()].map((i) => [i, 'a'])) },
      'logit_bias',
    ],
    [chatBody, { messages: Array(1000).fill(0) }, 'messages'],
    [chatBody, { messages: [{ role: 'user', content: Array(1000).fill({}) }] }, 'messages'],
    [chatBody, { messages: [{ role: 'user' }], tools: Array(1000).fill({}) }, 'tools'],
    [responsesBody, { input: Array(1000).fill({}) }, 'input'],
    [detokenizeBody, { tokens: Array(1000).fill('a') }, 'tokens'],
  ])('a list with many mistakes is looked at up to the first: %# ', (schema, body, field) => {
    const { error } = schema.safeParse(body)
    expect(error!.issues.map(({ path }) => path[0])).toEqual([field])
    // Those of all forms that a field may have, too.
    expect(JSON.stringify(error!.issues).match(/"path"/g)!.length).toBeLessThan(20)
  })

  test('texts to be truncated, and conversations, that would keep everyone waiting', async () => {
    const long = await tiny.serve({})
    const post = (path: string, body: object) => ask(`${long.url}${path}`, { max_tokens: 1, ...body })
    const text = 'ab '.repeat(200_000)
    const cut = await post('/v1/completions', { prompt: text, truncate_prompt_tokens: 4 })
    expectError(cut, 400, /600000 characters, but at most 500000 can be tokenised for truncation/, 'prompt')
    expect((await post('/v1/completions', { prompt: text.slice(0, 60_000), truncate_prompt_tokens: 4 })).status).toBe(200)
    const fields = Array.from({ length: 300_000 }, (_, i) => `"k${i}":1`)
    const wide = await ask(`${long.url}/v1/completions`, `{"prompt":"a",${fields.join()}}`)
    expectError(wide, 400, /The body has more than 250000 fields/)
    const lists = await ask(`${long.url}/v1/completions`, `{"prompt":[${'[1],'.repeat(250_000)}[1]]}`)
    expectError(lists, 400, /The body has more than 250000 objects and lists, /)
    const messages = Array.from({ length: 100_000 }, () => ({ role: 'user', content: 'a' }))
    const chatted = await post('/v1/chat/completions', { messages, truncate_prompt_tokens: 4 })
    expectError(chatted, 400, /there are 100000, but this model's maximum context length is 512 tokens/, 'messages')
  })

  test('objects and lists within each other, as many as are taken, and more', async () => {
    const nest = (levels: number, open: string, close: string, inner = '1') =>
      JSON.parse(open.repeat(levels) + inner + close.repeat(levels)) as object
    const bodies = (levels: number) => {
      const lists = nest(levels, '[', ']')
      const schema = nest(levels, '{"type":"array","items":', '}', '{}')
      const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: { a: schema } } } }]
      const call = { function: { name: 'f', arguments: { a: lists } } }
      return [
        { documents: lists },
        { chat_template_kwargs: { a: lists } },
        { tools, tool_choice: 'required' },
        { messages: [{ role: 'assistant', tool_calls: [call] }] },
        { response_format: { type: 'json_schema', json_schema: { schema } } },
      ]
    }
    for (const body of bodies(190)) expect((await chat(body)).status).toBeLessThan(500)
    // A string's braces are none.
    expect((await completions({ prompt: '"{['.repeat(100) })).status).toBe(200)
    for (const body of bodies(250)) expectError(await chat(body), 400, /more than 200 levels of nested objects and lists/)
    expectError(await ask(`${url}/v1/completions`, '['.repeat(15_000)), 400, /more than 200 levels of nested objects and lists/)
    // A schema as a text has levels of its own.
    const json = `{"enum":[${'['.repeat(5000)}${']'.repeat(5000)}]}`
    const schema = await completions({ structured_outputs: { json } })
    expectError(schema, 400, /the schema has more than 200 levels of nested objects and lists/, 'structured_outputs')
  })

  test('a body that does not come, a head that does not come, and no HTTP', async () => {
    const head =
      'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"mo'
    expect(await rawBytes(url, [head])).toMatch(/^HTTP\/1\.1 408 [\s\S]*was not complete after 1 s/)
    expect(await rawBytes(url, ['POST /v1/comp'])).toMatch(/^HTTP\/1\.1 408 [\s\S]*"code":408/)
    expect(await rawBytes(url, ['hello\r\n\r\n'])).toMatch(/^HTTP\/1\.1 400 [\s\S]*"code":400/)
    expect(await rawBytes(url, ['GET /health HTTP/1.1\r\n\r\n'])).toMatch(/^HTTP\/1\.1 400 [\s\S]*"code":400/)
    const expecting = 'GET /health HTTP/1.1\r\nhost: localhost\r\nexpect: more\r\nconnection: close\r\n\r\n'
    expect(await rawBytes(url, [expecting])).toMatch(/^HTTP\/1\.1 417 [\s\S]*"code":417/)
    expect(await rawBytes(url, [`GET /health HTTP/1.1\r\nhost: localhost\r\nx: ${'a'.repeat(20_000)}\r\n\r\n`])).toMatch(
      /^HTTP\/1\.1 431 /,
    )
  })

  test('a queue that is full', async () => {
    const small = await tiny.serve({ maxHeld: 3 })
    const body = { prompt: 'a', max_tokens: 400, ignore_eos: true, stream: true, n: 3 }
    expectError(
      await ask(`${small.url}/v1/completions`, { ...body, n: 4 }),
      400,
      /4 completions, but this server takes at most 3/,
      'n',
    )
    // None of them is read before: there may be millions.
    const long = { prompt: Array(4).fill('a'.repeat(600)) }
    expectError(await ask(`${small.url}/v1/completions`, long), 400, /4 completions, but this server takes at most 3/, 'n')
    const abort = new AbortController()
    const held = await fetch(`${small.url}/v1/completions`, {
      method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' }, signal: abort.signal,
    }) // prettier-ignore
    expect(held.status).toBe(200)
    const full = await ask(`${small.url}/v1/completions`, { ...body, n: 1 })
    expectError(full, 429, /queue is full: 3/)
    expect(Number(full.headers.get('retry-after'))).toBeGreaterThan(0)
    abort.abort()
    await tiny.expectIdle()
    expect((await ask(`${small.url}/v1/completions`, { prompt: 'a', max_tokens: 1, n: 3 })).status).toBe(200)
    await small.close()
  })

  test('a client that reads nothing of its stream holds no place of the queue once all of it is made', async () => {
    const small = await tiny.serve({ maxHeld: 8 })
    const asked = {
      messages: [{ role: 'user', content: 'a' }], n: 8, max_tokens: 480, ignore_eos: true, stream: true, logprobs: true, top_logprobs: 20, seed: 5,
    } // prettier-ignore
    // A connection that nobody reads from holds little; of one that `fetch` has begun to read the system may keep all of the answer.
    const { hostname, port } = new URL(small.url)
    const socket = connect(Number(port), hostname).pause()
    const body = JSON.stringify(asked)
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: ${hostname}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    )
    await vi.waitFor(async () => expect((await ask(`${small.url}/load`)).json.server_load).toBe(1))
    expectError(await ask(`${small.url}/v1/completions`, { prompt: 'a' }), 429, /queue is full: 8/)
    await tiny.expectIdle()
    // It is not read to its end: more than the connection holds is left.
    expect((await ask(`${small.url}/load`)).json.server_load).toBe(1)
    expect((await ask(`${small.url}/v1/completions`, { prompt: 'a', max_tokens: 1, n: 8 })).status).toBe(200)
    socket.destroy()
    await vi.waitFor(async () => expect((await ask(`${small.url}/load`)).json.server_load).toBe(0))
    await small.close()
  })
})

describe('who may ask', () => {
  test('with keys: those that have one', async () => {
    const keyed = await tiny.serve({ apiKeys: ['first-key', 'second-key'] })
    for (const headers of [
      { authorization: '' },
      { authorization: 'Bearer wrong' },
      { authorization: 'Basic first-key' },
      { authorization: 'Bearer first-ke' },
    ]) {
      const answer = await ask(`${keyed.url}/v1/models`, undefined, { headers })
      expectError(answer, 401, /key/)
      expect(answer.headers.get('www-authenticate')).toBe('Bearer')
    }
    for (const key of ['first-key', 'second-key'])
      expect((await ask(`${keyed.url}/v1/models`, undefined, { headers: { authorization: `Bearer ${key}` } })).status).toBe(200)
    expect((await keyed.client.models.list()).data).toHaveLength(1)
    expectError(await ask(`${keyed.url}/pause`, {}), 401, /key/)
    expectError(await ask(`${keyed.url}/metrics`), 401, /key/)
    expect((await ask(`${keyed.url}/health`)).status).toBe(200)
    expect(JSON.stringify(tiny.lines)).not.toContain('first-key')
    await keyed.close()
  })

  test('a run that samples from it is told that the key is missing, or another', async () => {
    const keyed = await tiny.serve({ apiKeys: ['the-key'] })
    const needs = { model: 'tiny', kind: 'lora', maxLength: 512, maxAsyncLevel: 1, logprobsMode: 'raw_logprobs' } as const
    const check = async () => await checkServer(new VllmApi(keyed.url), needs, [1, 2])
    for (const [key, words] of [
      [
        undefined,
        `${keyed.url} needs an API key. Set the environment variable VLLM_API_KEY to the key that the server was started with.`,
      ],
      ['', `${keyed.url} needs an API key.`],
      ['other', `${keyed.url} does not take the API key in VLLM_API_KEY.`],
    ] as const) {
      vi.stubEnv('VLLM_API_KEY', key)
      await expect(check()).rejects.toThrow(words)
    }
    vi.stubEnv('VLLM_API_KEY', 'the-key')
    expect(await check()).toMatchObject({ base: 'tiny' })
    vi.unstubAllEnvs()
    await keyed.close()
  })

  test.each(['', ' key', 'key ', 'key\n', 'schlüssel'])('a key that no request could carry is refused: %j', async (key) => {
    await expect(tiny.serve({ apiKeys: ['good', key] })).rejects.toThrow(/no request could carry it/)
  })

  test('routes that nobody serves have one name in the metrics, with a key or without', async () => {
    const keyed = await tiny.serve({ apiKeys: ['k'] })
    const headers = { authorization: 'Bearer k' }
    for (const path of ['/one', '/two']) expectError(await ask(keyed.url + path), 401, /key/)
    expectError(await ask(`${keyed.url}/three`, undefined, { headers }), 404, /no such route/)
    expectError(await ask(`${keyed.url}/v1/completions`, { model: 'none', prompt: 'a' }, { headers }), 404, /no model/, 'model')
    const { text } = await ask(`${keyed.url}/metrics`, undefined, { headers })
    expect(text.match(/^http_requests_total.*/gm)).toEqual([
      'http_requests_total{handler="other",status="401"} 2',
      'http_requests_total{handler="other",status="404"} 1',
      'http_requests_total{handler="/v1/completions",status="404"} 1',
    ])
    await keyed.close()
  })

  test('an address that others reach needs a key, and has no routes that stop the engine', async () => {
    await expect(tiny.serve({ host: '0.0.0.0' })).rejects.toThrow(/needs a key/)
    const open = await tiny.serve({ host: '0.0.0.0', apiKeys: ['k'] })
    const headers = { authorization: 'Bearer k' }
    expectError(await ask(`${open.url}/pause`, {}, { headers }), 404, /--dev-mode, a training run's server never does/)
    // Other names are fine there.
    const { status } = await rawGet(`${open.url}/health`, { host: 'gpu-box.example' })
    expect(status).toBe(200)
    await open.close()
  })

  test('on loopback: no other host name, no page of another origin', async () => {
    for (const host of ['evil.example', 'evil.example:80', '127.0.0.1.evil.example']) {
      const { status, text } = await rawGet(`${url}/v1/models`, { host })
      expectError({ status, text, json: JSON.parse(text) }, 403, /Host/)
    }
    for (const host of ['localhost', '127.0.0.1:99', '[::1]:5'])
      expect((await rawGet(`${url}/v1/models`, { host })).status).toBe(200)
    // A proxy on this machine passes on the name that it was asked by, and a page has no key.
    const keyed = await tiny.serve({ apiKeys: ['k'] })
    const proxied = { host: 'models.example', authorization: 'Bearer k' }
    expect((await rawGet(`${keyed.url}/v1/models`, proxied)).status).toBe(200)
    expect((await rawGet(`${keyed.url}/v1/models`, { ...proxied, origin: 'https://evil.example' })).status).toBe(403)
    await keyed.close()
    const { status, headers } = await rawGet(`${url}/v1/models`, { origin: 'https://evil.example' })
    expect(status).toBe(403)
    expect(headers['access-control-allow-origin']).toBeUndefined()
    // IPv6, in brackets or without.
    for (const host of ['::1', '[::1]']) {
      const own = await tiny.serve({ host })
      expect(own.url).toMatch(/^http:\/\/\[::1\]:\d+$/)
      await own.close()
    }
    const allowing = await tiny.serve({ allowedOrigins: ['https://app.example'] })
    const good = await rawGet(`${allowing.url}/v1/models`, { origin: 'https://app.example' })
    expect([good.status, good.headers['access-control-allow-origin']]).toEqual([200, 'https://app.example'])
    const preflight = await rawGet(
      `${allowing.url}/v1/chat/completions`,
      { origin: 'https://app.example', 'access-control-request-headers': 'authorization' },
      'OPTIONS',
    )
    expect([preflight.status, preflight.headers['access-control-allow-headers']]).toEqual([204, 'authorization'])
    expect((await rawGet(`${allowing.url}/v1/models`, { origin: 'https://other.example' })).status).toBe(403)
    await allowing.close()
  })

  test('folders are opened below the root alone', async () => {
    const load = (at: string, lora_path: string) => ask(`${at}/v1/load_lora_adapter`, { lora_name: 'x', lora_path })
    expectError(await load(url, tinyPath), 403, /--adapter-root, a training run's server never/, 'lora_path')
    mkdirSync(join(root, 'inside'))
    if (canLink) symlinkSync(tinyPath, join(root, 'link'))
    const rooted = await tiny.serve({ adapterRoot: root })
    for (const path of [tinyPath, '..', '../..', join(root, '..'), ...(canLink ? ['link'] : []), `${root}-else`, root, '/etc']) {
      expectError(await load(rooted.url, path), 400, /below the server's --adapter-root/, 'lora_path')
    }
    expectError(await load(rooted.url, 'missing'), 404, /no such folder below the server's --adapter-root/, 'lora_path')
    // Below the root, and no adapter.
    expectError(await load(rooted.url, 'inside'), 400, /adapter_config/, 'lora_path')
    if (isWindows) {
      const [drive] = root
      expectError(await load(rooted.url, join(root, 'INSIDE').toUpperCase()), 400, /adapter_config/, 'lora_path')
      for (const path of [
        'C:',
        'C:..',
        `${drive}:..`,
        '\\\\host\\share',
        '\\\\?\\C:\\',
        '\\\\.\\C:\\',
        '//?/C:/',
        '..\\..',
        'inside\\..\\..',
        '/',
      ])
        expectError(await load(rooted.url, path), 400, /below the server's --adapter-root/, 'lora_path')
      for (const path of ['NUL', 'inside\\NUL', 'inside:stream', 'inside::$INDEX_ALLOCATION', 'CON'])
        expect([400, 404], path).toContain((await load(rooted.url, path)).status)
    }
    expectError(await ask(`${rooted.url}/v1/unload_lora_adapter`, { lora_name: 'x' }), 404, /no adapter x/, 'lora_name')
    const reload = { method: 'reload_weights', kwargs: { weights_path: tinyPath } }
    expectError(await ask(`${rooted.url}/collective_rpc`, reload), 400, /below/, 'kwargs.weights_path')
    await rooted.close()
  })
})

describe('a server that ends', () => {
  test('lets what runs end, and refuses what is new', async () => {
    const ending = await tiny.serve({ allowedOrigins: ['https://app.example'] })
    const stream = await ending.client.completions.create({
      model: 'tiny',
      prompt: 'a',
      max_tokens: 60,
      stream: true,
      ...({ ignore_eos: true } as object),
    })
    const closing = ending.close(20)
    expectError(await ask(`${ending.url}/health`), 503, /shutting down/)
    const page = await rawGet(`${ending.url}/v1/models`, { origin: 'https://app.example' })
    expect([page.status, page.headers['access-control-allow-origin']]).toEqual([503, 'https://app.example'])
    let tokens = 0
    let reason
    for await (const { choices } of stream) {
      tokens++
      reason = choices[0].finish_reason
    }
    expect(tokens).toBeGreaterThan(20)
    expect(reason).toBe('length')
    await closing
    await expect(ask(`${ending.url}/health`)).rejects.toThrow(/fetch failed/)
  })

  test('ends what takes too long', async () => {
    const ending = await tiny.serve()
    const asked = ask(`${ending.url}/v1/completions`, { prompt: 'a', max_tokens: 500, ignore_eos: true })
    while (tiny.engine.stats().running === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    await ending.close(0.05)
    const { status, json } = await asked
    expect([status, json.choices[0].finish_reason]).toEqual([200, 'abort'])
  })
})

test('a fault of ours is a 500 with an id that stands in the log', async () => {
  const faulty = await tiny.serve(
    {},
    {
      grammars: () => {
        throw new Error('the library is broken')
      },
    },
  )
  const answer = await ask(`${faulty.url}/v1/chat/completions`, {
    messages: [{ role: 'user', content: 'a' }], max_tokens: 1, response_format: { type: 'json_object' },
  }) // prettier-ignore
  expectError(answer, 500, /its log has the details under [\da-f-]{36}/)
  const [, id] = /under ([\da-f-]{36})/.exec(answer.text)!
  const line = tiny.lines.find(({ fields }) => fields.fault === id)
  expect(line!.fields.stack).toMatch(/the library is broken[\s\S]*at /)
  await faulty.close()
})

test('a fault in the midst of a stream is its last event, counted on', async () => {
  let left = 3
  const constraint = {
    complete: false,
    fill: (mask: Uint32Array) => {
      if (left-- === 0) throw new Error('the library is broken')
      mask[0] = 2 ** 31
    },
    accept: () => {},
    release: () => {},
  }
  const faulty = await tiny.serve({}, { grammars: async () => ({ constraint: async () => constraint, close: () => {} }) })
  const { text } = await ask(`${faulty.url}/v1/responses`, {
    input: 'a',
    text: { format: { type: 'json_object' } },
    stream: true,
  })
  const events = [...text.matchAll(/^data: (.*)$/gm)].map(([, json]) => JSON.parse(json))
  expect(events.length).toBeGreaterThan(3)
  expect(events.at(-1)).toMatchObject({ type: 'error', code: '500', message: expect.stringMatching(/its log has the details/) })
  expect(events.map((event) => event.sequence_number)).toEqual([...events.keys()])
  await faulty.close()
})
