/** The server through the client that people use: what it answers is what the engine gives, whole or streamed. */
import OpenAI from 'openai'
import { afterEach, describe, expect, test } from 'vitest'
import { joined } from '../../../src/inference/server/generation.ts'
import { OutputText } from '../../../src/inference/server/text.ts'
import fc from '../../fast-check.ts'
import { sampling } from '../helpers.ts'
import { ask, Tiny } from './helpers.ts'

const tiny = await Tiny.open()
const server = await tiny.serve()
const { client, url } = server
afterEach(() => tiny.expectIdle())

const messages = [{ role: 'user' as const, content: 'what is 3 + 4?' }]
/** vLLM's fields, which the client's types do not know. */
const extra = <T>(fields: object): T => fields as T

describe('models', () => {
  test('are listed with their length', async () => {
    const { data } = await client.models.list()
    expect(data).toEqual([expect.objectContaining({ id: 'tiny', object: 'model', max_model_len: 512, parent: null })])
  })
})

describe('completions', () => {
  test('give what the engine gives', async () => {
    const promptIds = tiny.tokenizer.encode('one two three')
    const expected = await tiny.engine.generate({
      promptIds,
      sampling: sampling({ temperature: 1, seed: 5, max_tokens: 20, ignore_eos: true }),
    })
    const asked = {
      model: 'tiny',
      max_tokens: 20,
      seed: 5,
      logprobs: 0,
      ...extra<object>({ return_token_ids: true, ignore_eos: true }),
    }
    for (const prompt of ['one two three', promptIds]) {
      const answer = await client.completions.create({ ...asked, prompt })
      const [choice] = answer.choices
      expect(choice).toMatchObject({
        token_ids: expected.ids,
        prompt_token_ids: promptIds,
        finish_reason: 'length',
        stop_reason: null,
      })
      // At temperature 1 the raw log-probability is the policy's.
      expect(choice.logprobs!.token_logprobs).toEqual(expected.logprobs)
      expect(choice.text).toBe(tiny.tokenizer.decode(expected.ids, { skipSpecialTokens: true }))
      expect(answer.usage).toMatchObject({
        prompt_tokens: promptIds.length,
        completion_tokens: 20,
        total_tokens: promptIds.length + 20,
      })
    }
  })

  test('of several prompts and n stand in order, each with its own seed', async () => {
    const asked = { model: 'tiny', max_tokens: 6, ...extra<object>({ return_token_ids: true, ignore_eos: true }) }
    const together = await client.completions.create({ ...asked, prompt: ['ab', 'cd'], n: 2, seed: 9 })
    expect(together.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3])
    const alone = []
    for (const prompt of ['ab', 'cd'])
      for (const seed of [9, 10]) alone.push((await client.completions.create({ ...asked, prompt, seed })).choices[0])
    expect(together.choices.map((c) => c.text)).toEqual(alone.map((c) => c.text))
    expect(together.usage).toMatchObject({ prompt_tokens: 4, completion_tokens: 24 })
  })

  test('echo the prompt with its log-probabilities, which are those of scoring', async () => {
    const { choices } = await client.completions.create({
      model: 'tiny',
      prompt: 'hello',
      max_tokens: 1,
      echo: true,
      logprobs: 1,
    })
    const { logprobs, text } = choices[0]
    expect(text.startsWith('hello')).toBe(true)
    expect(logprobs!.tokens!.slice(0, 5)).toEqual('hello'.split(''))
    expect(logprobs!.token_logprobs![0]).toBeNull()
    expect(logprobs!.top_logprobs![0]).toBeNull()
    expect(logprobs!.text_offset!.slice(0, 5)).toEqual([0, 1, 2, 3, 4])
    // Forced, each token has the same log-probability as when it is drawn.
    for (const [i, token] of 'hello'.split('').entries()) {
      if (i === 0) continue
      const id = tiny.tokenizer.tokenToId(token)!
      const forced = await client.completions.create({
        model: 'tiny', prompt: 'hello'.slice(0, i), max_tokens: 1, logprobs: 0, ...extra<object>({ allowed_token_ids: [id] }),
      }) // prettier-ignore
      expect(logprobs!.token_logprobs![i]).toBe(forced.choices[0].logprobs!.token_logprobs![0])
      expect(logprobs!.top_logprobs![i]).toHaveProperty(token, logprobs!.token_logprobs![i])
    }
    const nothing = await client.completions.create({ model: 'tiny', prompt: 'hello', max_tokens: 0, echo: true, logprobs: 1 })
    expect(nothing.choices[0]).toMatchObject({
      text: 'hello',
      logprobs: { token_logprobs: logprobs!.token_logprobs!.slice(0, 5) },
    })
    expect(nothing.usage).toMatchObject({ completion_tokens: 0, total_tokens: 5 })
  })

  test('streamed are the same, piece by piece', async () => {
    const asked = {
      model: 'tiny', prompt: ['count', 'up'], max_tokens: 24, seed: 3, n: 2, logprobs: 2, ...extra<object>({ return_token_ids: true, ignore_eos: true }),
    } // prettier-ignore
    const whole = await client.completions.create(asked)
    const stream = await client.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } })
    const texts = ['', '', '', '']
    const ids: number[][] = [[], [], [], []]
    const logprobs: number[][] = [[], [], [], []]
    const offsets: number[][] = [[], [], [], []]
    let usage
    let events = 0
    for await (const chunk of stream) {
      events++
      usage = chunk.usage ?? usage
      for (const choice of chunk.choices) {
        texts[choice.index] += choice.text
        ids[choice.index].push(...(choice as unknown as { token_ids: number[] }).token_ids)
        logprobs[choice.index].push(...(choice.logprobs?.token_logprobs ?? []))
        offsets[choice.index].push(...(choice.logprobs?.text_offset ?? []))
      }
    }
    expect(events).toBeGreaterThan(40)
    expect(texts).toEqual(whole.choices.map(({ text }) => text))
    expect(ids).toEqual(whole.choices.map((choice) => (choice as unknown as { token_ids: number[] }).token_ids))
    expect(logprobs).toEqual(whole.choices.map((choice) => choice.logprobs!.token_logprobs))
    expect(offsets).toEqual(whole.choices.map((choice) => choice.logprobs!.text_offset))
    expect(usage).toMatchObject({ prompt_tokens: 7, completion_tokens: 96 })
  })

  test('end at stop strings and stop tokens, which may stay in the text', async () => {
    const asked = {
      model: 'tiny',
      prompt: 'abc',
      max_tokens: 40,
      seed: 11,
      ...extra<object>({ return_token_ids: true, ignore_eos: true }),
    }
    const { choices: [free] } = await client.completions.create(asked) // prettier-ignore
    const stop = free.text.slice(3, 5)
    const at = free.text.indexOf(stop)
    const [stopped] = (await client.completions.create({ ...asked, stop })).choices
    expect(stopped).toMatchObject({ text: free.text.slice(0, at), finish_reason: 'stop', stop_reason: stop })
    const [kept] = (await client.completions.create({ ...asked, stop, ...extra<object>({ include_stop_str_in_output: true }) }))
      .choices
    expect(kept.text).toBe(free.text.slice(0, at + stop.length))
    const ids = (free as unknown as { token_ids: number[] }).token_ids
    const last = ids[7]
    const [byToken] = (await client.completions.create({ ...asked, ...extra<object>({ stop_token_ids: [last] }) })).choices
    const end = ids.indexOf(last)
    expect(byToken).toMatchObject({ finish_reason: 'stop', stop_reason: last, token_ids: ids.slice(0, end + 1) })
    expect(byToken.text).toBe(tiny.tokenizer.decode(ids.slice(0, end), { skipSpecialTokens: true }))
  })

  test('look for stop strings after min_tokens alone', async () => {
    const asked = { model: 'tiny', prompt: 'abc', max_tokens: 40, seed: 11, ...extra<object>({ ignore_eos: true }) }
    const { choices: [free] } = await client.completions.create(asked) // prettier-ignore
    const stop = free.text[2]
    const later = { ...asked, stop, ...extra<object>({ min_tokens: 10 }) }
    const [whole] = (await client.completions.create(later)).choices
    // One character a token here.
    const at = free.text.indexOf(stop, 10)
    expect(whole.text).toBe(at < 0 ? free.text : free.text.slice(0, at))
    let streamed = ''
    for await (const chunk of await client.completions.create({ ...later, stream: true })) streamed += chunk.choices[0].text
    expect(streamed).toBe(whole.text)
  })

  test('are streamed in whole characters while stop strings are not yet looked for', () => {
    const words = fc.array(fc.constantFrom('a', '😀', 'é', '👍🏽'), { minLength: 1, maxLength: 9 }).map((some) => some.join(''))
    fc.assert(
      fc.property(words, words, (text, stop) => {
        const rules = { skipSpecialTokens: true, stop: [stop], stopTokens: new Set<number>(), includeStop: false, minTokens: 99 }
        const output = new OutputText(tiny.tokenizer, rules)
        const pieces = [...tiny.tokenizer.encode(text).map((id) => output.push(id)), output.flush(undefined)]
        expect(pieces.join('')).toBe(text)
        for (const piece of pieces) expect(piece.isWellFormed()).toBe(true)
      }),
    )
  })
})

describe('chat', () => {
  test('is the completion of the rendered prompt', async () => {
    const prompt = tiny.tokenizer.encodeChat(messages)
    const asked = { model: 'tiny', max_tokens: 12, seed: 4, ...extra<object>({ return_token_ids: true }) }
    const [completion] = (await client.completions.create({ ...asked, prompt })).choices
    const answer = await client.chat.completions.create({ ...asked, messages, logprobs: true, top_logprobs: 3 })
    expect(answer).toMatchObject({ object: 'chat.completion', model: 'tiny', prompt_token_ids: prompt })
    const [choice] = answer.choices
    expect(choice.message).toEqual({ role: 'assistant', content: completion.text, refusal: null, reasoning: null })
    const ids = (choice as unknown as { token_ids: number[] }).token_ids
    expect(ids).toEqual((completion as unknown as { token_ids: number[] }).token_ids)
    expect(choice.logprobs!.content).toHaveLength(ids.length)
    for (const [i, entry] of choice.logprobs!.content!.entries()) {
      expect(entry).toMatchObject({ token: tiny.tokenizer.decode([ids[i]]), bytes: [...tiny.tokenizer.tokenBytes(ids[i])!] })
      expect(entry.top_logprobs).toHaveLength(3)
      expect(entry.top_logprobs[0].logprob).toBeGreaterThanOrEqual(entry.top_logprobs[1].logprob)
      expect(entry.top_logprobs[0].logprob).toBeGreaterThanOrEqual(entry.logprob)
    }
  })

  test('streamed is the same', async () => {
    const asked = {
      model: 'tiny',
      messages,
      max_tokens: 30,
      seed: 8,
      n: 2,
      logprobs: true,
      ...extra<object>({ ignore_eos: true }),
    }
    const whole = await client.chat.completions.create(asked)
    const texts = ['', '']
    const logprobs: number[][] = [[], []]
    const ended: (string | null)[] = [null, null]
    const first: unknown[] = []
    const stream = await client.chat.completions.create({ ...asked, stream: true })
    for await (const { choices } of stream) {
      for (const { index, delta, logprobs: more, finish_reason } of choices) {
        if (delta.role) first.push(index)
        texts[index] += delta.content ?? ''
        logprobs[index].push(...(more?.content ?? []).map((entry) => entry.logprob))
        ended[index] ??= finish_reason
      }
    }
    expect(first).toEqual([0, 1])
    expect(texts).toEqual(whole.choices.map(({ message }) => message.content))
    expect(logprobs).toEqual(whole.choices.map((choice) => choice.logprobs!.content!.map((entry) => entry.logprob)))
    expect(ended).toEqual(['length', 'length'])
  })

  test('goes on with the last message, without the end that the template writes', async () => {
    const begun = [...messages, { role: 'assistant' as const, content: 'It is' }]
    const options = { add_generation_prompt: false, continue_final_message: true }
    const { json } = await ask(`${url}/tokenize`, { messages: begun, ...options })
    const prompt = `${tiny.tokenizer.renderChat(messages)}It is`
    expect(json.tokens).toEqual(tiny.tokenizer.encode(prompt, { addSpecialTokens: false }))
    const answer = await client.chat.completions.create({
      model: 'tiny',
      messages: begun,
      max_tokens: 2,
      ...extra<object>({ ...options, return_token_ids: true }),
    })
    expect(answer).toMatchObject({ prompt_token_ids: json.tokens })
  })

  test('takes text in parts, and a developer for the system', async () => {
    const parts = [
      { role: 'developer' as const, content: 'short' },
      { role: 'user' as const, content: [{ type: 'text' as const, text: 'a' }, { type: 'text' as const, text: 'b' }] },
    ] // prettier-ignore
    const answer = await client.chat.completions.create({
      model: 'tiny',
      messages: parts,
      max_tokens: 1,
      ...extra<object>({ return_token_ids: true }),
    })
    const expected = tiny.tokenizer.encodeChat([{ role: 'system', content: 'short' }, { role: 'user', content: 'a\nb' }]) // prettier-ignore
    expect(answer).toMatchObject({ prompt_token_ids: expected })
  })

  test('takes a refusal in the conversation as the text that it is', async () => {
    const refused = { role: 'assistant' as const, content: [{ type: 'refusal' as const, refusal: 'no' }] }
    const common = { model: 'tiny', ...extra<object>({ temperature: 0, seed: 1 }) }
    const expected = tiny.tokenizer.encodeChat([...messages, { role: 'assistant', content: 'no' }, ...messages])
    const talk = [...messages, refused, ...messages]
    const answer = await client.chat.completions.create({ ...common, messages: talk, max_tokens: 1, ...extra<object>({ return_token_ids: true }) }) // prettier-ignore
    expect(answer).toMatchObject({ prompt_token_ids: expected })
    const input = [...messages, { type: 'message' as const, id: 'msg_1', status: 'completed' as const, ...refused }, ...messages]
    const response = await client.responses.create({ ...common, ...extra<{ input: string }>({ input }), max_output_tokens: 1 })
    expect(response.usage?.input_tokens).toBe(expected.length)
  })

  test('without max_tokens may fill the window', async () => {
    const prompt = tiny.tokenizer.encodeChat(messages)
    const answer = await client.chat.completions.create({ model: 'tiny', messages, ...extra<object>({ ignore_eos: true }) })
    expect(answer.usage).toMatchObject({ completion_tokens: 512 - prompt.length, total_tokens: 512 })
    expect(answer.choices[0].finish_reason).toBe('length')
  })
})

describe('responses', () => {
  test('answer, whole and streamed alike', async () => {
    const asked = {
      model: 'tiny',
      instructions: 'short',
      input: 'what is 3 + 4?',
      max_output_tokens: 10,
      ...extra<object>({ seed: 2, ignore_eos: true }),
    }
    const whole = await client.responses.create(asked)
    expect(whole).toMatchObject({ object: 'response', status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } })
    expect(whole.output_text.length).toBeGreaterThan(0)
    expect(whole.usage).toMatchObject({
      output_tokens: 10,
      input_tokens_details: { cached_tokens: expect.any(Number), cache_write_tokens: 0 },
    })
    const chat = await client.chat.completions.create({
      model: 'tiny', max_tokens: 10, seed: 2, messages: [{ role: 'system', content: 'short' }, ...messages], ...extra<object>({ ignore_eos: true }),
    }) // prettier-ignore
    expect(chat.choices[0].message.content).toBe(whole.output_text)
    const types: string[] = []
    let text = ''
    let last
    for await (const event of await client.responses.create({ ...asked, stream: true })) {
      expect(event.sequence_number).toBe(types.length)
      types.push(event.type)
      if (event.type === 'response.output_text.delta') text += event.delta
      if (event.type === 'response.incomplete') last = event.response
    }
    expect(text).toBe(whole.output_text)
    expect(last).toMatchObject({ status: 'incomplete', output: [{ content: [{ text }] }], usage: { output_tokens: 10 } })
    expect(types.filter((type) => type !== 'response.output_text.delta')).toEqual([
      'response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added', 'response.output_text.done',
      'response.content_part.done', 'response.output_item.done', 'response.incomplete',
    ]) // prettier-ignore
  })
})

test('what a client lets wait is joined in one go, however long it is', () => {
  const token = { id: 5, logprob: -1, version: 0 }
  const waiting = Array.from({ length: 60_000 }, (_, i) => ({ index: i % 2, tokens: [token], text: 'a' }))
  const begin = performance.now()
  const pieces = joined(waiting)
  // Were the tokens so far copied for each, it would take many seconds, in which nobody else is answered.
  expect(performance.now() - begin).toBeLessThan(2000)
  expect(pieces.map(({ index, tokens, text }) => [index, tokens.length, text.length])).toEqual([
    [0, 30_000, 30_000],
    [1, 30_000, 30_000],
  ])
})

describe('a client that goes', () => {
  test('in the middle of a stream ends its completions', async () => {
    const stream = await client.chat.completions.create({
      model: 'tiny',
      messages,
      n: 3,
      stream: true,
      ...extra<object>({ ignore_eos: true }),
    })
    let seen = 0
    for await (const _ of stream) if (++seen === 10) break
    await tiny.expectIdle()
    expect(tiny.engine.stats().aborted).toBe(3)
    await expectLoad(0)
  })

  test('while it waits for a whole answer, too', async () => {
    const abort = new AbortController()
    const before = tiny.engine.stats().aborted
    const asked = client.completions.create(
      { model: 'tiny', prompt: 'a', max_tokens: 500, ...extra<object>({ ignore_eos: true }) },
      { signal: abort.signal },
    )
    asked.catch(() => {})
    while (tiny.engine.stats().running === 0) await new Promise((resolve) => setTimeout(resolve, 5))
    abort.abort()
    await expect(asked).rejects.toThrow(OpenAI.APIUserAbortError)
    await tiny.expectIdle()
    expect(tiny.engine.stats().aborted).toBe(before + 1)
    await expectLoad(0)
  })

  /** Nothing of the server's own is under way either; the request that asks does not count. */
  async function expectLoad(expected: number): Promise<void> {
    const deadline = Date.now() + 10_000
    let load = -1
    while (Date.now() < deadline && load !== expected) load = (await ask(`${url}/load`)).json.server_load as number
    expect(load).toBe(expected)
  }
})
