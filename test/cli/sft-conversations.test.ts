/** `sft` on whole conversations: of turns and tools, what is learned is to the token what a rollout would have sampled. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test, vi } from 'vitest'
import { samplesOf } from '../../src/cli/sft-setup.ts'
import { toolCallParser } from '../../src/cli/tool-calls.ts'
import { UserError } from '../../src/common/errors.ts'
import type { Generator, Message } from '../../src/common/types.ts'
import { parseSftConfig } from '../../src/config/load.ts'
import {
  ChatTemplate,
  loadEnvironment,
  PolicyClient,
  Rubric,
  runRollout,
  sftRows,
  SingleTurnEnv,
} from '../../src/environments/index.ts'
import { writeMerged } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { rolloutRow } from '../../src/monitor/rollout-writer.ts'
import { exampleOf, sampleOf } from '../../src/trainer/sft.ts'
import { sampling } from '../environments/scripted.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-sft-'))
afterAll(() => rmSync(folder, { recursive: true }))
const model = await openModel('models/tiny')
const tokenizer = await model.tokenizer()
afterAll(() => model.close())

const configOf = (data: string) =>
  parseSftConfig(`model = "models/tiny"\n[data]\n${data}\n[trainer.args]\nmax_seq_len = 512`).config
const learned = ({ ids, lossMask }: { ids: Int32Array; lossMask: Uint8Array }) =>
  tokenizer.decode(ids.filter((_, t) => lossMask[t]))

/** Samples what it is given, an answer a turn. */
class Speaker implements Generator {
  readonly version = 0
  readonly #answers: string[]
  constructor(answers: string[]) {
    this.#answers = [...answers]
  }
  generate() {
    const text = this.#answers.shift()!
    const ids = [...tokenizer.encode(text), tokenizer.eosTokenIds[0]]
    const zeros = ids.map(() => 0)
    return Promise.resolve({ text, ids, logprobs: zeros, versions: zeros, finishReason: 'stop' as const, stopCondition: 'eos' })
  }
}

describe.each([
  ['reverse-turns', 3, {}],
  ['coin', 2, { guesses: 0 }],
])('%s', (name, turns, more) => {
  const id = `./configs/environments/${name}.ts`
  test('the tokens and the mask of its examples are those of rollouts that answer so', async () => {
    const env = await loadEnvironment(id, { train_size: 4, eval_size: 2, ...more })
    const { train, held } = await samplesOf(
      configOf(`env = { id = "${id}", args = { train_size = 4, eval_size = 2${name === 'coin' ? ', guesses = 0' : ''} } }`),
      tokenizer,
    )
    expect([train.length, held.length]).toEqual([4, 2])
    const template = new ChatTemplate(tokenizer)
    for (const [i, row] of env.dataset.entries()) {
      const answers = learned(train[i]).split('<|end|>').slice(0, -1)
      expect(answers).toHaveLength(turns)
      const client = new PolicyClient(new Speaker(answers), template, {
        parseTools: toolCallParser('auto', tokenizer, template),
      })
      const rollout = await runRollout(env, row, { client, sampling, group: 'g', index: 0 })
      expect([rollout.error, rollout.reward]).toEqual([null, 1])
      const all = rollout.turns!.reduce<{ ids: number[]; mask: number[] }>(
        ({ ids, mask }, turn) => {
          const at = mask.reduce((a, b) => a + b, 0)
          const said = rollout.completion_tokens.ids.slice(at, at + turn.sampled)
          return {
            ids: [...ids, ...turn.promptIds, ...said],
            mask: [...mask, ...turn.promptIds.map(() => 0), ...said.map(() => 1)],
          }
        },
        { ids: [], mask: [] },
      )
      expect([...train[i].ids]).toEqual(all.ids)
      expect([...train[i].lossMask]).toEqual(all.mask)
      // The same from the line that is written of the rollout, which docs/algorithms.md offers as data.
      const file = join(folder, `${name}.jsonl`)
      writeFileSync(file, JSON.stringify(rolloutRow(1, 'train', { rollout, advantage: null })))
      const [written] = (await samplesOf(configOf(`path = ${JSON.stringify(file)}`), tokenizer)).train
      expect([...written.ids]).toEqual(all.ids)
      expect([...written.lossMask]).toEqual(all.mask)
    }
  })
})

test("a row's own variables of the chat template are in the line of its rollout, where sft reads them", async () => {
  const columns = { prompt: 'a', answer: 'b', chat_template_kwargs: { enable_thinking: false } }
  const env = await SingleTurnEnv.create({ id: 'own', dataset: [columns], evalSize: 0, rubric: new Rubric({ right: () => 1 }) })
  const client = new PolicyClient(new Speaker(['b']), new ChatTemplate(tokenizer))
  const rollout = await runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0 })
  const row = { ...rolloutRow(1, 'train', { rollout, advantage: null }) }
  expect(exampleOf(row, 'row', true)).toEqual({ ...sftRows(env)[0] })
})

describe('rows of a file', () => {
  const file = join(folder, 'rows.jsonl')
  const read = async (row: object) => {
    writeFileSync(file, `${JSON.stringify(row)}\n`)
    return (await samplesOf(configOf(`path = ${JSON.stringify(file)}`), tokenizer)).train[0]
  }
  const look = {
    type: 'function',
    function: { name: 'look', parameters: { type: 'object', properties: { at: { type: 'string' } } } },
  }
  const messages = (call: object, content: string | null = null) => [
    { role: 'user', content: 'Where?' },
    { role: 'assistant', content, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'a', content: 'here' },
    { role: 'assistant', content: 'Here.' },
  ]
  const answers = '<tool_call>\n{"name": "look", "arguments": {"at":"x"}}\n</tool_call><|end|>Here.<|end|>'
  test.each([
    ['arguments as JSON text', { id: 'a', type: 'function', function: { name: 'look', arguments: '{"at":"x"}' } }],
    ['arguments as an object, nothing else', { function: { name: 'look', arguments: { at: 'x' } } }],
  ])('calls with %s, and tools', async (_, call) => {
    const sample = await read({ messages: messages(call), tools: [look] })
    expect(learned(sample)).toBe(answers)
    const text = tokenizer.decode(sample.ids)
    expect(text).toContain('<tools>\n{"name":"look"')
    expect(text).toContain('<|user|><tool_response>\nhere\n</tool_response><|end|>')
  })
  test('tools as JSON text are those of a list', async () => {
    const of = (tools: unknown) => read({ messages: messages({ function: { name: 'look', arguments: { at: 'x' } } }), tools })
    expect(await of(JSON.stringify([look]))).toEqual(await of([look]))
    await expect(of('look')).rejects.toThrow(/rows\.jsonl:1: its tools are text but not JSON/)
    await expect(of('{"look": 1}')).rejects.toThrow(/rows\.jsonl:1: its tools must be a list/)
    // A row without tools, in the forms that such columns have.
    for (const none of ['', '[]', 'null']) expect(await of(none)).toEqual(await of([]))
  })
  test('a float of tools is one for the chat template too, in a list and in JSON text', async () => {
    const tools = '[{"type":"function","function":{"name":"look","parameters":{"default":2.0}}}]'
    const dir = other(
      'tools',
      '{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}',
      tokenizer.eosTokenIds[0],
    )
    const files = await openModel(dir)
    const its = await files.tokenizer()
    for (const given of [tools, JSON.stringify(tools)]) {
      writeFileSync(file, `{"prompt": "a", "completion": "b", "tools": ${given}}\n`)
      const { train } = await samplesOf(configOf(`path = ${JSON.stringify(file)}`), its)
      expect(its.decode(train[0].ids)).toContain('"default": 2.0}')
    }
    files.close()
  })
  test('calls without tools are written as text where the chat template writes none', async () => {
    const sample = await read({ messages: messages({ function: { name: 'look', arguments: { at: 'x' } } }) })
    expect(learned(sample)).toBe(answers)
    const text = tokenizer.decode(sample.ids)
    expect(text).not.toContain('<tools>')
    expect(text).toContain('<|user|><tool_response>\nhere\n</tool_response><|end|>')
  })
  test('tools and calls of a parquet file have their own fields only, not the null ones of the others', async () => {
    const { train } = await samplesOf(configOf('path = "test/environments/fixtures/tool-calls.parquet"'), tokenizer)
    const [look, count] = train.map((sample) => tokenizer.decode(sample.ids))
    expect(look).toContain('"properties":{"at":{"type":"string"}}')
    expect(look).toContain('<|assistant|><tool_call>\n{"name": "look", "arguments": {"at":"x"}}\n</tool_call>')
    expect(count).toContain('"properties":{"n":{"type":"array","items":{"type":"number"}}}')
    expect(count).toContain('<|assistant|><tool_call>\n{"name": "count", "arguments": {"n":[1,null]}}\n</tool_call>')
  })
  test('what is broken is refused with its place', async () => {
    const broken = read({ messages: messages({ name: 'look' }), tools: [look] })
    await expect(broken).rejects.toThrow(/rows\.jsonl:1: message 1 of its messages must have tool_calls as a list of/)
    await expect(broken).rejects.toThrow(UserError)
    await expect(read({ messages: [{ role: 'user', content: 'a' }], tools: [{ name: 'look' }] })).rejects.toThrow(
      /rows\.jsonl:1: its tools must be a list/,
    )
    await expect(read({ messages: [{ role: 'user', content: null }] })).rejects.toThrow(
      /message 0 of its messages must be \{role/,
    )
  })
})

test('a row without an answer, or with a conversation of no messages, is left out', async () => {
  const env = await loadEnvironment('./configs/environments/coin.ts', { train_size: 2, eval_size: 1 })
  const { id, dataset, evalDataset, rubric, tools } = env
  const rollout = env.rollout.bind(env)
  for (const none of ['', []]) {
    expect(sftRows({ id, dataset, evalDataset, rubric, tools, rollout, sftCompletion: () => none })).toEqual([])
  }
})

test('the environment is closed once its rows are read, and where they are refused: a run needs none of its processes', async () => {
  const [id, mark] = [join(folder, 'closes.ts'), join(folder, 'closed')]
  writeFileSync(
    id,
    `import { appendFileSync } from 'node:fs'
    import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
    export default async ({ answer }) => {
      const env = await SingleTurnEnv.create({ id: 'closes', dataset: [{ prompt: 'a', answer }], evalSize: 0, rubric: new Rubric({ right: () => 1 }) })
      return Object.assign(env, { close: async () => appendFileSync(${JSON.stringify(mark)}, 'x') })
    }`,
  )
  const closes = (answer: string) =>
    samplesOf(configOf(`env = { id = ${JSON.stringify(id)}, args = { answer = "${answer}" } }`), tokenizer)
  await closes('b')
  expect(readFileSync(mark, 'utf8')).toBe('x')
  await expect(closes('')).rejects.toThrow(/has no answers of its own/)
  expect(readFileSync(mark, 'utf8')).toBe('xx')
})

test('a signal is heard while many rows are encoded', async () => {
  const path = join(folder, 'many.jsonl')
  writeFileSync(path, Array.from({ length: 4 }, () => '{"prompt": "a", "completion": "b"}').join('\n'))
  const encode = tokenizer.encode.bind(tokenizer)
  const heard: number[] = []
  let calls = 0
  const slow = vi.spyOn(tokenizer, 'encode').mockImplementation((...words) => {
    calls++
    setImmediate(() => heard.push(calls))
    const end = performance.now() + 60
    while (performance.now() < end);
    return encode(...words)
  })
  await samplesOf(configOf(`path = ${JSON.stringify(path)}`), tokenizer)
  slow.mockRestore()
  expect(heard[0]).toBeLessThan(calls)
})

test('of rows that are too long the longest is told', async () => {
  const path = join(folder, 'long.jsonl')
  const refusal = async (...lengths: number[]) => {
    writeFileSync(path, lengths.map((n) => `{"prompt": "${'a'.repeat(n)}", "completion": "b"}`).join('\n'))
    const message = await samplesOf(configOf(`path = ${JSON.stringify(path)}`), tokenizer).then(
      () => 'none',
      (error: UserError) => error.message,
    )
    return message.replaceAll(path, 'rows')
  }
  expect(await refusal(508, 1)).toBe('rows:1 has 513 tokens, more than max_seq_len (512); raise it or remove the example.')
  expect(await refusal(1, 600, 507, 700)).toBe(
    '2 of 4 examples have more tokens than max_seq_len (512): the first is rows:2, the longest rows:4 with 705. Raise it to 705 or remove them.',
  )
})

/** The tiny model with another chat template and end of sequence. */
function other(name: string, template: string, eos: number): string {
  const dir = join(folder, name)
  cpSync('models/tiny', dir, { recursive: true })
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8')) as object
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, eos_token_id: eos }))
  writeFileSync(join(dir, 'chat_template.jinja'), template)
  return dir
}

describe('chat templates that do not end answers with an end of sequence', () => {
  const [own] = tokenizer.encode('<|pad|>')
  const [end] = tokenizer.eosTokenIds
  // As Qwen2.5-0.5B: ChatML with <|im_end|>, and <|endoftext|> as eos_token_id.
  const base = other(
    'base',
    '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}',
    own,
  )
  const words = other(
    'words',
    '{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}',
    own,
  )
  const messages: Message[] = ['a', 'b', 'c', 'd'].map((content, i) => ({ role: i % 2 ? 'assistant' : 'user', content }))
  test.each([
    ['a special token that the config does not name', base, [own, end], 'b<|end|>d<|end|>'],
    ['text', words, [own], 'b<|pad|>d<|pad|>'],
  ])('%s: each answer is learned as a rollout ends it and goes on behind it', async (_, dir, ends, answers) => {
    const files = await openModel(dir)
    const its = await files.tokenizer()
    expect(its.eosTokenIds).toEqual(ends)
    const sample = sampleOf(exampleOf({ messages }, 'row', true), its, 'row')
    expect(learned(sample)).toBe(answers)
    const chat = new ChatTemplate(its)
    const promptIds = chat.prompt(messages.slice(0, 1)).ids
    const ids = [...tokenizer.encode('b'), ends.at(-1)!]
    const said = { text: 'b', ids, logprobs: [], versions: [], promptIds, finishReason: 'stop' as const, stopCondition: 'eos' }
    const next = chat.next(messages.slice(0, 3), said)!
    expect([...sample.ids].slice(0, next.ids.length)).toEqual(next.ids)
    files.close()
  })
  test('weights that are written name both ends, as other servers stop only at the tokens that are named', async () => {
    const out = join(folder, 'written')
    const files = await openModel(base)
    await writeMerged(out, files, null)
    files.close()
    const written = JSON.parse(readFileSync(join(out, 'generation_config.json'), 'utf8')) as object
    expect(written).toEqual({ eos_token_id: [own, end] })
  })
})
