import { describe, expect, test } from 'vitest'
import type { Message } from '../../src/common/types.ts'
import { MaybeThinkParser, Parser, ThinkParser, XMLParser } from '../../src/environments/parsers.ts'
import { Rubric } from '../../src/environments/rubric.ts'
import fc from '../fast-check.ts'

const assistant = (content: string): Message => ({ role: 'assistant', content })

describe('what all parsers have', () => {
  test('parseAnswer reads a text, or the last assistant message', () => {
    const parser = new Parser((text) => text.split(':')[1] ?? '')
    expect(parser.parseAnswer('a: 4 ')).toBe('4')
    expect(parser.parseAnswer([assistant('a: 1'), { role: 'user', content: 'b: 2' }])).toBe('1')
    expect(parser.parseAnswer([])).toBe('')
  })
  test('the format reward is the mean over the assistant messages', async () => {
    const parser = new XMLParser(['answer'])
    const rubric = new Rubric({ form: parser.getFormatRewardFunc() }, { parser })
    const score = async (completion: Message[]) => {
      const rollout = { prompt: [], completion, answer: '', info: {}, isTruncated: false, stopCondition: 'eos' }
      return (await rubric.score({ ...rollout, completion_tokens: { ids: [], logprobs: [], versions: [] } })).reward
    }
    expect(await score([assistant('<answer>1</answer>')])).toBe(1)
    expect(await score([assistant('<answer>1</answer>'), { role: 'user', content: 'no' }, assistant('2')])).toBe(0.5)
    expect(await score([{ role: 'user', content: '<answer>1</answer>' }])).toBe(0)
  })
})

test('MaybeThinkParser takes a text without a thought as the answer', () => {
  const parser = new MaybeThinkParser((text) => text.toUpperCase())
  expect(parser.parse('<think>a</think> b')).toBe('B')
  expect(parser.parse(' b ')).toBe('B')
  expect(new MaybeThinkParser().parse('b')).toBe('b')
  expect(['b', '<think>a</think>b', '<think>a', ''].map((text) => parser.format(text))).toEqual([1, 1, 0, 0])
})

test('ThinkParser takes a function alone, as verifiers does', () => {
  expect(new ThinkParser((text) => `${text}!`).parse('x</think>y')).toBe('y!')
  expect(new ThinkParser((text) => `${text}!`).parse('y')).toBe('')
})

describe('XMLParser with aliases', () => {
  const parser = new XMLParser(['reasoning', ['code', 'answer']])
  test('either tag is the field; the last one counts', () => {
    expect(parser.answerField).toBe('code')
    expect(parser.parse('<answer>1</answer>')).toBe('1')
    expect(parser.parse('<answer>1</answer><code>2</code>')).toBe('2')
    expect(parser.parse('<code>2</code><answer>1</answer>')).toBe('1')
    expect(parser.fields('<answer>1</answer>')).toEqual({ reasoning: null, code: '1' })
    expect(parser.getFields()).toEqual([['reasoning'], ['code', 'answer']])
  })
  test('form', () => {
    expect(parser.format('<reasoning>a</reasoning>\n<answer>1</answer>')).toBe(1)
    expect(parser.format('<reasoning>a</reasoning>\n<code>1</code>')).toBe(1)
    expect(parser.format('<reasoning>a</reasoning><code>1</code><answer>1</answer>')).toBe(0.25)
    expect(parser.getFormatStr()).toContain('<reasoning>\n...\n</reasoning>')
    expect(parser.getFormatStr()).toContain('<answer>')
  })
  test('renders by any of its tags, and no other', () => {
    expect(parser.render({ answer: '4' })).toBe('<answer>\n4\n</answer>')
    expect(() => parser.render({ result: '4' })).toThrow('"result" is not one of its fields')
    expect(() => new XMLParser(['a', ['b', 'a']])).toThrow('named twice')
  })
  test('reads back what it renders', () => {
    const text = fc.string().filter((s) => !s.includes('<'))
    fc.assert(
      fc.property(text, text, (reasoning, code) => {
        const rendered = parser.render({ reasoning, code })
        expect(parser.fields(rendered)).toEqual({ reasoning: reasoning.trim(), code: code.trim() })
        expect(parser.format(rendered)).toBe(1)
      }),
    )
  })
})
