/** Turns joined token for token: for every template that ships, the families that it stands for, and each kind of tokenizer. */
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { ChatCompletion, GenerationRequest, Generator, Message, ToolDefinition } from '../../src/common/types.ts'
import { ContextFullError, PolicyClient, type TrajectoryStrategy } from '../../src/environments/chat.ts'
import { ChatTemplate, type ChatTokenizer } from '../../src/environments/template.ts'
import { startsWith, Trajectory } from '../../src/environments/turns.ts'
import { ggufTokenizerParts } from '../../src/model/gguf/tokenizer.ts'
import { GgufFile } from '../../src/model/gguf/gguf.ts'
import { makeTokenizer, type Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { openTiny } from '../inference/tokenizers.ts'
import { smollm2, withoutSmollm2 } from '../model/helpers.ts'
import { seed, seedWords } from '../seed.ts'
import { sampling } from './scripted.ts'

/** A template in the ways of a family. END stands for the tokenizer's own end token. */
const families = {
  // Writes everything as it is.
  plain:
    '{% for m in messages %}[{{ m.role }}]\n{{ m.content }}END\n{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}',
  // Llama 3: trims what it writes, and nothing stands behind the end token.
  trims:
    '{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}END{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}',
  // Qwen3: the thoughts of earlier answers are left out once a user has spoken again; results of tools stand in a user's turn.
  forgets:
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}" +
    "{% if tools %}[system]\n{{ tools | tojson }}END\n{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}[assistant]\n" +
    "{% if loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}" +
    '<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}END\n{% else %}[{{ m.role }}]\n{{ m.content }}END\n{% endif %}{% endfor %}' +
    '{% if add_generation_prompt %}[assistant]\n{% endif %}',
  // Mistral: takes a tool's result only after its call, and has a space before an answer.
  strict:
    "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}" +
    "{% if m.role == 'assistant' %} {{ m.content }}{% for c in m.tool_calls or [] %}[CALL]{{ c.function | tojson }}{% endfor %}END" +
    '{% else %}[{{ m.role }}] {{ m.content }} [/]{% endif %}{% endfor %}',
}

/** A tokenizer with the template of a family; null: its own. */
function withTemplate(tokenizer: Tokenizer, family: keyof typeof families | null): ChatTokenizer {
  if (family === null) return tokenizer
  const chatTemplate = families[family].replaceAll('END', tokenizer.decode([tokenizer.eosTokenIds[0]]))
  return {
    eosTokenIds: tokenizer.eosTokenIds,
    renderChat: (messages, options) => tokenizer.renderChat(messages, { ...options, chatTemplate }),
    encode: (text, options) => tokenizer.encode(text, options),
    decode: (ids) => tokenizer.decode(ids),
  }
}

/** SentencePiece's way: words begin with a mark, and so does every text. */
function pieces(): Tokenizer {
  const tokens = ['<unk>', '<s>', '</s>', '\u2581', '\n', ...Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i))]
  const special = (id: number) => ({
    id,
    content: tokens[id],
    special: true,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
  })
  return makeTokenizer({
    label: 'pieces', tokenizerConfig: {}, chatTemplate: families.plain.replaceAll('END', '</s>'), eosTokenIds: [2],
    tokenizerJson: {
      added_tokens: [0, 1, 2].map(special),
      normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '\u2581' }, { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }] },
      decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '\u2581' }, content: ' ' }, { type: 'Fuse' }] },
      model: { type: 'BPE', unk_token: '<unk>', fuse_unk: true, vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges: [] },
    },
  }) // prettier-ignore
}

async function opened(pre?: string): Promise<Tokenizer> {
  const file = await GgufFile.open(smollm2)
  try {
    if (pre) file.metadata.set('tokenizer.ggml.pre', pre)
    return makeTokenizer(ggufTokenizerParts(file))
  } finally {
    file.close()
  }
}

const tokenizers: Record<string, () => Promise<Tokenizer>> = {
  'models/tiny': openTiny,
  pieces: async () => pieces(),
  ...(withoutSmollm2
    ? {}
    : { SmolLM2: () => opened(), 'qwen2 splits': () => opened('qwen2'), 'llama-bpe splits': () => opened('llama-bpe') }),
}
const cases = Object.keys(tokenizers).flatMap((kind) =>
  ([null, 'plain', 'trims', 'forgets', 'strict'] as const).map((family) => [kind, family] as const),
)

/** A generator that gives the answers one after the other: ids, and whether max_tokens cut them off. */
class Answers implements Generator {
  readonly version = 0
  readonly requests: GenerationRequest[] = []
  readonly #answers: { ids: number[]; cut?: boolean }[]
  readonly #decode: (ids: number[]) => string
  constructor(answers: { ids: number[]; cut?: boolean }[], decode: (ids: number[]) => string) {
    this.#answers = answers
    this.#decode = decode
  }
  async generate(request: GenerationRequest) {
    const { ids, cut = false } = this.#answers[this.requests.push(request) - 1]
    const text = this.#decode(cut ? ids : ids.slice(0, -1))
    const logprobs = ids.map((id) => -id / 1000)
    const stopCondition = cut ? 'max_tokens' : 'eos'
    return {
      text,
      ids,
      logprobs,
      versions: ids.map(() => 0),
      finishReason: cut ? ('length' as const) : ('stop' as const),
      stopCondition,
    }
  }
}

/** Plays answers against the environment's messages; every completion, and what they come to. */
async function play(
  chat: ChatTokenizer,
  answers: { ids: number[]; cut?: boolean; calls?: Message['tool_calls'] }[],
  said: Message[],
  options: { strategy?: TrajectoryStrategy; tools?: ToolDefinition[]; maxSeqTokens?: number } = {},
) {
  const generator = new Answers(answers, (ids) => chat.decode(ids))
  const client = new PolicyClient(generator, new ChatTemplate(chat), options)
  const messages: Message[] = [{ role: 'user', content: 'Begin the game.' }]
  const completions: ChatCompletion[] = []
  const trajectory = new Trajectory()
  for (const [i, { calls }] of answers.entries()) {
    const completion = await client.complete(messages, sampling, undefined, {
      previous: completions.at(-1),
      tools: options.tools,
    })
    if (calls) completion.message = { role: 'assistant', content: '', tool_calls: calls }
    trajectory.add(completion)
    completions.push(completion)
    messages.push(completion.message ?? { role: 'assistant', content: completion.text }, said[i])
  }
  return { completions, trajectory, generator, messages: messages.slice(0, -1) }
}

const tool: ToolDefinition = { type: 'function', function: { name: 'add', parameters: { type: 'object', properties: {} } } }
const calls: Message['tool_calls'] = [{ id: 'call_1', type: 'function', function: { name: 'add', arguments: '{"a":1}' } }]
const said = (i: number): Message => ({ role: 'user', content: `Guess ${i}: higher, not 5'000.` })

describe.each(cases)(`%s, template %s (${seedWords})`, async (kind, family) => {
  const tokenizer = await tokenizers[kind]()
  const chat = withTemplate(tokenizer, family)
  const eos = tokenizer.eosTokenIds[0]
  const random = new Random(seed)
  /** Ids as a model may draw them: any, in no way the tokenizer's own. */
  const drawn = (length: number) =>
    Array.from({ length }, () => {
      for (;;) {
        const id = random.int(tokenizer.vocabSize)
        if (!tokenizer.isSpecial(id) && tokenizer.idToToken(id) !== null) return id
      }
    })

  test('no token is ever encoded again: each prompt begins with all tokens before it, as they were drawn', async () => {
    for (let round = 0; round < 5; round++) {
      const answers = [0, 1, 2, 3].map(() => {
        const cut = random.next() < 0.4
        const ids = drawn(1 + random.int(12))
        return cut ? { ids, cut } : { ids: [...ids, eos] }
      })
      const { completions, trajectory } = await play(chat, answers, [0, 1, 2, 3].map(said))
      for (let i = 1; i < 4; i++) expect(startsWith(completions[i].promptIds, completions[i - 1])).toBe(true)
      expect(trajectory.turns.map((turn) => turn.branch)).toEqual([true, false, false, false])
      expect(trajectory.tokens.ids).toEqual(answers.flatMap(({ ids }) => ids))
      expect(trajectory.tokens.logprobs).toEqual(trajectory.tokens.ids.map((id) => -id / 1000))
      // What stands between two answers closes the first, once, and says what was said.
      for (const [i, { promptIds }] of trajectory.turns.slice(1).entries()) {
        const between = tokenizer.decode(promptIds)
        expect(between).toContain(said(i).content)
        const role = kind === 'models/tiny' && family === null ? '<|user|>' : 'user'
        const before = between.slice(0, between.indexOf(role))
        expect(before.split(tokenizer.decode([eos])).length - 1).toBe(answers[i].cut ? 1 : 0)
      }
    }
  })
  test("where the answers are the tokenizer's own, the prompts are the template's", async () => {
    const texts = ['It is 42.', 'Then 17, or more', 'x = (3)']
    const answers = texts.map((text) => ({ ids: [...tokenizer.encode(`*${text}`, { addSpecialTokens: false }), eos] }))
    const { completions, messages, trajectory } = await play(chat, answers, [0, 1, 2].map(said))
    const whole = new ChatTemplate(chat).prompt(messages.slice(0, -1))
    // A mark of a beginning word, or a space before the answer, is the template's and no model's that answers at once.
    if (kind === 'pieces' || family === 'strict') return
    expect(completions[2].promptIds).toEqual(whole.ids)
    expect(trajectory.turns.some((turn) => turn.rewritten)).toBe(false)
  })
  test('results of tools', async () => {
    const answers = [{ ids: [...drawn(5), eos], calls }, { ids: [...drawn(5), eos] }]
    const result: Message = { role: 'tool', content: 'It is 12.', tool_call_id: 'call_1', name: 'add' }
    const { completions, trajectory } = await play(chat, answers, [result, said(1)], { tools: [tool] })
    expect(tokenizer.decode(completions[0].promptIds).includes('"add"')).toBe(true)
    expect(trajectory.turns.map((turn) => turn.branch)).toEqual([true, false])
    const between = tokenizer.decode(trajectory.turns[1].promptIds)
    expect(between).toContain('It is 12.')
    expect(between).not.toContain('call_1')
  })
})

test.each([
  ['plain', '[user]\n<tool_response>\nIt is 12.', '<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call>'],
  ['strict', '[tool] It is 12.', '[CALL]{"name": "add", "arguments": {"a": 1}}'],
] as const)(
  'calls in a prompt without tools, template %s: as text where the template writes none',
  async (family, result, call) => {
    const messages: Message[] = [
      { role: 'user', content: 'Add.' },
      { role: 'assistant', content: '', tool_calls: calls },
      { role: 'tool', content: 'It is 12.', tool_call_id: 'call_1' },
    ]
    const text = new ChatTemplate(withTemplate(await openTiny(), family)).text(messages)
    expect(text).toContain(result)
    expect(text).toContain(call)
    expect(text).not.toContain('<tools>')
  },
)

test('a template that forgets thoughts: gone on with as they stand and counted, or a sequence a turn', async () => {
  const tiny = await openTiny()
  const chat = withTemplate(tiny, 'forgets')
  const eos = tiny.eosTokenIds[0]
  const answers = ['<think>hm</think>4', '<think>so</think>5', '<think>well</think>6'].map((text) => ({
    ids: [...tiny.encode(text), eos],
  }))
  const joined = await play(chat, answers, [0, 1, 2].map(said))
  expect(joined.trajectory.turns.map(({ branch, rewritten }) => [branch, rewritten])).toEqual([
    [true, undefined],
    [false, true],
    [false, true],
  ])
  expect(tiny.decode(joined.completions[2].promptIds)).toContain('hm')
  const apart = await play(chat, answers, [0, 1, 2].map(said), { strategy: 'branching' })
  expect(apart.trajectory.turns.map(({ branch }) => branch)).toEqual([true, true, true])
  expect(tiny.decode(apart.completions[2].promptIds)).not.toContain('hm')
  expect(apart.trajectory.tokens).toEqual(joined.trajectory.tokens)
})

test('a text far over the limits is refused by its beginning: to encode all of it would hold up everything else', async () => {
  const tokenizer = await openTiny()
  let encoded = 0
  const counting: ChatTokenizer = {
    eosTokenIds: tokenizer.eosTokenIds,
    renderChat: (messages, options) => tokenizer.renderChat(messages, options),
    decode: (ids) => tokenizer.decode(ids),
    encode: (text, options) => {
      encoded += text.length
      return tokenizer.encode(text, options)
    },
  }
  const ids = [...tokenizer.encode('ok'), tokenizer.eosTokenIds[0]]
  const answer = {
    text: 'ok',
    ids,
    logprobs: ids.map(() => -1),
    versions: ids.map(() => 0),
    finishReason: 'stop' as const,
    stopCondition: 'eos',
  }
  const generator: Generator = { version: 0, generate: () => Promise.resolve(answer) }
  const client = new PolicyClient(generator, new ChatTemplate(counting), { maxPromptTokens: 64, maxSeqTokens: 128 })
  const huge: Message = { role: 'user', content: 'word '.repeat(200_000) }
  await expect(client.complete([huge], sampling)).rejects.toThrow(
    /^the prompt has more than \d{4} tokens, more than max_prompt_len \(64\)/,
  )
  const bounded = new PolicyClient(generator, new ChatTemplate(counting), { maxSeqTokens: 128 })
  await expect(bounded.complete([huge], sampling)).rejects.toThrow(
    /^the prompt has more than \d{4} tokens, which leave no room for an answer within max_seq_len \(128\)/,
  )
  const user: Message = { role: 'user', content: 'say' }
  const previous = await client.complete([user], sampling)
  const messages = [user, { role: 'assistant', content: 'ok' } as const, huge]
  const later = client.complete(messages, sampling, undefined, { previous })
  await expect(later).rejects.toThrow(ContextFullError)
  await expect(later).rejects.toThrow(/^the conversation has more than \d{4} tokens, which fill max_seq_len \(128\)/)
  expect(encoded).toBeLessThan(20_000)
  // What may fit is encoded whole, however long it is: its letters are one token here.
  const few: ChatTokenizer = { ...counting, encode: (text) => (text.length > 3000 ? [1, 2, 3] : [1]) }
  const roomy = new PolicyClient(generator, new ChatTemplate(few), { maxPromptTokens: 64, maxSeqTokens: 128 })
  expect((await roomy.complete([{ role: 'user', content: 'x'.repeat(4000) }], sampling)).promptIds).toEqual([1, 2, 3])
})

test('a turn goes on with the one before where its prompt begins with all of its tokens, and begins anew elsewhere', () => {
  const trajectory = new Trajectory()
  const add = (promptIds: number[], ...ids: number[]) => {
    const facts = {
      logprobs: ids.map(() => 0),
      versions: ids.map(() => 0),
      text: '',
      finishReason: 'stop',
      stopCondition: 'eos',
    } as const
    trajectory.add({ ...facts, promptIds, ids })
    const { branch, promptIds: own } = trajectory.turns.at(-1)!
    return [branch, own]
  }
  expect(add([1, 2], 3)).toEqual([true, [1, 2]])
  expect(add([1, 2, 3, 4], 5, 6)).toEqual([false, [4]])
  // Nothing stands between the two answers.
  expect(add([1, 2, 3, 4, 5, 6], 7)).toEqual([false, []])
  expect(add([9, 2, 3, 4, 5, 6, 7, 8], 1)).toEqual([true, [9, 2, 3, 4, 5, 6, 7, 8]])
  expect(add([9, 2], 3)).toEqual([true, [9, 2]])
  expect(add([9, 2, 4], 1)).toEqual([true, [9, 2, 4]])
  expect(trajectory.promptIds).toEqual([1, 2])
})

test('later turns have what is left of max_seq_len, and end where nothing is', async () => {
  const tiny = await openTiny()
  const answer = { ids: [...tiny.encode('yes'), tiny.eosTokenIds[0]] }
  const first = new ChatTemplate(tiny).prompt([{ role: 'user', content: 'Begin the game.' }]).ids.length
  const second = (await play(tiny, [answer, answer], [said(0), said(1)])).completions[1].promptIds.length
  const { generator } = await play(tiny, [answer, answer], [said(0), said(1)], { maxSeqTokens: second + 3 })
  expect(generator.requests.map(({ sampling: s }) => s.max_tokens)).toEqual([24, 3])
  const last = await play(tiny, [answer, answer], [said(0), said(1)], { maxSeqTokens: second + 1 })
  expect(last.generator.requests.map(({ sampling: s }) => s.max_tokens)).toEqual([24, 1])
  expect(second).toBeGreaterThan(first)
  await expect(play(tiny, [answer, answer], [said(0), said(1)], { maxSeqTokens: second })).rejects.toThrow(ContextFullError)
})
