/** Variables of the chat template in conversations of several turns and with tools, and those that an environment in Python asks for. */
import { expect, test } from 'vitest'
import type { GenerationRequest, Message, ToolDefinition } from '../../src/common/types.ts'
import { ChatTemplate, PolicyClient } from '../../src/environments/index.ts'
import { Calls } from '../../src/environments/python/calls.ts'
import { PolicyEndpoint, REQUEST_FIELD } from '../../src/environments/python/endpoint.ts'
import type { RolloutContext } from '../../src/environments/types.ts'
import { openTiny } from '../inference/tokenizers.ts'
import { sampling } from './scripted.ts'

const template =
  '{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}' +
  '{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking is false %}(){% endif %}{{ style }}{% endif %}'
const tiny = await openTiny()
/** models/tiny's tokens, by that template. */
const tokenizer = {
  eosTokenIds: tiny.eosTokenIds,
  encode: tiny.encode.bind(tiny),
  decode: tiny.decode.bind(tiny),
  renderChat: (messages: readonly Message[], options: object = {}) => tiny.renderChat(messages, { ...options, chatTemplate: template }), // prettier-ignore
}
const tools: ToolDefinition[] = [{ type: 'function', function: { name: 'look', description: '', parameters: {} } }]
const user = (content: string): Message => ({ role: 'user', content })

function asked() {
  const prompts: string[] = []
  const generate = ({ promptIds }: GenerationRequest) => {
    prompts.push(tiny.decode(promptIds))
    const ids = [...tiny.encode('hm', { addSpecialTokens: false }), tiny.eosTokenIds[0]]
    const zeros = ids.map(() => 0)
    return Promise.resolve({ text: 'hm', ids, logprobs: zeros, versions: zeros, finishReason: 'stop' as const, stopCondition: 'eos' }) // prettier-ignore
  }
  const client = new PolicyClient({ version: 0, generate }, new ChatTemplate(tokenizer, { enable_thinking: false }))
  return { prompts, client }
}

test('every turn opens its answer so, with tools and without', async () => {
  const { prompts, client } = asked()
  const first = await client.complete([user('a')], sampling)
  await client.complete([user('a'), { role: 'assistant', content: 'hm' }, user('b')], sampling, undefined, { previous: first })
  const alone = await client.complete([user('a')], sampling, undefined, { tools })
  expect(prompts.slice(0, 2)).toEqual([
    '<|user|>a<|end|><|assistant|>()',
    '<|user|>a<|end|><|assistant|>()hm<|end|><|user|>b<|end|><|assistant|>()',
  ])
  expect(prompts[2]).toMatch(/^\[\{.*"look".*<\|user\|>a<\|end\|><\|assistant\|>\(\)$/)
  expect(alone.promptIds).toEqual(new ChatTemplate(tokenizer, { enable_thinking: false }).prompt([user('a')], tools).ids)
})

test("what an environment in Python asks for stands over the run's", async () => {
  const { prompts, client } = asked()
  const endpoint = await PolicyEndpoint.open()
  try {
    const calls = new Calls(1)
    calls.members[0].arrive({ client, sampling, signal: new AbortController().signal } as RolloutContext)
    endpoint.expect('r', calls)
    const ask = async (more: object) => {
      const body = JSON.stringify({ model: 'policy', messages: [user('a')], [REQUEST_FIELD]: 'r', ...more })
      const headers = { authorization: `Bearer ${endpoint.key}`, 'content-type': 'application/json' }
      const reply = await fetch(`${endpoint.url}/chat/completions`, { method: 'POST', headers, body })
      return { status: reply.status, text: await reply.text() }
    }
    for (const kwargs of [undefined, null, { style: 'x' }, { enable_thinking: true }])
      expect(await ask({ chat_template_kwargs: kwargs })).toMatchObject({ status: 200 })
    expect(prompts.map((prompt) => prompt.split('<|assistant|>')[1])).toEqual(['()', '()', '()x', ''])
    const wrong = await ask({ chat_template_kwargs: [1] })
    expect(wrong.status).toBe(400)
    expect(wrong.text).toContain('the environment sends chat_template_kwargs [1]; it must be an object')
  } finally {
    await endpoint.close()
  }
})
