/** What the `openai` client builds on the routes: streams that gather themselves, tools that are run, answers that are parsed, aborts. */
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { afterAll, afterEach, expect, test } from 'vitest'
import * as z from 'zod'
import { createGrammars } from '../../../src/inference/grammar/grammars.ts'
import { Tiny } from './helpers.ts'

const tiny = await Tiny.open()
const grammars = createGrammars(tiny.tokenizer, tiny.tokenizer.eosTokenIds, tiny.decoder.config.vocabSize)
afterAll(() => grammars.close())
const { client } = await tiny.serve({}, { grammars: () => Promise.resolve(grammars), toolParser: 'hermes' })
afterEach(() => tiny.expectIdle())

const base = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }], max_tokens: 200 }
/** vLLM's fields, which the client's types do not know. */
const forced = (...choice: string[]) => ({ structured_outputs: { choice } }) as object
const call = '<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call>'

/** A tool as the client runs them, and the arguments that it was run with. */
function weather() {
  const asked: unknown[] = []
  const tool = {
    type: 'function' as const,
    function: {
      name: 'weather',
      description: 'The weather of a city.',
      parse: (text: string) => z.object({ city: z.string() }).parse(JSON.parse(text)),
      function: (args: { city: string }) => {
        asked.push(args)
        return `sunny in ${args.city}`
      },
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  }
  return { asked, tool }
}

test('a stream gathers itself into the completion that is asked for whole', async () => {
  const asked = { ...base, seed: 3, temperature: 1, max_tokens: 20, logprobs: true, stream_options: { include_usage: true } }
  const stream = client.chat.completions.stream({ ...asked, ...({ ignore_eos: true } as object) })
  let text = ''
  stream.on('content', (delta) => (text += delta))
  const gathered = await stream.finalChatCompletion()
  const { stream_options: _, ...rest } = asked
  const whole = await client.chat.completions.create({ ...rest, ...({ ignore_eos: true } as object) })
  expect(text).toBe(whole.choices[0].message.content)
  expect(gathered.choices[0]).toMatchObject({ finish_reason: 'length', message: { role: 'assistant', content: text } })
  expect(gathered.choices[0].logprobs?.content).toEqual(whole.choices[0].logprobs?.content)
  expect(gathered.usage).toMatchObject({ completion_tokens: 20, prompt_tokens: whole.usage!.prompt_tokens })
  expect(gathered.system_fingerprint).toBe(whole.system_fingerprint)
})

test.each([true, false])('tools are run, and what they say goes on (stream: %s)', async (stream) => {
  const { asked, tool } = weather()
  const params = { ...base, tools: [tool], ...forced(call) }
  const runner = stream
    ? client.chat.completions.runTools({ ...params, stream }, { maxChatCompletions: 2 })
    : client.chat.completions.runTools(params, { maxChatCompletions: 2 })
  await runner.done()
  expect(asked).toEqual([{ city: 'Rome' }, { city: 'Rome' }])
  const turn = [
    { role: 'assistant', tool_calls: [{ type: 'function', function: { name: 'weather', arguments: '{"city":"Rome"}' } }] },
    { role: 'tool', content: 'sunny in Rome' },
  ]
  expect(runner.messages).toMatchObject([{ role: 'user' }, ...turn, ...turn])
})

test('an answer is parsed by the schema that held it', async () => {
  const Answer = z.object({ city: z.enum(['Rome', 'Oslo']), warm: z.boolean() })
  const { choices } = await client.chat.completions.parse({ ...base, response_format: zodResponseFormat(Answer, 'answer') })
  expect(Answer.parse(choices[0].message.parsed)).toEqual(choices[0].message.parsed)
  expect(choices[0].message.refusal).toBeNull()
})

test('a stream that is aborted throws in its reader and ends here', async () => {
  const before = tiny.engine.stats().aborted
  const stream = client.chat.completions.stream({ ...base, max_tokens: 400, ...({ ignore_eos: true } as object) })
  let pieces = 0
  stream.on('content', () => {
    if (++pieces === 5) stream.abort()
  })
  await expect(stream.done()).rejects.toThrow(OpenAI.APIUserAbortError)
  await tiny.expectIdle()
  expect(tiny.engine.stats().aborted).toBe(before + 1)
})
