import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished, test } from 'vitest'
import type { PolicyVersion, TrainingBatch } from '../../src/common/types.ts'
import { Monitor } from '../../src/monitor/monitor.ts'
import { metricInfo } from '../../src/monitor/metrics-table.ts'
import { readRollouts } from '../../src/monitor/rollout-writer.ts'
import { openRunFolder } from '../../src/monitor/run-folder.ts'
import { trainingLoop, type LoopOptions, type LoopParts } from '../../src/orchestrator/loop.ts'
import type { OrchestratorOptions } from '../../src/orchestrator/options.ts'
import { Capture } from '../monitor/helpers.ts'
import type { RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { makeOrchestrator, numbersEnv, type Script } from './helpers.ts'

interface Setup {
  script?: Script
  options?: Partial<LoopOptions>
  orchestrator?: Partial<OrchestratorOptions>
  evaluated?: boolean
  /** Evaluated before the first step; default: what a fresh run, or one that goes on after an evaluation, has there. */
  begin?: RunEnvironment[]
  /** Called in the middle of a training step. */
  onTrain?: (batch: TrainingBatch) => void | Promise<void>
  skips?: (step: number) => boolean
  /** A skipped step publishes all the same. */
  skipsLate?: boolean
  /** Shares of a step after which it publishes; default: once, when it is made. */
  updates?: (step: number) => number[]
  /** Called after each of them. */
  onUpdate?: (step: number) => void
  /** Called when weights travel to the sampler. */
  onPublish?: (version: PolicyVersion) => Promise<void>
  onEval?: (step: number) => void
  /** Steps whose evaluation is the best so far. */
  best?: number[]
  /** Called before the row of a step is written. */
  onFinish?: (step: number) => void
  lost?: LoopParts['lost']
}

/** The loop over a real orchestrator and monitor; the trainer is a clock that publishes. */
async function setUp(setup: Setup = {}) {
  const { script = (_, n) => ({ text: String(n % 3) }), options = {} } = setup
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-loop-'))
  const folder = openRunFolder({ outputDir: dir, runName: 'run', configText: '' })
  const stream = new Capture()
  const monitor = new Monitor({ folder, maxSteps: 4, watch: { maxTokens: 8 }, stream, samplesEvery: 0 })
  onTestFinished(() => {
    monitor.close()
    rmSync(dir, { recursive: true, force: true })
  })
  const { orchestrator, generator } = await makeOrchestrator(script, { ...setup.orchestrator, progress: monitor.progress })
  const events: string[] = []
  const stop = new AbortController()
  const prepare = orchestrator.prepare.bind(orchestrator)
  orchestrator.prepare = (step) => (events.push(`prepare ${step}`), prepare(step))
  const evaluate = orchestrator.evaluate.bind(orchestrator)
  orchestrator.evaluate = async (source, how) => {
    events.push(`eval ${how.step}`)
    setup.onEval?.(how.step)
    return await evaluate(source, how)
  }
  const finish = monitor.finishStep.bind(monitor)
  monitor.finishStep = async (done) => {
    setup.onFinish?.(done.step)
    return await finish(done)
  }
  const batches: TrainingBatch[] = []
  const held = setup.evaluated ? [await numbersEnv()] : []
  const parts: LoopParts = {
    orchestrator,
    monitor,
    train: async (batch, published) => {
      events.push(`train ${batch.step}`)
      batches.push(batch)
      await setup.onTrain?.(batch)
      const skipped = setup.skips?.(batch.step) ?? false
      const made = setup.updates?.(batch.step) ?? [1]
      if (!skipped || setup.skipsLate)
        for (const share of made) {
          published(share)
          setup.onUpdate?.(batch.step)
        }
      return { metrics: { 'loss/mean': 0 } }
    },
    publish: (version) => {
      events.push(`publish ${version}`)
      generator.version = version
      return setup.onPublish?.(version).then(() => ({}))
    },
    save: (step, row) => Promise.resolve(void events.push(`save ${step}`, `row ${step}: ${row?.reward}`)),
    isBest: (step) => !!setup.best?.includes(step),
    lost: setup.lost,
    evaluated: { begin: setup.begin ?? (options.firstStep ? [] : held), steps: held },
  }
  const loop = () =>
    trainingLoop(parts, {
      firstStep: 0, maxSteps: 4, maxAsyncLevel: 1, evalSteps: 100, evalExamples: 2, evalRolloutsPerExample: 1, evalTemperature: 1, saveSteps: 0,
      stop: stop.signal, ...options,
    }) // prettier-ignore
  const rows = () =>
    readFileSync(folder.metricsPath, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line) as Record<string, number>) // prettier-ignore
  return { loop, events, batches, generator, stop, stream, rows, folder }
}

const only = (events: string[], ...words: string[]) => events.filter((e) => words.includes(e.split(' ')[0]))
const versionsOf = (batch: TrainingBatch) => batch.samples.flatMap((s) => s.rollout!.completion_tokens.versions)

test('one step off-policy: n + 1 is sampled from before n is trained, with the versions of then', async () => {
  const { loop, events, batches, rows } = await setUp()
  expect(await loop()).toMatchObject({ lastStep: 4 })
  expect(only(events, 'prepare', 'train', 'publish')).toEqual([
    'prepare 1', 'prepare 2', 'prepare 1', 'train 1', 'publish 1',
    'prepare 2', 'prepare 3', 'prepare 2', 'train 2', 'publish 2',
    'prepare 3', 'prepare 4', 'prepare 3', 'train 3', 'publish 3',
    'prepare 4', 'prepare 4', 'train 4', 'publish 4',
  ]) // prettier-ignore
  expect(batches.map((b) => new Set(versionsOf(b)))).toEqual([new Set([0]), new Set([0]), new Set([1]), new Set([2])])
  expect(rows().map((r) => r['off_policy/max'])).toEqual([0, 1, 1, 1])
})

test('max_async_level 0: in turns, every token by the weights that are trained', async () => {
  const { loop, events, batches, rows } = await setUp({ options: { maxAsyncLevel: 0 } })
  await loop()
  expect(batches.flatMap((b) => versionsOf(b).map((v) => b.step - 1 - v))).toEqual(Array.from({ length: 24 }, () => 0))
  expect(rows().map((r) => r['off_policy/mean'])).toEqual([0, 0, 0, 0])
  expect(events.indexOf('prepare 2')).toBeGreaterThan(events.indexOf('publish 1'))
})

test('several updates by a batch: the weights in between are versions of their own, and the step ends with its number', async () => {
  // Of step 3 the second update was not finite.
  const { loop, events } = await setUp({ updates: (step) => (step === 3 ? [1 / 2] : [1 / 2, 1]) })
  await loop()
  expect(only(events, 'publish').map((e) => Number(e.split(' ')[1]))).toEqual([0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4])
})

test('max_async_level 2 runs two steps ahead', async () => {
  const { loop, rows } = await setUp({ options: { maxAsyncLevel: 2 } })
  await loop()
  expect(rows().map((r) => r['off_policy/max'])).toEqual([0, 1, 2, 2])
})

test.each([0, 1, 2])(
  'max_off_policy_steps %s: older rollouts are dropped, those of just that age are trained on',
  async (limit) => {
    const { loop, batches, rows } = await setUp({ options: { maxAsyncLevel: 2 }, orchestrator: { maxOffPolicySteps: limit } })
    await loop()
    const ages = [0, 1, 2, 2]
    expect(batches.map(({ samples }) => samples.length)).toEqual(ages.map((age) => (age <= limit ? 6 : 0)))
    expect(rows().map((r) => r['off_policy/dropped'])).toEqual(ages.map((age) => (age <= limit ? 0 : 6)))
  },
)

test('weights are published in flight: an answer has tokens of two versions', async () => {
  const { loop, batches, rows } = await setUp({
    script: (_, n) => ({ text: `${n % 6}.25`, afterMs: n < 6 ? 0 : 60 }),
    onTrain: () => sleep(10),
    options: { maxSteps: 2 },
  })
  await loop()
  expect(new Set(versionsOf(batches[1]))).toEqual(new Set([0, 1]))
  expect(rows()[1]['off_policy/mean']).toBe(0.5)
})

test.each([
  ['known before its weights are', false],
  ['after they were published', true],
])('a skipped step counts as a version, once: %s', async (_, skipsLate) => {
  const { loop, events } = await setUp({ skips: (step) => step === 2, skipsLate })
  await loop()
  expect(only(events, 'publish')).toEqual(['publish 1', 'publish 2', 'publish 3', 'publish 4'])
})

test('a batch without a single group to train on is a step too', async () => {
  const { loop, batches, rows } = await setUp({ script: () => ({ text: '1' }), options: { maxSteps: 2 } })
  await loop()
  expect(batches.map((b) => b.lossTokenCount)).toEqual([0, 0])
  expect(rows().map((r) => [r.solved_some, r.solved_all, r.reward])).toEqual([[0, 1, 1], [0, 1, 1]]) // prettier-ignore
})

test.each([
  ['every 2 steps', { evalSteps: 2 }, [0, 2, 4]],
  ['the last one is due anyway', { evalSteps: 3 }, [0, 3, 4]],
  ['only before and after', { evalSteps: 100 }, [0, 4]],
  ['a resumed run was evaluated where it stopped', { evalSteps: 2, firstStep: 2 }, [4]],
])('evaluation: %s', async (_, options, steps) => {
  const { loop, events, rows, generator } = await setUp({ evaluated: true, options: { ...options, evalTemperature: 0.5 } })
  const { after } = await loop()
  for (const { prompt, temperature } of generator.requests) expect(temperature).toBe(prompt.includes('held') ? 0.5 : 1)
  expect(only(events, 'eval')).toEqual(steps.map((step) => `eval ${step}`))
  const evaluated = rows().filter((row) => 'eval/numbers/avg@1' in row)
  expect(evaluated.map((row) => row.step)).toEqual(steps)
  expect(evaluated.map((row) => row['eval/numbers/policy_version'])).toEqual(steps)
  expect(after.map((e) => [e.step, e.rollouts.length])).toEqual([[4, 2]])
})

test.each([
  [0, ['save 4']],
  [2, ['save 2', 'save 4']],
  [3, ['save 3', 'save 4']],
])('save_steps = %i', async (saveSteps, saves) => {
  const { loop, events } = await setUp({ options: { saveSteps } })
  await loop()
  expect(only(events, 'save')).toEqual(saves)
})

test('the best evaluation is saved when it is made, each step with its own row', async () => {
  const { loop, events, rows } = await setUp({ options: { saveSteps: 2 }, best: [1, 2] })
  await loop()
  expect(only(events, 'save')).toEqual(['save 1', 'save 2', 'save 4'])
  expect(only(events, 'row')).toEqual([1, 2, 4].map((step) => `row ${step}: ${rows()[step - 1].reward}`))
})

test('a resumed run makes the evaluation that its end cut short, and saves the step again where it is the best', async () => {
  const options = { firstStep: 2, evalSteps: 100 }
  const { loop, events, rows } = await setUp({ evaluated: true, begin: [await numbersEnv()], options, best: [2] })
  await loop()
  expect(only(events, 'eval', 'train', 'save')).toEqual(['eval 2', 'save 2', 'train 3', 'train 4', 'eval 4', 'save 4'])
  expect(rows().map((row) => [row.step, 'eval/numbers/avg@1' in row])).toEqual([[2, true], [3, false], [4, true]]) // prettier-ignore
  // A fresh run has nothing to save before its first step, however good its model is.
  const fresh = await setUp({ evaluated: true, best: [0] })
  await fresh.loop()
  expect(only(fresh.events, 'save')).toEqual(['save 4'])
  const ended = await setUp({ evaluated: true, begin: [await numbersEnv()], options: { ...options, maxSteps: 2 } })
  expect((await ended.loop()).after.map((e) => e.step)).toEqual([2])
})

test('every row has its keys in the table of metrics, and every rollout is on disk', async () => {
  const { loop, rows, folder } = await setUp({ evaluated: true })
  await loop()
  const unknown = rows().flatMap((row) => Object.keys(row).filter((key) => key !== 'step' && key !== 'time' && !metricInfo(key)))
  expect(unknown).toEqual([])
  expect(readRollouts(folder, 1).map((r) => r.split)).toEqual(Array.from({ length: 6 }, () => 'train'))
  expect(readRollouts(folder, 4).map((r) => r.split)).toEqual(['eval', 'eval', ...Array.from({ length: 6 }, () => 'train')])
})

test('a request to stop ends the step under way, saves it, and drops what was sampled ahead', async () => {
  const setup = await setUp({
    evaluated: true,
    options: { evalSteps: 2 },
    script: (_, n) => ({ text: String(n % 3), hangs: n >= 14 }),
    onTrain: ({ step }) => (step === 2 ? setup.stop.abort() : undefined),
  })
  const { loop, events, generator, rows } = setup
  // Requests: 2 of the evaluation, 6 each of steps 1 and 2; step 3 would never end.
  expect(await loop()).toMatchObject({ lastStep: 2, after: [] })
  expect(only(events, 'train', 'save', 'eval')).toEqual(['eval 0', 'train 1', 'train 2', 'save 2'])
  expect(rows().map((r) => r.step)).toEqual([0, 1, 2])
  expect(generator.running).toBe(0)
  expect(generator.aborted).toBe(6)
})

test('a request to stop while a step is sampled: its rollouts go on, and it is trained on', async () => {
  const setup: Awaited<ReturnType<typeof setUp>> = await setUp({
    script: (_, n) => {
      if (n === 6) setTimeout(() => setup.stop.abort(), 1)
      return { text: String(n % 3), afterMs: n < 6 ? 0 : 60 }
    },
    options: { maxAsyncLevel: 0 },
  })
  const { loop, events, batches } = setup
  expect(await loop()).toMatchObject({ lastStep: 2 })
  expect(only(events, 'train', 'save')).toEqual(['train 1', 'train 2', 'save 2'])
  expect(batches[1].samples).toHaveLength(6)
})

test('a request to stop after a step without an evaluation: the last words are of the evaluation before', async () => {
  const setup = await setUp({
    evaluated: true,
    options: { evalSteps: 2 },
    onTrain: ({ step }) => (step === 3 ? setup.stop.abort() : undefined),
  })
  expect((await setup.loop()).after.map((e) => e.step)).toEqual([2])
  expect(only(setup.events, 'eval', 'save')).toEqual(['eval 0', 'eval 2', 'save 3'])
})

test('a request to stop in the evaluation before training: nothing is trained, nothing saved', async () => {
  const setup = await setUp({
    evaluated: true,
    script: () => ({ text: '1', hangs: true }),
    onEval: () => void setTimeout(() => setup.stop.abort(), 5),
  })
  expect(await setup.loop()).toEqual({ lastStep: 0, after: [] })
  expect(only(setup.events, 'train', 'save')).toEqual([])
})

test('a request to stop during a later evaluation: its step is saved, the half evaluation is not written', async () => {
  const setup = await setUp({
    evaluated: true,
    options: { evalSteps: 1, maxAsyncLevel: 0 },
    script: (prompt, n) => ({ text: String(n % 3), hangs: prompt.includes('held') && n > 2 }),
    onEval: (step) => void (step === 1 && setTimeout(() => setup.stop.abort(), 5)),
  })
  expect(await setup.loop()).toMatchObject({ lastStep: 1, after: [] })
  expect(only(setup.events, 'save')).toEqual(['save 1'])
  expect(Object.keys(setup.rows()[1]).some((key) => key.startsWith('eval/'))).toBe(false)
})

test('a request to stop during an evaluation whose rollouts are queued behind those of the next step: nobody waits for these', async () => {
  const setup = await setUp({
    evaluated: true,
    options: { evalSteps: 1 },
    orchestrator: { maxConcurrent: 2 },
    script: (prompt, n) => ({ text: String(n % 3), hangs: prompt.includes('train') && n >= 8 }),
    onEval: (step) => void (step === 1 && setTimeout(() => setup.stop.abort(), 5)),
  })
  const begin = performance.now()
  expect(await setup.loop()).toMatchObject({ lastStep: 1, after: [] })
  expect(only(setup.events, 'train', 'save', 'eval')).toEqual(['eval 0', 'train 1', 'eval 1', 'save 1'])
  // Each of them would end only at its time limit.
  expect(performance.now() - begin).toBeLessThan(4000)
})

test('an error ends everything in flight, keeps what was learned until then, and is told', async () => {
  const { loop, events, generator, stream } = await setUp({
    script: (_, n) => (n >= 12 ? { text: '', fails: 'the judge is away', afterMs: 5 } : { text: String(n % 3) }),
  })
  await expect(loop()).rejects.toThrow('All 6 rollouts of step 3 failed. The first error: the judge is away.')
  expect(only(events, 'train', 'save')).toEqual(['train 1', 'train 2', 'save 2'])
  expect(stream.text).toContain('warning: an error ends the run; step 2 is saved, and --resume continues from there.')
  expect(generator.running).toBe(0)
})

test('an evaluation that fails ends the run with the row, the rollouts and the checkpoint of its step', async () => {
  const { loop, events, rows, folder } = await setUp({
    evaluated: true,
    options: { evalSteps: 2, maxAsyncLevel: 0 },
    onEval: (step) => {
      if (step === 2) throw new Error('it took too long')
    },
  })
  await expect(loop()).rejects.toThrow('it took too long')
  expect(only(events, 'save', 'row')).toEqual(['save 2', `row 2: ${rows()[2].reward}`])
  expect(rows().map((row) => row.step)).toEqual([0, 1, 2])
  expect(readRollouts(folder, 2)).toHaveLength(6)
})

test('an error where the last step is saved already, or nothing was done, saves nothing', async () => {
  const fails =
    (from: number): Script =>
    (_, n) =>
      n >= from ? { text: '', fails: 'no' } : { text: String(n % 3) }
  const saved = await setUp({ script: fails(12), options: { saveSteps: 2 } })
  await expect(saved.loop()).rejects.toThrow(/step 3 failed/)
  expect(only(saved.events, 'save')).toEqual(['save 2'])
  const first = await setUp({ script: fails(0) })
  await expect(first.loop()).rejects.toThrow(/step 1 failed/)
  expect(only(first.events, 'save')).toEqual([])
})

test('a fault of the trainer reaches the caller, the step before it is saved', async () => {
  const { loop, events } = await setUp({ onTrain: ({ step }) => { if (step === 3) throw new Error('3 steps in a row were not finite') } }) // prettier-ignore
  await expect(loop()).rejects.toThrow('3 steps in a row were not finite')
  expect(only(events, 'train', 'save')).toEqual(['train 1', 'train 2', 'train 3', 'save 2'])
})

test('after an error on a device that is lost nothing is saved, since nothing can be read from it', async () => {
  const onTrain = ({ step }: TrainingBatch) => {
    if (step === 3) throw new Error('the device is gone')
  }
  const { loop, events } = await setUp({ onTrain, lost: () => new Error('lost') })
  await expect(loop()).rejects.toThrow('the device is gone')
  expect(only(events, 'train', 'save')).toEqual(['train 1', 'train 2', 'train 3'])
})

test('a step whose row cannot be written is saved without one, not with that of the step before', async () => {
  const onFinish = (step: number) => {
    if (step === 2) throw new Error('the disk is gone')
  }
  const { loop, events } = await setUp({ onFinish })
  await expect(loop()).rejects.toThrow('the disk is gone')
  expect(only(events, 'save', 'row')).toEqual(['save 2', 'row 2: undefined'])
})

test('a fault behind the first of several updates: what is saved is the step that they belong to', async () => {
  const onUpdate = (step: number) => { if (step === 3) throw new Error('the loss is NaN') } // prettier-ignore
  const { loop, events, stream } = await setUp({ updates: () => [1 / 2, 1], onUpdate })
  await expect(loop()).rejects.toThrow('the loss is NaN')
  expect(only(events, 'save', 'row')).toEqual(['save 3', 'row 3: undefined'])
  expect(stream.text).toContain('step 3 is saved, and --resume continues from there.')
})

test('weights that do not arrive end the run with the row, the rollouts and the checkpoint of their step', async () => {
  const onPublish = async (version: PolicyVersion) => {
    await sleep(1)
    if (version === 2) throw new Error('vLLM is gone')
  }
  const { loop, events, rows, folder } = await setUp({ evaluated: true, options: { evalSteps: 2, maxAsyncLevel: 0 }, onPublish })
  await expect(loop()).rejects.toThrow('vLLM is gone')
  expect(only(events, 'save', 'row', 'eval')).toEqual(['eval 0', 'save 2', `row 2: ${rows()[2].reward}`])
  expect(rows().map((row) => row.step)).toEqual([0, 1, 2])
  expect(readRollouts(folder, 2)).toHaveLength(6)
})
