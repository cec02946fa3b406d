/** Parts of the engine that need no GPU: sizes of steps and the stop watch. */
import { describe, expect, it } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { Sequence } from '../../src/inference/sequence.ts'
import { roundRows } from '../../src/inference/step-rows.ts'
import { StopWatch } from '../../src/inference/stop-watch.ts'
import { TokenChoice } from '../../src/inference/token-choice.ts'
import { seed } from '../seed.ts'
import { sampling } from './helpers.ts'

it('steps come in few sizes', () => {
  const sizes = new Set(Array.from({ length: 512 }, (_, i) => roundRows(i + 1)))
  expect(sizes.size).toBeLessThan(36)
  for (let n = 1; n < 512; n++) expect(roundRows(n)).toBeGreaterThanOrEqual(n)
})

it.each([32, 33, 34, 63])(
  'before min_tokens no token that ends a completion is allowed, nor one beyond a vocabulary of %d',
  (vocabulary) => {
    const allowed = (mask: Uint32Array | undefined) =>
      mask && Array.from({ length: mask.length * 32 }, (_, id) => id).filter((id) => (mask[id >> 5] >>> (id & 31)) & 1)
    const all = Array.from({ length: vocabulary }, (_, id) => id)
    const last = vocabulary - 1
    const own = sampling({ min_tokens: 2, stop_token_ids: [7, last] })
    const plain = new TokenChoice({ promptIds: [1], sampling: own }, [3], vocabulary)
    expect(allowed(plain.mask(1))).toEqual(all.filter((id) => ![3, 7, last].includes(id)))
    expect(plain.mask(2)).toBeUndefined()
    const constraint = { fill: (mask: Uint32Array) => mask.fill(0xffffffff), accept: () => {} }
    const bound = new TokenChoice({ promptIds: [1], sampling: own, constraint }, [3], vocabulary)
    expect(allowed(bound.mask(1))).toEqual(all.filter((id) => ![3, 7, last].includes(id)))
    expect(allowed(bound.mask(2))).toEqual(all)
  },
)

it('penalties count each time that a token was drawn, those of the prompt 0 times', () => {
  const request = { promptIds: [1, 2], sampling: sampling({ frequency_penalty: 1 }) }
  const settle = { resolve() {}, reject() {}, abort() {} }
  const sequence = new Sequence(request, { eosTokenIds: new Set(), decode: () => '' }, settle)
  sequence.push(5, -1, 0)
  expect([...sequence.counts]).toEqual([[1, 0], [2, 0], [5, 1]]) // prettier-ignore
  for (const id of [5, 2, 5]) sequence.push(id, -1, 0)
  expect([...sequence.counts]).toEqual([[1, 0], [2, 1], [5, 3]]) // prettier-ignore
})

describe('stop watch', () => {
  // Tokens are bytes, as in a byte-level vocabulary where nothing was merged.
  const decode = (ids: readonly number[]) => new TextDecoder().decode(Uint8Array.from(ids))
  const run = (text: string, stop: string[]) => {
    const watch = new StopWatch(decode, stop)
    const bytes = [...new TextEncoder().encode(text)]
    for (const [i, byte] of bytes.entries()) {
      const found = watch.push(byte)
      if (found) return { ...found, tokens: i + 1 }
    }
    return undefined
  }

  it.each([
    ['one two three', ['two'], { stop: 'two', text: 'one ', tokens: 7 }],
    ['one two three', ['four', 'ee'], { stop: 'ee', text: 'one two thr', tokens: 13 }],
    ['aab', ['ab', 'aab'], { stop: 'aab', text: '', tokens: 3 }],
    ['né – 日本!', ['日本'], { stop: '日本', text: 'né – ', tokens: 14 }],
    ['né – 日本!', ['é –'], { stop: 'é –', text: 'n', tokens: 7 }],
    ['one\n\ntwo', ['\n\n'], { stop: '\n\n', text: 'one', tokens: 5 }],
    ['none', ['', 'two'], undefined],
    ['none', [], undefined],
  ])('%j with %j', (text, stop, expected) => {
    expect(run(text, stop)).toEqual(expected)
  })

  it('keeps a space whose token has no text at the beginning, where the decoder leaves one out', () => {
    const pieces = [' ', ' two', '!']
    const watch = new StopWatch(
      (ids) =>
        ids
          .map((id) => pieces[id])
          .join('')
          .replace(/^ /, ''),
      ['!'],
    )
    expect([watch.push(0), watch.push(1)]).toEqual([undefined, undefined])
    expect(watch.push(2)).toEqual({ stop: '!', text: ' two' })
  })

  it('finds what indexOf finds, on random texts', () => {
    const random = new Random(seed)
    const letters = ['a', 'b', 'é', '日', '🙂']
    const word = (most: number) => Array.from({ length: 1 + random.int(most) }, () => random.pick(letters)).join('')
    for (let i = 0; i < 300; i++) {
      const [text, stop] = [word(30), [word(3), word(4)]]
      const found = run(text, stop)
      const at = stop.map((s) => text.indexOf(s)).filter((n) => n >= 0)
      if (at.length === 0) expect(found).toBeUndefined()
      else {
        expect(text.startsWith(`${found!.text}${found!.stop}`)).toBe(true)
        // Nothing ended before it.
        const ends = stop.filter((s) => text.includes(s)).map((s) => text.indexOf(s) + s.length)
        expect(found!.text.length + found!.stop.length).toBe(Math.min(...ends))
      }
    }
  })

  it('a stop string counts where the token that completes it is looked at, and not later', () => {
    /** The first `skipped` bytes are not looked at. */
    const from = (skipped: number, text: string, stop: string[]) => {
      const watch = new StopWatch(decode, stop)
      const bytes = [...new TextEncoder().encode(text)]
      for (const [i, byte] of bytes.entries()) {
        const found = watch.push(byte, i >= skipped)
        if (found) return { ...found, tokens: i + 1 }
      }
      return undefined
    }
    expect(from(2, 'abc', ['ab'])).toBeUndefined()
    expect(from(1, 'abc', ['ab'])).toEqual({ stop: 'ab', text: '', tokens: 2 })
    expect(from(6, 'xxxxabab', ['ab'])).toEqual({ stop: 'ab', text: 'xxxxab', tokens: 8 })
    // The first half of a character is none yet.
    expect(from(1, 'é!', ['é'])).toEqual({ stop: 'é', text: '', tokens: 2 })
    expect(from(2, 'é!', ['é'])).toBeUndefined()
    // Bytes that no more can follow were there before, the last ones may still become a character.
    const bytes = [0xff, 0xff, 0xff, 0xff, 0x61]
    const late = new StopWatch(decode, ['\ufffd', 'zz'])
    expect(bytes.map((byte, i) => late.push(byte, i > 3)).at(-1)).toEqual({ stop: '\ufffd', text: '\ufffd' })
    // 'a' and the first half of 'é' are one token: 'a' was complete before the next one.
    const tokens = [[0x61, 0xc3], [0xa9]]
    const watch = new StopWatch((ids) => decode(ids.flatMap((id) => tokens[id])), ['a'])
    expect([watch.push(0, false), watch.push(1)]).toEqual([undefined, undefined])
  })

  it.each([
    ['text', (i: number) => 97 + (i % 20)],
    ['bytes of no text', () => 0xff],
  ])('decodes only the end of a long completion: %s', (_, byteAt) => {
    let decoded = 0
    const watch = new StopWatch(
      (ids) => {
        decoded += ids.length
        return decode(ids)
      },
      ['zz'],
    )
    for (let i = 0; i < 1000; i++) watch.push(byteAt(i))
    expect(decoded).toBeLessThan(20_000)
    for (const byte of Buffer.from('a€')) watch.push(byte)
    watch.push(122)
    expect(watch.push(122)).toEqual({ stop: 'zz', text: `${decode(Array.from({ length: 1000 }, (_, i) => byteAt(i)))}a€` })
  })

  describe.each([
    ['bytes', [[0x61], [0x62], [0x20], [0xff], [0xe2], [0x82], [0xac], [0xc3], [0xa9]], 0],
    ['pieces, without the first space', [[0x61], [0x62], [0x20], [0x20, 0x61], [0xff], [0xc3], [0xa9]], 1],
  ] as const)('tokens that are skipped: %s', (_, tokens, strip) => {
    const skipped = tokens.length
    let decoded = 0
    const decodeKept = (ids: readonly number[]) => {
      decoded += ids.length
      const bytes = ids.filter((id) => id < skipped).flatMap((id) => [...tokens[id]])
      return decode(bytes[0] === 0x20 ? bytes.slice(strip) : bytes)
    }

    it('change nothing, on random streams', () => {
      const random = new Random(seed)
      const words = ['a', 'ab', ' ', ' a', '€', 'é', '\ufffd', 'a\ufffd', '\ufffda', '\ufffd\ufffd']
      for (let i = 0; i < 2000; i++) {
        const stop = [random.pick(words), random.pick(words)]
        const [watch, plain] = [0, 1].map(() => new StopWatch(decodeKept, stop))
        for (let n = 0; n < 12; n++) {
          for (let s = random.int(4); s > 0; s--) expect(watch.push(skipped)).toBeUndefined()
          const id = random.int(tokens.length)
          const found = plain.push(id)
          expect(watch.push(id)).toEqual(found)
          if (found) break
        }
      }
    })

    it.each([[[]], [[0]], [[0, skipped - 2]]])('cost little, however many follow each other: after %j', (before) => {
      const watch = new StopWatch(decodeKept, ['ba'])
      for (const id of before) watch.push(id)
      decoded = 0
      for (let i = 0; i < 1000; i++) watch.push(skipped)
      expect(decoded).toBeLessThan(10_000)
      watch.push(1)
      expect(watch.push(0)).toEqual({ stop: 'ba', text: decodeKept(before) })
    })
  })
})
