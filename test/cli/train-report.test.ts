/** Which answers a run's last words show, and which evaluations it still has to make. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { otherTasks, samplePairs, summaries } from '../../src/cli/train-report.ts'
import { missedEvals } from '../../src/cli/train-setup.ts'
import { parseConfig } from '../../src/config/load.ts'
import { evalMetrics } from '../../src/monitor/aggregate.ts'
import { MetricsWriter } from '../../src/monitor/metrics-writer.ts'
import { openRunFolder } from '../../src/monitor/run-folder.ts'
import type { RolloutBrief, RolloutRow } from '../../src/monitor/rollout-writer.ts'
import { finalReport } from '../../src/monitor/terminal/last-words.ts'
import type { RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { rollout } from '../orchestrator/helpers.ts'

test('an evaluation is missing also if there is one of an environment whose name begins with the same folder', () => {
  const outputDir = mkdtempSync(join(tmpdir(), 'dawn-rl-missed-'))
  onTestFinished(() => rmSync(outputDir, { recursive: true, force: true }))
  const folder = openRunFolder({ outputDir, runName: 'run', configText: '' })
  const metrics = new MetricsWriter({ path: folder.metricsPath, onWarning: () => {} })
  const { config } = parseConfig('model = "models/tiny"\nenv.id = "reverse-text"\ntrainer.args.eval_steps = 4')
  const evaluated = ['a', 'a/b', 'c'].map((name) => ({ name }) as RunEnvironment)
  const missed = () => missedEvals(evaluated, 4, config, folder).map(({ name }) => name)
  metrics.write(4, { 'loss/mean': 1 })
  expect(missed()).toEqual(['a', 'a/b', 'c'])
  metrics.write(4, evalMetrics('a/b', [rollout()], 4))
  expect(missed()).toEqual(['a', 'c'])
  metrics.write(4, evalMetrics('a', [rollout({ reward: null })], 4))
  expect(missed()).toEqual(['c'])
  metrics.close()
  folder.close()
})

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

test('an evaluation whose answers all failed has no reward to compare with', () => {
  const rowOf = (reward: number | null) =>
    ({ env: 'sums', reward, is_truncated: true, token_usage: { output_tokens: 3 } }) as unknown as RolloutRow
  const [none, some] = [
    [null, null],
    [0.5, null],
  ].map((rewards) => summaries(rewards.map(rowOf)))
  const said = (before: typeof none, after: typeof none) =>
    finalReport({ before, after, samples: [], files: {}, next: [] }).split('\n  sums: ')[1]
  expect(said(none, some)).toBe(
    'reward none before, 0.50 after (all answers failed before; 1 answers, 3 tokens an answer, 100% cut off)',
  )
  expect(said(some, none)).toBe('reward 0.50 before, none after (all answers failed after; 0 answers)')
  expect(said([], none)).toBe('reward none after training (0 answers)')
})

test('another task to try is not the one of the run', () => {
  expect(otherTasks([{ id: 'short-answers' }])).toEqual(['arithmetic', 'reverse-text'])
  expect(otherTasks([{ id: 'reverse-text' }, { id: './my_env.ts' }])).toEqual(['arithmetic', 'short-answers'])
})
