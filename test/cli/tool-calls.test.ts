/** Calls of tools from a sampler's text to the environment: parsed by the template's own parser, with ids of their own, broken ones too. */
import { expect, test } from 'vitest'
import { toolCallParser } from '../../src/cli/tool-calls.ts'
import { ChatTemplate, definitionOf, PolicyClient, runRollout, Rubric, tool, ToolEnv, z } from '../../src/environments/index.ts'
import type { Generator } from '../../src/common/types.ts'
import { openTiny } from '../inference/tokenizers.ts'
import { sampling } from '../environments/scripted.ts'

const tiny = await openTiny()
const template = new ChatTemplate(tiny)
const add = tool({
  name: 'add',
  description: 'Adds.',
  parameters: z.object({ a: z.number(), b: z.number() }),
  run: ({ a, b }) => a + b,
})
const call = (text: string) => `<tool_call>\n${text}\n</tool_call>`

/** A rollout whose policy writes these texts, one a turn. */
async function play(...texts: string[]) {
  const prompts: number[][] = []
  const generator: Generator = {
    version: 0,
    generate: ({ promptIds }) => {
      const text = texts[prompts.push(promptIds) - 1]
      const ids = [...tiny.encode(text, { addSpecialTokens: false }), tiny.eosTokenIds[0]]
      const zeros = ids.map(() => 0)
      return Promise.resolve({ text, ids, logprobs: zeros, versions: zeros, finishReason: 'stop', stopCondition: 'eos' })
    },
  }
  const env = await ToolEnv.create({
    id: 'sums',
    tools: [add],
    rubric: new Rubric({ one: () => 1 }),
    dataset: [{ question: '1 + 2?' }],
    evalSize: 0,
  })
  const client = new PolicyClient(generator, template, { parseTools: toolCallParser('auto', tiny, template) })
  const rollout = await runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0 })
  return { rollout, prompts: prompts.map((ids) => tiny.decode(ids)) }
}

test('a call, its result, and the answer are one sequence; the tools stand in the prompt', async () => {
  const { rollout, prompts } = await play(`Hm.\n${call('{"name": "add", "arguments": {"a": 1, "b": 2}}')}`, 'It is 3.')
  expect(rollout).toMatchObject({
    error: null,
    reward: 1,
    metrics: { add_calls: 1, tool_errors: 0 },
    stopCondition: 'no_tools_called',
  })
  expect(prompts[0]).toMatch(
    /^<\|system\|>These functions can be called:\n<tools>\n\{"name":"add".*<\|user\|>1 \+ 2\?<\|end\|><\|assistant\|>$/s,
  )
  // What the model wrote stays as it wrote it, and the result follows.
  expect(prompts[1]).toBe(
    `${prompts[0]}Hm.\n${call('{"name": "add", "arguments": {"a": 1, "b": 2}}')}<|end|><|user|><tool_response>\n3\n</tool_response><|end|><|assistant|>`,
  )
  const [answer, result] = rollout.completion
  expect(answer.content.trim()).toBe('Hm.')
  expect(answer.tool_calls).toMatchObject([{ id: expect.stringMatching(/^call_\d+_0$/), function: { name: 'add' } }])
  expect(result).toMatchObject({ role: 'tool', content: '3', tool_call_id: answer.tool_calls![0].id })
  expect(rollout.turns!.map((turn) => turn.branch)).toEqual([true, false])
})

test.each([
  ['no JSON', call('{"name": "add", "arguments": {"a": 1'), /arguments of add are not JSON/],
  ['nothing that could be a call', call('add 1 and 2'), /(there is no tool "unnamed"|not JSON)/],
  ['a call that is cut off', '<tool_call>\n{"name": "add", "argu', /(not JSON|arguments of add)/],
  ['wrong types', call('{"name": "add", "arguments": {"a": "one", "b": 2}}'), /arguments of add are wrong: a: /],
])('a broken call goes back as words and is counted: %s', async (_, text, words) => {
  const { rollout } = await play(text, 'I give up.')
  expect(rollout).toMatchObject({ error: null, metrics: { total_tool_calls: 1, tool_errors: 1 } })
  expect(rollout.completion[1].content).toMatch(words)
})

test('a call in thoughts is a draft and is not made, broken or whole; one after them is', async () => {
  const one = call('{"name": "add", "arguments": {"a": 1, "b": 2}}')
  const two = call('{"name": "add", "arguments": {"a": 5, "b": 5}}')
  const { rollout } = await play(
    `<think>I may write <tool_call> or\n${one}</think>\n\n${two}`,
    `<think>Or ${one}?</think>\nIt is 10.`,
  )
  expect(rollout).toMatchObject({ error: null, metrics: { total_tool_calls: 1, add_calls: 1, tool_errors: 0 } })
  expect(rollout.completion[0].content).toBe(`<think>I may write <tool_call> or\n${one}</think>`)
  expect(rollout.completion[1]).toMatchObject({ role: 'tool', content: '10' })
  expect(rollout.completion).toHaveLength(3)
  // Thoughts that the prompt has begun; and those that never end, which a call ends.
  const parse = toolCallParser('auto', tiny, template)
  const definitions = [definitionOf(add)]
  const drafted = `Or ${one}?</think>\n${two}`
  expect(parse(drafted, definitions, '<|assistant|><think>\n')).toMatchObject({
    content: `Or ${one}?</think>`,
    tool_calls: [{ function: { arguments: '{"a": 5, "b": 5}' } }],
  })
  expect(parse(drafted, definitions, '<|assistant|>').tool_calls).toHaveLength(2)
  expect(parse(`<think>Hm.\n${one}`, definitions, '').tool_calls).toHaveLength(1)
})

test('a broken call beside good ones has a result too, in its place', async () => {
  const sum = (a: number) => call(`{"name": "add", "arguments": {"a": ${a}, "b": 1}}`)
  const { rollout } = await play(['So:', sum(1), call('add 1 and 2'), sum(2), call('[1]'), 'Wait.'].join('\n'), 'I give up.')
  expect(rollout).toMatchObject({ error: null, metrics: { total_tool_calls: 4, add_calls: 2, tool_errors: 2 } })
  const [{ content, tool_calls }, ...results] = rollout.completion
  expect(content).toBe('So:\nWait.')
  expect(results.slice(0, 4).map((result) => result.tool_call_id)).toEqual(tool_calls!.map(({ id }) => id))
  expect(results.slice(0, 4).map((result) => result.content.slice(0, 7))).toEqual(['2', 'Error: ', '3', 'Error: '])
})
