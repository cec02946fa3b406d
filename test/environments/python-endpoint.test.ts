/** Where Python environments ask the policy, over real HTTP, without Python. */
import { expect, test } from 'vitest'
import type { ChatCompletion } from '../../src/common/types.ts'
import { Calls } from '../../src/environments/python/calls.ts'
import { PolicyEndpoint, REQUEST_FIELD } from '../../src/environments/python/endpoint.ts'
import type { RolloutContext } from '../../src/environments/types.ts'
import { compileTemplate } from '../../src/model/chat/jinja.ts'
import { sampling } from './scripted.ts'

test('floats in the schemas of tools reach the chat template as Python wrote them', async () => {
  const endpoint = await PolicyEndpoint.open()
  const calls = new Calls(1)
  let shown = ''
  const complete: RolloutContext['client']['complete'] = (_messages, _sampling, _signal, chat) => {
    shown = compileTemplate('{{ tools[0].function.parameters | tojson }}')({ tools: chat?.tools })
    const completion = { text: 'a', promptIds: [1], ids: [2], logprobs: [-1], versions: [0], finishReason: 'stop' }
    return Promise.resolve(completion as ChatCompletion)
  }
  calls.members[0].arrive({ client: { complete }, sampling, signal: new AbortController().signal } as unknown as RolloutContext)
  endpoint.expect('r', calls)
  const parameters = '{"type": "object", "properties": {"x": {"type": "number", "default": 1.0, "maximum": 10}}}'
  const response = await fetch(`${endpoint.url}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${endpoint.key}` },
    body: `{"model": "policy", "${REQUEST_FIELD}": "r", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": ${parameters}}}]}`,
  })
  expect(await response.text()).toContain('"content":"a"')
  expect(shown).toBe(parameters)
  await endpoint.close()
})
