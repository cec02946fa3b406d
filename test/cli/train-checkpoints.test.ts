import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { bestStep, dataChanges, originOf, RunCheckpoints } from '../../src/cli/train-checkpoints.ts'
import { placeOf } from '../../src/cli/train-folder.ts'
import type { Metrics } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import { MetricsWriter } from '../../src/monitor/metrics-writer.ts'
import { openRunFolder, type Origin, type RunFolder } from '../../src/monitor/run-folder.ts'
import { writeSums } from '../../src/trainer/checkpoint-sums.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { freshLora, goldenPath, loraConfig, trainerOptions } from '../trainer/helpers.ts'
import { pointed } from '../windows.ts'

test('a run that goes on with other data is told what follows', () => {
  const data = { seed: 1, environments: [{ name: 'a', weight: 1, rows: 9 }] }
  expect(dataChanges({ ...data, tasks_done: 4 }, data)).toEqual([])
  // A fork of sft's has no environments to compare.
  expect(dataChanges(data, { seed: 1 })).toEqual([])
  // A checkpoint of format 1 says nothing of it.
  expect(dataChanges({ data_position: 4 }, data)).toEqual([])
  expect(dataChanges(data, { ...data, seed: 2 })).toMatchInlineSnapshot(`
    [
      "the seed was 1 and is now 2: from here on, tasks come in another order, and some of this pass may come twice.",
    ]
  `)
  // A checkpoint of before there was the key had shuffled rows.
  expect(dataChanges(data, { ...data, shuffle_dataset: true })).toEqual([])
  expect(dataChanges({ ...data, shuffle_dataset: false }, { ...data, shuffle_dataset: false })).toEqual([])
  expect(dataChanges(data, { ...data, shuffle_dataset: false })).toMatchInlineSnapshot(`
    [
      "shuffle_dataset was true and is now false: from here on, rows come in another order, and some of this pass may come twice.",
    ]
  `)
  expect(dataChanges(data, { ...data, environments: [{ name: 'a', weight: 2, rows: 10 }] })).toMatchInlineSnapshot(`
    [
      "the environments were a (9 rows, weight 1) and are now a (10 rows, weight 2): from here on, the tasks are not those that would have come.",
    ]
  `)
})

test('a run that was moved is named by where it is; one that was not keeps its words', () => {
  const config = { output_dir: 'outputs', run_name: 'first' }
  expect(placeOf(undefined, config)).toEqual(config)
  expect(placeOf({ kind: 'latest' }, config)).toEqual(config)
  expect(placeOf({ kind: 'dir', dir: 'outputs/first/' }, config)).toEqual(config)
  expect(placeOf({ kind: 'dir', dir: 'moved/copy' }, config)).toEqual({ output_dir: resolve('moved'), run_name: 'copy' })
})

test('a fork of the newest checkpoint passes over one that is damaged, as --resume does', async () => {
  const base = mkdtempSync(join(tmpdir(), 'dawn-rl-fork-'))
  onTestFinished(() => rmSync(base, { recursive: true }))
  const file = (step: number) => join(base, `old/checkpoints/step_${step}/state.json`)
  for (const step of [1, 2]) {
    const dir = join(base, `old/checkpoints/step_${step}`)
    mkdirSync(dir, { recursive: true })
    writeFileSync(file(step), '{"best":{"step":1}}')
    await writeSums(dir, ['state.json'])
    writeFileSync(join(dir, 'STABLE'), '{"state.json":19}')
  }
  const warnings: string[] = []
  const fork = () => originOf({ dir: join(base, 'old'), step: 'latest' }, (line) => warnings.push(line))
  writeFileSync(file(2), '{"best":{"step"!1}}')
  expect(await fork()).toEqual({ from: join(base, 'old'), step: 1 })
  expect(bestStep(join(base, 'old'))).toBe(1)
  expect(warnings).toEqual([expect.stringMatching(/^skipped .*step_2: state\.json /)])
  writeFileSync(file(1), '{"best":{"step"!1}}')
  expect(bestStep(join(base, 'old'))).toBeUndefined()
  await expect(fork()).rejects.toThrow(/^--fork .*old: .*step_2: state\.json /)
})

/** A GPU and an empty run folder, closed and removed at the end of the test. */
async function openRun(): Promise<{ gpu: Gpu; folder: RunFolder }> {
  const base = mkdtempSync(join(tmpdir(), 'dawn-rl-checkpoints-'))
  const gpu = await Gpu.open({ checks: true })
  const folder = openRunFolder({ outputDir: base, runName: 'run', configText: '' })
  onTestFinished(() => {
    gpu.close()
    folder.close()
    rmSync(base, { recursive: true })
  })
  return { gpu, folder }
}

const checkpointsOf = (
  folder: RunFolder,
  trainer: Trainer,
  ckpt: { keep_best?: string },
  print: (line: string) => void = () => {},
) =>
  new RunCheckpoints({
    folder,
    trainer,
    weights: { lora: loraConfig, rawConfig: {} },
    ckpt: { interval: 1, keep_last: 1, ...ckpt },
    rewind: (step) => folder.rewind(step),
    settle: () => folder.settle(),
    print,
    warn: () => {},
  })

test('the best step is known although the run was killed between the row of its evaluation and the checkpoint', async () => {
  const { gpu, folder } = await openRun()
  const files = await openModel(goldenPath('llama', 'model'))
  const trainer = new Trainer(await loadDecoder(gpu, files, freshLora()), await trainerOptions(folder.path))
  const metrics = new MetricsWriter({ path: folder.metricsPath, onWarning: () => {} })
  const open = () => checkpointsOf(folder, trainer, { keep_best: 'eval/a/avg@1' })
  const best = () => [pointed(join(folder.checkpointsPath, 'best')), bestStep(folder.path)]
  const checkpoints = open()
  for (const [step, value] of [
    [1, 0.25],
    [2, undefined],
  ] as const) {
    trainer.step = step
    const row = metrics.write(step, { reward: 0, ...(value !== undefined && { 'eval/a/avg@1': value }) })
    await checkpoints.save(step, row, {})
  }
  // It was asked to stop before the evaluation of step 2. Resumed, it made that, and was killed.
  metrics.write(2, { 'eval/a/avg@1': 0.5 })
  metrics.close()
  expect(best()).toEqual(['step_1', 1])
  await open().begin({ resume: { kind: 'latest' } })
  expect(best()).toEqual(['step_2', 2])
  const { ino } = statSync(folder.checkpointPath(2))
  await open().begin({ resume: { kind: 'latest' } })
  expect([...best(), statSync(folder.checkpointPath(2)).ino]).toEqual(['step_2', 2, ino])
})

test('micro-batches that had to become smaller stay so until the config asks for another size, and only that is said', async () => {
  const { gpu, folder } = await openRun()
  const decoder = await loadDecoder(gpu, await openModel(goldenPath('llama', 'model')), freshLora())
  const printed: string[] = []
  const open = async (microBatchTokens: number) => {
    const trainer = new Trainer(decoder, { ...(await trainerOptions(folder.path)), microBatchTokens })
    return { trainer, checkpoints: checkpointsOf(folder, trainer, {}, (line) => printed.push(line)) }
  }
  const resumed = async (asked: number): Promise<[number, string[]]> => {
    const { trainer, checkpoints } = await open(asked)
    printed.length = 0
    await checkpoints.begin({ resume: { kind: 'latest' } })
    return [trainer.fitting.size.microBatchTokens, printed.filter((line) => line.startsWith('micro'))]
  }
  const { trainer, checkpoints } = await open(128)
  trainer.step = 1
  await checkpoints.save(1, undefined, {})
  expect(await resumed(128)).toEqual([128, []])
  trainer.fitting.shrinkTo(32)
  await checkpoints.save(1, undefined, {})
  expect(await resumed(128)).toEqual([32, [expect.stringMatching(/^micro    32 tokens: more did not fit .* other than 128\.$/)]])
  for (const asked of [64, 256]) expect(await resumed(asked)).toEqual([asked, []])
})

test('a metric of keep_best that no step has is said once, at the first checkpoint; one that an evaluation will have is not', async () => {
  const base = mkdtempSync(join(tmpdir(), 'dawn-rl-unmeasured-'))
  const gpu = await Gpu.open({ checks: true })
  onTestFinished(() => {
    gpu.close()
    rmSync(base, { recursive: true })
  })
  const decoder = await loadDecoder(gpu, await openModel(goldenPath('llama', 'model')), freshLora())
  const trainer = new Trainer(decoder, await trainerOptions(base))
  const warningsOf = async (keep_best: string, runName: string, row: Metrics): Promise<string[]> => {
    const folder = openRunFolder({ outputDir: base, runName, configText: '' })
    onTestFinished(() => folder.close())
    const warnings: string[] = []
    const checkpoints = new RunCheckpoints({
      folder,
      trainer,
      weights: { lora: loraConfig, rawConfig: {} },
      ckpt: { interval: 1, keep_last: 1, keep_best },
      rewind: (step) => folder.rewind(step),
      settle: () => folder.settle(),
      print: () => {},
      warn: (line) => warnings.push(line),
    })
    for (const step of [1, 2]) {
      trainer.step = step
      await checkpoints.save(step, row, {})
    }
    return warnings
  }
  expect(await warningsOf('-reward/mean', 'none', { reward: 1 })).toEqual([
    'trainer.ckpt.keep_best is "-reward/mean", which step 1 has not measured (its metrics are in metrics.jsonl). As long as no step that is saved has it, no checkpoint is kept as the best.',
  ])
  expect(await warningsOf('eval/a/avg@1', 'later', { reward: 1 })).toEqual([])
  expect(await warningsOf('reward/right', 'null', { 'reward/right': null })).toEqual([])
})

test('a fork of a run that goes on: its newest checkpoint was replaced by another while the model was loaded', async () => {
  const base = mkdtempSync(join(tmpdir(), 'dawn-rl-going-'))
  const gpu = await Gpu.open({ checks: true })
  onTestFinished(() => {
    gpu.close()
    rmSync(base, { recursive: true })
  })
  const trainer = new Trainer(
    await loadDecoder(gpu, await openModel(goldenPath('llama', 'model')), freshLora()),
    await trainerOptions(base),
  )
  const [printed, warnings]: string[][] = [[], []]
  const open = (runName: string, origin?: Origin) => {
    const folder = openRunFolder({ outputDir: base, runName, configText: '', origin })
    onTestFinished(() => folder.close())
    const checkpoints = new RunCheckpoints({
      folder,
      trainer,
      weights: { lora: loraConfig, rawConfig: {} },
      ckpt: { interval: 1, keep_last: 1 },
      rewind: (step) => folder.rewind(step),
      settle: () => folder.settle(),
      print: (line) => printed.push(line),
      warn: (line) => warnings.push(line),
    })
    return { folder, checkpoints }
  }
  const goesOn = open('old')
  const save = async (step: number) => {
    trainer.step = step
    await goesOn.checkpoints.save(step, undefined, {})
  }
  await save(1)
  const fork = { dir: goesOn.folder.path, step: 'latest' } as const
  const origin = await originOf(fork, () => {})
  const { folder, checkpoints } = open('new', origin)
  const named = open('named', origin).checkpoints
  await save(2)
  expect(await checkpoints.begin({ fork })).toMatchObject({ step: 2 })
  expect(folder.origin).toEqual({ from: resolve(goesOn.folder.path), step: 2 })
  expect(printed).toEqual([expect.stringContaining('forked   step 2 from ')])
  expect(warnings).toEqual([])
  // One that was named is not replaced by another.
  await expect(named.begin({ fork: { ...fork, step: 1 } })).rejects.toThrow(/step_1 is not a complete checkpoint/)
})
