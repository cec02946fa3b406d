/** Requests that wait as long as their client does, over real connections. */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, expect, test, vi } from 'vitest'
import { patientFetch } from '../../src/common/patient-fetch.ts'
import { VllmApi, VllmError } from '../../src/inference/vllm/api.ts'

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
