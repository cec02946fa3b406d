import { getEventListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test, vi } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { Progress } from '../../src/monitor/progress.ts'
import { makeOrchestrator, numbersEnv, type Script } from './helpers.ts'

/** Rewards 0, 1, 2, ... by request. */
const counting: Script = (_, n) => ({ text: String(n % 3) })
const evaluation = { step: 0, examples: 3, rolloutsPerExample: 2, temperature: 0 }

test('a step: groups of one task, advantages of the group, samples in the order of the rollouts', async () => {
  const { orchestrator, generator } = await makeOrchestrator(counting)
  const { batch, rollouts, dropped, metrics } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.advantage)).toEqual([-1, 0, 1, -1, 0, 1])
  expect(rollouts.map(({ rollout: r }) => `${r.group}.${r.index}`)).toEqual([
    '1.0.0',
    '1.0.1',
    '1.0.2',
    '1.1.0',
    '1.1.1',
    '1.1.2',
  ])
  expect(batch.samples.map((s) => s.rollout)).toEqual(rollouts.map((r) => r.rollout))
  expect(batch.lossTokenCount).toBe(6)
  expect(dropped).toBe(0)
  // one task a group, a seed of its own for each rollout
  expect(new Set(generator.requests.slice(0, 3).map((r) => r.prompt)).size).toBe(1)
  expect(generator.requests[3].prompt).not.toBe(generator.requests[0].prompt)
  expect(new Set(generator.requests.map((r) => r.seed)).size).toBe(6)
  expect(metrics['time/wait_for_batch']).toBeGreaterThanOrEqual(0)
  expect(metrics['perf/generation_throughput']).toBeCloseTo(6 / metrics['time/generate']!)
})

test("a step's tasks and seeds follow from the seed and the step alone", async () => {
  const asked = async (steps: number[], seed = 1) => {
    const { orchestrator, generator } = await makeOrchestrator(counting, { seed })
    for (const step of steps) await orchestrator.batch(step, step - 1)
    return generator.requests.slice(-6).map((r) => `${r.prompt} ${r.seed}`)
  }
  expect(await asked([1, 2, 3])).toEqual(await asked([3]))
  expect(await asked([2])).not.toEqual(await asked([3]))
  expect(await asked([3], 2)).not.toEqual(await asked([3]))
})

test('a run that was resumed goes on behind the tasks of the steps that are done', async () => {
  const from = async (done?: { step: number; tasks: number }) => (await makeOrchestrator(counting, { done })).orchestrator
  const [fresh, resumed] = [await from(), await from({ step: 3, tasks: 10 })]
  expect([1, 2, 4].map((step) => fresh.tasksBefore(step))).toEqual([0, 2, 6])
  expect([4, 5].map((step) => resumed.tasksBefore(step))).toEqual([10, 12])
})

test('fewer rows than a step needs: a row that comes twice is sampled with other seeds', async () => {
  const { orchestrator, generator } = await makeOrchestrator(counting, {
    environments: [await numbersEnv('one', 1)],
    groupsPerStep: 3,
  })
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(new Set(generator.requests.map((r) => r.prompt)).size).toBe(1)
  expect(new Set(generator.requests.map((r) => r.seed)).size).toBe(9)
  expect(new Set(rollouts.map((r) => r.rollout.group)).size).toBe(3)
})

test.each([
  ['completion_tokens.ids[1]', 131, { completion_tokens: { ids: [5, 131], logprobs: [-1, -1], versions: [0, 0] } }],
  ['completion_tokens.ids[0]', -1, { completion_tokens: { ids: [-1], logprobs: [-1], versions: [0] } }],
  ['promptIds[2]', 4000, { promptIds: [1, 2, 4000] }],
  [
    'turns[1].promptIds[0]',
    131,
    {
      turns: [
        { branch: true, promptIds: [1], sampled: 1 },
        { branch: false, promptIds: [131], sampled: 0 },
      ],
    },
  ],
])("an environment's own rollout with a token that the model does not have: %s = %i", async (name, id, parts) => {
  const source = await numbersEnv()
  const played = { completion: [], promptIds: [1], completion_tokens: { ids: [5], logprobs: [-1], versions: [0] }, isTruncated: false, stopCondition: 'eos' } // prettier-ignore
  const env = Object.assign(Object.create(source.env), { rollout: async () => ({ ...played, ...parts }) })
  const { orchestrator } = await makeOrchestrator(counting, { environments: [{ ...source, env }], vocabulary: 131 })
  await expect(orchestrator.batch(1, 0)).rejects.toThrow(
    `the environment's rollout returned ${name} = ${id}, and the trained model's token ids are 0 to 130`,
  )
  // An evaluation only asks for the reward: its answers may come from elsewhere.
  const evaluated = await orchestrator.evaluate({ ...source, env }, evaluation)
  expect(evaluated[0]).toMatchObject({ ...played, ...parts })
})

test.each([
  ['the sampler fails', { text: '', fails: 'out of memory' }, 'out of memory'],
  ['a reward function throws', { text: 'many' }, /"many" is no number/],
  ['nothing was sampled', { text: '' }, 'the completion has no tokens'],
])('never trained on: %s', async (_, bad, reason) => {
  const { orchestrator } = await makeOrchestrator((_prompt, n) => (n % 3 === 1 ? bad : { text: String(n % 3) }))
  const { batch, rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.advantage)).toEqual([-1, null, 1, -1, null, 1])
  expect(batch.samples).toHaveLength(4)
  const [failed] = rollouts.flatMap((r) => (r.rollout.reward === null ? r.rollout : []))
  expect(failed.error).toMatch(reason)
})

test('a group with fewer than 2 scored rollouts is dropped, one without variance too; both are in the results', async () => {
  const replies = ['1', 'x', 'x', '2', '2', '2', '0', '1', '2']
  const { orchestrator } = await makeOrchestrator((_, n) => ({ text: replies[n] }), { groupsPerStep: 3 })
  const { batch, rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.advantage)).toEqual([null, null, null, null, null, null, -1, 0, 1])
  expect(batch.samples.map((s) => s.rollout!.group)).toEqual(['1.2', '1.2', '1.2'])
  expect(rollouts).toHaveLength(9)
})

test('zero_truncated_completions: training rollouts that were cut off have the reward 0, held-out ones keep theirs', async () => {
  const { orchestrator } = await makeOrchestrator((_, n) => ({ text: String(1 + (n % 3)), cut: n % 3 === 2 }), {
    zeroTruncated: true,
  })
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.rollout.reward)).toEqual([1, 2, 0, 1, 2, 0])
  expect(rollouts.map((r) => r.advantage)).toEqual([0, 1, -1, 0, 1, -1])
  // What was cut off and has no reward has none.
  const failing = await makeOrchestrator((_, n) => ({ text: n % 3 === 2 ? 'x' : String(n % 3), cut: n % 3 === 2 }), {
    zeroTruncated: true,
  })
  const failed = await failing.orchestrator.batch(1, 0)
  expect(failed.rollouts.map((r) => r.rollout.reward)).toEqual([0, 1, null, 0, 1, null])
  expect(rollouts[2].rollout.metrics.says).toBe(3)
  const held = await orchestrator.evaluate(await numbersEnv(), evaluation)
  expect(held.map((r) => r.reward)).toContain(3)
})

test('what the sampler waited for the trainer counts from the last batch on, whatever is prepared meanwhile', async () => {
  const { orchestrator } = await makeOrchestrator(counting)
  // Before the first rollout there is nothing to wait for: the model is loaded, or evaluated.
  await sleep(60)
  const begin = performance.now()
  const { metrics: first } = await orchestrator.batch(1, 0)
  for (const wait of ['time/wait_for_batch', 'time/wait_for_trainer'])
    expect(first[wait]).toBeLessThanOrEqual((performance.now() - begin) / 1000)
  await sleep(60)
  orchestrator.prepare(2)
  expect((await orchestrator.batch(2, 1)).metrics['time/wait_for_trainer']).toBeGreaterThan(0.05)
  const last = performance.now()
  const { metrics: third } = await orchestrator.batch(3, 2)
  expect(third['time/wait_for_trainer']).toBeLessThanOrEqual((performance.now() - last) / 1000)
})

test('the sampler does not wait for the trainer while it answers an evaluation', async () => {
  const { orchestrator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: n < 6 ? 0 : 60 }))
  await orchestrator.batch(1, 0)
  const begin = performance.now()
  await orchestrator.evaluate(await numbersEnv(), evaluation)
  const { metrics } = await orchestrator.batch(2, 1)
  // A timer may be a millisecond early.
  expect(metrics['time/wait_for_trainer']).toBeLessThanOrEqual((performance.now() - begin) / 1000 - 2 * 0.058)
})

test('a step that was sampled before the batch before it was taken has no speed of its own', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: 2 }))
  orchestrator.prepare(1)
  orchestrator.prepare(2)
  await vi.waitFor(() => expect([generator.requests.length, generator.running]).toEqual([12, 0]))
  const { metrics } = await orchestrator.batch(1, 0)
  expect(metrics['perf/generation_throughput']).toBeCloseTo(14 / metrics['time/generate']!)
  expect((await orchestrator.batch(2, 1)).metrics).toMatchObject({ 'time/generate': 0, 'perf/generation_throughput': null })
})

test('a step that was sampled ahead has no speed, rather than 0, while answers of the next one are sampled', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: n < 12 ? 0 : 400 }))
  orchestrator.prepare(1)
  orchestrator.prepare(2)
  await vi.waitFor(() => expect([generator.requests.length, generator.running]).toEqual([12, 0]))
  await orchestrator.batch(1, 0)
  orchestrator.prepare(3)
  await vi.waitFor(() => expect(generator.running).toBe(6))
  const { metrics } = await orchestrator.batch(2, 1)
  expect(metrics['time/generate']).toBeGreaterThan(0)
  expect(metrics['perf/generation_throughput']).toBeNull()
  expect((await orchestrator.batch(3, 2)).metrics['perf/generation_throughput']).toBeGreaterThan(0)
})

test('too old: dropped, counted, written; one that failed is not counted here too', async () => {
  const script: Script = (...asked) => (asked[1] === 7 ? { text: 'x' } : counting(...asked))
  const { orchestrator, generator } = await makeOrchestrator(script, { maxOffPolicySteps: 2 })
  generator.version = 4
  orchestrator.prepare(6)
  expect((await orchestrator.batch(6, 6)).dropped).toBe(0)
  orchestrator.prepare(7)
  const { batch, rollouts, dropped } = await orchestrator.batch(7, 7)
  expect({ dropped, samples: batch.samples.length, tokens: batch.lossTokenCount }).toEqual({ dropped: 5, samples: 0, tokens: 0 })
  expect(rollouts).toHaveLength(6)
  expect(rollouts.every((r) => r.advantage === null)).toBe(true)
  expect(rollouts.filter((r) => r.rollout.reward === null)).toHaveLength(1)
})

test('one token of an old version makes a rollout old', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: `${n}.5`, afterMs: 20 }), {
    maxOffPolicySteps: 0,
  })
  orchestrator.prepare(1)
  await sleep(5)
  generator.version = 1
  const { dropped, rollouts } = await orchestrator.batch(1, 1)
  expect(rollouts[0].rollout.completion_tokens.versions).toEqual([0, 0, 1])
  expect(dropped).toBe(6)
})

test('never more than max_concurrent at once, also when steps and evaluations overlap', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: n % 4 }), {
    maxConcurrent: 3,
  })
  const [env] = [await numbersEnv()]
  orchestrator.prepare(1)
  orchestrator.prepare(2)
  const held = orchestrator.evaluate(env, evaluation)
  await orchestrator.batch(1, 0)
  orchestrator.prepare(3)
  await Promise.all([orchestrator.batch(2, 1), orchestrator.batch(3, 2), held])
  expect(generator.mostRunning).toBe(3)
  expect(generator.requests).toHaveLength(24)
})

test('a place at the sampler is free while the answer is scored, and no clock runs before there is one', async () => {
  let [scoring, mostScoring] = [0, 0]
  const env = await numbersEnv('slow', 6, async ({ text }) => {
    mostScoring = Math.max(mostScoring, ++scoring)
    await sleep(150)
    scoring--
    return Number(text)
  })
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: 60 }), {
    environments: [env],
    groupsPerStep: 6,
    maxSampling: 2,
    generationTimeoutSeconds: 0.4,
  })
  // 18 answers of 60 ms, 2 at a time: the last ones begin after 480 ms.
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.map((r) => r.rollout.error)).toEqual(Array.from({ length: 18 }, () => null))
  expect(generator.mostRunning).toBe(2)
  expect(mostScoring).toBeGreaterThan(2)
})

test('a generation over its limit has failed, and is told to stop', async () => {
  const { orchestrator, generator } = await makeOrchestrator(
    (_, n) => (n % 3 === 0 ? { text: '1', hangs: true } : { text: String(n) }),
    {
      generationTimeoutSeconds: 0.05,
    },
  )
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts[0].rollout).toMatchObject({ reward: null, error: 'generation took longer than its limit of 0.05 s' })
  expect(generator.aborted).toBe(2)
})

test('a reward over its limit has failed, and names what it waited for', async () => {
  const env = await numbersEnv('slow', 6, async ({ text }) => (text === '0' ? await sleep(10_000, 0) : Number(text)))
  const { orchestrator } = await makeOrchestrator(counting, { environments: [env], rewardTimeoutSeconds: 0.05 })
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts[0].rollout.error).toBe('scoring took longer than its limit of 0.05 s')
  expect(rollouts[1].rollout.error).toBe(null)
})

test('the wait for a batch names itself, what is left and the key to raise', async () => {
  let now = 0
  const { orchestrator, progress } = await makeOrchestrator((_, n) => (n === 0 ? { text: '1', hangs: true } : { text: '2' }), {
    progress: new Progress({ now: () => now }),
  })
  const work = orchestrator.batch(1, 0)
  await sleep(20)
  now = 12_000
  expect(progress.line()).toMatch(/^rollouts of step 1: waiting for 1 of 6 rollouts, oldest 0\.\ds, decoding \(12\.0s\)$/)
  await orchestrator.close()
  const { rollouts } = await work
  expect(rollouts[0].rollout.error).toBe('generation was aborted: the run ends')
  expect(progress.line()).toBe('')
})

test('queued rollouts are waited for too, and the limit of the wait has room for their turns', async () => {
  const { orchestrator, progress } = await makeOrchestrator(() => ({ text: '1', hangs: true }), { maxSampling: 2 })
  const limits: number[] = []
  const begin = progress.wait.bind(progress)
  progress.wait = (name, options) => {
    limits.push(options.limitMs)
    return begin(name, options)
  }
  orchestrator.prepare(1)
  const work = orchestrator.batch(2, 1)
  await sleep(5)
  expect(progress.line()).toMatch(/rollouts of step 2: waiting for 6 of 6 rollouts, queued/)
  // 12 rollouts, 2 at a time, at most 20 + 20 s each: 6 rounds, and one for what is under way.
  expect(limits).toEqual([7 * 40_000])
  await orchestrator.close()
  await expect(work).rejects.toThrow(/All 6 rollouts of step 2 failed/)
})

test('groups that replace others are waited for too, and the limit has room for one after the other', async () => {
  const { orchestrator, progress } = await makeOrchestrator((_, n) => ({ text: '1', hangs: n >= 3 }), {
    groupsPerStep: 1,
    spareGroups: 2,
  })
  const limits: number[] = []
  const begin = progress.wait.bind(progress)
  progress.wait = (name, options) => (limits.push(options.limitMs), begin(name, options))
  const work = orchestrator.batch(1, 0)
  await vi.waitFor(() => expect(progress.line()).toMatch(/waiting for 3 of 6 rollouts/))
  expect(limits).toEqual([4 * 40_000])
  await orchestrator.close()
  await work
})

test('steps that are done are forgotten: the limit does not grow with their spares', async () => {
  const { orchestrator, progress } = await makeOrchestrator(counting, { spareGroups: 2 })
  const limits: number[] = []
  const begin = progress.wait.bind(progress)
  progress.wait = (name, options) => (limits.push(options.limitMs), begin(name, options))
  for (const step of [1, 2, 3]) {
    await orchestrator.batch(step, step - 1)
    await sleep(0)
  }
  expect(new Set(limits).size).toBe(1)
})

test('an evaluation that nothing ends stops at its limit by name', async () => {
  const env = await numbersEnv()
  const signals: AbortSignal[] = []
  env.env.rollout = (_, { signal }) => (signals.push(signal), new Promise(() => {}))
  const { orchestrator, progress } = await makeOrchestrator(counting, { environments: [env] })
  const begin = progress.wait.bind(progress)
  progress.wait = (name, options) => begin(name, { ...options, limitMs: 30 })
  await expect(orchestrator.evaluate(env, evaluation)).rejects.toThrow(
    /Gave up on "evaluation of numbers" after .* \(last state: evaluation of numbers: waiting for 6 of 6 rollouts.*raise trainer\.args\.generation_timeout/,
  )
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, true, true, true, true, true])
  await orchestrator.close()
})

test('all rollouts failing stops with the first reason; exit code 2 where the reward, the environment or a time limit is at fault', async () => {
  const broken = await makeOrchestrator(() => ({ text: '', fails: 'the device is lost' }))
  const device = await broken.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(device).toMatchObject({ message: 'All 6 rollouts of step 1 failed. The first error: the device is lost.' })
  expect(device).not.toBeInstanceOf(UserError)
  const hanging = await numbersEnv('one', 1)
  const late = Object.assign(Object.create(hanging.env), { rollout: () => new Promise(() => {}) }) as typeof hanging.env
  const slow = await makeOrchestrator(counting, { environments: [{ ...hanging, env: late }], generationTimeoutSeconds: 0.01 })
  const limited = await slow.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(String(limited)).toContain('limit of 0.01 s. Raise trainer.args.generation_timeout.')
  expect(limited).toBeInstanceOf(UserError)
  const wrong = await makeOrchestrator(() => ({ text: 'x' }))
  const reward = await wrong.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(reward).toBeInstanceOf(UserError)
  expect(reward).toMatchObject({ message: expect.stringContaining('reward function "says" threw: "x" is no number') })
  const long = await makeOrchestrator(counting, { maxPromptTokens: 1 })
  const prompt = await long.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(prompt).toBeInstanceOf(UserError)
  expect(prompt).toMatchObject({ message: expect.stringContaining('more than max_prompt_len (1)') })
  const source = await numbersEnv('one', 1)
  const rollout = () => Promise.reject(new Error('no board'))
  const env = Object.assign(Object.create(source.env), { rollout }) as typeof source.env
  const own = await makeOrchestrator(() => ({ text: '1' }), { environments: [{ ...source, env }] })
  const environment = await own.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(environment).toBeInstanceOf(UserError)
  expect(environment).toMatchObject({ message: expect.stringContaining('The first error: the environment threw: no board (') })
  // An image, or roles in an order that the template refuses.
  const refusal = 'The chat template of models/tiny does not take these messages: roles must alternate.'
  const refused = await makeOrchestrator(() => ({ text: '', fails: refusal }))
  const template = await refused.orchestrator.batch(1, 0).catch((e: unknown) => e)
  expect(template).toBeInstanceOf(UserError)
  expect(template).toMatchObject({ message: expect.stringContaining(`The first error: ${refusal}`) })
  // One in Python; what the bridge throws has a place in code of ours.
  for (const said of ["the environment raised KeyError('x')", "the environment ended with ToolError('x')"]) {
    const python = Object.assign(Object.create(source.env), {
      rollout: () => Promise.reject(Object.assign(new Error(said), { stack: '' })),
    }) as typeof source.env
    const theirs = await makeOrchestrator(() => ({ text: '1' }), { environments: [{ ...source, env: python }] })
    const error = await theirs.orchestrator.batch(1, 0).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(UserError)
    expect(error).toMatchObject({ message: expect.stringContaining(`The first error: ${said}.`) })
  }
})

describe('a step whose rollouts all failed', () => {
  const again = { tries: 2, firstMs: 1, longestMs: 2, hopeless: () => false }
  /** Rollouts are scored, but for those of some requests. */
  const failing = (from: number, to: number) => (_: string, n: number) => ({ text: n >= from && n < to ? 'x' : String(n % 3) })

  test('is played again after one that went well, with the same tasks and seeds', async () => {
    const said: string[] = []
    const { orchestrator, generator } = await makeOrchestrator(failing(6, 18), { again, warn: (line) => said.push(line) })
    await orchestrator.batch(1, 0)
    const { rollouts } = await orchestrator.batch(2, 1)
    expect(rollouts.every(({ rollout }) => rollout.reward !== null)).toBe(true)
    const seeds = (from: number) => generator.requests.slice(from, from + 6).map(({ seed, prompt }) => `${seed} ${prompt}`).toSorted() // prettier-ignore
    expect(generator.requests).toHaveLength(24)
    expect(seeds(6)).toEqual(seeds(12))
    expect(seeds(6)).toEqual(seeds(18))
    expect(said).toHaveLength(2)
    expect(said[1]).toMatch(
      /^All 6 rollouts of step 2 failed, 2 times in a row\. The first error: .*x.* They are tried again in 0\.002 s \(try 3 of 3\)\.$/,
    )
    await orchestrator.close()
  })

  test('is played again also if it is the first since the run was resumed', async () => {
    const resumed = { again: { ...again, worked: true }, done: { step: 1, tasks: 2 } }
    const { orchestrator, generator } = await makeOrchestrator(failing(0, 6), resumed)
    const { rollouts } = await orchestrator.batch(2, 1)
    expect(rollouts.every(({ rollout }) => rollout.reward !== null)).toBe(true)
    expect(generator.requests).toHaveLength(12)
    await orchestrator.close()
  })

  test('is not played again once the run is to end, and a pause is over then', async () => {
    const slow = { ...again, firstMs: 60_000, longestMs: 60_000 }
    const { orchestrator } = await makeOrchestrator(failing(6, 99), {
      again: slow,
      warn: () => setTimeout(() => orchestrator.abandonAfter(2), 5),
    })
    await orchestrator.batch(1, 0)
    await expect(orchestrator.batch(2, 1)).rejects.toThrow('All 6 rollouts of step 2 failed. ')
    await orchestrator.close()
    // Nor is it said that it will be, where the end was asked for before.
    const said: string[] = []
    const ended = await makeOrchestrator(failing(6, 99), { again: slow, warn: (line) => said.push(line) })
    await ended.orchestrator.batch(1, 0)
    ended.orchestrator.abandonAfter(2)
    await expect(ended.orchestrator.batch(2, 1)).rejects.toThrow('All 6 rollouts of step 2 failed. ')
    await ended.orchestrator.close()
    expect(said).toEqual([])
  })

  test('ends the run where it fails each time, at once where nothing ever went well or it cannot help', async () => {
    const often = await makeOrchestrator(failing(6, 99), { again })
    await often.orchestrator.batch(1, 0)
    await expect(often.orchestrator.batch(2, 1)).rejects.toThrow('All 6 rollouts of step 2 failed, 3 times in a row.')
    const first = await makeOrchestrator(failing(0, 99), { again })
    await expect(first.orchestrator.batch(1, 0)).rejects.toThrow('All 6 rollouts of step 1 failed. ')
    const lost = await makeOrchestrator(failing(6, 99), { again: { ...again, hopeless: () => true } })
    await lost.orchestrator.batch(1, 0)
    await expect(lost.orchestrator.batch(2, 1)).rejects.toThrow('All 6 rollouts of step 2 failed. ')
    const fails = "the model's logits at token 9 are not finite (weights of version 1)"
    const broken = await makeOrchestrator((_, n) => ({ text: '1', fails: n >= 6 ? fails : undefined }), { again })
    await broken.orchestrator.batch(1, 0)
    await expect(broken.orchestrator.batch(2, 1)).rejects.toThrow(`All 6 rollouts of step 2 failed. The first error: ${fails}.`)
    for (const { orchestrator } of [often, first, lost, broken]) await orchestrator.close()
  })
})

test('an evaluation whose sampler is gone is an error, not one with bad metrics; failures of other kinds count in it', async () => {
  const env = await numbersEnv()
  let gone = false
  const again = { tries: 2, firstMs: 1, longestMs: 2, hopeless: () => gone }
  const script = (_: string, n: number) => ({ text: '1', fails: n >= 3 ? 'the device was lost' : undefined })
  const { orchestrator } = await makeOrchestrator(script, { again })
  const held = await orchestrator.evaluate(env, evaluation)
  expect(new Set(held.map((r) => r.error))).toEqual(new Set([null, 'the device was lost']))
  gone = true
  await expect(orchestrator.evaluate(env, evaluation)).rejects.toThrow(
    'The evaluation of numbers could not be finished: the device was lost.',
  )
  // Whoever asked the run to stop need not be told.
  orchestrator.abandonAfter(0)
  expect(await orchestrator.evaluate(env, evaluation)).toHaveLength(6)
})

test('a prompt over max_prompt_len fails with both counts', async () => {
  const { orchestrator } = await makeOrchestrator(counting, { maxPromptTokens: 5 })
  await expect(orchestrator.batch(1, 0)).rejects.toThrow(/the prompt has 15 tokens, more than max_prompt_len \(5\)/)
})

test('close ends everything in flight, queued or prepared, and waits for it', async () => {
  const { orchestrator, generator } = await makeOrchestrator(() => ({ text: '1', hangs: true }), { maxConcurrent: 4 })
  const env = await numbersEnv()
  orchestrator.prepare(1)
  orchestrator.prepare(2)
  const held = orchestrator.evaluate(env, evaluation)
  await sleep(5)
  expect(generator.running).toBe(4)
  await orchestrator.close()
  expect(generator.running).toBe(0)
  // What had not begun never asks the sampler.
  expect(generator.requests).toHaveLength(4)
  expect((await held).every((r) => r.reward === null)).toBe(true)
  await orchestrator.close()
})

test('close does not wait for a sampler that does not listen', async () => {
  const { orchestrator } = await makeOrchestrator(() => ({ text: '1', deaf: true }))
  orchestrator.prepare(1)
  await sleep(5)
  await orchestrator.close()
})

test('abandoned steps end, the one under way goes on', async () => {
  const { orchestrator, generator } = await makeOrchestrator((_, n) => ({ text: String(n), afterMs: n < 6 ? 40 : 10_000 }))
  for (const step of [1, 2, 3]) orchestrator.prepare(step)
  await sleep(5)
  orchestrator.abandonAfter(1)
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(rollouts.every((r) => r.rollout.error === null)).toBe(true)
  expect(generator.aborted).toBe(12)
})

test('evaluation: the same tasks and seeds each time, at its own temperature, named by its environment', async () => {
  const env = await numbersEnv('other')
  const { orchestrator, generator } = await makeOrchestrator(counting)
  const first = await orchestrator.evaluate(env, evaluation)
  await orchestrator.evaluate(env, { ...evaluation, step: 5 })
  expect((await orchestrator.evaluate(env, { ...evaluation, examples: 2 })).map((r) => r.exampleId)).toEqual([0, 0, 1, 1])
  const asked = generator.requests.map((r) => `${r.prompt} ${r.seed}`)
  expect(asked.slice(6, 12)).toEqual(asked.slice(0, 6))
  // With one seed all answers to a question would be the same one.
  expect(new Set(generator.requests.slice(0, 6).map((r) => r.seed)).size).toBe(6)
  expect(generator.requests.every((r) => r.temperature === 0 && r.prompt.startsWith('other held'))).toBe(true)
  expect(first.map((r) => [r.exampleId, r.index])).toEqual([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]) // prettier-ignore
  expect(first.every((r) => r.env === 'other')).toBe(true)
})

test('an environment of weight 0 is only evaluated: all its rows where it holds none out', async () => {
  const { env } = await numbersEnv('bench', 4)
  const bench = { name: 'bench', weight: 0, env: Object.assign(Object.create(env) as typeof env, { evalDataset: [] }) }
  const { orchestrator } = await makeOrchestrator(counting, { environments: [bench, await numbersEnv()] })
  const { rollouts } = await orchestrator.batch(1, 0)
  expect(new Set(rollouts.map(({ rollout }) => rollout.env))).toEqual(new Set(['numbers']))
  const played = await orchestrator.evaluate(bench, { ...evaluation, examples: 9, rolloutsPerExample: 1 })
  expect(played.map((r) => [r.env, r.exampleId])).toEqual([0, 1, 2, 3].map((id) => ['bench', id]))
})

test('an evaluation is ended by its signal', async () => {
  const { orchestrator } = await makeOrchestrator(() => ({ text: '1', hangs: true }))
  const stop = new AbortController()
  const work = orchestrator.evaluate(await numbersEnv(), { ...evaluation, signal: stop.signal })
  await sleep(5)
  expect(getEventListeners(stop.signal, 'abort')).toHaveLength(1)
  stop.abort()
  for (const { error } of await work) expect(error).toBe('generation was aborted: the run ends')
  // The signal lasts as long as the run, and would keep the rollouts of each evaluation.
  const { orchestrator: quick } = await makeOrchestrator(counting)
  const signal = new AbortController().signal
  await quick.evaluate(await numbersEnv(), { ...evaluation, signal })
  expect(getEventListeners(signal, 'abort')).toEqual([])
})
