import { describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { FinishReason } from '../../src/common/types.ts'
import { loadEnvironment } from '../../src/environments/load.ts'
import { runRollout, sftRows } from '../../src/environments/rollout.ts'
import { containsWords } from '../../src/environments/text.ts'
import type { Environment, Row } from '../../src/environments/types.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

/** What a completion earns, through the whole way of a rollout. */
async function earn(env: Environment, row: Row, text: string, finish: FinishReason = 'stop') {
  const client = new ScriptedClient(() => completionOf(text, finish))
  const { reward, metrics, error } = await runRollout(env, row, { client, sampling, group: 'g', index: 0 })
  expect(error).toBeNull()
  return { reward, metrics }
}

const questionOf = (row: Row) => row.prompt.at(-1)!.content
const find = (env: Environment, question: string) =>
  [...env.dataset, ...env.evalDataset].find((row) => questionOf(row) === question)!

describe.each(['short-answers', 'reverse-text', 'arithmetic'])('%s', (id) => {
  test('is the same for the same seed, and asks nothing held-out in training', async () => {
    const [a, b] = [await loadEnvironment(id, { seed: 3 }), await loadEnvironment(id, { seed: 3 })]
    expect(a.dataset).toEqual(b.dataset)
    expect(a.evalDataset).toEqual(b.evalDataset)
    const [train, held] = [a.dataset.map(questionOf), a.evalDataset.map(questionOf)]
    expect(new Set([...train, ...held]).size).toBe(train.length + held.length)
    expect(held.length).toBeGreaterThanOrEqual(24)
    expect(train.length).toBeGreaterThanOrEqual(120)
    const other = await loadEnvironment(id, { seed: 4 })
    expect(other.dataset.map(questionOf)).not.toEqual(train)
  })
  test('gives its own answers the whole reward, so they do for supervised training', async () => {
    const env = await loadEnvironment(id)
    for (const split of ['train', 'eval'] as const) {
      const examples = sftRows(env, split)
      const rows = split === 'train' ? env.dataset : env.evalDataset
      expect(examples).toHaveLength(rows.length)
      for (let i = 0; i < examples.length; i += 7)
        expect((await earn(env, rows[i], examples[i].completion[0].content)).reward).toBeCloseTo(1, 12)
    }
  })
})

describe('short-answers', async () => {
  const env = await loadEnvironment('short-answers')
  const france = find(env, 'What is the capital of France?')
  test.each<[string, FinishReason, number, object]>([
    ['Paris', 'stop', 1, { ended: 1, correct: 1, words: 1 }],
    ['The capital of France is Paris.', 'stop', 1, { ended: 1, correct: 1, words: 6 }],
    ['The capital of France is PARIS, of course.', 'stop', 0.2 + 0.8 * (10 / 12), { words: 8 }],
    ['a b c d e f g h i j k l m n o p q Paris', 'stop', 0.2, { ended: 1, correct: 1, words: 18 }],
    ['a b c d e f g h i j k l m n o p q r s Paris', 'stop', 0.2, { correct: 1, words: 20 }],
    ['a b c d e f g h i j k l m n o p Paris', 'stop', 0.2 + 0.8 / 12, { words: 17 }],
    ['Paris is', 'length', 0.8, { ended: 0, correct: 1 }],
    ['It is Lyon.', 'stop', 0.2, { ended: 1, correct: 0 }],
    ['A comparison', 'length', 0, { ended: 0, correct: 0 }],
    ['', 'stop', 0.2, { words: 0 }],
  ])('%j (%s)', async (text, finish, reward, metrics) => {
    const earned = await earn(env, france, text, finish)
    expect(earned.reward).toBeCloseTo(reward, 12)
    expect(earned.metrics).toMatchObject(metrics)
  })
  test('takes any of the accepted answers', async () => {
    const row = find(env, 'How many days are in a week?')
    for (const text of ['Seven.', 'There are 7 days in a week.']) expect((await earn(env, row, text)).metrics.correct).toBe(1)
  })
  test('no question tells its answer', () => {
    const told = [...env.dataset, ...env.evalDataset].filter((row) =>
      (row.info.accept as string[]).some((answer) => containsWords(questionOf(row), answer)),
    )
    expect(told).toEqual([])
  })
  test('no held-out opposite is asked the other way round in training', () => {
    const asked = new Set(env.dataset.map(questionOf))
    const reversed = env.evalDataset
      .filter((row) => row.info.kind === 'opposite')
      .map((row) => `What is the opposite of ${row.answer}?`)
    expect(reversed.length).toBeGreaterThan(5)
    expect(reversed.filter((question) => asked.has(question))).toEqual([])
  })
  test('held-out questions are of the same kinds as those trained on', () => {
    const kinds = (rows: readonly Row[]) => new Set(rows.map((row) => row.info.kind))
    expect(kinds(env.evalDataset)).toEqual(kinds(env.dataset))
  })
})

describe('reverse-text', async () => {
  const env = await loadEnvironment('reverse-text')
  test('asks for words of 3 to 6 letters, and pays by the longest common subsequence', async () => {
    for (const row of [...env.dataset, ...env.evalDataset]) {
      expect(questionOf(row)).toMatch(/^Reverse the text: [a-z]{3,6}$/u)
      expect(row.answer).toBe(questionOf(row).split(' ').at(-1)!.split('').toReversed().join(''))
    }
    const row = { ...env.dataset[0], answer: 'abcd' }
    expect(await earn(env, row, ' abcd ')).toEqual({ reward: 1, metrics: { lcs: 1, exact: 1 } })
    expect(await earn(env, row, 'abd')).toEqual({ reward: 6 / 7, metrics: { lcs: 6 / 7, exact: 0 } })
    expect((await earn(env, row, 'wxyz')).reward).toBe(0)
  })
  test('by its arguments', async () => {
    const args = {
      alphabet: 'ab',
      min_length: 8,
      max_length: 8,
      words: 2,
      train_size: 10,
      eval_size: 3,
      instruction: 'r',
      system_prompt: 's',
    }
    const small = await loadEnvironment('reverse-text', args)
    expect([small.dataset.length, small.evalDataset.length]).toEqual([10, 3])
    expect(small.dataset[0].prompt[0]).toEqual({ role: 'system', content: 's' })
    expect(questionOf(small.dataset[0])).toMatch(/^r [ab]{8} [ab]{8}$/u)
    expect((await loadEnvironment('reverse-text', { eval_size: 0 })).evalDataset).toEqual([])
  })
  test('refuses what cannot be', async () => {
    await expect(loadEnvironment('reverse-text', { min_length: 7 })).rejects.toThrow('min_length (7) is above max_length (6)')
    await expect(loadEnvironment('reverse-text', { alphabet: 'ab' })).rejects.toThrow(UserError)
  })
})

describe('arithmetic', async () => {
  const env = await loadEnvironment('arithmetic')
  const row: Row = { ...env.dataset[0], answer: '12' }
  test.each<[string, FinishReason, number]>([
    ['12', 'stop', 1],
    ['7 + 5 = 12.', 'stop', 1],
    ['The answer is **12**.', 'stop', 1],
    ['It is 12 apples', 'stop', 0.9],
    ['12', 'length', 0.9],
    ['13', 'stop', 0.1],
    ['-12', 'stop', 0.1],
    ['12 or 13', 'length', 0],
    ['no idea', 'stop', 0],
  ])('%j (%s) earns %d', async (text, finish, reward) => {
    expect((await earn(env, row, text, finish)).reward).toBeCloseTo(reward, 12)
  })
  test('its sums are right and in range, and a + b is not trained on where b + a is held out', async () => {
    const all = await loadEnvironment('arithmetic', {
      operations: ['+', '-', '*'],
      min: -9,
      max: 9,
      negative_results: true,
      train_size: 300,
    })
    const keys = (rows: readonly Row[]) =>
      rows.map((item) => {
        const [, a, operation, b] = /^What is (-?\d+) ([-+*]) \(?(-?\d+)\)?\?$/u.exec(questionOf(item))!
        const [x, y] = [Number(a), Number(b)]
        expect(Math.max(Math.abs(x), Math.abs(y))).toBeLessThanOrEqual(9)
        expect(Number(item.answer)).toBe((operation === '+' ? x + y : operation === '-' ? x - y : x * y) + 0)
        return operation === '-' ? `${x}-${y}` : [Math.min(x, y), Math.max(x, y)].join(operation)
      })
    expect(new Set(keys(all.dataset)).intersection(new Set(keys(all.evalDataset))).size).toBe(0)
    expect([all.dataset.length, all.evalDataset.length]).toEqual([300, 64])
    expect(env.dataset.every((item) => Number(item.answer) >= 0)).toBe(true)
  })
  test('refuses what cannot be', async () => {
    await expect(loadEnvironment('arithmetic', { max: 3 })).rejects.toThrow('fewer than train_size + eval_size = 564')
    await expect(loadEnvironment('arithmetic', { min: 30 })).rejects.toThrow('min (30) is above max (20)')
    await expect(loadEnvironment('arithmetic', { template: 'x' })).rejects.toThrow('must contain {problem}')
  })
})
