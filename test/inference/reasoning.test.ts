/** Thoughts and answers, whole and cut anywhere. */
import { describe, expect, test } from 'vitest'
import { ReasoningStream, templateThinks, thinkingAt } from '../../src/inference/parsers/reasoning.ts'
import fc from '../fast-check.ts'

/** The whole text. `reasoning` is null where it has no thoughts. */
function splitReasoning(text: string, open: boolean): { reasoning: string | null; content: string } {
  const stream = new ReasoningStream(open)
  const deltas = [stream.push(text), stream.flush()]
  const joined = (name: 'reasoning' | 'content') => deltas.map((delta) => delta[name] ?? '').join('')
  const thinks = open || deltas.some((delta) => delta.reasoning !== undefined) || text.trimStart().startsWith('<think>')
  return { reasoning: thinks ? joined('reasoning') : null, content: joined('content') }
}

describe('thoughts', () => {
  const cases: [string, boolean, string | null, string][] = [
    ['<think>\nhm\n</think>\n\nYes.', false, '\nhm\n', '\n\nYes.'],
    ['hm</think>Yes.', true, 'hm', 'Yes.'],
    ['\n<think>hm</think>Yes.', true, 'hm', 'Yes.'],
    ['<think></think>Yes.', false, '', 'Yes.'],
    ['<think>cut off', false, 'cut off', ''],
    ['cut off </thi', true, 'cut off </thi', ''],
    ['Yes. <think>no</think>', false, null, 'Yes. <think>no</think>'],
    ['Yes.', false, null, 'Yes.'],
    ['', false, null, ''],
    ['', true, '', ''],
    ['<think>a</think>b</think>c', false, 'a', 'b</think>c'],
    ['<thi', false, null, '<thi'],
  ]
  test.each(cases)('%j, opened by the prompt: %j', (text, open, reasoning, content) => {
    expect(splitReasoning(text, open)).toEqual({ reasoning, content })
  })
  test('the prompt that opens them, the template that knows of them', () => {
    expect([thinkingAt('a<think>\n'), thinkingAt('<think>\n\n</think>\n\n'), thinkingAt('a'), thinkingAt('a<think>b')]).toEqual([
      'begun',
      'ended',
      'to come',
      'to come',
    ])
    expect([templateThinks("{{ '</think>' }}"), templateThinks('x'), templateThinks(null)]).toEqual([true, false, false])
  })
})

test.each([
  ['u<think>hm,', '<think>hm, ', 'begun'],
  ['u<think>hm</think>Yes', '<think>hm</think>Yes', 'ended'],
  ['u<think>hm', 'hm', 'begun'],
  ['u<think>hm</think>Yes', 'hm</think>Yes', 'ended'],
  ['u<think>\n\n</think>\n\nYes', 'Yes', 'ended'],
  ['<think> is what? Yes', 'Yes', 'ended'],
])('an answer that is gone on with: %j ends with %j', (prompt, begun, thinking) => {
  expect(thinkingAt(prompt, begun)).toBe(thinking)
})

test('any cut of any text gives, joined, what the whole text gives', () => {
  const piece = fc.oneof(
    fc.constantFrom('<think>', '</think>', '<', '</', 'think', '>', ' ', '\n', '<thi', 'nk>'),
    fc.string({ maxLength: 3 }),
  )
  const texts = fc.array(piece, { maxLength: 16 }).map((parts) => parts.join(''))
  fc.assert(
    fc.property(texts, fc.boolean(), fc.array(fc.nat(), { maxLength: 10 }), (text, open, cuts) => {
      const stream = new ReasoningStream(open)
      const places = [0, ...cuts.map((cut) => cut % (text.length + 1)).toSorted((a, b) => a - b), text.length]
      const deltas = places.slice(1).map((place, i) => stream.push(text.slice(places[i], place)))
      deltas.push(stream.flush())
      const whole = splitReasoning(text, open)
      expect(deltas.map((delta) => delta.reasoning ?? '').join('')).toBe(whole.reasoning ?? '')
      expect(deltas.map((delta) => delta.content ?? '').join('')).toBe(whole.content)
      const thoughts = deltas.findLastIndex((delta) => delta.reasoning)
      expect(deltas.slice(0, Math.max(0, thoughts)).some((delta) => delta.content)).toBe(false)
      if (whole.reasoning === null) expect(whole.content).toBe(text)
    }),
    { numRuns: 3000 },
  )
})
