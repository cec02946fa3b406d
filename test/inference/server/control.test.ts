/** The routes around generation: token ids, pausing, weights that change in flight, the prefix cache, metrics. */
import { cpSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest'
import { openSafetensors, writeSafetensors, type TensorToWrite } from '../../../src/model/files/safetensors.ts'
import { sampling } from '../helpers.ts'
import { ask, expectError, Tiny, tinyPath } from './helpers.ts'

const tiny = await Tiny.open()
const root = mkdtempSync(join(tmpdir(), 'dawn-rl-control-'))
const { url, client } = await tiny.serve({ adapterRoot: root })
afterAll(() => rmSync(root, { recursive: true, force: true }))
afterEach(() => tiny.expectIdle())

const generate = (body: object) => ask(`${url}/inference/v1/generate`, body)
const post = (path: string, body: object = {}) => ask(`${url}${path}`, body)

beforeAll(async () => {
  // The same model with other weights: all norms a bit larger.
  cpSync(tinyPath, join(root, 'other'), { recursive: true })
  const source = await openSafetensors(join(tinyPath, 'model.safetensors'))
  const tensors: Record<string, TensorToWrite> = {}
  for (const name of source.names()) {
    const { data, shape } = await source.readFloat32(name)
    tensors[name] = { dtype: 'F32', shape, data: name.includes('norm') ? data.map((x) => x * 1.1) : data }
  }
  source.close()
  await writeSafetensors(join(root, 'other', 'model.safetensors'), tensors)
  cpSync(join(root, 'other'), join(root, 'smaller'), { recursive: true })
  const config = JSON.parse(
    await (await import('node:fs/promises')).readFile(join(root, 'smaller', 'config.json'), 'utf8'),
  ) as object
  writeFileSync(join(root, 'smaller', 'config.json'), JSON.stringify({ ...config, rms_norm_eps: 1e-5, num_hidden_layers: 4 }))
})

describe('/inference/v1/generate', () => {
  const token_ids = [104, 105, 106]
  test('gives ids, log-probabilities with ranks, and those of the prompt', async () => {
    const expected = await tiny.engine.generate({
      promptIds: token_ids,
      sampling: sampling({ temperature: 1, seed: 7, max_tokens: 9, ignore_eos: true }),
    })
    const params = { max_tokens: 9, seed: 7, ignore_eos: true, logprobs: 2, prompt_logprobs: 1 }
    const { status, json } = await generate({ token_ids, sampling_params: params })
    expect(status).toBe(200)
    const [choice] = json.choices
    expect(choice).toMatchObject({ token_ids: expected.ids, finish_reason: 'length' })
    expect(choice.logprobs.content.map((entry: { logprob: number }) => entry.logprob)).toEqual(expected.logprobs)
    expect(choice.logprobs.content[0]).toMatchObject({
      token: `token_id:${expected.ids[0]}`,
      token_id: expected.ids[0],
      rank: expect.any(Number),
    })
    expect(choice.logprobs.content[0].top_logprobs.map((entry: { rank: number }) => entry.rank)).toEqual([1, 2])
    expect(json.prompt_logprobs).toHaveLength(3)
    expect(json.prompt_logprobs[0]).toBeNull()
    expect(json.prompt_logprobs[1]['105']).toMatchObject({
      logprob: expect.any(Number),
      rank: expect.any(Number),
      decoded_token: 'i',
    })
  })

  test('without max_tokens, or with more, goes to the end of the window', async () => {
    for (const max_tokens of [undefined, 510, 1e6]) {
      const { json } = await generate({ token_ids, sampling_params: { ignore_eos: true, max_tokens } })
      expect(json.choices[0].token_ids).toHaveLength(509)
    }
  })

  test('names fields in sampling_params', async () => {
    expectError(
      await generate({ token_ids, sampling_params: { max_tokens: 0 } }),
      400,
      /max_tokens/,
      'sampling_params.max_tokens',
    )
    expectError(await generate({ token_ids, sampling_params: { top_p: 2 } }), 400, /top_p/, 'sampling_params.top_p')
    expectError(await generate({ token_ids: [], sampling_params: {} }), 400, /token_ids/, 'token_ids')
    expectError(await generate({ token_ids }), 400, /sampling_params/, 'sampling_params')
    expectError(await generate({ token_ids: [5, -1], sampling_params: {} }), 400, /token_ids/, 'token_ids.1')
  })

  test('streams ids', async () => {
    const body = { token_ids, sampling_params: { max_tokens: 12, seed: 1, ignore_eos: true, logprobs: 0 } }
    const whole = (await generate(body)).json.choices[0]
    const { text } = await generate({ ...body, stream: true, return_token_ids: true, stream_options: { include_usage: true } })
    const events = text.split('\n\n').filter(Boolean)
    expect(events.at(-1)).toBe('data: [DONE]')
    const chunks = events.slice(0, -1).map((event) => JSON.parse(event.slice('data: '.length)))
    expect(chunks.flatMap((chunk) => chunk.choices.flatMap((choice: { token_ids: number[] }) => choice.token_ids))).toEqual(
      whole.token_ids,
    )
    expect(chunks[0].prompt_token_ids).toEqual(token_ids)
    expect(chunks.at(-2).choices[0]).toMatchObject({ finish_reason: 'length', weight_versions: whole.weight_versions })
    expect(chunks.at(-1).usage).toMatchObject({ completion_tokens: 12 })
  })
})

describe('tokens', () => {
  test('there and back', async () => {
    const { json } = await post('/tokenize', { prompt: 'héllo <|end|>', return_token_strs: true })
    expect(json).toMatchObject({ tokens: tiny.tokenizer.encode('héllo <|end|>'), max_model_len: 512, count: json.tokens.length })
    expect(json.token_strs).toHaveLength(json.count)
    expect((await post('/detokenize', { tokens: json.tokens })).json).toEqual({ prompt: 'héllo <|end|>' })
    expectError(await post('/detokenize', { tokens: [999] }), 400, /999/, 'tokens')
    expectError(await post('/tokenize', {}), 400, /either prompt or messages/, 'prompt')
    const messages = [{ role: 'user', content: 'a' }] as const
    expect((await post('/tokenize', { messages })).json.tokens).toEqual(tiny.tokenizer.encodeChat(messages))
    // null is not given.
    expect((await post('/tokenize', { prompt: null, messages })).json.tokens).toEqual(tiny.tokenizer.encodeChat(messages))
    expect((await post('/tokenize', { prompt: 'ab', messages: null })).json.tokens).toEqual([97, 98])
    expectError(await post('/tokenize', { prompt: null, messages: null }), 400, /either prompt or messages/, 'prompt')
  })
})

describe('a pause', () => {
  const body = { model: 'tiny', prompt: 'a', max_tokens: 60, seed: 3, ...({ ignore_eos: true } as object) }
  test('that keeps what runs changes nothing of it', async () => {
    const alone = (await client.completions.create(body)).choices[0].text
    const stream = await client.completions.create({ ...body, stream: true })
    let [text, pieces] = ['', 0]
    for await (const { choices } of stream) {
      text += choices[0].text
      if (++pieces !== 5) continue
      expect((await post('/pause?mode=keep')).json).toEqual({ status: 'paused' })
      expect((await ask(`${url}/is_paused`)).json).toEqual({ is_paused: true })
      const { decodeSteps } = tiny.engine.stats()
      const waiting = client.completions.create({ ...body, max_tokens: 2 })
      await new Promise((resolve) => setTimeout(resolve, 100))
      expect(tiny.engine.stats()).toMatchObject({ decodeSteps, running: 1, waiting: 1 })
      expect((await post('/resume')).json).toEqual({ status: 'resumed' })
      await waiting
    }
    expect(text).toBe(alone)
  })

  test('that aborts ends what runs with what it has', async () => {
    const asked = client.completions.create({ ...body, max_tokens: 500 })
    while (tiny.engine.stats().running === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    await post('/pause')
    expect((await asked).choices[0].finish_reason).toBe('abort')
    await post('/resume')
  })

  test('that waits lets what runs end', async () => {
    const asked = client.completions.create(body)
    while (tiny.engine.stats().running === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    await post('/pause?mode=wait')
    expect(tiny.engine.stats().running).toBe(0)
    expect((await asked).choices[0].finish_reason).toBe('length')
    await post('/resume')
    expectError(await post('/pause?mode=sleep'), 400, /one of abort, wait, keep/, 'mode')
  })
})

describe('weights', () => {
  const params = { max_tokens: 40, temperature: 0, ignore_eos: true, logprobs: 0 }
  const body = { token_ids: [97, 98, 99], sampling_params: params }
  const reload = (weights_path?: string) =>
    post('/collective_rpc', { method: 'reload_weights', kwargs: weights_path ? { weights_path } : {} })

  test('are reloaded, and come back', async () => {
    const before = (await generate(body)).json.choices[0]
    expect((await reload('other')).status).toBe(200)
    const after = (await generate(body)).json.choices[0]
    expect(after.logprobs.content[0].logprob).not.toBe(before.logprobs.content[0].logprob)
    expect((await reload()).status).toBe(200)
    const back = (await generate(body)).json.choices[0]
    expect(back.logprobs).toEqual(before.logprobs)
    expectError(await reload('smaller'), 400, /another model than tiny: its layers is 4, not 5/, 'kwargs.weights_path')
    expectError(await post('/collective_rpc', { method: 'shutdown' }), 400, /only reload_weights/, 'method')
    // A folder that is named otherwise is not taken for none.
    const rpc = (fields: object) => post('/collective_rpc', { method: 'reload_weights', ...fields })
    expectError(await rpc({ args: ['other'] }), 400, /^args: reload_weights takes only kwargs.weights_path/, 'args')
    expectError(await rpc({ kwargs: { weight_path: 'other' } }), 400, /^kwargs.weight_path: reload_weights takes/, 'kwargs')
    expect((await rpc({ args: [], kwargs: { weights_path: null } })).status).toBe(200)
  })

  test('of a file that is cut off while they are written are told of in a sentence, and so is each request until others are there', async () => {
    const before = (await generate(body)).json.choices[0]
    cpSync(join(root, 'other'), join(root, 'cut'), { recursive: true })
    const { gpu } = tiny.engine.decoder
    const write = vi.spyOn(gpu, 'write').mockImplementationOnce((...args) => {
      truncateSync(join(root, 'cut/model.safetensors'), 5000)
      return gpu.write(...args)
    })
    const words =
      /^.*cut.model\.safetensors.*\. Some weights of .*cut had been written.*: nothing is sampled until weights are loaded again\.$/
    expectError(await reload('cut'), 503, words)
    write.mockRestore()
    for (let i = 0; i < 3; i++) expectError(await generate(body), 503, words)
    expectError(await ask(`${url}/health`), 503, /the engine is failing/i)
    // Who sends requests only to a healthy server must learn of the new weights.
    expect((await reload()).status).toBe(200)
    expect((await ask(`${url}/health`)).status).toBe(200)
    expect((await generate(body)).json.choices[0].logprobs).toEqual(before.logprobs)
  })

  test('that change in flight are told of, token by token', async () => {
    await post('/update_weight_version', { new_version: 'first' })
    expect((await ask(`${url}/weight_info`)).json).toEqual({ weight_version: 'first' })
    const response = await fetch(`${url}/inference/v1/generate`, {
      method: 'POST', headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true, sampling_params: { ...params, max_tokens: 300 } }),
    }) // prettier-ignore
    let text = ''
    let pushed: Promise<void> | undefined
    const push = async () => {
      await post('/pause?mode=keep')
      await reload('other')
      await post('/update_weight_version', { new_version: 'second' })
      await post('/resume')
    }
    for await (const piece of response.body!) {
      text += Buffer.from(piece).toString()
      if (text.split('\n\n').length > 20) pushed ??= push()
    }
    await pushed
    const last = text
      .split('\n\n')
      .filter((event) => event.includes('weight_versions'))
      .at(-1)!
    const spans = JSON.parse(last.slice('data: '.length)).choices[0].weight_versions as {
      version: string
      start: number
      end: number
    }[]
    expect(spans.map(({ version }) => version)).toEqual(['first', 'second'])
    expect(spans[0].start).toBe(0)
    expect(spans[0].end).toBe(spans[1].start)
    expect(spans[1].end).toBe(300)
    await reload()
  })
})

describe('the cache', () => {
  test('is shared by requests of one salt, and forgotten when asked', async () => {
    const prompt = 'abcdefghijklmnopqrstuvwxyz'.repeat(4)
    const cached = async (cache_salt?: string) => {
      const { usage } = await client.completions.create({ model: 'tiny', prompt, max_tokens: 1, ...({ cache_salt } as object) })
      return usage!.prompt_tokens_details!.cached_tokens!
    }
    await post('/reset_prefix_cache')
    expect(await cached()).toBe(0)
    expect(await cached()).toBeGreaterThan(90)
    expect(await cached('other')).toBe(0)
    expect(await cached('other')).toBeGreaterThan(90)
    expect((await post('/reset_prefix_cache')).status).toBe(200)
    expect(await cached()).toBe(0)
  })
})

describe('metrics', () => {
  test("count what was done, under vLLM's names", async () => {
    const value = (page: string, name: string) => Number(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'm').exec(page)?.[1])
    const before = (await ask(`${url}/metrics`)).text
    await client.completions.create({ model: 'tiny', prompt: 'abc', max_tokens: 7, ...({ ignore_eos: true } as object) })
    const { text: after, headers } = await ask(`${url}/metrics`)
    expect(headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/)
    const grown = (name: string) => value(after, name) - (value(before, name) || 0)
    expect(grown('vllm:generation_tokens_total')).toBe(7)
    expect(grown('vllm:prompt_tokens_total')).toBe(3)
    expect(grown('vllm:time_to_first_token_seconds_count')).toBe(1)
    expect(grown('vllm:inter_token_latency_seconds_count')).toBe(6)
    expect(value(after, 'vllm:num_requests_running')).toBe(0)
    expect(after).toMatch(/^vllm:request_success_total\{engine="0",model_name="tiny",finished_reason="length"\} \d+$/m)
    expect(after).toMatch(/^http_requests_total\{handler="\/v1\/completions",status="200"\} \d+$/m)
    for (const line of after.trimEnd().split('\n')) expect(line).toMatch(/^(?:# (?:HELP|TYPE) \S+ .+|[a-z0-9_:]+\{.*\} \S+)$/)
    expect((await ask(`${url}/version`)).json).toEqual({ version: '0.0.0-test' })
    for (const path of ['/health', '/ping']) expect(await ask(url + path)).toMatchObject({ status: 200, text: '' })
  })
})
