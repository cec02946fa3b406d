/** Which answers a run's last words show. */
import { expect, test } from 'vitest'
import { samplePairs } from '../../src/cli/train-report.ts'
import type { RolloutBrief, RolloutRow } from '../../src/monitor/rollout-writer.ts'

const row = (id: number, question: string, reward: number) =>
  ({
    env: 'sums',
    example_id: id,
    index: 0,
    prompt: [{ role: 'user', content: question }],
    completion: [{ role: 'assistant', content: `answer ${id}` }],
    answer: '',
    reward,
  }) as unknown as RolloutRow

test('a question that several rows ask is shown once, with the answer that gained most, and those that gained most first', () => {
  const before = [row(1, 'a', 0.5), row(2, 'a', 0), row(3, 'b', 0), row(4, 'c', 1)]
  const after = [row(1, 'a', 0.6), row(2, 'a', 0.3), row(3, 'b', 1), row(4, 'c', 0)]
  const briefs = before.map((whole) => ({ ...whole, row: () => whole }) as RolloutBrief)
  const shown = samplePairs(briefs, after, 3).map(({ question, after: now }) => [question, now.text])
  expect(shown).toEqual([
    ['b', 'answer 3'],
    ['a', 'answer 2'],
    ['c', 'answer 4'],
  ])
})
