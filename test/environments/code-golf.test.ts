/** code-golf end to end: what answers earn when they run in the real sandbox. */
import { afterAll, describe, expect, test } from 'vitest'
import { loadEnvironment } from '../../src/environments/load.ts'
import { runRollout, sftRows } from '../../src/environments/rollout.ts'
import { closeSandbox } from '../../src/environments/sandbox/index.ts'
import type { Environment, Row } from '../../src/environments/types.ts'
import { sampling, ScriptedClient } from './scripted.ts'

afterAll(closeSandbox)

const env = await loadEnvironment('code-golf')
const questionOf = (row: Row) => row.prompt.at(-1)!.content

async function earn(row: Row, text: string, of: Environment = env) {
  const rollout = await runRollout(of, row, { client: new ScriptedClient(text), sampling, group: 'g', index: 0 })
  expect(rollout.error).toBeNull()
  return { reward: rollout.reward!, metrics: rollout.metrics }
}

test('asks 256 tasks, and 32 others held out; the same for the same seed', async () => {
  const again = await loadEnvironment('code-golf')
  expect([env.dataset, env.evalDataset]).toEqual([again.dataset, again.evalDataset])
  const task = (row: Row) => questionOf(row).split(' For example')[0]
  expect(new Set([...env.dataset, ...env.evalDataset].map(task)).size).toBe(256 + 32)
  expect((await loadEnvironment('code-golf', { seed: 1 })).dataset).not.toEqual(env.dataset)
})

test('its own solutions pass all tests of all tasks, and earn everything', async () => {
  for (const split of ['train', 'eval'] as const) {
    const rows = split === 'train' ? env.dataset : env.evalDataset
    for (const [i, { completion }] of sftRows(env, split).entries()) {
      const { reward, metrics } = await earn(rows[i], completion[0].content)
      expect({ reward, tests: metrics.tests }, questionOf(rows[i])).toEqual({ reward: 1, tests: 1 })
    }
  }
})

describe('an answer', () => {
  const row: Row = {
    ...env.dataset[0],
    answer: 'x=>x+3',
    info: { inputs: [[1], [2], [5], [-3]], outputs: [4, 5, 8, 0] },
  }
  test.each<[string, number, object]>([
    ['x=>x+3', 1, { tests: 1, short: 1, characters: 6, ran: 1, stopped: 0 }],
    ['x=>3+x;', 1, { characters: 6 }],
    ['```js\nx => x + 3\n```', 0.8 + 0.2 * (1 - 4 / 60), { characters: 10 }],
    ['Here it is:\n```javascript\nconst f = x => x + 3;\n```\nIt adds 3.', 0.8 + 0.2 * (1 - 4 / 60), { characters: 10 }],
    ['function f(x) { return x + 3 }', 0.8 + 0.2 * (1 - 24 / 60), { tests: 1 }],
    [`x=>x+3/*${'.'.repeat(80)}*/`, 0.8, { tests: 1, short: 0 }],
    ['x=>x==1?4:x==2?5:x==5?8:1', 0.6, { tests: 0.75, short: 0 }],
    ['x=>String(x+3)', 0, { tests: 0, ran: 1 }],
    ['x=>x-3', 0, { tests: 0, ran: 1 }],
    ['You add 3 to x.', 0, { tests: 0, ran: 0 }],
    ['', 0, { tests: 0, ran: 0 }],
    ['x=>{for(;;);}', 0, { tests: 0, ran: 0, stopped: 1 }],
    ['x=>{let a=[];for(;;)a.push(a.slice())}', 0, { tests: 0, stopped: 1 }],
    ['x=>require("fs").readFileSync("/etc/passwd").length', 0, { tests: 0, ran: 0, stopped: 0 }],
    ['x=>process.exit()', 0, { tests: 0, ran: 0, stopped: 0 }],
    ['(JSON.stringify=()=>"4",Object.prototype.toJSON=()=>4,x=>({}))', 0.2, { tests: 0.25 }],
  ])('%j', async (text, reward, metrics) => {
    const earned = await earn(row, text)
    expect(earned.reward).toBeCloseTo(reward, 12)
    expect(earned.metrics).toMatchObject(metrics)
  })
})

test('its arguments decide what is asked', async () => {
  const small = await loadEnvironment('code-golf', { kinds: ['text'], max: 5, train_size: 20, eval_size: 4, tests: 3, shown: 0 })
  expect([small.dataset.length, small.evalDataset.length]).toEqual([20, 4])
  for (const row of small.dataset) {
    expect(questionOf(row)).toMatch(/^Write a JavaScript function f of a text s that returns .+\.$/u)
    expect(row.info.outputs).toHaveLength(3)
  }
  await expect(loadEnvironment('code-golf', { max: 2 })).rejects.toThrow(/there are \d+ tasks with constants up to 2, fewer than/)
  await expect(loadEnvironment('code-golf', { kinds: ['image'] })).rejects.toThrow('environment code-golf: kinds.0')
})
