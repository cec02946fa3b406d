/** Parts of the engine that need no GPU: the row allocator, the stop watch, the chat client. */
import { describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { Random } from '../../src/common/random.ts'
import type { GenerationRequest, Generator } from '../../src/common/types.ts'
import { chatClient } from '../../src/inference/chat.ts'
import { RowAllocator } from '../../src/inference/row-allocator.ts'
import { roundRows } from '../../src/inference/scheduler.ts'
import { StopWatch } from '../../src/inference/stop-watch.ts'
import { sampling } from './helpers.ts'

describe('row allocator', () => {
  it('never hands out a row twice, and joins what comes back', () => {
    const seed = Date.now() % 1e6
    const random = new Random(seed)
    const rows = new RowAllocator(200)
    const owner = new Int32Array(200)
    const held: { start: number; length: number }[] = []
    for (let i = 1; i < 3000; i++) {
      if (random.next() < 0.55) {
        const length = 1 + random.int(30)
        const start = rows.allocate(length)
        if (start === undefined) {
          expect(rows.longestFree, `seed ${seed}`).toBeLessThan(length)
          continue
        }
        expect(
          owner.subarray(start, start + length).every((o) => o === 0),
          `seed ${seed}`,
        ).toBe(true)
        owner.fill(i, start, start + length)
        held.push({ start, length })
      } else if (held.length > 0) {
        const [{ start, length }] = held.splice(random.int(held.length), 1)
        rows.release(start, length)
        owner.fill(0, start, start + length)
      }
      expect(rows.used, `seed ${seed}`).toBe(owner.filter((o) => o !== 0).length)
    }
    for (const { start, length } of held) rows.release(start, length)
    expect(rows).toMatchObject({ used: 0, longestFree: 200 })
  })

  it('notices rows that are given back twice', () => {
    const rows = new RowAllocator(20)
    const start = rows.allocate(8)!
    rows.allocate(4)
    rows.release(start, 8)
    expect(() => rows.release(start, 8)).toThrow('free')
    expect(() => rows.release(12, 9)).toThrow('free')
  })
})

it('steps come in few sizes', () => {
  const sizes = new Set(Array.from({ length: 512 }, (_, i) => roundRows(i + 1)))
  expect(sizes.size).toBeLessThan(30)
  for (let n = 1; n < 512; n++) expect(roundRows(n)).toBeGreaterThanOrEqual(n)
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

  it('finds what indexOf finds, on random texts', () => {
    const random = new Random(Date.now() % 1e6)
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

  it('decodes only the end of a long completion', () => {
    let decoded = 0
    const watch = new StopWatch(
      (ids) => {
        decoded += ids.length
        return decode(ids)
      },
      ['zz'],
    )
    for (let i = 0; i < 1000; i++) watch.push(97 + (i % 20))
    expect(decoded).toBeLessThan(4000)
  })
})

describe('chat client', () => {
  const asked: GenerationRequest[] = []
  // A real generator in all that matters here: it says what it was asked.
  const generator: Generator = {
    version: 0,
    async generate(request) {
      asked.push(request)
      const ids = [...request.promptIds].toReversed()
      return {
        ids,
        logprobs: ids.map(() => -1),
        versions: ids.map(() => 0),
        text: '',
        finishReason: 'stop',
        stopCondition: 'eos',
      }
    },
  }
  const tokenizer = {
    encodeChat: (messages: readonly { content: string }[]) =>
      Array.from(messages.map((m) => m.content).join('|'), (c) => c.codePointAt(0)!),
  }
  const client = chatClient(generator, tokenizer, { maxPromptLength: 20, maxLength: 30 })

  it('renders messages, generates, and gives the prompt back', async () => {
    const result = await client.complete([{ role: 'user', content: 'hello' }], sampling({ max_tokens: 3 }))
    expect(result).toMatchObject({ promptIds: [104, 101, 108, 108, 111], ids: [111, 108, 108, 101, 104], finishReason: 'stop' })
    expect(asked.at(-1)!.sampling.max_tokens).toBe(3)
  })

  it('refuses a prompt that is too long, naming prompt, counts and key', async () => {
    const long = client.complete([{ role: 'user', content: 'x'.repeat(21) }], sampling())
    await expect(long).rejects.toThrow(UserError)
    await expect(long).rejects.toThrow(/21 tokens, and trainer\.args\.max_prompt_len is 20/)
    const both = client.complete([{ role: 'user', content: 'abc def' }], sampling({ max_tokens: 24 }))
    await expect(both).rejects.toThrow(/'abc def' has 7 tokens and max_tokens is 24.*max_seq_len, 30/)
  })
})
