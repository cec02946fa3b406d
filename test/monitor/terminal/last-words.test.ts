import { expect, test } from 'vitest'
import { textWidth } from '../../../src/monitor/terminal/text-width.ts'
import { finalReport } from '../../../src/monitor/terminal/last-words.ts'
import type { FinalReport } from '../../../src/monitor/terminal/last-words.ts'

const report: FinalReport = {
  before: [{ env: 'short-answers', reward: 0.284, rollouts: 96, tokens: 23.1, truncated: 0.7 }],
  after: [{ env: 'short-answers', reward: 0.871, rollouts: 96, tokens: 4.2, truncated: 0 }],
  samples: [
    {
      question: 'What is the capital of Peru?',
      expected: 'Lima',
      before: { text: 'The capital of Peru is Lima. It is a large city on the coast, known for its\nfood', reward: 0.21 },
      after: { text: 'Lima.', reward: 1 },
    },
    { question: 'The opposite of hot?', before: { text: '', reward: null }, after: { text: 'Cold', reward: 0.95 } },
  ],
  files: { adapter: 'outputs/quickstart/checkpoints/step_12', rollouts: 'outputs/quickstart/rollouts' },
  next: ['node train.js @ configs/smollm2-arithmetic.toml', 'read docs/metrics.md'],
}

test('what was learned, answers side by side, files, next steps', () => {
  expect(finalReport(report)).toMatchInlineSnapshot(`
    "What was learned (held-out questions, which the training never saw)
      short-answers: reward 0.28 before, 0.87 after (+0.59; 96 answers, 23 -> 4 tokens an answer, 70% -> 0% cut off)

      What is the capital of Peru?  (expected: Lima)
        before, reward 0.21                            | after, reward 1
        The capital of Peru is Lima. It is a large     | Lima.
        city on the coast, known for its               |
        food                                           |

      The opposite of hot?
        before, reward none                            | after, reward 0.95
        (empty)                                        | Cold

    Where the files are
      adapter   outputs/quickstart/checkpoints/step_12
      rollouts  outputs/quickstart/rollouts

    What to try next
      - node train.js @ configs/smollm2-arithmetic.toml
      - read docs/metrics.md"
  `)
})

test('columns stay columns where characters are two wide', () => {
  const text = '首都は東京です。人口は約千四百万人で、世界でも最も大きな都市の一つです。'
  const samples = [{ question: '日本の首都は?', before: { text, reward: 0 }, after: { text: '東京', reward: 1 } }]
  const lines = finalReport({ ...report, files: {}, next: [], samples }, 60).split('\n')
  const left = lines.flatMap((line) => (line.includes(' | ') || line.endsWith(' |') ? line.split(' |')[0] : []))
  expect(left.length).toBeGreaterThan(2)
  expect(new Set(left.map(textWidth))).toEqual(new Set([4 + 26]))
  const long = [{ ...samples[0], question: text, expected: text }]
  for (const width of [72, 100])
    for (const line of finalReport({ samples: long, files: {}, next: [] }, width).split('\n'))
      expect(textWidth(line)).toBeLessThanOrEqual(width)
})

test('a narrow terminal puts one answer under the other', () => {
  expect(finalReport({ ...report, files: {}, next: [], samples: report.samples.slice(1) }, 44)).toMatchInlineSnapshot(`
    "What was learned (held-out questions, which the training never saw)
      short-answers: reward 0.28 before, 0.87 after (+0.59; 96 answers, 23 -> 4 tokens an answer, 70% -> 0% cut off)

      The opposite of hot?
        before, reward none
        (empty)
        after, reward 0.95
        Cold"
  `)
})

test('a run that did not learn is not praised, and one without an evaluation says nothing about it', () => {
  const worse = { ...report, after: [{ env: 'short-answers', reward: 0.2, rollouts: 8 }] }
  expect(finalReport(worse).split('\n')[1]).toBe(
    '  short-answers: reward 0.28 before, 0.20 after (-0.08: it got worse, see "what to try next"; 8 answers)',
  )
  const same = { ...report, after: [{ env: 'short-answers', reward: 0.286, rollouts: 8 }] }
  expect(finalReport(same)).toContain('(no change; 8 answers)')
  expect(finalReport({ samples: [], files: {}, next: [], after: [{ env: 'e', reward: 0.5, rollouts: 8 }] })).toContain(
    'e: reward 0.50 after training (8 answers)',
  )
  expect(finalReport({ samples: [], files: { log: 'x' }, next: [] })).toBe('Where the files are\n  log  x')
})
