/** Text of a stream: together it is the text of all ids, up to the first stop string, and nothing is ever taken back. */
import { describe, expect, test, vi } from 'vitest'
import { neutralSampling } from '../../src/common/sampling.ts'
import { Detokenizer } from '../../src/inference/detokenizer.ts'
import type { DetokenizerOptions } from '../../src/inference/detokenizer.ts'
import { Sequence, type Ending } from '../../src/inference/sequence.ts'
import { Offsets } from '../../src/inference/server/logprobs.ts'
import { OutputText } from '../../src/inference/server/text.ts'
import { makeTokenizer, type Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { smollm2, withoutSmollm2 } from '../model/helpers.ts'
import fc from '../fast-check.ts'
import { openGgufTokenizer, openTiny } from './tokenizers.ts'

function streamed(tokenizer: Tokenizer, ids: readonly number[], options?: DetokenizerOptions) {
  const stream = new Detokenizer(tokenizer, options)
  const pieces = [...ids.map((id) => stream.push(id)), stream.flush()]
  return { pieces, text: pieces.join(''), stopped: stream.stopped }
}

const tokenizers: [string, () => Promise<Tokenizer>][] = [['tiny', openTiny]]
if (!withoutSmollm2) tokenizers.push(['SmolLM2', () => openGgufTokenizer(smollm2)])

describe.each(tokenizers)('%s', (_, open) => {
  test('random ids, with and without special tokens', async () => {
    const tokenizer = await open()
    const ids = fc.array(fc.nat({ max: tokenizer.vocabSize + 3 }), { maxLength: 40 })
    fc.assert(
      fc.property(ids, fc.boolean(), (list, skipSpecialTokens) => {
        expect(streamed(tokenizer, list, { skipSpecialTokens }).text).toBe(tokenizer.decode(list, { skipSpecialTokens }))
      }),
      { numRuns: 300 },
    )
  })
  test('tokens that are left out change no piece, and cost little, however many follow each other', async () => {
    const tokenizer = await open()
    const special = Array.from({ length: tokenizer.vocabSize }, (_, id) => id).filter((id) => tokenizer.isSpecial(id))
    const out = [...special, tokenizer.vocabSize + 1]
    const ids = fc.array(fc.oneof(fc.nat({ max: tokenizer.vocabSize - 1 }), fc.constantFrom(...out)), { maxLength: 40 })
    const leaves = (id: number) => out.includes(id)
    fc.assert(
      fc.property(ids, (list) => {
        const { pieces } = streamed(tokenizer, list)
        expect(pieces.filter((piece, i) => piece !== '' && leaves(list[i]))).toEqual([])
        const kept = list.filter((id) => !leaves(id))
        expect(pieces.filter((_, i) => !leaves(list[i]))).toEqual(streamed(tokenizer, kept).pieces)
      }),
      { numRuns: 300 },
    )
    const decode = vi.spyOn(tokenizer, 'decode')
    const stream = new Detokenizer(tokenizer)
    for (let i = 0; i < 1000; i++) stream.push(out[i % out.length])
    expect(decode.mock.calls.reduce((sum, [some]) => sum + some.length, 0)).toBeLessThan(10_000)
    decode.mockRestore()
  })
  test('places in a text: a token begins where the character does that its first byte is in', async () => {
    const tokenizer = await open()
    const sign = fc.oneof(fc.constantFrom(' ', 'a', '日', '語', '😀', 'é', '\n'), fc.string({ unit: 'grapheme', maxLength: 1 }))
    const texts = fc.array(sign, { maxLength: 20 }).map((signs) => signs.join('').replaceAll('\ufffd', ''))
    fc.assert(
      fc.property(texts, (text) => {
        const ids = tokenizer.encode(text, { addSpecialTokens: false })
        const offsets = new Offsets(tokenizer, true)
        const characters = Array.from(text, (character, i) => Array<number>(Buffer.byteLength(character)).fill(i)).flat()
        let bytes = 0
        const begins = ids.map((id) => {
          const begin = characters[bytes]
          bytes += tokenizer.tokenBytes(id)!.length
          return begin
        })
        expect(ids.map((id) => offsets.next(id))).toEqual(begins)
      }),
      { numRuns: 300 },
    )
  })
  test('real texts and stop strings: the text before the first that is complete', async () => {
    const tokenizer = await open()
    const words = fc.constantFrom('stop', 'st', 'op', ' the', '\n\n', 'é', '😀', 'aab', 'ab', 'a')
    const texts = fc
      .array(fc.oneof(words, fc.string({ unit: 'grapheme', maxLength: 4 })), { maxLength: 20 })
      .map((parts) => parts.join(''))
    fc.assert(
      fc.property(texts, fc.array(words, { maxLength: 3 }), fc.boolean(), (text, stop, includeStop) => {
        const ids = tokenizer.encode(text, { addSpecialTokens: false })
        const whole = tokenizer.decode(ids)
        const { text: given, stopped } = streamed(tokenizer, ids, { stop, includeStop })
        if (stopped === null) {
          expect(stop.some((word) => whole.includes(word))).toBe(false)
          expect(given).toBe(whole)
        } else {
          expect(whole.startsWith(given)).toBe(true)
          const before = includeStop ? given.slice(0, given.length - stopped.length) : given
          expect(whole.slice(before.length).startsWith(stopped)).toBe(true)
          // No stop string is complete within what was given out before it.
          expect(stop.some((word) => before.includes(word))).toBe(false)
        }
      }),
      { numRuns: 300 },
    )
  })
})

test('holds back what may become a stop string or a character, and no more', async () => {
  const tokenizer = await openTiny()
  const bytes = [...Buffer.from('é: stoo')]
  expect(streamed(tokenizer, bytes, { stop: ['stop'] }).pieces).toEqual(['', 'é', ':', ' ', '', '', '', 'stoo', ''])
  expect(streamed(tokenizer, [...Buffer.from('sto')], { stop: ['stop'] }).pieces).toEqual(['', '', '', 'sto'])
  expect(streamed(tokenizer, [0xe2, 0x82], {}).text).toBe('\ufffd')
  expect(streamed(tokenizer, [...Buffer.from('a.b.c')], { stop: ['.', ''] })).toMatchObject({ text: 'a', stopped: '.' })
})

test('after min_tokens too, no piece holds half of a character', async () => {
  const rules = { skipSpecialTokens: true, stop: ['xy'], stopTokens: new Set<number>(), includeStop: false, minTokens: 1 }
  const output = new OutputText(await openTiny(), rules)
  const pieces = [...Buffer.from('😀😀ab')].map((id) => output.push(id))
  pieces.push(output.flush(undefined))
  expect(pieces.join('')).toBe('😀😀ab')
  expect(pieces.filter((piece) => !piece.isWellFormed())).toEqual([])
})

test('the engine and the server cut at the same stop string after min_tokens, whatever part of a character a token ends with', async () => {
  // In the byte-level alphabet. Merged tokens begin or end within a character, as many do in real vocabularies.
  const pieces = ['a', 'b', 'ab', 'Ã', '©', 'ÿ', 'â', 'aÃ', '©b', 'aÿb', 'aâ']
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true }
  const end = {
    id: pieces.length,
    content: '<end>',
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }
  const vocab = Object.fromEntries(pieces.map((piece, id) => [piece, id]))
  const tokenizer = makeTokenizer({
    label: 'test',
    tokenizerJson: {
      added_tokens: [end],
      decoder: byteLevel,
      pre_tokenizer: byteLevel,
      model: { type: 'BPE', vocab, merges: [] },
    },
    tokenizerConfig: {},
    chatTemplate: null,
    eosTokenIds: [],
  })
  const rules = { eosTokenIds: new Set<number>(), decode: tokenizer.decode.bind(tokenizer) }
  const settle = { resolve: () => {}, reject: () => {}, abort: () => {} }
  const ids = fc.array(fc.nat({ max: pieces.length }), { minLength: 1, maxLength: 10 })
  const words = fc.constantFrom('a', 'ab', 'b', 'é', 'aé', 'éb', '\ufffd', 'a\ufffd', '\ufffda', '\ufffd\ufffd')
  const stops = fc.array(words, { minLength: 1, maxLength: 2 })
  const of = fc.property(ids, stops, fc.nat({ max: 6 }), fc.boolean(), (list, stop, minTokens, includeStop) => {
    const asked = { ...neutralSampling, max_tokens: list.length, seed: 1, stop, min_tokens: minTokens }
    const sequence = new Sequence({ promptIds: [0], sampling: asked, skipSpecialTokens: true }, rules, settle)
    const output = new OutputText(tokenizer, { skipSpecialTokens: true, stop, stopTokens: new Set(), includeStop, minTokens })
    let shown = ''
    let ending: Ending | undefined
    for (const id of list) {
      ending = sequence.push(id, 0, 0)
      shown += output.push(id)
      if (ending) break
    }
    const { stopCondition, text } = ending!
    const found = stopCondition.startsWith('stop: ') ? stopCondition.slice('stop: '.length) : undefined
    shown += output.flush(found === undefined ? undefined : { stop: found, text })
    const whole = tokenizer.decode(sequence.ids, { skipSpecialTokens: true })
    const last = includeStop && found !== undefined ? found : ''
    expect(shown).toBe(found === undefined ? whole : text + last)
    expect(whole.startsWith(found === undefined ? shown : text + found)).toBe(true)
  })
  fc.assert(of, { numRuns: 3000 })
  // Behind a stop string nothing is left, even where bytes that are no character yet follow it.
  const late = ['aÃ', 'â', 'ÿ', 'ÿ'].map((piece) => pieces.indexOf(piece))
  expect(streamed(tokenizer, late, { stop: ['a'] })).toMatchObject({ text: '', stopped: 'a' })
})
