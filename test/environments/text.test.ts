import { describe, expect, test } from 'vitest'
import { Parser, ThinkParser, XMLParser } from '../../src/environments/parsers.ts'
import { containsWords, lastNumber, lcsLength, lcsRatio, words } from '../../src/environments/text.ts'
import fc from '../fast-check.ts'

/** Straight from the definition, exponential: the longest string that is a subsequence of both. */
function naiveLcs(a: string[], b: string[]): number {
  if (a.length === 0 || b.length === 0) return 0
  if (a[0] === b[0]) return 1 + naiveLcs(a.slice(1), b.slice(1))
  return Math.max(naiveLcs(a.slice(1), b), naiveLcs(a, b.slice(1)))
}

describe('longest common subsequence', () => {
  const short = fc.array(fc.constantFrom('a', 'b', 'c', '😀'), { maxLength: 7 }).map((letters) => letters.join(''))
  test('agrees with the definition', () => {
    fc.assert(fc.property(short, short, (a, b) => lcsLength(a, b) === naiveLcs(Array.from(a), Array.from(b))))
  })
  test('ratio: 1 for equal, 0 for nothing in common, lower for too little and for too much', () => {
    expect(lcsRatio('abc', 'abc')).toBe(1)
    expect(lcsRatio('abc', 'xyz')).toBe(0)
    expect(lcsRatio('ab', 'abc')).toBeCloseTo(4 / 5)
    expect(lcsRatio('abcabc', 'abc')).toBeCloseTo(6 / 9)
    expect(lcsRatio('', '')).toBe(1)
    expect(lcsRatio('', 'abc')).toBe(0)
  })
})

test('words are counted by whitespace', () => {
  expect(words('  The capital\nof France is Paris. ')).toHaveLength(6)
  expect(words(' \n')).toHaveLength(0)
})

test('an answer is found as words, whatever case and punctuation', () => {
  expect(containsWords('The capital is PARIS.', 'paris')).toBe(true)
  expect(containsWords('A comparison.', 'paris')).toBe(false)
  expect(containsWords('It is "New\nDelhi"!', 'new delhi')).toBe(true)
  expect(containsWords('New and old Delhi', 'New Delhi')).toBe(false)
  expect(containsWords('Itʼs São Paulo', 'São Paulo')).toBe(true)
  // An accent is one sign or two, an apostrophe straight or curved.
  expect(containsWords('Sa\u0303o Paulo', 'S\u00e3o Paulo')).toBe(true)
  expect(containsWords('Don\u2019t stop', "don't stop")).toBe(true)
  expect(containsWords('anything', '')).toBe(false)
})

test('the last number, its sign told from a minus', () => {
  const cases: [string, number | null][] = [
    ['3 + 4 = 7.', 7],
    ['7', 7],
    ['it is -5', -5],
    ['-5', -5],
    ['= −5', -5],
    ['(-5)', -5],
    ['12-5', 5],
    ['12 -5', 5],
    ['covid-19', 19],
    ['1,024 apples', 1024],
    ['2.50', 2.5],
    ['.5', 0.5],
    ['it is -.25.', -0.25],
    ['$.75', 0.75],
    ['section 1.2.3', 3],
    ['wait ...5', 5],
    ['no number', null],
    ['', null],
  ]
  for (const [text, value] of cases) expect(lastNumber(text), text).toBe(value)
})

describe('parsers', () => {
  test('Parser trims, or takes what it is told to', () => {
    expect(new Parser().parse('  a b \n')).toBe('a b')
    expect(new Parser((text) => text.split(':')[1] ?? '').parse('answer: 4')).toBe('4')
  })
  test('ThinkParser reads what follows the thought', () => {
    const parser = new ThinkParser()
    expect(parser.parse('<think>a</think>\n b ')).toBe('b')
    expect(parser.parse('a</think>b')).toBe('b')
    expect(parser.parse('<think>never ends')).toBe('')
    expect(parser.parse('<think>a</think>b</think>c')).toBe('c')
    expect(new ThinkParser({ required: false }).parse('plain')).toBe('plain')
    expect(['<think>a</think>b', 'a</think>b'].map((text) => parser.format(text))).toEqual([1, 1])
    expect(
      ['b', '<think>a</think>', 'x<think>a</think>b', '<think>a</think>b</think>c', '<think><think>a</think>b'].map((text) =>
        parser.format(text),
      ),
    ).toEqual([0, 0, 0, 0, 0])
  })
  test('XMLParser reads the last closed field and reads back what it renders', () => {
    const parser = new XMLParser(['reasoning', 'answer'])
    const text = parser.render({ reasoning: 'because', answer: '4' })
    expect(parser.parse(text)).toBe('4')
    expect(parser.fields(text)).toEqual({ reasoning: 'because', answer: '4' })
    expect(parser.format(text)).toBe(1)
    expect(parser.parse('<answer>1</answer> no, <answer>2</answer>')).toBe('2')
    expect(parser.parse('<answer>1')).toBe('')
    expect(parser.parse('I say <answer> and then <answer>2</answer>')).toBe('2')
    expect(parser.fields('nothing')).toEqual({ reasoning: null, answer: null })
    expect(parser.format('nothing')).toBe(0)
    expect(parser.format('<answer>4</answer>')).toBe(0.25)
    expect(parser.format(`${text} and more`)).toBe(0.5)
    expect(new XMLParser(['a', 'b']).answerField).toBe('b')
    expect(() => new XMLParser(['a'], { answerField: 'b' })).toThrow('answer field "b"')
    expect(() => new XMLParser(['a b'])).toThrow('not a valid tag name')
  })
  test('a text of opening tags alone is read in linear time', () => {
    expect(new XMLParser(['answer']).parse('<answer>'.repeat(200_000))).toBe('')
  })
})
