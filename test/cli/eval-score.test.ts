/** Statistics of an evaluation, against enumeration and against what intervals promise. */
import { expect, test } from 'vitest'
import { adviceOf, changeOf, estimate, evalTable, passAllK, passKs, scoreOf, spreadLine } from '../../src/cli/eval-score.ts'
import { Random } from '../../src/common/random.ts'
import { passAtK } from '../../src/monitor/aggregate.ts'
import type { RolloutRow } from '../../src/monitor/rollout-writer.ts'
import { seed, seedWords } from '../seed.ts'

/** Rows of examples by their answers' rewards; null: it failed. */
const rowsOf = (rewards: (number | null)[][], truncated = false): RolloutRow[] =>
  rewards.flatMap((group, example_id) =>
    group.map((reward, index) => ({
      example_id, index, reward, env: 'e', prompt: [], completion: [], answer: '', info: {}, metrics: {}, is_completed: reward !== null,
      error: reward === null ? { error: 'Error', message: 'the judge is away', error_chain_repr: '', error_chain_str: '' } : null,
      is_truncated: truncated, stop_condition: 'eos', timing: { generation_ms: 0, scoring_ms: 0, total_ms: 0 }, advantage: null,
      token_usage: { input_tokens: 1, output_tokens: 3, final_input_tokens: 1, final_output_tokens: 3 },
      policy_version: null, group: String(example_id), seed: 0, split: 'eval' as const, step: 0,
    })),
  ) // prettier-ignore
const score = (rewards: (number | null)[][], target = 'm', truncated = false) =>
  scoreOf(rowsOf(rewards, truncated), { env: 'e', target, k: rewards[0].length, solvedAt: 0.5 })

/** Whether each of all choices of k answers passes a test, averaged. */
function enumerate(solved: boolean[], k: number, passes: (chosen: boolean[]) => boolean): number {
  let [count, sum] = [0, 0]
  for (let mask = 0; mask < 1 << solved.length; mask++) {
    const chosen = solved.filter((_, i) => mask & (1 << i))
    if (chosen.length !== k) continue
    count++
    sum += Number(passes(chosen))
  }
  return sum / count
}

test('pass@k and pass-all-k are the averages over all choices of k answers', () => {
  for (let n = 1; n <= 6; n++) {
    for (let c = 0; c <= n; c++) {
      const solved = Array.from({ length: n }, (_, i) => i < c)
      for (let k = 1; k <= n; k++) {
        expect(passAtK(n, c, k)).toBeCloseTo(
          enumerate(solved, k, (chosen) => chosen.some(Boolean)),
          12,
        )
        expect(passAllK(n, c, k)).toBeCloseTo(
          enumerate(solved, k, (chosen) => chosen.every(Boolean)),
          12,
        )
      }
    }
  }
  expect([passKs(1), passKs(4), passKs(6)]).toEqual([[1], [1, 2, 4], [1, 2, 4, 6]])
})

test('intervals hold the true mean about as often as they say', () => {
  const random = new Random(seed)
  let held = 0
  for (let i = 0; i < 200; i++) {
    const { low, high } = estimate(Array.from({ length: 60 }, () => Number(random.next() < 0.4)), i)! // prettier-ignore
    held += Number(low! <= 0.4 && high! >= 0.4)
  }
  // 95 % of 200, and chance: less than one time in 10,000 below 172 even at 92 %.
  expect(held, seedWords).toBeGreaterThan(171)
  expect(estimate([])).toBeNull()
  expect(estimate([0.5])).toEqual({ mean: 0.5 })
  expect(estimate([1, 0, 1, 1])).toEqual(estimate([1, 0, 1, 1]))
})

test('an answer that earns all of its parts is solved at 1, though 0.7 + 0.2 + 0.1 is below it', () => {
  const s = scoreOf(rowsOf([[0.7 + 0.2 + 0.1, 0.3]]), { env: 'e', target: 'm', k: 2, solvedAt: 1 })
  expect([s.pass[1].mean, s.pass[2].mean]).toEqual([0.5, 1])
})

test('means are over examples, failed answers are left out and counted', () => {
  const s = score([
    [1, 1, 0, 0],
    [0, 0, 0, 0],
    [1, null, null, null],
  ])
  expect(s.avg!.mean).toBeCloseTo((0.5 + 0 + 1) / 3)
  expect([s.errors, s.rollouts, s.examples, s.firstError]).toEqual([3, 12, 3, 'the judge is away'])
  expect(adviceOf({ ...s, firstError: 'it wrote "\x1b]0;a"' })[0]).toContain('it wrote "␛]0;a"')
  // One solved of one; examples with fewer answers than k are not asked about k.
  expect([s.pass[1].mean, s.pass[4].mean]).toEqual([0.5, 0.5])
  expect(s.mixed).toBe(0.5)
  expect(s.within).toBeCloseTo(0.25)
  expect(spreadLine(s)).toContain('0-0.2: 1, 0.2-0.4: 0, 0.4-0.6: 1, 0.6-0.8: 0, 0.8-1: 1')
  // What lies on an edge belongs to what begins there.
  const edges = score([[0], [0.2], [0.4], [0.6], [1, 1, 1, 0, 0], [0.8], [1]])
  expect(spreadLine(edges)).toContain('0-0.2: 1, 0.2-0.4: 1, 0.4-0.6: 1, 0.6-0.8: 2, 0.8-1: 2')
})

test('changes are paired: a sure gain has a narrow interval though examples differ', () => {
  const before = score([[0, 0.2], [0.9, 0.7], [0.3, 0.3], [0.5, 0.7]]) // prettier-ignore
  const after = score([[0.1, 0.3], [1, 0.8], [0.4, 0.4], [0.6, 0.8]], 'step_2') // prettier-ignore
  const change = changeOf(before, after)!
  expect(change.mean).toBeCloseTo(0.1)
  expect(change.high! - change.low!).toBeLessThan(1e-9)
  const table = evalTable([before, after]).split('\n')
  expect(table).toHaveLength(3)
  expect(table[0]).toMatch(/^env {2}model .* change$/)
  expect(table[2]).toMatch(/step_2 .*\+0\.100 \[0\.100, 0\.100\]$/)
})

test('the rules of thumb', () => {
  const say = (...args: Parameters<typeof score>) => adviceOf(score(...args)).join(' ')
  const [zeros, ones] = [[0, 0, 0, 0], [1, 1, 1, 1]] // prettier-ignore
  expect(say([zeros, zeros, zeros])).toContain('All 12 attempts earned 0: the tasks are too hard')
  expect(say([zeros])).toContain('sample 10 or more')
  expect(say([ones, ones])).toContain('harder tasks')
  expect(say([ones, zeros, zeros, zeros])).toContain('Only 0% of the examples')
  expect(say([[1, 0, 0, 1], zeros])).toContain('there is something to learn')
  expect(say([[1], [0]])).toContain('use -r 4 or more')
  expect(say([[1, 0, 0, 1]], 'm', true)).toContain('100% of the answers were cut off')
  expect(say([[1, null, 0, 1]])).toContain('1 of 4 answers failed')
})
