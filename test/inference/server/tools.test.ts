/** Calls of tools, thoughts and formats through the server. What the model says is forced by grammars, so that it says what is to be parsed. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import type OpenAI from 'openai'
import { createGrammars } from '../../../src/inference/grammar/grammars.ts'
import type { ServerContext } from '../../../src/inference/server/parts.ts'
import { thoughtsEnd } from '../../../src/inference/server/tools.ts'
import { openModel } from '../../../src/model/files/open.ts'
import { ask, expectError, Tiny, tinyPath } from './helpers.ts'

const tiny = await Tiny.open()
const grammars = createGrammars(tiny.tokenizer, tiny.tokenizer.eosTokenIds, tiny.decoder.config.vocabSize)
afterAll(() => grammars.close())
// As Qwen's templates tell of tools.
const chatTemplate =
  `{% if tools %}{% for tool in tools %}{{ '<tool_call>' + tool.function.name }}{% endfor %}{% endif %}` +
  `{% for m in messages %}{{ m.role + ':' + m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}` +
  `{% if add_generation_prompt %}{{ 'a:' }}{% endif %}`
const { client, url } = await tiny.serve({}, { grammars: () => Promise.resolve(grammars), chatTemplate, reasoning: true })
afterEach(() => tiny.expectIdle())

const parameters = {
  type: 'object',
  properties: { city: { enum: ['Rome', 'Oslo'] } },
  required: ['city'],
  additionalProperties: false,
}
const tools = ['weather', 'time'].map((name) => ({ type: 'function' as const, function: { name, parameters } }))
const messages = [{ role: 'user' as const, content: 'hi' }]
const forced = (...choice: string[]) => ({ structured_outputs: { choice } }) as object
const base = { model: 'tiny', messages, max_tokens: 200 }

/** The message that a stream's deltas make. */
async function streamed(asked: Omit<OpenAI.ChatCompletionCreateParamsStreaming, 'stream'>) {
  const message = {
    content: '',
    reasoning: '',
    tool_calls: [] as { id?: string; name: string; arguments: string }[],
    finish_reason: '',
    events: 0,
  }
  for await (const { choices } of await client.chat.completions.create({ ...asked, stream: true })) {
    for (const { delta, finish_reason } of choices) {
      message.events++
      message.content += delta.content ?? ''
      message.reasoning += (delta as { reasoning?: string }).reasoning ?? ''
      message.finish_reason = finish_reason ?? message.finish_reason
      for (const call of delta.tool_calls ?? []) {
        message.tool_calls[call.index] ??= { id: call.id, name: '', arguments: '' }
        message.tool_calls[call.index].name += call.function?.name ?? ''
        message.tool_calls[call.index].arguments += call.function?.arguments ?? ''
      }
    }
  }
  return message
}

describe('tools', () => {
  const text =
    'I ask.<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call><tool_call>{"name":"time","arguments":{"city":"Oslo"}}</tool_call>'

  test('are called, in an answer and in a stream', async () => {
    const asked = { ...base, tools, ...forced(text) }
    const { choices } = await client.chat.completions.create(asked)
    expect(choices[0]).toMatchObject({
      finish_reason: 'tool_calls',
      message: {
        content: 'I ask.',
        tool_calls: [
          { type: 'function', function: { name: 'weather', arguments: '{"city":"Rome"}' } },
          { type: 'function', function: { name: 'time', arguments: '{"city":"Oslo"}' } },
        ],
      },
    })
    const message = await streamed(asked)
    expect(message).toMatchObject({
      finish_reason: 'tool_calls', content: 'I ask.',
      tool_calls: [{ name: 'weather', arguments: '{"city":"Rome"}' }, { name: 'time', arguments: '{"city":"Oslo"}' }],
    }) // prettier-ignore
    expect(message.tool_calls.every((call) => typeof call.id === 'string' && call.id.length > 3)).toBe(true)
    expect(message.events).toBeGreaterThan(20)
    const [one] = (await client.chat.completions.create({ ...asked, parallel_tool_calls: false })).choices
    expect(one.message.tool_calls).toHaveLength(1)
    const [none] = (await client.chat.completions.create({ ...asked, tool_choice: 'none' })).choices
    expect(none).toMatchObject({ finish_reason: 'stop', message: { content: text } })
    expect(none.message.tool_calls).toBeUndefined()
  })

  test('are called where a call is demanded, with arguments of their schema', async () => {
    for (const seed of [1, 2, 3]) {
      const asked = { ...base, tools, seed, temperature: 2 }
      const [named] = (
        await client.chat.completions.create({ ...asked, tool_choice: { type: 'function', function: { name: 'time' } } })
      ).choices
      const [call] = named.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[]
      expect(call.function.name).toBe('time')
      expect(['Rome', 'Oslo']).toContain((JSON.parse(call.function.arguments) as { city: string }).city)
      expect(named.finish_reason).toBe('stop')
      const required = await streamed({ ...asked, tool_choice: 'required', parallel_tool_calls: false })
      expect(required.finish_reason).toBe('tool_calls')
      expect(['weather', 'time']).toContain(required.tool_calls[0].name)
      expect(['Rome', 'Oslo']).toContain((JSON.parse(required.tool_calls[0].arguments) as { city: string }).city)
    }
  })

  test('and their answers reach the template', async () => {
    const called = { id: 'c1', type: 'function' as const, function: { name: 'weather', arguments: '{"city":"Rome"}' } }
    const turn = [
      ...messages,
      { role: 'assistant' as const, content: null, tool_calls: [called] },
      { role: 'tool' as const, tool_call_id: 'c1', content: 'sunny' },
    ]
    const { json } = await ask(`${url}/tokenize`, { messages: turn, tools })
    expect(tiny.tokenizer.decode(json.tokens)).toBe(
      '<tool_call>weather<tool_call>timeuser:hiassistant:{"city": "Rome"}tool:sunnya:',
    )
  })

  test('numbers of their schemas are written as Python writes them, and read as numbers', async () => {
    const shown = '{{ tools[0].function.parameters.properties | tojson }}{{ tools[0].function.parameters.properties.p.enum }}'
    const plain = await tiny.serve({}, { chatTemplate: shown, grammars: () => Promise.resolve(grammars) })
    const properties = '{"p": {"type": "number", "minimum": 0.0, "maximum": 10, "default": 1e3, "enum": [1.0, 2, 2.5]}}'
    const tool = `{"type": "function", "function": {"name": "f", "parameters": {"properties": ${properties}}}}`
    const headers = { 'content-type': 'application/json' }
    const send = async (path: string, more: string) => {
      const body = `{"messages": [{"role": "user", "content": "hi"}], "tools": [${tool}]${more}}`
      return (await (await fetch(plain.url + path, { method: 'POST', headers, body })).json()) as Record<string, never>
    }
    const { tokens } = await send('/tokenize', '')
    expect(tiny.tokenizer.decode(tokens)).toBe(`${properties.replace('1e3', '1000.0')}[1.0, 2, 2.5]`)
    const { choices } = await send('/v1/chat/completions', ', "model": "tiny", "max_tokens": 60, "tool_choice": "required"')
    const [{ message }] = choices as { message: { tool_calls: { function: { arguments: string } }[] } }[]
    expect([1, 2, 2.5, undefined]).toContain((JSON.parse(message.tool_calls[0].function.arguments) as { p?: number }).p)
    await plain.close()
  })

  test('that are wrong are refused by their field', async () => {
    const chat = (body: object) => ask(`${url}/v1/chat/completions`, { ...base, ...body })
    expectError(
      await chat({ tools, tool_choice: { type: 'function', function: { name: 'no' } } }),
      400,
      /one of tools/,
      'tool_choice',
    )
    expectError(await chat({ tool_choice: 'required' }), 400, /no tools/, 'tool_choice')
    expectError(await chat({ tools: [{ type: 'function', function: { name: 'a b' } }] }), 400, /letters/, 'tools')
    expectError(await chat({ tools, tool_choice: 'required', ...forced('a') }), 400, /Send only one/, 'tool_choice')
    const plain = await tiny.serve({}, { toolParser: 'none' })
    expectError(await ask(`${plain.url}/v1/chat/completions`, { ...base, tools }), 400, /--tool-call-parser/, 'tools')
    expectError(
      await ask(`${plain.url}/v1/chat/completions`, { ...base, response_format: { type: 'json_object' } }),
      400,
      /grammars/,
      'response_format',
    )
    await plain.close()
  })
})

test('tools that the chat template does not show are told of in the log, once', async () => {
  // The tiny model's own shows none.
  const own = await tiny.serve({}, { grammars: () => Promise.resolve(grammars) })
  const told = () => tiny.lines.filter((line) => line.level === 'warn' && line.message.includes('does not render tools')).length
  const before = told()
  await client.chat.completions.create({ ...base, tools, max_tokens: 1 })
  expect(told()).toBe(before)
  for (let i = 0; i < 2; i++) await own.client.chat.completions.create({ ...base, tools, max_tokens: 1 })
  expect(told()).toBe(before + 1)
  await own.close()
})

describe('thoughts', () => {
  test('are told apart', async () => {
    const asked = { ...base, ...forced('<think>hm, well</think>yes') }
    const [choice] = (await client.chat.completions.create(asked)).choices
    expect(choice.message).toMatchObject({ content: 'yes', reasoning: 'hm, well' })
    expect(await streamed(asked)).toMatchObject({ content: 'yes', reasoning: 'hm, well', finish_reason: 'stop' })
    const silent = await streamed({ ...asked, ...({ include_reasoning: false } as object) })
    expect(silent).toMatchObject({ content: 'yes', reasoning: '' })
    const [plain] = (await client.chat.completions.create({ ...base, ...forced('just an answer') })).choices
    expect(plain.message).toMatchObject({ content: 'just an answer', reasoning: null })
  })
  test('that are not shown are counted in each event all the same', async () => {
    const asked = { ...base, ...forced('<think>hm, well</think>yes'), ...({ include_reasoning: false } as object) }
    const stream_options = { include_usage: true, continuous_usage_stats: true }
    const counts: number[] = []
    for await (const { usage } of await client.chat.completions.create({ ...asked, stream: true, stream_options }))
      counts.push(usage!.completion_tokens)
    expect(counts.at(-1)).toBeGreaterThan(20)
    expect(counts.at(-2)).toBe(counts.at(-1))
  })
  test('that a message has begun go on, and a format begins behind those that it has ended', async () => {
    const goOn = (content: string, more: object) => ({
      ...base,
      ...more,
      messages: [...base.messages, { role: 'assistant' as const, content }],
      ...({ add_generation_prompt: false, continue_final_message: true } as object),
    })
    const asked = goOn('<think>hm', forced(', well</think>yes'))
    const [choice] = (await client.chat.completions.create(asked)).choices
    expect(choice.message).toMatchObject({ content: 'yes', reasoning: ', well' })
    expect(await streamed(asked)).toMatchObject({ content: 'yes', reasoning: ', well' })
    const server = { parts: { reasoning: true, tokenizer: { tokenToId: () => 7 } } } as unknown as ServerContext
    expect((['to come', 'begun', 'ended'] as const).map((thinking) => thoughtsEnd(server, thinking))).toEqual([7, 7, undefined])
  })
  test('are an item of a response, whole and streamed alike', async () => {
    const open = await tiny.serve(
      {},
      { grammars: () => Promise.resolve(grammars), chatTemplate: `${chatTemplate}<think>`, reasoning: true },
    )
    const schema = { const: 'hm, well</think>yes' }
    const asked = {
      model: 'tiny',
      input: 'a',
      temperature: 0,
      text: { format: { type: 'json_schema' as const, name: 'x', schema } },
    }
    for (const max_output_tokens of [60, 3]) {
      const whole = await open.client.responses.create({ ...asked, max_output_tokens })
      const thoughts = max_output_tokens === 3 ? expect.stringMatching(/^"hm?/) : '"hm, well'
      expect(whole.output).toMatchObject([{ type: 'reasoning', content: [{ text: thoughts }] }, { type: 'message' }])
      expect(whole.output_text).toBe(max_output_tokens === 3 ? '' : 'yes"')
      const { output_tokens, output_tokens_details: details } = whole.usage!
      expect(details.reasoning_tokens).toBeGreaterThan(0)
      if (max_output_tokens === 3) expect(details.reasoning_tokens).toBe(3)
      else expect(details.reasoning_tokens).toBeLessThan(output_tokens)
      const texts = new Map<string, string>()
      const types: string[] = []
      let last: OpenAI.Responses.Response | undefined
      for await (const event of await open.client.responses.create({ ...asked, max_output_tokens, stream: true })) {
        if ('delta' in event && typeof event.delta === 'string')
          texts.set(event.type, (texts.get(event.type) ?? '') + event.delta)
        else types.push(`${event.type}${'output_index' in event ? ` ${event.output_index}` : ''}`)
        if ('response' in event) last = event.response
      }
      const strip = (response: OpenAI.Responses.Response | undefined) => [
        response?.output.map((item) => ({ ...item, id: '' })),
        response?.usage?.output_tokens_details,
        response?.status,
      ]
      expect(strip(last)).toEqual(strip(whole))
      expect(texts.get('response.reasoning_text.delta')).toEqual(thoughts)
      expect(texts.get('response.output_text.delta') ?? '').toBe(whole.output_text)
      const item = (name: string, index: number) =>
        ['output_item.added', 'content_part.added', `${name}.done`, 'content_part.done', 'output_item.done'].map((type) => `response.${type} ${index}`) // prettier-ignore
      const end = max_output_tokens === 3 ? 'response.incomplete' : 'response.completed'
      expect(types).toEqual([
        'response.created', 'response.in_progress', ...item('reasoning_text', 0), ...item('output_text', 1), end,
      ]) // prettier-ignore
    }
    await open.close()
  })

  test('of an output that is sent back are those of the answer that follows them', async () => {
    const template =
      "{% for m in messages %}[{{ m.role }}:{{ m.reasoning_content or '' }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
    const open = await tiny.serve({}, { grammars: () => Promise.resolve(grammars), chatTemplate: template, reasoning: true })
    const format = { type: 'json_schema' as const, name: 'x', schema: { const: 'hm</think>yes' } }
    const { output } = await open.client.responses.create({
      model: 'tiny',
      input: 'a',
      text: { format },
      max_output_tokens: 60,
      include: ['reasoning.encrypted_content'],
    })
    expect(output.map(({ type }) => type)).toEqual(['reasoning', 'message'])
    const user = (content: string) => ({ role: 'user' as const, content })
    const input = [user('a'), ...(output as OpenAI.Responses.ResponseInputItem[]), user('b')]
    const next = await open.client.responses.create({ model: 'tiny', input, max_output_tokens: 1 })
    const shown = tiny.tokenizer.encode('[user::a][assistant:"hm:yes"][user::b]<think>', { addSpecialTokens: false })
    expect(next.usage!.input_tokens).toBe(shown.length)
    await open.close()
  })
})

test('/v1/responses hands reasoning.effort to the template, as chat does reasoning_effort', async () => {
  const own = await tiny.serve(
    {},
    { chatTemplate: "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort or '' }}" },
  )
  const tokens = async (effort: 'low' | 'minimal' | null) => {
    const one = { model: 'tiny', input: 'a', max_output_tokens: 1, reasoning: { effort, summary: 'auto' as const } }
    return (await own.client.responses.create(one)).usage!.input_tokens
  }
  const plain = await tokens(null)
  expect(await tokens('low')).toBeGreaterThan(plain)
  expect(await tokens('minimal')).toBeGreaterThan(await tokens('low'))
  await own.close()
})

test('marks of calls and thoughts that are special tokens are found, as training finds them', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-marks-'))
  const marks = { '<|system|>': '<think>', '<|user|>': '</think>', '<|assistant|>': '<tool_call>', '<|tool|>': '</tool_call>' }
  for (const file of ['config.json', 'tokenizer_config.json', 'tokenizer.json', 'model.safetensors'])
    cpSync(join(tinyPath, file), join(dir, file))
  const json = Object.entries(marks).reduce(
    (text, [from, to]) => text.replaceAll(from, to),
    readFileSync(join(dir, 'tokenizer.json'), 'utf8'),
  )
  writeFileSync(join(dir, 'tokenizer.json'), json)
  const files = await openModel(dir)
  const tokenizer = await files.tokenizer()
  files.close()
  const ids = [
    ...tokenizer.encode('<think>hm</think><tool_call>{"name":"time","arguments":{}}</tool_call>'),
    ...tokenizer.eosTokenIds,
  ]
  // Special tokens are none of a grammar's, so one token after the other is asked for.
  const inOrder = () => {
    let at = 0
    const fill = (mask: Uint32Array) => {
      mask.fill(0)[ids[at] >> 5] = 1 << (ids[at] & 31)
    }
    return { fill, accept: () => void at++, release: () => {}, complete: false }
  }
  const order = { constraint: () => Promise.resolve(inOrder()), close: () => {} }
  const marked = await tiny.serve({}, { tokenizer, chatTemplate, reasoning: true, grammars: () => Promise.resolve(order) })
  const { choices } = await marked.client.chat.completions.create({ ...base, tools, ...forced('x') })
  expect(choices[0]).toMatchObject({
    finish_reason: 'tool_calls',
    message: { reasoning: 'hm', content: null, tool_calls: [{ function: { name: 'time', arguments: '{}' } }] },
  })
  const format = { type: 'json_schema' as const, name: 'x', schema: {} }
  const response = await marked.client.responses.create({ model: 'tiny', input: 'a', text: { format }, max_output_tokens: 60 })
  expect(response.output.map(({ type }) => type)).toEqual(['reasoning', 'message'])
  expect(response.usage!.output_tokens_details.reasoning_tokens).toBe(4)
  await marked.close()
  rmSync(dir, { recursive: true })
})

describe('formats', () => {
  test('hold, and a wrong one names its field', async () => {
    const schema = {
      type: 'object',
      properties: { n: { type: 'integer', minimum: 0, maximum: 9 }, ok: { type: 'boolean' } },
      required: ['n', 'ok'],
      additionalProperties: false,
    }
    const asked = {
      ...base,
      temperature: 2,
      n: 3,
      seed: 5,
      response_format: { type: 'json_schema' as const, json_schema: { name: 'x', schema } },
    }
    for (const { message } of (await client.chat.completions.create(asked)).choices) {
      expect(JSON.parse(message.content!)).toEqual({ n: expect.any(Number), ok: expect.any(Boolean) })
    }
    const free = { ...base, max_tokens: 8, response_format: { type: 'json_schema' as const, json_schema: { name: 'x' } } }
    expect((await client.chat.completions.create(free)).choices[0].message.content).toMatch(/^\s*\{/)
    const { choices } = await client.completions.create({
      model: 'tiny',
      prompt: 'a',
      max_tokens: 40,
      ...({ structured_outputs: { regex: '[a-c]{5}' } } as object),
    })
    expect(choices[0].text).toMatch(/^[a-c]{5}$/)
    const wrong = await ask(`${url}/v1/chat/completions`, {
      ...base,
      response_format: { type: 'json_schema', json_schema: { schema: { type: 'nothing' } } },
    })
    expectError(wrong, 400, /response_format/, 'response_format')
    const response = await client.responses.create({
      model: 'tiny',
      input: 'a',
      max_output_tokens: 60,
      text: { format: { type: 'json_schema', name: 'x', schema } },
    })
    expect(JSON.parse(response.output_text)).toHaveProperty('ok')
  })
})
