/** Thousands of rollouts at once, with delays, failures and cancels of every kind: none is lost, counted twice, or trained on after an error. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { MultiTurnEnv, Rubric, SingleTurnEnv } from '../../src/environments/index.ts'
import type { RunEnvironment } from '../../src/orchestrator/tasks.ts'
import { seed, seedWords } from '../seed.ts'
import { makeOrchestrator, type Script } from './helpers.ts'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

const random = new Random(seed)
const chance = (share: number) => random.next() < share

/** A number of its own for each answer, so that a token that is counted twice shows. */
const script: Script = (_, n) => {
  if (chance(0.05)) return { text: '', fails: 'the sampler failed' }
  if (chance(0.01)) return { text: String(n), hangs: true }
  if (chance(0.01)) return { text: String(n), deaf: true }
  return { text: String(n).padStart(7, '0'), afterMs: random.int(8), logprobs: undefined }
}

async function environments(): Promise<RunEnvironment[]> {
  const rows = (word: string) => Array.from({ length: 400 }, (_, i) => ({ prompt: `${word} ${i}` }))
  const rubric = () =>
    new Rubric({
      last: ({ text }) => {
        if (chance(0.02)) throw new Error('the reward failed')
        if (chance(0.02)) return Number.NaN
        return chance(0.01) ? new Promise<number>(() => {}) : Number(text) % 5
      },
    }) // prettier-ignore
  const one = await SingleTurnEnv.create({ id: 'one', rubric: rubric(), dataset: rows('one') })
  const many = await MultiTurnEnv.create({
    id: 'many',
    rubric: rubric(),
    dataset: rows('many'),
    maxTurns: 3,
    envResponse: async () => {
      if (chance(0.02)) throw new Error('the environment failed')
      await new Promise((resolve) => setTimeout(resolve, random.int(5)))
      return 'go on'
    },
    stop: { enough: () => chance(0.2) },
  })
  return [
    { name: 'one', env: one, weight: 1 },
    { name: 'many', env: many, weight: 1 },
  ]
}

test(`2,000 rollouts a step (${seedWords})`, { timeout: 120_000 }, async () => {
  const perStep = 2000
  const { orchestrator, generator } = await makeOrchestrator(script, {
    environments: await environments(),
    groupsPerStep: perStep / 8,
    rolloutsPerExample: 8,
    maxConcurrent: 4000,
    maxSampling: 700,
    generationTimeoutSeconds: 1,
    rewardTimeoutSeconds: 0.5,
    maxPromptTokens: 1000,
  })
  const seen = new Set<string>()
  const counted = new Set<string>()
  const heapMiB = () => (collect(), process.memoryUsage().heapUsed / 2 ** 20)
  const before = heapMiB()
  const last = 5
  const errors: Record<string, number> = {}
  for (let step = 1; step <= last; step++) {
    orchestrator.prepare(step)
    orchestrator.prepare(step + 1)
    const { batch, rollouts } = await orchestrator.batch(step, 0)
    expect(rollouts).toHaveLength(perStep)
    for (const { rollout, advantage } of rollouts) {
      const name = `${rollout.group}.${rollout.index}`
      expect(seen.has(name)).toBe(false)
      seen.add(name)
      expect((rollout.reward === null) === (rollout.error !== null)).toBe(true)
      if (rollout.error !== null) {
        expect(advantage).toBeNull()
        const kind = rollout.error.replace(/\d.*/, '')
        errors[kind] = (errors[kind] ?? 0) + 1
      }
    }
    // Each is trained on once, whole, and only where nothing went wrong.
    const trained = rollouts.filter(({ advantage }) => advantage !== null).map(({ rollout }) => rollout)
    expect(batch.samples.every((sample) => sample.rollout!.error === null && sample.rollout!.reward !== null)).toBe(true)
    expect(batch.lossTokenCount).toBe(trained.reduce((sum, r) => sum + r.completion_tokens.ids.length, 0))
    expect(new Set(batch.samples.map((sample) => sample.rollout)).size).toBe(trained.length)
    for (const rollout of trained) {
      for (const answer of String.fromCharCode(...rollout.completion_tokens.ids).match(/.{7}/g)!) {
        expect(counted.has(answer)).toBe(false)
        counted.add(answer)
      }
    }
  }
  // What was begun ahead is cancelled in the middle, and everything has ended.
  orchestrator.abandonAfter(last)
  await orchestrator.close()
  expect(seen.size).toBe(last * perStep)
  expect(Object.keys(errors).length).toBeGreaterThanOrEqual(6)
  expect(Object.values(errors).every((count) => count > 10)).toBe(true)
  // Far more on a machine of its own; beside other work many an answer comes after its second.
  expect(counted.size).toBeGreaterThan(last * 250)
  // A place that was not given back would be missing from the second step on; deaf answers are still "running" in the generator.
  expect(generator.mostRunning).toBeGreaterThan(600)
  // In MiB: 35 to 37, on a busy machine too, most of it what the script and this test keep of requests and answers; 51 if each rollout were kept. (What
  // is there after each step says less, since how many rollouts of the next one are done depends on the machine.)
  expect(heapMiB() - before).toBeLessThan(43)
})
