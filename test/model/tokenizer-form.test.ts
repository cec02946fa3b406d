/** Parts of a tokenizer.json that the library reads otherwise than Python's tokenizers, whose splits these are (0.23). */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { charsmapOf } from '../../src/model/tokenizer/charsmap.ts'
import { makeTokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { fixtures, userErrorOf } from './helpers.ts'

type Json = Record<string, unknown>

const text = 'a  b\u0085é1, «ok»!? café\ufeff x_y'

function tokenizerOf(tokenizerJson: Json) {
  return makeTokenizer({
    label: 'folder',
    tokenizerJson: { added_tokens: [], ...tokenizerJson },
    tokenizerConfig: {},
    chatTemplate: null,
    eosTokenIds: [],
  })
}

const splitOf = (behavior: string, invert = false, pattern: Json = { String: ' ' }) => ({
  type: 'Split',
  pattern,
  behavior,
  invert,
})
const words = { Regex: String.raw`\w+` }

describe('text is split as Python splits it by', () => {
  test.each<[Json, string[]]>([
    [
      { type: 'Metaspace', replacement: '\u2581' },
      ['\u2581a', '\u2581', '\u2581b\u0085é1,', '\u2581«ok»!?', '\u2581café\ufeff', '\u2581x_y'],
    ],
    [
      { type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'never', split: false },
      ['a\u2581\u2581b\u0085é1,\u2581«ok»!?\u2581café\ufeff\u2581x_y'],
    ],
    [{ type: 'Whitespace' }, ['a', 'b', 'é1', ',', '«', 'ok', '»!?', 'café', '\ufeff', 'x_y']],
    [{ type: 'WhitespaceSplit' }, ['a', 'b', 'é1,', '«ok»!?', 'café\ufeff', 'x_y']],
    [{ type: 'Punctuation' }, ['a  b\u0085é1', ',', ' ', '«', 'ok', '»', '!', '?', ' café\ufeff x', '_', 'y']],
    [{ type: 'Punctuation', behavior: 'MergedWithPrevious' }, ['a  b\u0085é1,', ' «', 'ok»', '!', '?', ' café\ufeff x_', 'y']],
    [splitOf('MergedWithPrevious'), ['a ', ' ', 'b\u0085é1, ', '«ok»!? ', 'café\ufeff ', 'x_y']],
    [splitOf('MergedWithNext'), ['a', ' ', ' b\u0085é1,', ' «ok»!?', ' café\ufeff', ' x_y']],
    [splitOf('Contiguous'), ['a', '  ', 'b\u0085é1,', ' ', '«ok»!?', ' ', 'café\ufeff', ' ', 'x_y']],
    [splitOf('Removed'), ['a', 'b\u0085é1,', '«ok»!?', 'café\ufeff', 'x_y']],
    [splitOf('Isolated', true), ['a', ' ', ' ', 'b\u0085é1,', ' ', '«ok»!?', ' ', 'café\ufeff', ' ', 'x_y']],
    [splitOf('Removed', true, words), ['a', 'b', 'é1', 'ok', 'café', 'x_y']],
    [splitOf('Removed', false, words), ['  ', '\u0085', ', «', '»!? ', '\ufeff ']],
  ])('%j', (pre, pieces) => {
    const vocab = Object.fromEntries([...new Set(pieces)].map((piece, id) => [piece, id]))
    const tokenizer = tokenizerOf({ model: { type: 'WordLevel', vocab }, pre_tokenizer: pre })
    expect(tokenizer.encode(text).map((id) => tokenizer.idToToken(id))).toEqual(pieces)
  })
})

test('a Metaspace decoder takes the first space away only where one was put there', () => {
  const model = { type: 'WordLevel', vocab: { '\u2581a': 0, '\u2581b': 1 } }
  const decoded = (prepend_scheme: string) =>
    tokenizerOf({ model, decoder: { type: 'Metaspace', replacement: '\u2581', prepend_scheme } }).decode([0, 1])
  expect([decoded('first'), decoded('never')]).toEqual(['a b', ' a b'])
  const several = { type: 'WordLevel', vocab: { '\u2581\u2581a': 0, '  ': 1 } }
  const decoder = { type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'always' }
  const tokenizer = tokenizerOf({ model: several, decoder })
  expect([tokenizer.decode([0, 1, 0]), tokenizer.decode([1, 0])]).toEqual(['a    a', '    a'])
})

test("white space around added tokens, and at a text's ends, is taken away as Python takes it", () => {
  const added = (content: string, id: number, more: Json) => ({ id, content, special: true, normalized: false, ...more })
  const signs = ['a', '\u0085', '\ufeff', ' ', '\u3000']
  const model = { type: 'BPE', vocab: Object.fromEntries(signs.map((sign, id) => [sign, id])), merges: [] }
  const added_tokens = [added('<l>', 5, { lstrip: true }), added('<r>', 6, { rstrip: true })]
  const ids = (text: string, more: Json = {}) => tokenizerOf({ model, added_tokens, ...more }).encode(text)
  expect(ids('<r>\u0085 \u3000a')).toEqual([6, 0])
  expect(ids('<r> \ufeffa')).toEqual([6, 2, 0])
  expect(ids('a\u0085<l>\u0085')).toEqual([0, 5, 1])
  expect(ids('a\ufeff <l>')).toEqual([0, 2, 5])
  const normalizer = { type: 'Strip', strip_left: true, strip_right: true }
  expect(ids('\u0085\ufeffa \u0085', { normalizer })).toEqual([2, 0])
})

test('white space that is an added token itself stays beside those that take white space away', () => {
  const added = (content: string, id: number, more: Json = {}) => ({ id, content, special: true, normalized: false, ...more })
  const model = { type: 'BPE', vocab: { a: 0, ' ': 1 }, merges: [] }
  const added_tokens = [added('<l>', 2, { lstrip: true }), added('<r>', 3, { rstrip: true })]
  const ids = (line: Json, text: string) => tokenizerOf({ model, added_tokens: [...added_tokens, line] }).encode(text)
  const line = added('\n', 4)
  expect(ids(line, '<r>\na')).toEqual([3, 4, 0])
  expect(ids(line, 'a \n<l>')).toEqual([0, 1, 4, 2])
  expect(ids(line, '<r> \n <l>')).toEqual([3, 4, 2])
  // Normalized tokens are looked for in what the others leave.
  expect(ids({ ...line, normalized: true }, '<r>\na\n<l>')).toEqual([3, 0, 2])
})

test('a template adds tokens by their ids, whatever their names are', async () => {
  const model = { type: 'WordLevel', vocab: { a: 0, x: 1 } }
  const added_tokens = [{ id: 2, content: '<new>', special: true }]
  const template = (ids: number[]) => ({
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<old>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [],
    special_tokens: { '<old>': { id: '<old>', ids, tokens: ['<old>'] } },
  })
  expect(tokenizerOf({ model, added_tokens, post_processor: template([2, 1]) }).encode('a')).toEqual([2, 1, 0])
  const inner = { type: 'Sequence', processors: [{ type: 'ByteLevel' }, template([2])] }
  expect(tokenizerOf({ model, added_tokens, post_processor: inner }).encode('a')).toEqual([2, 0])
  expect(await userErrorOf(() => tokenizerOf({ model, added_tokens, post_processor: template([3]) }))).toContain(
    'its post_processor adds the token 3, which it does not have',
  )
})

test('keys of tokenizer_config.json that only other tokenizers know change no text', () => {
  const model = { type: 'BPE', vocab: { a: 0, ' ': 1, A: 2 }, merges: [] }
  const tokenizerConfig = { remove_space: true, do_lowercase_and_remove_accent: true }
  const parts = { label: 'folder', tokenizerJson: { added_tokens: [], model }, chatTemplate: null, eosTokenIds: [] }
  expect(makeTokenizer({ ...parts, tokenizerConfig }).encode(' A  a ')).toEqual([1, 2, 1, 1, 0, 1])
  const words = { type: 'WordLevel', vocab: { a: 0, '<unk>': 1 }, unk_token: '<unk>' }
  expect([tokenizerOf({ model: words }).encode('b'), tokenizerOf({ model: words }).encode('a')]).toEqual([[1], [0]])
})

test.each<[Json, string]>([
  [
    { added_tokens: [{ id: 1, content: 'model', single_word: true }] },
    'its added token "model" is marked as single_word, which is not supported.',
  ],
  [
    { model: { type: 'BPE', vocab: { a: 0 }, merges: [], continuing_subword_prefix: '##' } },
    'its continuing_subword_prefix is "##"; BPE models are supported only without one.',
  ],
  [
    { pre_tokenizer: splitOf('MergedWithNext', true) },
    "its pre-tokenizer's Split with behavior MergedWithNext and invert true is not supported.",
  ],
])('what would be read wrong is refused: %j', async (part, message) => {
  const model = { type: 'WordLevel', vocab: { a: 0 } }
  expect(await userErrorOf(() => tokenizerOf({ model, ...part }))).toBe(`The tokenizer of folder cannot be read: ${message}`)
})

test("a precompiled table of letters is the file's own", async () => {
  const { charsmap, texts } = JSON.parse(readFileSync(join(fixtures, 'charsmap.json'), 'utf8')) as {
    charsmap: string
    texts: [string, string][]
  }
  const written = charsmapOf(charsmap)
  expect(texts.map(([text]) => [text, written(text)])).toEqual(texts)
  const tokenizer = (precompiled_charsmap: string) => {
    const normalizer = { type: 'Sequence', normalizers: [{ type: 'Precompiled', precompiled_charsmap }] }
    return tokenizerOf({ model: { type: 'WordLevel', vocab: { aBBa: 0 } }, normalizer })
  }
  expect(tokenizer(charsmap).encode('ABBA')).toEqual([0])
  expect(await userErrorOf(() => tokenizer('AAQAAAAw'))).toContain('its precompiled_charsmap is incomplete')
})

test('a Unigram model that falls back to bytes gives them, and the unknown token where it has them not', () => {
  const vocab = ['<unk>', '<0x0A>', '<0xC3>', '<0xA9>', 'a'].map((piece, i) => [piece, -i])
  const tokenizer = (byte_fallback: boolean) =>
    tokenizerOf({ model: { type: 'Unigram', vocab, unk_id: 0, byte_fallback }, decoder: { type: 'ByteFallback' } })
  expect(tokenizer(true).encode('a\né')).toEqual([4, 1, 2, 3])
  expect(tokenizer(true).encode('a\u20ac')).toEqual([4, 0])
  expect(tokenizer(true).decode([4, 1, 2, 3])).toBe('a\né')
  expect(tokenizer(false).encode('a\né\u20ac')).toEqual([4, 0])
})
