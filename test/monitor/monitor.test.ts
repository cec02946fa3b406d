import { cpSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { Monitor } from '../../src/monitor/monitor.ts'
import { readMetrics } from '../../src/monitor/metrics-writer.ts'
import { readRollouts } from '../../src/monitor/rollout-writer.ts'
import { openRunFolder } from '../../src/monitor/run-folder.ts'
import { Capture, groupsOf, scored, temporaryFolder } from './helpers.ts'
import { behind, canLink } from '../windows.ts'

function start(outputDir: string, resume?: number) {
  const stream = new Capture(false)
  const folder = openRunFolder({ outputDir, runName: 'run', configText: 'x = 1\n', resume: resume !== undefined })
  if (resume !== undefined) folder.rewind(resume)
  const monitor = new Monitor({ folder, maxSteps: 4, stream, colour: false, samplesEvery: 0, watch: { maxTokens: 24 } })
  onTestFinished(() => monitor.close())
  return { folder, monitor, stream }
}

test('a run that ends after step 3 and is resumed from step 2 leaves the files of one run', async () => {
  const base = temporaryFolder()
  const one = start(base)
  const step = (m: Monitor, n: number, rewards: number[]) =>
    m.finishStep({
      step: n,
      rollouts: scored(groupsOf([rewards]), 0.5),
      version: n - 1,
      metrics: { 'loss/mean': NaN, 'time/step': 2 },
    })
  await one.monitor.writeRow(
    0,
    await one.monitor.finishEval({ step: 0, env: 'held-out', rollouts: groupsOf([[0, 1]]), version: 0, seconds: 1 }),
  )
  await step(one.monitor, 1, [0, 0])
  await step(one.monitor, 2, [0, 1])
  await step(one.monitor, 3, [1, 0.5])
  one.monitor.close()
  one.monitor.close()
  expect(one.stream.text).toMatchInlineSnapshot(`
    "eval before training | held-out reward 0.50 | solved 50% | pass@2 1.00 | truncated 0% | 3 tokens | 1.0s
    warning: loss/mean was NaN at step 1 and is written as null (said once for this metric).
    step 1/4 | reward 0.00 ▄ | mixed 0% | truncated 0% | 3 tokens | 2.0s | eta 6.0s
    warning: all 2 rewards are 0, so nothing can be learned: read the answers in rollouts/step_1.jsonl, then make the task easier (env.args), fix its reward functions, or raise trainer.args.temperature.
    step 2/4 | reward 0.50 ▁█ | mixed 100% | truncated 0% | 3 tokens | 2.0s | eta 4.0s
    step 3/4 | reward 0.75 ▁▆█ | mixed 100% | truncated 0% | 3 tokens | 2.0s | eta 2.0s
    "
  `)

  const two = start(base, 2)
  await step(two.monitor, 3, [1, 1, 0])
  await step(two.monitor, 4, [1, 0])
  two.monitor.close()
  const rows = readMetrics(two.folder.metricsPath)
  expect(rows.map((r) => [r.step, r.reward, r['progress/total_rollouts']])).toEqual([
    [0, undefined, undefined],
    [1, 0, 2],
    [2, 0.5, 4],
    [3, 2 / 3, 7],
    [4, 0.5, 9],
  ])
  expect(rows[1]['loss/mean']).toBeNull()
  expect(two.stream.text).toContain('step 3/4 | reward 0.67 ▁▇█ |')
  expect(readRollouts(two.folder, 3)).toHaveLength(3)
  expect(readRollouts(two.folder, 0).map((r) => r.split)).toEqual(['eval', 'eval'])
  expect(readdirSync(join(two.folder.path, 'logs')).toSorted()).toEqual(['attempt_1.log', 'attempt_2.log', 'latest'])
  const log = readFileSync(behind(join(two.folder.path, 'logs', 'latest')), 'utf8')
  expect(log).toContain('"msg":"step 4"')
  expect(log).not.toContain('"msg":"step 2"')
})

test('equal rewards are no word where a teacher gave the step a gradient', async () => {
  const { monitor, stream } = start(temporaryFolder())
  const finish = (step: number, norm: number) =>
    monitor.finishStep({ step, rollouts: scored(groupsOf([[0, 0]]), 0), version: step - 1, metrics: { 'optim/grad_norm': norm } })
  await finish(1, 0.5)
  expect(stream.text).not.toContain('warning')
  for (const step of [2, 3, 4]) await finish(step, 0)
  expect(stream.text).toContain('for 3 steps: all 2 rewards are 0, so nothing can be learned')
})

test('a mixture has the metrics of each environment also in steps whose tasks are all of one of them', async () => {
  const folder = openRunFolder({ outputDir: temporaryFolder(), runName: 'run', configText: '' })
  const monitor = new Monitor({
    folder,
    maxSteps: 2,
    watch: { maxTokens: 8 },
    stream: new Capture(),
    samplesEvery: 0,
    mixture: true,
  })
  onTestFinished(() => monitor.close())
  const played = groupsOf([[0, 1]], { env: 'a', metrics: { exact: 0.5 } })
  const row = await monitor.finishStep({ step: 1, rollouts: scored(played), version: 0, metrics: {} })
  expect(row).toMatchObject({ 'reward/a/mean': 0.5, 'reward/a/exact': 0.5, 'has_error/a/mean': 0, 'num_turns/a/mean': 1 })
})

test('rewind: rows, totals and files go back, and what is written next follows the row it went back to', async () => {
  const folder = openRunFolder({ outputDir: temporaryFolder(), runName: 'run', configText: '' })
  const stream = new Capture()
  const monitor = new Monitor({ folder, maxSteps: 9, watch: { maxTokens: 8 }, stream, samplesEvery: 0 })
  onTestFinished(() => monitor.close())
  const finish = (step: number) =>
    monitor.finishStep({ step, rollouts: scored(groupsOf([[0, step]])), version: step - 1, metrics: {} })
  for (const step of [1, 2, 3]) await finish(step)
  expect(monitor.rewind(1)).toMatchObject({ metricsRows: 2, rolloutFiles: 4 })
  expect((await finish(2))['progress/total_rollouts']).toBe(4)
  expect(readMetrics(folder.metricsPath).map((row) => row.step)).toEqual([1, 2])
  expect(readRollouts(folder, 2)).toHaveLength(2)
  expect(readRollouts(folder, 3)).toHaveLength(0)
})

test('the sampler and its clients get turns while many rollouts are written', async () => {
  const { folder, monitor } = start(temporaryFolder())
  let turns = 0
  const count = setInterval(() => turns++, 0)
  onTestFinished(() => clearInterval(count))
  const rewards = Array.from({ length: 100 }, (_, i) => Array.from({ length: 10 }, () => i))
  const long = groupsOf(rewards).map((one) => {
    const ids = Array.from({ length: 500 }, (_, i) => i)
    return { ...one, completion_tokens: { ids, logprobs: ids.map((i) => -i / 7), versions: ids.map(() => 0) } }
  })
  await monitor.finishStep({ step: 1, rollouts: scored(long, 0.5), version: 0, metrics: {} })
  await monitor.finishEval({ step: 1, env: 'e', rollouts: long, version: 1 })
  expect(turns).toBeGreaterThan(20)
  expect(readRollouts(folder, 1).map((row) => [row.split, row.group, row.index])).toEqual(
    ['train', 'eval'].flatMap((split) => long.map(({ group, index }) => [split, group, index])),
  )
})

test('a run folder that is moved under a run, and whose name another run takes: the first writes nothing into it', async () => {
  const outputDir = temporaryFolder()
  const { folder, monitor } = start(outputDir)
  const finish = (step: number) =>
    monitor.finishStep({ step, rollouts: scored(groupsOf([[0, 1]])), version: step - 1, metrics: {} })
  await finish(1)
  renameSync(folder.path, `${folder.path}-old`)
  const other = openRunFolder({ outputDir, runName: folder.runName, configText: '' })
  const words = `The run folder ${folder.path} now belongs to another run`
  await expect(finish(2)).rejects.toThrow(words)
  // Nor after the other one has ended.
  other.close()
  await expect(finish(2)).rejects.toThrow(words)
  expect(readRollouts(folder, 2)).toEqual([])
})

test.skipIf(!canLink)('a run folder that is moved to another disk, with a link in its place: the rows go on there', async () => {
  const [outputDir, disk] = [temporaryFolder(), temporaryFolder()]
  const { folder, monitor } = start(outputDir)
  const finish = (step: number) =>
    monitor.finishStep({ step, rollouts: scored(groupsOf([[0, 1]])), version: step - 1, metrics: {} })
  await finish(1)
  cpSync(folder.path, join(disk, 'moved'), { recursive: true })
  rmSync(folder.path, { recursive: true })
  symlinkSync(join(disk, 'moved'), folder.path)
  await finish(2)
  expect(readMetrics(folder.metricsPath).map((row) => row.step)).toEqual([1, 2])
  expect(readRollouts(folder, 2)).toHaveLength(2)
})

test('a run folder that is deleted under a run is named', async () => {
  const { folder, monitor } = start(temporaryFolder())
  rmSync(folder.path, { recursive: true })
  const step = monitor.finishStep({ step: 1, rollouts: scored(groupsOf([[0, 1]])), version: 0, metrics: {} })
  await expect(step).rejects.toThrow(`The run folder ${folder.path} was deleted or moved while the run wrote into it.`)
})
