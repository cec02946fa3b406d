/** The bundled environments of many turns, with tools, and of problems made by code: played rightly, wrongly and oddly. */
import { describe, expect, test } from 'vitest'
import type { ChatCompletion, Message } from '../../src/common/types.ts'
import { loadEnvironment } from '../../src/environments/load.ts'
import { runRollout, sftRows } from '../../src/environments/rollout.ts'
import { lastNumber } from '../../src/environments/text.ts'
import type { Environment, Row } from '../../src/environments/types.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

type Say = (messages: Message[], turn: number) => string | ChatCompletion

async function play(env: Environment, row: Row, say: Say) {
  const client = new ScriptedClient((messages) => {
    const said = say(messages, messages.filter((m) => m.role === 'assistant').length)
    return typeof said === 'string' ? completionOf(said) : said
  })
  const rollout = await runRollout(env, row, { client, sampling, group: 'g', index: 0 })
  expect(rollout.error).toBeNull()
  return rollout
}

const rowsOf = (env: Environment) => [...env.dataset.slice(0, 20), ...env.evalDataset.slice(0, 10)]
const asked = (messages: Message[]) => messages.at(-1)!.content

describe.each(['alphabet-sort', 'sentence-repeater', 'math-word-problems', 'tool-calculator', 'wordle'])('%s', (id) => {
  test('is the same for the same seed, another for another, and asks nothing held-out in training', async () => {
    const [a, b, other] = [
      await loadEnvironment(id, { seed: 3 }),
      await loadEnvironment(id, { seed: 3 }),
      await loadEnvironment(id, { seed: 4 }),
    ]
    expect([a.dataset, a.evalDataset]).toEqual([b.dataset, b.evalDataset])
    const keys = (rows: readonly Row[]) => rows.map((row) => JSON.stringify([row.prompt, row.answer]))
    expect(new Set([...keys(a.dataset), ...keys(a.evalDataset)]).size).toBe(a.dataset.length + a.evalDataset.length)
    expect(keys(other.dataset)).not.toEqual(keys(a.dataset))
    expect(a.evalDataset.length).toBeGreaterThanOrEqual(32)
    expect(sftRows(a).length).toBe(a.dataset.length)
  })
  test('bears empty, odd and endless answers', async () => {
    const env = await loadEnvironment(id)
    for (const text of [
      '',
      'I do not know.',
      '<sorted>'.repeat(500),
      '<guess></guess>',
      '\u{1f600}\n\n0',
      'a, b,\n'.repeat(200),
    ]) {
      const { reward } = await play(env, env.dataset[0], () => completionOf(text, 'length'))
      expect(reward).toBeGreaterThanOrEqual(0)
      expect(reward).toBeLessThan(0.5)
    }
  })
})

describe('alphabet-sort', async () => {
  const env = await loadEnvironment('alphabet-sort')
  /** Sorts all that were asked for so far. */
  const solve = (messages: Message[], order = (names: string[]) => names.toSorted()) => {
    const names = messages.filter((m) => m.role === 'user').flatMap((m) => m.content.split('\n\n')[1].split('\n'))
    return order(names)
  }
  test('all in order earns 1, without tags 0.9, in the wrong order less', async () => {
    for (const row of rowsOf(env)) {
      const block = (messages: Message[]) => `Here:\n<sorted>\n${solve(messages).join('\n')}\n</sorted>`
      const right = await play(env, row, block)
      expect(right.reward).toBeCloseTo(1, 12)
      const turns = (row.info.turns as string[][]).length
      expect(right).toMatchObject({
        stopCondition: turns === env.maxTurns ? /all_sorted/ : 'all_sorted',
        turns: { length: turns },
      })
      expect((await play(env, row, (m) => solve(m).join(', '))).reward).toBeCloseTo(0.9, 12)
      expect((await play(env, row, (m) => solve(m, (names) => names.toSorted().toReversed()).join('\n'))).reward).toBeLessThan(
        0.4,
      )
      expect(row.answer).toContain(solve(right.completion.length ? [...row.prompt, ...right.completion] : row.prompt).join('\n'))
    }
    expect(sftRows(env)[0].completion[0].content).toMatch(/^<sorted>\n[^]*\n<\/sorted>$/u)
  })
  test('by last name', async () => {
    const last = await loadEnvironment('alphabet-sort', { by: 'last', power: 1 })
    const byLast = (names: string[]) => names.toSorted((a, b) => (a.split(' ')[1] < b.split(' ')[1] ? -1 : 1))
    expect((await play(last, last.dataset[0], (m) => solve(m, byLast).join('\n'))).reward).toBeCloseTo(0.9, 12)
    await expect(loadEnvironment('alphabet-sort', { min_turns: 4 })).rejects.toThrow('min_turns (4) is above max_turns (3)')
    await expect(loadEnvironment('alphabet-sort', { max_turns: 20, min_turns: 20, min_names: 5, max_names: 5 })).rejects.toThrow(
      'would have 100 names',
    )
  })
})

test('sentence-repeater: the sentence that was asked for, turn after turn', async () => {
  const env = await loadEnvironment('sentence-repeater')
  const ordinals = ['first', 'second', 'third', 'fourth']
  const solve = (messages: Message[]) => {
    const sentences = messages
      .find((m) => m.role === 'user')!
      .content.split('\n\n')[0]
      .match(/[^.]+\./g)!
      .map((s) => s.trim())
    return sentences[ordinals.findIndex((word) => asked(messages).includes(`the ${word} sentence`))]
  }
  for (const row of rowsOf(env)) {
    const rollout = await play(env, row, solve)
    expect(rollout).toMatchObject({ reward: 1, metrics: { exact: 1 }, turns: { length: 3 }, stopCondition: 'max_turns_reached' })
    expect((await play(env, row, () => 'The baker.')).reward).toBeLessThan(0.6)
  }
  await expect(loadEnvironment('sentence-repeater', { questions: 5 })).rejects.toThrow('questions (5) is above sentences (4)')
  await expect(loadEnvironment('sentence-repeater', { sentences: 1, questions: 1, train_size: 20_000 })).rejects.toThrow(
    'too few different texts',
  )
})

test('math-word-problems: one number is right, and each kind says what it means', async () => {
  const env = await loadEnvironment('math-word-problems')
  for (const row of rowsOf(env)) {
    expect((await play(env, row, () => `So it is ${row.answer}.`)).reward).toBeCloseTo(1, 12)
    expect((await play(env, row, () => `It is ${Number(row.answer) + 1}.`)).reward).toBeCloseTo(0.1, 12)
    expect(Number.isInteger(Number(row.answer)) && Number(row.answer) >= 0).toBe(true)
  }
  const numbers = (kind: string, count = 20) =>
    env.dataset.filter((row) => row.info.kind === kind).slice(0, count).map((row) => ({ n: row.prompt[0].content.match(/\d+/g)!.map(Number), answer: Number(row.answer) })) // prettier-ignore
  for (const { n, answer } of numbers('shopping')) expect(answer).toBe(n[0] * n[2] + n[1] * n[3])
  for (const { n, answer } of numbers('change')) expect(answer).toBe(n[2] - n[0] * n[1])
  for (const { n, answer } of numbers('sharing')) expect(answer).toBe((n[0] - n[1]) / n[2])
  for (const { n, answer } of numbers('travel')) expect(answer).toBe(n[0] * n[1] + n[2])
  for (const { n, answer } of numbers('saving')) expect(answer).toBe(n[0] * n[1] - n[2])
  for (const { n, answer } of numbers('rows')) expect(answer).toBe(n[0] * n[1] - n[2])
  for (const { n, answer } of [...numbers('sum'), ...numbers('ages')]) expect(answer).toBe(n.reduce((a, b) => a + b, 0))
  await expect(loadEnvironment('math-word-problems', { kinds: ['sum'], scale: 1, train_size: 9999 })).rejects.toThrow(
    'Raise scale',
  )
})

describe('tool-calculator', async () => {
  const env = await loadEnvironment('tool-calculator')
  const call = (expression: unknown): ChatCompletion => ({
    ...completionOf('call'),
    message: {
      role: 'assistant', content: '',
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'calculate', arguments: JSON.stringify({ expression }) } }],
    },
  }) // prettier-ignore
  test('the tool gives what is asked for; without it the number alone earns 0.8', async () => {
    for (const row of rowsOf(env)) {
      const rollout = await play(env, row, (messages, turn) =>
        turn === 0 ? call(row.info.expression) : `It is ${asked(messages)}.`,
      )
      expect(rollout).toMatchObject({ reward: 1, metrics: { calculate_calls: 1, tool_errors: 0 } })
      expect(Number(row.answer)).toBe(Number(new Function(`return ${row.info.expression as string}`)()))
      expect((await play(env, row, () => row.answer)).reward).toBeCloseTo(0.8, 12)
    }
  })
  test.each([
    ['2 + 3 * (4 - 6) / 4', '0.5'],
    ['-(2 + 3) * -2', '10'],
    ['process.exit()', 'Error: "process.exit()" is no arithmetic expression (at p)'],
    ['1 / 0', 'Error: 1 / 0 has no value'],
    ['2 +', 'Error: "2 +" is no arithmetic expression (at its end)'],
    ['(1', 'Error: "(1" is no arithmetic expression (at its end)'],
    ['('.repeat(99), 'Error: too many brackets'],
    [
      '1'.repeat(300),
      'Error: the arguments of calculate are wrong: expression: Too big: expected string to have <=200 characters',
    ],
  ])('%s', async (expression, answer) => {
    const rollout = await play(env, env.dataset[0], (_, turn) => (turn === 0 ? call(expression) : 'done'))
    expect(rollout.completion[1]).toMatchObject({ role: 'tool', content: answer })
  })
})

describe('wordle', async () => {
  const env = await loadEnvironment('wordle')
  const row = { ...env.dataset[0], answer: 'apple', info: { secret: 'apple' } }
  const guess = (word: string) => `<guess>${word}</guess>`
  test('letters are marked as often as the word has them', async () => {
    const said = ['paper', 'ppppp', 'allow', 'APPLE']
    const rollout = await play(env, row, (_, turn) => `Hm. ${guess(said[turn])}`)
    expect(rollout.completion.filter((m) => m.role === 'user').map((m) => m.content)).toEqual([
      'P A P E R\nY Y G Y X\n5 left.',
      'P P P P P\nX G G X X\n4 left.',
      'A L L O W\nG Y X X X\n3 left.',
    ])
    expect(rollout.stopCondition).toBe('solved')
    expect(rollout.reward).toBeCloseTo(1 + 0.2 * (2 / 6) + 0.4 + 0.2, 12)
  })
  test('what is no guess takes a turn; six turns are all', async () => {
    const rollout = await play(env, row, (_, turn) => (turn === 2 ? guess('grape') : 'house'))
    expect(rollout).toMatchObject({ stopCondition: 'max_turns_reached', turns: { length: 6 }, metrics: { solved: 0, speed: 0 } })
    expect(rollout.completion[1].content).toContain('That is no guess')
    expect(rollout.metrics.form).toBeCloseTo(1 / 6, 12)
    expect(rollout.metrics.letters).toBeCloseTo((0 + 0 + 0.5 + 0.5 + 1) / 5, 12)
  })
  test('its words have five letters, and the right one earns the most at once', async () => {
    const words = [...env.dataset, ...env.evalDataset].map((one) => one.answer)
    expect(words.every((word) => /^[a-z]{5}$/.test(word))).toBe(true)
    expect(words.length).toBeGreaterThan(400)
    expect((await play(env, row, () => guess('apple'))).reward).toBeCloseTo(1 + 0.2 * (5 / 6) + 0.6, 12)
    const hinted = await loadEnvironment('wordle', { hint: true })
    expect(hinted.dataset[0].prompt[0].content).toContain(`begins with ${hinted.dataset[0].answer[0]}.`)
  })
})

test('numbers are read as the rewards read them', () => expect(lastNumber('It is 1,024.')).toBe(1024))
