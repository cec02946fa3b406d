import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { GgufFile } from '../../src/model/gguf/gguf.ts'
import { ggufEosTokenIds, ggufTokenizerParts } from '../../src/model/gguf/tokenizer.ts'
import { decodeStream, loadTokenizer, makeTokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import type { Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import type { Message } from '../../src/common/types.ts'
import fc from '../fast-check.ts'
import { fixtures, golden, newFolder, smollm2, userErrorOf, withoutSmollm2, writeGguf } from './helpers.ts'

interface Golden {
  texts: { text: string; ids: number[]; decoded: string }[]
  chats: { messages: Message[]; add_generation_prompt: boolean; text: string; ids: number[] }[]
}
const { texts, chats } = JSON.parse(readFileSync(join(golden, 'misc/tokenizer.json'), 'utf8')) as Golden

/** Pieces of a stream of ids, and the rest. */
function streamed(tokenizer: Tokenizer, ids: number[], options?: { skipSpecialTokens?: boolean }): string[] {
  const stream = decodeStream(tokenizer, options)
  return [...ids.map((id) => stream.push(id)), stream.flush()]
}

/** The 256 signs of the byte-level alphabet, by byte. */
const alphabet = (() => {
  const out: string[] = []
  let next = 256
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
    out.push(String.fromCharCode(printable ? byte : next++))
  }
  return out
})()

/** A folder with a tokenizer whose tokens are the bytes, one merge ("he"), and a special token. */
function byteTokenizer(config: Record<string, unknown> = {}): string {
  const dir = newFolder()
  const added = { id: 257, content: '<end>', single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true }
  const vocab = Object.fromEntries([...alphabet, 'he'].map((token, id) => [token, id]))
  const model = { type: 'BPE', vocab, merges: [['h', 'e']] }
  const json = {
    version: '1.0',
    added_tokens: [added],
    pre_tokenizer: byteLevel,
    decoder: byteLevel,
    normalizer: null,
    post_processor: null,
    model,
  }
  writeFileSync(join(dir, 'tokenizer.json'), JSON.stringify(json))
  writeFileSync(join(dir, 'tokenizer_config.json'), JSON.stringify(config))
  return dir
}

describe('a byte-level tokenizer of a folder', () => {
  test('encodes and decodes any text', async () => {
    const tokenizer = await loadTokenizer(byteTokenizer(), [257])
    expect(tokenizer.encode('hehh<end>')).toEqual([256, 104, 104, 257])
    expect(tokenizer.decode([256, 257], { skipSpecialTokens: true })).toBe('he')
    expect([tokenizer.vocabSize, tokenizer.eosTokenIds, tokenizer.tokenToId('<end>'), tokenizer.idToToken(256)]).toEqual([
      258,
      [257],
      257,
      'he',
    ])
    expect([
      tokenizer.isSpecial(257),
      tokenizer.isSpecial(256),
      tokenizer.idToToken(258),
      tokenizer.tokenToId('nothing'),
    ]).toEqual([true, false, null, null])
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text)
      }),
    )
  })
  test('decodes to what the tokens say: no cleaning up of spaces, nothing for ids without a token', async () => {
    const tokenizer = await loadTokenizer(byteTokenizer({ clean_up_tokenization_spaces: true }), [])
    expect(tokenizer.decode(tokenizer.encode("a . b , c n't"))).toBe("a . b , c n't")
    expect(tokenizer.decode([])).toBe('')
    expect(tokenizer.decode(Int32Array.of(5000, 256, 5000))).toBe('he')
  })
  test('streams whole characters, and in all what decode gives, whatever the bytes', async () => {
    const tokenizer = await loadTokenizer(byteTokenizer(), [])
    const bytes = [...Buffer.from('é😀!')]
    expect(streamed(tokenizer, bytes)).toEqual(['', 'é', '', '', '', '😀', '!', ''])
    expect(streamed(tokenizer, [0xf0, 0x9f])).toEqual(['', '', '\ufffd'])
    expect(streamed(tokenizer, [0xff, 0x61, 257, 0x62], { skipSpecialTokens: true })).toEqual(['', '\ufffda', '', 'b', ''])
    // What can not become a character any more is not held back.
    expect(streamed(tokenizer, Array(6).fill(0xff))).toEqual(['', '', '', '\ufffd', '\ufffd', '\ufffd', '\ufffd\ufffd\ufffd'])
    const anyId = fc.oneof(fc.nat({ max: 257 }), fc.constantFrom(...Buffer.from('€😀\ufffd'), 0xff, 257))
    fc.assert(
      fc.property(fc.array(anyId, { maxLength: 30 }), fc.boolean(), (ids, skipSpecialTokens) => {
        expect(streamed(tokenizer, ids, { skipSpecialTokens }).join('')).toBe(tokenizer.decode(ids, { skipSpecialTokens }))
      }),
      { numRuns: 1000 },
    )
  })
  test('renders chats with the template of tokenizer_config.json, or of chat_template.jinja before it', async () => {
    const dir = byteTokenizer({
      chat_template: [null, { name: 'default', template: '{{ bos_token }}{{ messages[0].content }}' }],
      bos_token: { content: '<end>' },
    })
    const messages: Message[] = [{ role: 'user', content: 'hi' }]
    expect((await loadTokenizer(dir, [])).encodeChat(messages)).toEqual([257, 104, 105])
    writeFileSync(
      join(dir, 'chat_template.jinja'),
      '{%- if thinking %}T{% endif %}\n{{ messages[0].role }}{% if add_generation_prompt %}:{% endif %}',
    )
    const tokenizer = await loadTokenizer(dir, [])
    // Python renders with trim_blocks: the newline after a block goes.
    expect(tokenizer.renderChat(messages)).toBe('user:')
    expect(tokenizer.renderChat(messages, { addGenerationPrompt: false, variables: { thinking: true } })).toBe('Tuser')
    writeFileSync(join(dir, 'chat_template.jinja'), "{{ raise_exception('roles must alternate') }}")
    const refusing = await loadTokenizer(dir, [])
    expect(await userErrorOf(() => refusing.renderChat(messages))).toContain('does not take these messages: roles must alternate')
    expect(await userErrorOf(() => refusing.renderChat(messages, { chatTemplate: '{% raw %}' }))).toBe(
      'The chat_template of the request cannot be read: Unknown statement type: raw.',
    )
  })
  test("is saved with SentencePiece's file, which llama.cpp's converter asks for", async () => {
    const dir = byteTokenizer({})
    writeFileSync(join(dir, 'tokenizer.model'), Uint8Array.of(10, 255, 0))
    const out = newFolder()
    await (await loadTokenizer(dir, [])).saveTo(out)
    expect([...readFileSync(join(out, 'tokenizer.model'))]).toEqual([10, 255, 0])
  })
  test("is told of tools by the template's list entry tool_use, and its list is saved as it is", async () => {
    const named = ['default', 'tool_use'].map((name) => ({ name, template: `${name} {{ tools | tojson }}` }))
    const dir = byteTokenizer({ chat_template: named })
    const out = join(newFolder(), 'named')
    await (await loadTokenizer(dir, [])).saveTo(out)
    expect(existsSync(join(out, 'chat_template.jinja'))).toBe(false)
    for (const each of [dir, out]) {
      const tokenizer = await loadTokenizer(each, [])
      expect([tokenizer.chatTemplate, tokenizer.toolTemplate]).toEqual(named.map(({ template }) => template))
      const tools = [{ type: 'function' as const, function: { name: 'add', parameters: {} } }]
      expect(tokenizer.renderChat([], { tools })).toContain('tool_use [{"type"')
      expect(tokenizer.renderChat([], { tools: [] })).toBe('default null')
      expect(tokenizer.renderChat([])).toBe('default null')
    }
    // The file stands before them, and an editor may have put a mark at its beginning.
    writeFileSync(join(dir, 'chat_template.jinja'), '\ufeffall')
    const ofFile = await loadTokenizer(dir, [])
    expect([ofFile.chatTemplate, ofFile.toolTemplate]).toEqual(['all', 'all'])
    // Where there are several, transformers writes the others into a folder.
    mkdirSync(join(dir, 'additional_chat_templates'))
    writeFileSync(join(dir, 'additional_chat_templates/tool_use.jinja'), '\ufeffwith tools')
    writeFileSync(join(dir, 'additional_chat_templates/rag.jinja'), 'with documents')
    const again = join(newFolder(), 'files')
    await (await loadTokenizer(dir, [])).saveTo(again)
    for (const each of [dir, again]) {
      const tokenizer = await loadTokenizer(each, [])
      expect([tokenizer.chatTemplate, tokenizer.toolTemplate]).toEqual(['all', 'with tools'])
    }
    expect(readFileSync(join(again, 'additional_chat_templates/rag.jinja'), 'utf8')).toBe('with documents')
  })
  test('with bytes as SentencePiece has them keeps U+FEFF', async () => {
    const dir = byteTokenizer()
    const json = JSON.parse(readFileSync(join(dir, 'tokenizer.json'), 'utf8')) as Record<string, unknown>
    const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`)
    const model = { type: 'BPE', vocab: Object.fromEntries([...bytes, 'x'].map((token, id) => [token, id])), merges: [] }
    const fallback = { type: 'ByteFallback' }
    for (const decoder of [fallback, { type: 'Sequence', decoders: [fallback, { type: 'Fuse' }] }]) {
      const tokenizerJson = { ...json, model: { ...model, byte_fallback: true }, pre_tokenizer: null, decoder }
      const tokenizer = makeTokenizer({ label: dir, tokenizerJson, tokenizerConfig: {}, chatTemplate: null, eosTokenIds: [] })
      expect(tokenizer.decode([256, 0xef, 0xbb, 0xbf, 256])).toBe('x\ufeffx')
      expect(tokenizer.decode([0xef, 0xbb, 0xbf, 256])).toBe('\ufeffx')
    }
  })
  // As AutoTokenizer of transformers 5.18 does.
  test('finds added tokens as tokenizer_config.json and added_tokens.json have them, whatever tokenizer.json says', async () => {
    const dir = byteTokenizer()
    const file = (name: string) => join(dir, name)
    const json = JSON.parse(readFileSync(file('tokenizer.json'), 'utf8')) as Record<string, object>
    const flags = { lstrip: false, rstrip: false, normalized: false, single_word: false, special: false }
    const end = { id: 258, content: '<e>', ...flags }
    const read = async (added: object[], config: object, more: object = {}) => {
      const model = { ...json.model, vocab: { ...(json.model as { vocab: object }).vocab, '<s>': 257 } }
      writeFileSync(file('tokenizer.json'), JSON.stringify({ ...json, added_tokens: added, model }))
      writeFileSync(file('tokenizer_config.json'), JSON.stringify(config))
      writeFileSync(file('added_tokens.json'), JSON.stringify(more))
      const tokenizer = await loadTokenizer(dir, [])
      const ids = tokenizer.encode('a <e> b<s>c')
      return [ids.length, tokenizer.decode(ids, { skipSpecialTokens: true })]
    }
    const decoder = (change: object) => ({ added_tokens_decoder: { 258: { ...end, id: undefined, ...change } } })
    expect(await read([end], {})).toEqual([9, 'a <e> b<s>c'])
    expect(await read([end], decoder({ special: true }))).toEqual([9, 'a  b<s>c'])
    expect(await read([{ ...end, special: true }], decoder({}))).toEqual([9, 'a  b<s>c'])
    expect(await read([end], decoder({ rstrip: true, lstrip: true }))).toEqual([7, 'a<e>b<s>c'])
    expect(await read([{ ...end, rstrip: true }], decoder({}))).toEqual([9, 'a <e> b<s>c'])
    expect(await read([end], { bos_token: '<s>' })).toEqual([7, 'a <e> bc'])
    expect(await read([end], { additional_special_tokens: [{ content: '<s>', ...flags }] })).toEqual([7, 'a <e> bc'])
    expect(await read([end], { bos_token: '<unknown>' })).toEqual([9, 'a <e> b<s>c'])
    expect(await read([], {}, { '<e>': 258 })).toEqual([9, 'a <e> b<s>c'])
    expect(await read([], { eos_token: '<e>' }, { '<e>': 258 })).toEqual([9, 'a  b<s>c'])
    // A config that lists its added tokens is newer.
    expect(await read([], { added_tokens_decoder: {} }, { '<e>': 258 })).toEqual([11, 'a <e> b<s>c'])
  })
  test('tells the template of all special tokens with names, also those of an older special_tokens_map.json', async () => {
    const chat_template =
      '{{ bos_token }}|{{ eos_token }}|{{ sep_token }}|{{ image_token }}|{{ video_token }}|{{ add_bos_token }}'
    const config = {
      chat_template,
      bos_token: 'B',
      sep_token: { content: 'S' },
      image_token: 'I',
      extra_special_tokens: { video_token: 'V' },
      add_bos_token: false,
    }
    const dir = byteTokenizer(config)
    expect((await loadTokenizer(dir, [])).renderChat([])).toBe('B||S|I|V|')
    writeFileSync(join(dir, 'special_tokens_map.json'), '{"bos_token": "M", "eos_token": {"content": "E"}}')
    expect((await loadTokenizer(dir, [])).renderChat([])).toBe('M|E|S|I|V|')
    // As transformers reads it: a config that lists its added tokens is newer than the map.
    writeFileSync(join(dir, 'tokenizer_config.json'), JSON.stringify({ ...config, added_tokens_decoder: {} }))
    expect((await loadTokenizer(dir, [])).renderChat([])).toBe('B||S|I|V|')
  })
  test('says what is missing or broken', async () => {
    const dir = newFolder()
    expect(await userErrorOf(() => loadTokenizer(dir, []))).toContain(`${dir} has no tokenizer.json`)
    writeFileSync(join(dir, 'tokenizer.json'), '{"model": {"type": "BPE"')
    expect(await userErrorOf(() => loadTokenizer(dir, []))).toContain('tokenizer.json is not valid JSON')
    writeFileSync(join(dir, 'tokenizer.json'), '{"model": {"type": "Odd"}, "added_tokens": []}')
    expect(await userErrorOf(() => loadTokenizer(dir, []))).toContain(
      `The tokenizer of ${dir} cannot be read: Unknown TokenizerModel type: Odd.`,
    )
    const tokenizer = await loadTokenizer(byteTokenizer(), [])
    expect(tokenizer.hasChatTemplate).toBe(false)
    expect(await userErrorOf(() => tokenizer.encodeChat([]))).toContain('has no chat template')
  })
  test('is written as it was', async () => {
    const dir = byteTokenizer({ chat_template: 'x', extra: 1 })
    const out = join(newFolder(), 'new')
    await (await loadTokenizer(dir, [])).saveTo(out)
    for (const file of ['tokenizer.json', 'tokenizer_config.json'])
      expect(readFileSync(join(out, file))).toEqual(readFileSync(join(dir, file)))
    expect(readFileSync(join(out, 'chat_template.jinja'), 'utf8')).toBe('x')
  })
})

describe('a GGUF whose tokenizer is not known', () => {
  const path = join(newFolder(), 'a.gguf')
  test.each([
    [{}, 'has no tokenizer (tokenizer.ggml.model)'],
    [
      { 'tokenizer.ggml.model': 'bert' },
      'its tokenizer is of the kind "bert", but only byte-level BPE ("gpt2") and SentencePiece ("llama") are supported',
    ],
    [{ 'tokenizer.ggml.model': 'llama' }, 'lacks tokenizer.ggml.tokens'],
    [
      { 'tokenizer.ggml.model': 'llama', 'tokenizer.ggml.tokens': ['a'] },
      'its tokenizer is SentencePiece ("llama") with a space before a text (tokenizer.ggml.add_space_prefix)',
    ],
    [
      { 'tokenizer.ggml.model': 'llama', 'tokenizer.ggml.tokens': ['a'], 'tokenizer.ggml.add_space_prefix': false },
      'lacks tokenizer.ggml.scores',
    ],
    [
      { 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'bloom' },
      'its pre-tokenizer (tokenizer.ggml.pre) "bloom" is not supported; smollm, gpt-2, qwen2, deepseek-r1-qwen, deepseek-coder, llama-bpe, llama3, llama-v3, tekken, lfm2, refact, dbrx, gpt-4o are.',
    ],
    [{ 'tokenizer.ggml.model': 'gpt2' }, 'its pre-tokenizer (tokenizer.ggml.pre) "" is not supported'],
    [{ 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'qwen2' }, 'lacks tokenizer.ggml.tokens'],
  ])('%j', async (metadata, message) => {
    writeGguf(path, metadata as Record<string, string>, {})
    const file = await GgufFile.open(path)
    const text = await userErrorOf(() => ggufTokenizerParts(file))
    expect(text).toContain(path)
    expect(text).toContain(message)
    file.close()
  })
  test.each(['llama-bpe', 'llama3', 'llama-v3'])(
    'tokens that end a turn, unused tokens, the bos of Llama 3 (%s), and a template for tools',
    async (pre) => {
      const tokens = [...alphabet, '<|begin_of_text|>', '<|eot_id|>', '<|end_of_text|>', '[PAD]', '<tool>']
      const types = [...alphabet.map(() => 1), 3, 3, 3, 5, 4]
      const metadata = {
        'tokenizer.ggml.model': 'gpt2',
        'tokenizer.ggml.pre': pre,
        'tokenizer.ggml.tokens': tokens,
        'tokenizer.ggml.token_type': { i32s: types },
        'tokenizer.ggml.merges': ['h e'],
        'tokenizer.ggml.bos_token_id': { u32: 256 },
        'tokenizer.ggml.eos_token_id': { u32: 257 },
        'tokenizer.chat_template': 'plain',
        'tokenizer.chat_template.tool_use': 'with tools',
      }
      writeGguf(path, metadata, {})
      const file = await GgufFile.open(path)
      const tokenizer = makeTokenizer(ggufTokenizerParts(file))
      expect(tokenizer.eosTokenIds).toEqual([257, 258])
      const saved = newFolder()
      await tokenizer.saveTo(saved)
      for (const each of [tokenizer, await loadTokenizer(saved, [])])
        expect([each.chatTemplate, each.toolTemplate]).toEqual(['plain', 'with tools'])
      expect(tokenizer.encode('a<tool>')).toEqual([256, 97, 260])
      expect(tokenizer.encode('a', { addSpecialTokens: false })).toEqual([97])
      expect([tokenizer.idToToken(259), tokenizer.isSpecial(260), tokenizer.isSpecial(257)]).toEqual([null, false, true])
      file.close()
    },
  )
})

// As the models' own generation_config.json have them; llama.cpp, which knows them by their text, stops at them too.
test.each([
  ['Phi-4-mini', 'gpt2', 'gpt-4o', '<|endoftext|>', '<|end|>'],
  ['Olmo 3', 'gpt2', 'dbrx', '<|endoftext|>', '<|im_end|>'],
  ['Phi-4', 'gpt2', 'dbrx', '<|im_end|>', '<|endoftext|>'],
  ['Gemma 3', 'llama', 'default', '<eos>', '<end_of_turn>'],
  ['Gemma 3', 'llama', 'default', '<end_of_turn>', '<eos>'],
])('%s (%s, %s) ends at %s, which the file names, and at %s', async (_, model, pre, named, other) => {
  const path = join(newFolder(), 'a.gguf')
  const metadata = {
    'tokenizer.ggml.model': model,
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': [...alphabet, named, other],
    'tokenizer.ggml.token_type': { i32s: [...alphabet.map(() => 1), 3, 3] },
    'tokenizer.ggml.eos_token_id': { u32: 256 },
  }
  writeGguf(path, metadata, {})
  const file = await GgufFile.open(path)
  expect(ggufEosTokenIds(file)).toEqual([256, 257])
  file.close()
})

test("a DeepSeek R1 on Qwen's tokenizer begins with a bos where a Qwen has none", async () => {
  const path = join(newFolder(), 'a.gguf')
  const encoded = async (pre: string) => {
    const metadata = {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.tokens': [...alphabet, '<bos>'],
      'tokenizer.ggml.token_type': { i32s: [...alphabet.map(() => 1), 3] },
      'tokenizer.ggml.merges': ['1 2'],
      'tokenizer.ggml.bos_token_id': { u32: 256 },
    }
    writeGguf(path, metadata, {})
    const file = await GgufFile.open(path)
    const ids = makeTokenizer(ggufTokenizerParts(file)).encode('12')
    file.close()
    return ids
  }
  expect(await encoded('qwen2')).toEqual([49, 50])
  expect(await encoded('deepseek-r1-qwen')).toEqual([256, 49, 50])
})

test("Granite's digits: one by one in Granite 3, three together in Granite 4, and no bos", async () => {
  const path = join(newFolder(), 'a.gguf')
  for (const [pre, ids] of [
    ['refact', [49, 50, 51, 52]],
    ['dbrx', [258, 52]],
  ] as const) {
    const metadata = {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': pre,
      'tokenizer.ggml.tokens': [...alphabet, '<bos>', '12', '123', '1234'],
      'tokenizer.ggml.token_type': { i32s: [...alphabet.map(() => 1), 3, 1, 1, 1] },
      'tokenizer.ggml.merges': ['1 2', '12 3', '123 4'],
      'tokenizer.ggml.bos_token_id': { u32: 256 },
    }
    writeGguf(path, metadata, {})
    const file = await GgufFile.open(path)
    expect(makeTokenizer(ggufTokenizerParts(file)).encode('1234'), pre).toEqual(ids)
    file.close()
  }
})

test("Phi-4-mini's words end with their apostrophe's letters, and three digits go together", async () => {
  const path = join(newFolder(), 'a.gguf')
  const metadata = {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'gpt-4o',
    'tokenizer.ggml.tokens': [...alphabet, "b'", "b's", '12', '123', '1234'],
    'tokenizer.ggml.token_type': { i32s: [...alphabet, 1, 2, 3, 4, 5].map(() => 1) },
    'tokenizer.ggml.merges': ["b '", "b' s", '1 2', '12 3', '123 4'],
  }
  writeGguf(path, metadata, {})
  const file = await GgufFile.open(path)
  const tokenizer = makeTokenizer(ggufTokenizerParts(file))
  // A long s, too, is an s in other case: Python's tokenizers and tiktoken split so.
  expect(tokenizer.encode("b'\u017f")).toEqual([256, 0xc5, 0xbf])
  expect([tokenizer.encode("b's1234"), tokenizer.decode([257, 259, 52])]).toEqual([[257, 259, 52], "b's1234"])
  file.close()
})

test("Gemma's SentencePiece: merges by score, runs of spaces and line ends that are one token, and bytes of what it does not know", async () => {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`)
  const spaces = ['  ', '\u2581\u2581\u2581']
  const special = ['<pad>', '<eos>', '<bos>', '<unk>', '<end_of_turn>']
  const [at, pieces] = [
    special.length + bytes.length,
    ['\n', '\n\n', ...spaces, '\u2581', 'a', 'b', 'ab', '\u2581a', 'ba', '\u2581ab'],
  ]
  const metadata = {
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.pre': 'default',
    'tokenizer.ggml.tokens': [...special, ...bytes, ...pieces],
    'tokenizer.ggml.token_type': { i32s: [3, 3, 3, 2, 3, ...bytes.map(() => 6), 4, 4, 4, 4, ...pieces.slice(4).map(() => 1)] },
    // ab comes before \u2581a, and \u2581a before ba.
    'tokenizer.ggml.scores': {
      f32s: [...special, ...bytes].map(() => 0).concat([-1000, -1000, -1000, -1000, -9, -8, -7, -1, -2, -3, -4]),
    },
    'tokenizer.ggml.bos_token_id': { u32: 2 },
    'tokenizer.ggml.eos_token_id': { u32: 1 },
    'tokenizer.ggml.unknown_token_id': { u32: 3 },
    'tokenizer.ggml.add_space_prefix': false,
  }
  const path = join(newFolder(), 'a.gguf')
  writeGguf(path, metadata, {})
  const file = await GgufFile.open(path)
  const tokenizer = makeTokenizer(ggufTokenizerParts(file))
  file.close()
  const [line, lines, two, three, , a, b, ab, , ba, spaceAb] = pieces.map((_, i) => at + i)
  const saved = newFolder()
  await tokenizer.saveTo(saved)
  for (const each of [tokenizer, await loadTokenizer(saved, [1, 4])]) {
    expect(each.eosTokenIds).toEqual([1, 4])
    const encoded = (text: string) => each.encode(text, { addSpecialTokens: false })
    expect(each.encode('a')).toEqual([2, a])
    expect(encoded('ab ab')).toEqual([ab, spaceAb])
    expect(encoded('bab')).toEqual([b, ab])
    expect(encoded('baa')).toEqual([ba, a])
    expect(encoded('b  b   b     b')).toEqual([b, two, b, three, b, three, two, b])
    expect(encoded('\n\n\na<end_of_turn>')).toEqual([lines, line, a, 4])
    expect(encoded('é')).toEqual([5 + 0xc3, 5 + 0xa9])
    for (const text of ['ab ab  b   a\n\né b ', ' a', '  ']) expect(each.decode(encoded(text))).toBe(text)
  }
})

describe.skipIf(withoutSmollm2)('the tokenizer of SmolLM2', () => {
  const load = async (pre?: string) => {
    const file = await GgufFile.open(smollm2)
    if (pre) file.metadata.set('tokenizer.ggml.pre', pre)
    const tokenizer = makeTokenizer(ggufTokenizerParts(file))
    file.close()
    return tokenizer
  }
  test('19 texts: ids, decoded, streamed', async () => {
    const tokenizer = await load()
    for (const { text, ids, decoded } of texts) {
      expect(tokenizer.encode(text)).toEqual(ids)
      expect(tokenizer.decode(ids)).toBe(decoded)
      expect(streamed(tokenizer, ids).join('')).toBe(decoded)
    }
  })
  test('4 chats: text and ids; and again from the files that saveTo wrote', async () => {
    const tokenizer = await load()
    const dir = join(newFolder(), 'saved')
    mkdirSync(dir)
    await tokenizer.saveTo(dir)
    for (const each of [tokenizer, await loadTokenizer(dir, tokenizer.eosTokenIds)]) {
      expect([each.vocabSize, each.eosTokenIds]).toEqual([49152, [2]])
      for (const { messages, add_generation_prompt: addGenerationPrompt, text, ids } of chats) {
        expect(each.renderChat(messages, { addGenerationPrompt })).toBe(text)
        expect(each.encodeChat(messages, { addGenerationPrompt })).toEqual(ids)
      }
    }
  })
  // The fixture was made by Python's tokenizers with this vocabulary and the splits of transformers; 3000 more texts agreed when it was made.
  test.each(['qwen2', 'llama-bpe', 'tekken', 'deepseek-coder', 'gpt-2'])(
    'split as %s does: the ids of Python tokenizers',
    async (pre) => {
      const tokenizer = await load(pre)
      const cases = JSON.parse(readFileSync(join(fixtures, 'tokenizer-kinds.json'), 'utf8')) as Record<
        string,
        { text: string; ids: number[] }[]
      >
      expect(cases[pre].length).toBeGreaterThan(40)
      for (const { text, ids } of cases[pre]) expect(tokenizer.encode(text, { addSpecialTokens: false })).toEqual(ids)
    },
  )
})
