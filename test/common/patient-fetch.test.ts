/** Requests that wait as long as their client does, over real connections. */
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { promisify } from 'node:util'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, afterEach, expect, test, vi } from 'vitest'
import { EndpointClient } from '../../src/cli/eval-endpoints.ts'
import { fetchWhole, patientFetch } from '../../src/common/patient-fetch.ts'
import { Judge } from '../../src/environments/judge.ts'
import { VllmApi, VllmError } from '../../src/inference/vllm/api.ts'
import { sampling } from '../environments/scripted.ts'

let answer: (incoming: IncomingMessage, outgoing: ServerResponse) => void
const http = createServer((incoming, outgoing) => answer(incoming, outgoing)).listen(0, '127.0.0.1')
await once(http, 'listening')
const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`
afterAll(() => http.close())
afterEach(() => vi.unstubAllGlobals())

test('sends what fetch sends, and gives what it gives', async () => {
  answer = async (incoming, outgoing) => {
    let body = ''
    for await (const piece of incoming) body += piece
    const { method, url: path, headers } = incoming
    outgoing.writeHead(201, 'Made', { 'content-type': 'application/json', 'set-cookie': ['a=1', 'b=2'] })
    outgoing.end(JSON.stringify({ method, path, body, type: headers['content-type'], key: headers.authorization }))
  }
  const init = { method: 'POST', body: 'é', headers: { authorization: 'k' } }
  const [ours, theirs] = await Promise.all([patientFetch(`${url}/a?b=c`, init), fetch(`${url}/a?b=c`, init)])
  expect([ours.status, ours.statusText, ours.headers.getSetCookie()]).toEqual([201, 'Made', ['a=1', 'b=2']])
  expect(await ours.json()).toEqual(await theirs.json())
  answer = (_, outgoing) => void outgoing.writeHead(204).end()
  expect([(await patientFetch(url)).status, await (await patientFetch(url)).text()]).toEqual([204, ''])
})

test.each([patientFetch, fetchWhole])(
  'whoever gives up is heard after the collector has run, too: %o',
  async (asks) => {
    setFlagsFromString('--expose-gc')
    const collect = runInNewContext('gc') as () => void
    const closed = new Promise((resolve) => {
      answer = (_, outgoing) => {
        outgoing.once('close', resolve).write('the first of many words')
      }
    })
    const control = new AbortController()
    const whole = asks(url, { signal: control.signal }).then((response) => response.text())
    const ends = expect(whole).rejects.toThrow()
    for (let turn = 0; turn < 10; turn++) {
      await new Promise((resolve) => setTimeout(resolve, 10))
      collect()
    }
    control.abort()
    await Promise.all([ends, closed])
  },
  30_000,
)

test("vLLM is asked by it: Node's fetch gives up after five minutes without a token", async () => {
  vi.stubGlobal('fetch', () => {
    throw new Error('it is not asked')
  })
  const api = new VllmApi(url, 'key')
  const closed: Promise<unknown>[] = []
  answer = (_, outgoing) => {
    closed.push(once(outgoing, 'close'))
    outgoing.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const id of [1, 2]) outgoing.write(`data: {"choices":[{"token_ids":[${id}]}]}\n\n`)
  }
  // Leaving the loop, and the signal, end the request at the server.
  for await (const { choices } of api.stream('/v1/completions', {}, new AbortController().signal)) {
    expect(choices[0].token_ids).toEqual([1])
    break
  }
  await closed[0]
  const abort = new AbortController()
  const ids: unknown[] = []
  for await (const { choices } of api.stream('/v1/completions', {}, abort.signal))
    if (ids.push(choices[0].token_ids) === 2) abort.abort()
  expect(ids).toEqual([[1], [2]])
  await closed[1]
  // What breaks off is told, and what does not come in time.
  answer = (_, outgoing) => {
    outgoing.writeHead(200, { 'content-type': 'text/event-stream' })
    outgoing.write('data: {"choices":[]}\n\n', () => outgoing.destroy())
  }
  const broken = api.stream('/v1/completions', {}, new AbortController().signal)
  await expect(Array.fromAsync(broken)).rejects.toThrow(VllmError)
  answer = () => {}
  await expect(api.complete({}, 50)).rejects.toMatchObject({ status: undefined, message: expect.stringMatching(/timed out/) })
  answer = (_, outgoing) =>
    void outgoing.writeHead(429, { 'content-type': 'application/json' }).end('{"error":{"message":"full"}}')
  await expect(api.version()).rejects.toMatchObject({ status: 429, message: expect.stringMatching(/answered 429: full/) })
})

test('judges and the endpoints of eval are asked by it, too', async () => {
  vi.stubGlobal('fetch', () => {
    throw new Error('it is not asked')
  })
  answer = (_, outgoing) =>
    void outgoing
      .writeHead(200, { 'content-type': 'application/json' })
      .end('{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}')
  const messages = [{ role: 'user' as const, content: 'Well?' }]
  expect(await new Judge({ model: 'm', baseURL: url }).complete(messages)).toBe('yes')
  expect(await new EndpointClient({ model: 'm', url }).complete(messages, sampling)).toMatchObject({ text: 'yes' })
  // A body that does not come has the client's limit as well.
  answer = (_, outgoing) => void outgoing.writeHead(200, { 'content-type': 'application/json' }).write('{')
  const late = new EndpointClient({ model: 'm', url }, { retries: 0, timeoutSeconds: 0.2 })
  await expect(late.complete(messages, sampling)).rejects.toThrow(/timed out/)
})

test('redirects are followed as fetch follows them, and secrets stay with the server that they were meant for', async () => {
  const other = createServer((incoming, outgoing) => answer(incoming, outgoing)).listen(0, '127.0.0.1')
  await once(other, 'listening')
  const elsewhere = `http://127.0.0.1:${(other.address() as AddressInfo).port}`
  answer = async (incoming, outgoing) => {
    const [, status, ...to] = incoming.url!.split('_')
    if (status) return void outgoing.writeHead(Number(status), { location: to.join('_') }).end()
    let body = ''
    for await (const piece of incoming) body += piece
    const { method, url: path, headers } = incoming
    outgoing.end(JSON.stringify({ method, path, body, type: headers['content-type'], key: headers.authorization }))
  }
  const init = { method: 'POST', body: '{}', headers: { authorization: 'k', 'content-type': 'application/json' } }
  const places = ['_307_/a', '_301_/a', '_303_/a', `_308_${elsewhere}/a`, `_308_/_302_${elsewhere}/a`].map(
    (place) => `${url}/${place}`,
  )
  for (const place of places) {
    const [ours, theirs] = await Promise.all([patientFetch(place, init), fetch(place, init)])
    expect(await ours.json(), place).toEqual(await theirs.json())
  }
  const type = 'application/json'
  expect(await (await patientFetch(`${url}/_308_${elsewhere}/a`, init)).json()).toEqual({
    method: 'POST',
    path: '/a',
    body: '{}',
    type,
  })
  expect((await patientFetch(`${url}/_307_/a`, { redirect: 'manual' })).status).toBe(307)
  await expect(patientFetch(`${url}/_307_/a`, { redirect: 'error' })).rejects.toThrow(/\/_307_\/a redirects to \/a$/)
  await expect(patientFetch(`${url}/_307_file:///etc/hosts`)).rejects.toThrow(/not an HTTP address/)
  answer = (_, outgoing) => void outgoing.writeHead(302, { location: '/' }).end()
  await expect(patientFetch(url)).rejects.toThrow(/after 20 redirects/)
  other.close()
})

test('proxies are asked where Node is told to, and not for this machine', async () => {
  answer = (incoming, outgoing) => void outgoing.end(incoming.url)
  const code = `const { patientFetch } = await import(process.argv[1])
    for (const url of process.argv.slice(2)) console.log(await patientFetch(url).then((it) => it.text(), (error) => error.code))`
  const asked = async (env: Record<string, string>) => {
    const file = new URL('../../src/common/patient-fetch.ts', import.meta.url).href
    const words = ['--input-type=module', '-e', code, file, 'http://judge.invalid/v1', `${url}/own`]
    const { stdout } = await promisify(execFile)(process.execPath, words, { env: { ...process.env, HTTP_PROXY: url, ...env } })
    return stdout.trim().split('\n')
  }
  expect(await asked({ NODE_USE_ENV_PROXY: '1' })).toEqual(['http://judge.invalid/v1', '/own'])
  expect(await asked({ NODE_USE_ENV_PROXY: '1', NO_PROXY: '.invalid' })).toEqual([
    expect.stringMatching(/ENOTFOUND|EAI_AGAIN/),
    '/own',
  ])
  expect(await asked({})).toEqual([expect.stringMatching(/ENOTFOUND|EAI_AGAIN/), '/own'])
})

test('a proxy that Node was not told to use is named where the hub cannot be reached', async () => {
  const code = `const { hubFailure } = await import(process.argv[1])
    console.log(hubFailure(new TypeError('fetch failed', { cause: new Error('no such host') }), 'model'))`
  const said = async (env: Record<string, string>) => {
    const words = ['--input-type=module', '-e', code, new URL('../../src/common/hub.ts', import.meta.url).href]
    const { stdout } = await promisify(execFile)(process.execPath, words, { env: { PATH: process.env.PATH, ...env } })
    return stdout.trim()
  }
  const HTTPS_PROXY = 'http://proxy.invalid:3128'
  expect(await said({})).toBe('fetch failed (no such host)')
  expect(await said({ HTTPS_PROXY, NODE_USE_ENV_PROXY: '1' })).toBe('fetch failed (no such host)')
  const mend = 'HTTPS_PROXY is set, but Node uses it only with NODE_USE_ENV_PROXY=1'
  expect(await said({ HTTPS_PROXY })).toBe(`fetch failed (no such host; ${mend})`)
})
