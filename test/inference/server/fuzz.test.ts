/**
 * Random requests of all shapes: whatever comes, the answer is well-formed, nothing hangs, nothing crashes, and no page of the cache stays held.
 * DAWN_RL_FUZZ is how many (default 400); what fails can be repeated with DAWN_RL_TEST_SEED.
 */
import { afterAll, expect, test } from 'vitest'
import { createGrammars } from '../../../src/inference/grammar/grammars.ts'
import { chatBody, responsesBody, tokenizeBody } from '../../../src/inference/server/schemas/chat.ts'
import { completionsBody, detokenizeBody, generateBody } from '../../../src/inference/server/schemas/completions.ts'
import { loadAdapterBody, rpcBody, unloadAdapterBody } from '../../../src/inference/server/schemas/control.ts'
import fc from '../../fast-check.ts'
import { ask, rawBytes, Tiny } from './helpers.ts'

const tiny = await Tiny.open({ cacheRows: 2048 })
const grammars = createGrammars(tiny.tokenizer, tiny.tokenizer.eosTokenIds, tiny.decoder.config.vocabSize)
afterAll(() => grammars.close())
const parts = { grammars: () => Promise.resolve(grammars), reasoning: true }
const { url } = await tiny.serve({ maxHeld: 24, maxBodyBytes: 100_000 }, parts)
// Where a head that does not come is not waited for.
const hasty = await tiny.serve({ bodySeconds: 2 })
const runs = Number(process.env.DAWN_RL_FUZZ ?? 400)

const routes = {
  '/v1/completions': Object.keys(completionsBody.shape),
  '/v1/chat/completions': Object.keys(chatBody.shape),
  '/v1/responses': Object.keys(responsesBody.shape),
  '/inference/v1/generate': Object.keys(generateBody.shape),
  '/tokenize': Object.keys(tokenizeBody.shape),
  '/detokenize': Object.keys(detokenizeBody.shape),
  '/v1/load_lora_adapter': Object.keys(loadAdapterBody.shape),
  '/v1/unload_lora_adapter': Object.keys(unloadAdapterBody.shape),
  '/collective_rpc': Object.keys(rpcBody.shape),
  '/reset_prefix_cache': [],
  '/no/such/route': ['a'],
}

const text = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 40 }),
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.constantFrom('', 'a'.repeat(700), '\u0000', '<|end|>'),
)
const number = fc.oneof(
  fc.integer({ min: -3, max: 30 }),
  fc.double({ min: -2, max: 2, noNaN: true }),
  fc.constantFrom(0, 1, -1, 1e308, 2 ** 53, 2 ** 64, 1e-300),
)
const junk: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 3, arbitrary: number },
  text,
  fc.boolean(),
  fc.constant(null),
  fc.array(fc.oneof(number, text), { maxLength: 5 }),
  fc.object({ maxDepth: 2, maxKeys: 4 }),
)

const rarelyNot = (value: fc.Arbitrary<unknown>) =>
  fc.oneof({ weight: 4, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: value })
const schema = fc.oneof(
  fc.constantFrom(
    { type: 'object' },
    { enum: ['a', 1] },
    { type: 'array', items: { type: 'integer' }, maxItems: 3 },
    { $ref: '#' },
  ),
  fc.object({ maxDepth: 2, maxKeys: 3 }),
)

/** Values that make sense at least in kind, so that many requests get through to the engine. */
const sensible: Record<string, fc.Arbitrary<unknown>> = {
  model: fc.constantFrom('tiny', 'tiny', 'tiny', null, 'other'),
  prompt: fc.oneof(text, fc.array(fc.integer({ min: 0, max: 270 }), { maxLength: 9 }), fc.array(text, { maxLength: 3 })),
  token_ids: fc.array(fc.integer({ min: 0, max: 265 }), { maxLength: 12 }),
  tokens: fc.array(fc.integer({ min: 0, max: 265 }), { maxLength: 12 }),
  messages: fc.array(
    fc.record(
      { role: fc.constantFrom('user', 'system', 'assistant', 'tool', 'x'), content: fc.oneof(text, junk) },
      { requiredKeys: ['role'] },
    ),
    { maxLength: 4 },
  ),
  input: fc.oneof(text, fc.array(fc.record({ role: fc.constantFrom('user', 'assistant'), content: text }), { maxLength: 3 })),
  sampling_params: fc.record(
    {
      max_tokens: fc.integer({ min: -1, max: 8 }),
      temperature: number,
      logprobs: fc.integer({ min: -1, max: 22 }),
      stop: junk,
      n: number,
    },
    { requiredKeys: [] },
  ),
  max_tokens: fc.integer({ min: -1, max: 12 }),
  max_output_tokens: fc.integer({ min: 0, max: 12 }),
  max_completion_tokens: fc.integer({ min: 0, max: 12 }),
  n: fc.integer({ min: 0, max: 4 }),
  stream: fc.boolean(),
  echo: fc.boolean(),
  temperature: fc.double({ min: 0, max: 3, noNaN: true }),
  top_p: fc.double({ min: 0, max: 1, noNaN: true }),
  top_k: fc.integer({ min: -2, max: 300 }),
  min_tokens: fc.integer({ min: 0, max: 14 }),
  logprobs: fc.oneof(fc.boolean(), fc.integer({ min: -2, max: 22 })),
  prompt_logprobs: fc.integer({ min: -1, max: 22 }),
  stop: fc.oneof(text, fc.array(text, { maxLength: 3 })),
  stop_token_ids: fc.array(fc.integer({ min: -1, max: 270 }), { maxLength: 3 }),
  allowed_token_ids: fc.array(fc.integer({ min: 0, max: 270 }), { maxLength: 5 }),
  logit_bias: fc.dictionary(fc.integer({ min: 0, max: 270 }).map(String), number, { maxKeys: 3 }),
  response_format: rarelyNot(
    fc.oneof(
      fc.constant({ type: 'json_object' }),
      schema.map((one) => ({ type: 'json_schema', json_schema: { schema: one } })),
    ),
  ),
  structured_outputs: rarelyNot(
    fc.oneof(
      fc.array(text, { maxLength: 3 }).map((choice) => ({ choice })),
      schema.map((json) => ({ json })),
      text.map((regex) => ({ regex })),
    ),
  ),
  tools: rarelyNot(
    fc.array(
      schema.map((parameters) => ({ type: 'function', function: { name: 'f', parameters } })),
      { maxLength: 2 },
    ),
  ),
  tool_choice: rarelyNot(fc.constantFrom('none', 'auto', 'required', { type: 'function', function: { name: 'f' } })),
  chat_template_kwargs: rarelyNot(fc.object({ maxDepth: 1 })),
  // Of these every value but a neutral one is refused: mostly they are left out.
  kwargs: fc.constant({ weights_path: '../..' }),
  method: fc.constantFrom('reload_weight', 'x'),
}
const rarely = (value: fc.Arbitrary<unknown>) =>
  fc.oneof({ weight: 30, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: value })

const request = fc.constantFrom(...(Object.keys(routes) as (keyof typeof routes)[])).chain((route) => {
  const fields = Object.fromEntries(
    routes[route].map((name) => [
      name,
      sensible[name] ? fc.oneof({ weight: 12, arbitrary: sensible[name] }, { weight: 1, arbitrary: junk }) : rarely(junk),
    ]),
  )
  const required = [
    'model',
    'prompt',
    'messages',
    'token_ids',
    'sampling_params',
    'input',
    'tokens',
    'max_tokens',
    'max_output_tokens',
    'max_completion_tokens',
  ]
  const has = required.filter((name) => name in fields && !(route === '/tokenize' && name === 'messages'))
  return fc.record({
    route: fc.constant(route),
    body: fc.oneof({ weight: 12, arbitrary: fc.record(fields, { requiredKeys: has }) }, { weight: 1, arbitrary: junk }),
    /** Bytes that are changed, or cut off, at the end. */
    damage: fc.oneof(
      { weight: 10, arbitrary: fc.constant(undefined) },
      { weight: 1, arbitrary: fc.record({ at: fc.nat(200), byte: fc.nat(255) }) },
    ),
    abortMs: fc.oneof({ weight: 6, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary: fc.nat(60) }),
  })
})
type Fuzzed = typeof request extends fc.Arbitrary<infer T> ? T : never

const answered = new Map<number, number>()

async function send({ route, body, damage, abortMs }: Fuzzed): Promise<void> {
  const bytes = Buffer.from(JSON.stringify(body))
  if (damage) bytes[damage.at % bytes.length] = damage.byte
  const signal = AbortSignal.any([AbortSignal.timeout(60_000), ...(abortMs === undefined ? [] : [AbortSignal.timeout(abortMs)])])
  let answer
  try {
    answer = await ask(url + route, undefined, {
      method: 'POST',
      body: bytes,
      headers: { 'content-type': 'application/json' },
      signal,
    })
  } catch (error) {
    if (abortMs === undefined) throw error
    return
  }
  const { status, text: said, json, headers } = answer
  answered.set(status, (answered.get(status) ?? 0) + 1)
  if (status === 200 && headers.get('content-type')?.startsWith('text/event-stream')) {
    expect(said.endsWith('\n\n')).toBe(true)
    for (const event of said.split('\n\n').slice(0, -1)) {
      const data = event.slice(event.indexOf('data: ') + 6)
      if (data !== '[DONE]') expect(JSON.parse(data)).toBeTypeOf('object')
    }
  } else if (status === 200) {
    expect(said === '' || typeof json === 'object').toBe(true)
  } else {
    expect(
      [400, 401, 403, 404, 405, 413, 429],
      `${status} ${said} ${status === 500 ? JSON.stringify([body, tiny.lines.findLast((line) => line.level === 'error')]) : ''}`,
    ).toContain(status)
    expect(json.error).toMatchObject({ message: expect.any(String), type: expect.any(String), code: status })
    expect(said).not.toMatch(/\.ts:\d|node_modules/)
  }
}

test(`${runs} random requests`, async () => {
  answered.clear()
  let sent = 0
  const statuses = fc.array(request, { minLength: 20, maxLength: 20 })
  await fc.assert(
    fc.asyncProperty(statuses, async (requests) => {
      await Promise.all(requests.map(send))
      sent += requests.length
    }),
    { numRuns: Math.ceil(runs / 20), endOnFailure: true },
  )
  expect(sent).toBeGreaterThanOrEqual(runs)
  // Many of them get through to the engine.
  if (process.env.DAWN_RL_FUZZ) console.log(answered)
  expect(answered.get(200)! / sent).toBeGreaterThan(0.05)
  await tiny.expectIdle()
  expect((await ask(`${url}/v1/completions`, { prompt: 'a', max_tokens: 1 })).status).toBe(200)
  expect(tiny.lines.filter((line) => line.level === 'error')).toEqual([])
})

test('random bytes', async () => {
  const head = 'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n'
  const bytes = fc.oneof(
    fc.uint8Array({ maxLength: 300 }).map((b) => Buffer.from(b)),
    fc.uint8Array({ maxLength: 60 }).map((b) => Buffer.concat([Buffer.from(head), Buffer.from(b), Buffer.from('\r\n\r\n')])),
    fc
      .uint8Array({ maxLength: 60 })
      .map((b) => Buffer.concat([Buffer.from(`${head}transfer-encoding: chunked\r\n\r\n`), Buffer.from(b), Buffer.from('\r\n')])),
  )
  await fc.assert(
    fc.asyncProperty(fc.array(bytes, { minLength: 20, maxLength: 20 }), async (all) => {
      for (const said of await Promise.all(all.map((one) => rawBytes(hasty.url, [one, '\r\n\r\n'])))) {
        for (const [, status] of said.matchAll(/HTTP\/1\.1 (\d+)/g)) expect(Number(status)).toBeLessThan(500)
      }
    }),
    // A head that does not end is waited for, and a connection that is kept alive: five seconds a run.
    { numRuns: Math.min(30, Math.ceil(runs / 400)), endOnFailure: true },
  )
  expect((await ask(`${url}/health`)).status).toBe(200)
  await tiny.expectIdle()
})
