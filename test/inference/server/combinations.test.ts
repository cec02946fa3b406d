/** What fields mean together: prompts that are alike, the order of maps, stop strings beside special tokens, places in texts, nothing to be made. */
import { afterEach, describe, expect, test, vi } from 'vitest'
import { ask, Tiny } from './helpers.ts'

const tiny = await Tiny.open()
const template =
  '{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}<|assistant|>'
const { url } = await tiny.serve({}, { chatTemplate: template, grammars: grammarsOf })
afterEach(() => tiny.expectIdle())

async function grammarsOf() {
  const { createGrammars } = await import('../../../src/inference/grammar/grammars.ts')
  return createGrammars(tiny.tokenizer, tiny.tokenizer.eosTokenIds, tiny.decoder.config.vocabSize)
}

const complete = (body: object) => ask(`${url}/v1/completions`, body)

/** Events of a stream, without [DONE]. */
async function streamed(path: string, body: object) {
  const { text } = await ask(`${url}${path}`, { ...body, stream: true })
  const events = text.split('\n\n').flatMap((event) => /^data: (\{.*)$/m.exec(event)?.[1] ?? [])
  // oxlint-disable-next-line no-explicit-any -- tests look into answers of all shapes
  return events.map((event) => JSON.parse(event) as any)
}

test('prompts that are alike have answers of their own, unless the request has a seed', async () => {
  const asked = {
    prompt: ['hello', 'hello', 'hello', 'hello'],
    max_tokens: 12,
    temperature: 2,
    ignore_eos: true,
    return_token_ids: true,
  }
  const answers = async (more: object = {}) => {
    const { json } = await complete({ ...asked, ...more })
    return new Set(json.choices.map(({ token_ids }: { token_ids: number[] }) => token_ids.join()))
  }
  expect((await answers()).size).toBe(4)
  expect((await answers({ seed: 3 })).size).toBe(1)
})

test('the first entry of prompt_logprobs is the token that stands there, and of top_logprobs the one that was drawn', async () => {
  const token_ids = [...Buffer.from('hello there 123')]
  const first = /\{"(\d+)":\{"logprob"/g
  for (const [path, body] of [
    ['/inference/v1/generate', { token_ids, sampling_params: { max_tokens: 1, prompt_logprobs: 2 } }],
    ['/v1/completions', { prompt: token_ids, max_tokens: 1, prompt_logprobs: 2 }],
  ] as const) {
    const { text } = await ask(`${url}${path}`, body)
    expect([...text.matchAll(first)].map(([, id]) => Number(id))).toEqual(token_ids.slice(1))
  }
  const drawn = { prompt: '1', max_tokens: 6, logprobs: 4, structured_outputs: { regex: '[a-z]9[5-9]{4}' } }
  const { text, json } = await complete(drawn)
  const firsts = [.../"top_logprobs":\[(.*?)\]/.exec(text)![1].matchAll(/\{"(.*?)":-/g)].map(([, token]) => token)
  expect(firsts).toEqual(json.choices[0].logprobs.tokens)
})

describe('stop strings', () => {
  // <|user|>, which is not shown, may stand anywhere between.
  const asked = { prompt: 'hello', max_tokens: 30, temperature: 100, allowed_token_ids: [97, 259, 98], return_token_ids: true }
  test.each([true, false])('end a completion where its text shows them (skip_special_tokens %s)', async (skip_special_tokens) => {
    for (let seed = 0; seed < 12; seed++) {
      const { json } = await complete({ ...asked, seed, skip_special_tokens, stop: ['aab', 'r|>a'] })
      const [{ token_ids, text, finish_reason, stop_reason }] = json.choices
      const whole = tiny.tokenizer.decode(token_ids, { skipSpecialTokens: skip_special_tokens })
      const found = ['aab', 'r|>a'].find((stop) => whole.endsWith(stop))
      expect({ finish_reason, stop_reason }).toEqual(
        found ? { finish_reason: 'stop', stop_reason: found } : { finish_reason: 'length', stop_reason: null },
      )
      expect(text).toBe(found ? whole.slice(0, -found.length) : whole)
    }
  })
})

test('text_offset is the place in the text, also of characters of several tokens', async () => {
  const asked = { prompt: 'a😀é', max_tokens: 8, logprobs: 0, structured_outputs: { choice: ['😀bé!'] } }
  const output = [0, 0, 0, 0, 1, 2, 2, 3]
  const [echoed] = (await complete({ ...asked, echo: true })).json.choices
  expect(echoed.text).toBe('a😀é😀bé!')
  expect(echoed.logprobs.text_offset).toEqual([0, 1, 1, 1, 1, 2, 2, ...output.map((at) => at + 3)])
  const events = await streamed('/v1/completions', asked)
  const offsets = events.flatMap(({ choices }) => choices[0].logprobs?.text_offset ?? [])
  expect(offsets).toEqual(output)
  // A special token is not shown, and bytes that are no character are U+FFFD.
  const [odd] = (await complete({ ...asked, prompt: [97, 259, 0xff, 98], echo: true })).json.choices
  expect(odd.text).toBe('a\ufffdb😀bé!')
  expect(odd.logprobs.text_offset.slice(0, 5)).toEqual([0, 1, 1, 2, 3])
})

test('a prompt is echoed as it was written, alone or in a list', async () => {
  const asked = { max_tokens: 1, echo: true, logprobs: 0, allowed_token_ids: [33] }
  const [alone] = (await complete({ ...asked, prompt: '<|user|>ab' })).json.choices
  expect(alone.text).toBe('<|user|>ab!')
  expect(alone.logprobs.text_offset).toEqual([0, 8, 9, 10])
  const [first, second] = (await complete({ ...asked, prompt: ['<|user|>ab', 'c<|end|>'] })).json.choices
  expect(first).toEqual(alone)
  expect(second).toMatchObject({ text: 'c<|end|>!', logprobs: { text_offset: [0, 1, 8] } })
  const events = await streamed('/v1/completions', { ...asked, logprobs: null, prompt: ['<|user|>ab', 'c<|end|>'] })
  const texts = ['', '']
  for (const { choices } of events) for (const { index, text } of choices) texts[index] += text
  expect(texts).toEqual([first.text, second.text])
})

test('where no token is to be made, none is counted, and none ends the answer', async () => {
  const asked = { prompt: 'hello', max_tokens: 0, echo: true, allowed_token_ids: [65], stop_token_ids: [65] }
  const usage = { prompt_tokens: 5, completion_tokens: 0, total_tokens: 5 }
  const { json } = await complete(asked)
  expect(json.choices[0]).toMatchObject({ text: 'hello', finish_reason: 'length', stop_reason: null })
  expect(json.usage).toMatchObject(usage)
  const events = await streamed('/v1/completions', { ...asked, stream_options: { include_usage: true } })
  expect(events[0].choices[0]).toMatchObject({ text: 'hello', finish_reason: 'length', stop_reason: null })
  expect(events.at(-1).usage).toMatchObject(usage)
})

test('/tokenize gives the tokens that a chat has, tools and all', async () => {
  const messages = [{ role: 'user', content: 'hi' }]
  const tools = [
    { type: 'function', function: { name: 'f', description: null, strict: true, parameters: { type: 'object' } } },
    { type: 'function', function: { name: 'g' } },
  ]
  const chat = await ask(`${url}/v1/chat/completions`, {
    messages,
    tools,
    tool_choice: 'none',
    max_tokens: 1,
    return_token_ids: true,
  })
  const { json } = await ask(`${url}/tokenize`, { messages, tools })
  expect(json.tokens).toEqual(chat.json.prompt_token_ids)
})

test('cached tokens are those that were there before the request', async () => {
  const asked = { prompt: 'abcdefghijklmnopqrstuvwxyz', max_tokens: 2, n: 3, cache_salt: 'cached tokens' }
  const cached = async () => (await complete(asked)).json.usage.prompt_tokens_details.cached_tokens as number
  expect([await cached(), await cached()]).toEqual([0, 25])
})

test('a response that was ended says by what', async () => {
  const asked = { input: 'hi', max_output_tokens: 400, ignore_eos: true }
  const whole = ask(`${url}/v1/responses`, asked)
  await vi.waitFor(() => expect(tiny.engine.stats().running).toBe(1))
  await ask(`${url}/pause?mode=abort`, {})
  await ask(`${url}/resume`, {})
  expect((await whole).json).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'abort' } })
})
