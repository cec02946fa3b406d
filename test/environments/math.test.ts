/** Answers in mathematics: a table of pairs that are or are not the same, where the answer stands in a text, and what a hostile one may cost. */
import { readFileSync } from 'node:fs'
import { afterAll, describe, expect, test } from 'vitest'
import { sameAnswer } from '../../src/environments/math/compare.ts'
import { closeMath, extractAnswer, lastBoxed, mathEqual, MathRubric } from '../../src/environments/math/index.ts'
import { symbols } from '../../src/environments/math/symbols.ts'
import { runRollout } from '../../src/environments/rollout.ts'
import { SingleTurnEnv } from '../../src/environments/single-turn.ts'
import fc from '../fast-check.ts'
import { sampling, ScriptedClient } from './scripted.ts'

afterAll(closeMath)

const table = readFileSync(new URL('./fixtures/math-answers.txt', import.meta.url), 'utf8')
  .split('\n')
  .filter((line) => line !== '' && !line.startsWith('#'))
  .map((line) => line.split(' ¦ ').map((field) => field.trim()))
  .map(([sign, gold, given]) => ({ same: sign === '=', gold, given: given ?? '' }))

describe('a table of answers', async () => {
  const verdicts = await Promise.all(
    table.map(async (row) => ({
      ...row,
      there: (await mathEqual(row.gold, row.given, { seconds: 60 })).equal,
      back: (await mathEqual(row.given, row.gold, { seconds: 60 })).equal,
    })),
  )
  const words = (rows: typeof verdicts) => rows.map(({ gold, given }) => `${gold} ¦ ${given}`)
  test('is large enough to mean something', () => {
    expect(table.filter(({ same }) => same).length).toBeGreaterThan(200)
    expect(table.filter(({ same }) => !same).length).toBeGreaterThan(200)
    expect(new Set(words(verdicts)).size).toBe(table.length)
  })
  test('no two different answers are taken for the same, in neither order', () => {
    expect(words(verdicts.filter(({ same, there, back }) => !same && (there || back)))).toEqual([])
  })
  test('the same answer is known in all ways to write it, in either order', () => {
    expect(words(verdicts.filter(({ same, there, back }) => same && !(there && back)))).toEqual([])
  })
})

test.each([
  ['k', 'k(y)'],
  ['m', '\\det m'],
  ['n', 'n[2]'],
  ['p', "p'(2)"],
  ['q', '\\lnot q'],
])('%s after the answer %s is read as before it', (name, odd) => {
  sameAnswer('1', odd, symbols, {})
  expect(sameAnswer(`(3${name}+1)(y-7)`, `(3\\cdot ${name}+1)(y-7)`, symbols, {})).toBe(true)
  expect(sameAnswer(`|${name}|`, `|-${name}|`, symbols, {})).toBe(true)
})

describe('any number', () => {
  const whole = fc.integer({ min: -99_999, max: 99_999 })
  test('is equal to its other spellings and to no other number', async () => {
    await fc.assert(
      fc.asyncProperty(whole, fc.integer({ min: 1, max: 999 }), whole, async (n, d, m) => {
        const spellings = [
          `${n}/${d}`,
          `\\frac{${n}}{${d}}`,
          `$\\dfrac{${-n}}{${-d}}$`,
          `x = ${n}/${d}`,
          `\\left(\\frac{${n * 2}}{${d * 2}}\\right)`,
        ]
        for (const spelling of spellings) {
          expect(await mathEqual(spellings[0], spelling), spelling).toEqual({ equal: true, undecided: null })
          expect((await mathEqual(`${m}/${d}`, spelling)).equal).toBe(m === n)
        }
      }),
      { numRuns: 15 },
    )
  })
  test('polynomials are equal to what they are when multiplied out', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: -9, max: 9 }), fc.integer({ min: -9, max: 9 }), async (a, b) => {
        const factors = `(x - (${a}))(x - (${b}))`
        expect((await mathEqual(factors, `x^2 + (${-a - b})x + (${a * b})`)).equal).toBe(true)
        expect((await mathEqual(factors, `x^2 + (${-a - b})x + (${a * b + 1})`)).equal).toBe(false)
      }),
      { numRuns: 15 },
    )
  })
  test('tolerance, where it is asked for', async () => {
    expect((await mathEqual('\\frac{1}{3}', '0.333')).equal).toBe(false)
    expect((await mathEqual('\\frac{1}{3}', '0.333', { tolerance: 0.01 })).equal).toBe(true)
    expect((await mathEqual('\\pi', '3.14', { tolerance: 0.01 })).equal).toBe(true)
    expect((await mathEqual('\\pi', '3.2', { tolerance: 0.01 })).equal).toBe(false)
  })
})

describe('hostile answers', () => {
  test.each([
    ['a tower of powers', '9^{9^{9^9}}'],
    ['a long sum', '\\sum_{k=1}^{10000000000} \\frac{1}{k^2}'],
    ['a huge factorial', '(10^{9})!'],
    ['a huge power', '1.5e999999'],
    ['a power too small for any number', '10^{-10^{10}}'],
    ['a nested factorial', '9!!!!!!!!'],
    ['an integral', '\\int_0^{10^{12}} \\sin(x^2) dx'],
  ])('%s', async (_, answer) => {
    const start = performance.now()
    const { equal } = await mathEqual('\\frac{1}{2}', answer, { seconds: 1 })
    expect(equal).toBe(false)
    // A thread that starts and one that is killed, on a machine that does other things too.
    expect(performance.now() - start).toBeLessThan(30_000)
  })
  test('a limit is said, and the next answer is compared', async () => {
    const { undecided } = await mathEqual('2', '\\sum_{k=1}^{10000000000} \\frac{1}{k^2}', { seconds: 0.5 })
    expect(undecided).toBe('it took longer than its limit of 0.5 s')
    expect(await mathEqual('\\sqrt{8}', '2\\sqrt{2}', { seconds: 60 })).toEqual({ equal: true, undecided: null })
  })
  test.each([
    ['depth', '('.repeat(400) + ')'.repeat(400)],
    ['braces', '{'.repeat(900)],
    ['fractions', '\\frac{'.repeat(150)],
    ['commas', ','.repeat(900)],
    ['signs', '-'.repeat(900)],
    ['unions', '\\cup'.repeat(200)],
    ['length', '1'.repeat(100_000)],
    ['zeros', `0.${'0'.repeat(100_000)}1`],
    ['odd characters', '\u0000\u0001\ud800\\'],
  ])('%s', async (_, answer) => {
    expect(await mathEqual('7', answer, { seconds: 20 })).toEqual({ equal: false, undecided: null })
  })
  test('any text at all has a verdict', async () => {
    const pieces = fc.constantFrom(
      '\\frac',
      '{',
      '}',
      '(',
      ')',
      '[',
      '1',
      '2',
      'x',
      '^',
      '_',
      '=',
      '<',
      ',',
      '\\le',
      '\\pm',
      '\\text{a}',
      '$',
      '%',
      ' ',
      '&',
      '\\\\',
      '|',
      '!',
    )
    await fc.assert(
      fc.asyncProperty(fc.array(pieces, { maxLength: 12 }), async (parts) => {
        const { equal, undecided } = await mathEqual('123456789', parts.join(''), { seconds: 20 })
        expect({ equal, undecided }).toEqual({ equal: false, undecided: null })
      }),
      { numRuns: 150 },
    )
  })
  test('an end from outside', async () => {
    const controller = new AbortController()
    setTimeout(() => controller.abort(), 200)
    await expect(
      mathEqual('2', '\\sum_{k=1}^{10000000000} \\frac{1}{k^2}', { seconds: 60, signal: controller.signal }),
    ).rejects.toThrow('aborted')
  })
})

test.each([
  ['5 million', '5', false],
  ['5\\text{ million}', '5000000', true],
  ['\\$2.5 million', '2{,}500{,}000 dollars', true],
  ['1/2 million people', '500 thousand', true],
  ['3 dozen eggs', '3', false],
  ['3 dozen eggs', '36', true],
])('words that are part of a number: %s and %s', async (gold, given, equal) => {
  expect((await mathEqual(gold, given)).equal).toBe(equal)
  expect((await mathEqual(given, gold)).equal).toBe(equal)
})

test.each([
  ['so \\boxed{42}.', '42'],
  ['\\boxed{1} no, \\boxed{\\frac{1}{2}}', '\\frac{1}{2}'],
  ['\\boxed{\\{1,2\\}}', '\\{1,2\\}'],
  ['\\boxed{3} and then \\boxed{4', '3'],
  ['\\fbox{7}', '7'],
  ['\\boxed 5', '5'],
  ['He has 3 + 4 = 7.\n#### 7', '7'],
  ['#### 1,234\n', '1,234'],
  ['The final answer is 3.5. I hope it is correct.', '3.5'],
  ['Final Answer: The final answer is $\\frac{1}{2}$', '$\\frac{1}{2}$'],
  ['**Answer:** 12', '12'],
  ['The answer is: x = 3', 'x = 3'],
  ['answer: 1\nNo wait.\nanswer: 2.', '2'],
  ['**Final Answer**\n\n5', '5'],
  // A later line that only has the word announces nothing.
  ['The answer is 12.\nI hope this answer helps you.', '12'],
  ['Answer: 5\nThis answers the question.', '5'],
  // A factorial, and an exclamation.
  ['The answer is 5! = 120', '5! = 120'],
  ['The answer is 120! That was easy.', '120'],
  // The last one counts, on the same line too, and "this answer is" is none.
  ['The answer is 17. Wait, the answer is 18.', '18'],
  ['The answer is 17. I hope this answer is helpful.', '17'],
  // A displayed formula on lines of its own, and the marks of Markdown
  ['The answer is:\n\n\\[\n42\n\\]', '42'],
  ['**Final Answer**\n\n$$\n\\frac{1}{2}\n$$', '\\frac{1}{2}'],
  ['The answer is:\n\\[\n(1,\n2)\n\\]\nDone.', '(1,\n2)'],
  ['The answer is \\[5\\] or \\[6\\]', '5\\] or \\[6'],
  ['The answer is $$5$$ or 6', '$$5$$ or 6'],
  ['The answer is `42`.', '42'],
  ['The answer is *42*.', '42'],
  ['The answer is __42__.', '42'],
  ['42', '42'],
  ['I thought for long.\nThen I did not know.', ''],
  ['', ''],
])('the final answer of %j', (text, answer) => {
  expect(extractAnswer(text)).toBe(answer)
})

test('text that repeats itself does not block the process', () => {
  const began = performance.now()
  for (const part of ['\n', ' \n', '*', '_', '$$', '\\[\n', 'answer ', 'answer is ', 'answer:\n']) {
    extractAnswer(`The answer${part.repeat(5000)}`)
    extractAnswer(part.repeat(5000))
  }
  expect(performance.now() - began).toBeLessThan(2000)
})

test('a box is found in linear time', () => {
  const began = performance.now()
  expect(lastBoxed('\\boxed{'.repeat(100_000))).toBeNull()
  expect(lastBoxed(`\\boxed{1}${'\\boxed{'.repeat(100_000)}`)).toBe('1')
  expect(performance.now() - began).toBeLessThan(2000)
})

describe('MathRubric', () => {
  const play = async (answer: string, text: string, rubric = new MathRubric()) => {
    const env = await SingleTurnEnv.create({
      id: 'm',
      rubric,
      dataset: [
        { question: 'q', answer },
        { question: 'r', answer },
      ],
      evalSize: 0,
    })
    const client = new ScriptedClient(text)
    return await runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0 })
  }
  test.each([
    ['42', 'It is \\boxed{42.0}', 1],
    ['Half of 84.\n#### 42', '<think>\\boxed{41}</think>The answer is 42.', 1],
    ['We get $\\boxed{\\frac{1}{2}}$.', 'So \\boxed{0.5}', 1],
    ['42', '\\boxed{41}', 0],
    ['42', '', 0],
    ['42', '\\boxed{42} or \\boxed{43}', 0],
  ])('%j, %j: %d', async (answer, text, reward) => {
    expect(await play(answer, text)).toMatchObject({
      reward,
      error: null,
      metrics: { correct_answer: reward, math_undecided: 0 },
    })
  })
  test('an answer that takes too long is wrong, and counted', async () => {
    const { reward, metrics } = await play(
      '2',
      '\\boxed{\\sum_{k=1}^{10000000000} \\frac{1}{k^2}}',
      new MathRubric({ seconds: 0.3 }),
    )
    expect({ reward, metrics }).toEqual({ reward: 0, metrics: { correct_answer: 0, math_undecided: 1 } })
  })
  test('a row without an answer fails, and says so', async () => {
    expect(await play('', '\\boxed{1}')).toMatchObject({
      reward: null,
      error: expect.stringContaining('contains no final answer to compare with'),
    })
  })
  test('weights and further functions', async () => {
    const rubric = new MathRubric({
      weight: 0.5,
      functions: { short: { reward: ({ rawText }) => (rawText.length < 20 ? 1 : 0), weight: 0.25 } },
    })
    expect((await play('7', '\\boxed{7}', rubric)).reward).toBe(0.75)
  })
})
