/** The bridge to verifiers' tasksets (0.4.0): real ones, played by verifiers itself, with a policy that says what it is told. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeAll, describe, expect, test } from 'vitest'
import type { PythonEnv } from '../../src/environments/python/environment.ts'
import { trainingBatch } from '../../src/orchestrator/samples.ts'
import { newFolder, withoutTasksets } from './helpers.ts'
import { inTurn, openLetters, play, type Say } from './tasksets.ts'

describe.skipIf(withoutTasksets)('a taskset', () => {
  let env: PythonEnv
  const mark = join(newFolder(), 'died')
  beforeAll(async () => {
    env = await openLetters({ kinds: ['single', 'turns', 'opens', 'twice', 'hang', 'die'], mark })
  })

  test('tells what it is', () => {
    expect(env.id).toBe('taskset_tasks')
    expect(env.dataset).toHaveLength(12)
    expect(env.evalDataset).toEqual([])
    expect(env.playsGroups).toBe(false)
    expect(env.maxTurns).toBe(-1)
    expect(env.rubric.weights).toMatchObject({ right: 1, early: 0.5 })
    const prompt = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'say 1' }] // prettier-ignore
    expect(env.dataset[3]).toMatchObject({ exampleId: 3, answer: '1', prompt, info: { kind: 'turns', mark } })
  })

  test('is played and scored by Python; what is trained on is what was sampled, with the version of each token', async () => {
    const rollout = await play(env, () => '1', { index: 1 })
    expect(rollout).toMatchObject({ reward: 1.5, error: null, env: 'taskset_tasks', stopCondition: 'agent_completed' })
    expect(rollout.metrics).toMatchObject({ right: 1, early: 0, kinds: 1, length: 1 })
    expect(rollout.completion).toEqual([{ role: 'assistant', content: '1' }])
    const { ids, versions, logprobs } = rollout.completion_tokens
    expect(ids).toEqual([...Buffer.from('1'), 257])
    expect(versions).toEqual([0, 1])
    expect(logprobs).toEqual(ids.map((id, i) => -(id + 1) / 1000 - i / 1e6))
    expect(rollout.asked).toEqual([rollout.promptIds])
    const early = await play(env, () => 'abcz', { index: 1 })
    expect(early).toMatchObject({ reward: 0.875, metrics: { right: 0, early: 0.75, length: 4 } })
  })

  test('with a user goes on with the tokens that were sampled: one sample', async () => {
    // As UTF-8 these come in tokens that the same text has not when it is tokenised at once.
    const rollout = await play(env, inTurn('a|b', 'été', 'x'), { kind: 'turns' })
    expect(rollout.error).toBe(null)
    expect(rollout.completion.map(({ role }) => role)).toEqual(['assistant', 'user', 'assistant', 'user', 'assistant'])
    expect(rollout.turns!.map(({ branch }) => branch)).toEqual([true, false, false])
    const { samples } = trainingBatch(1, [{ rollout, advantage: 1 }])
    expect(samples).toHaveLength(1)
    const [{ ids, lossMask, inferenceLogprobs }] = samples
    expect([...ids].slice(0, rollout.asked[2].length)).toEqual(rollout.asked[2])
    expect([...ids].filter((_, i) => lossMask[i])).toEqual(rollout.completion_tokens.ids)
    const logprobs = [...Float32Array.from(rollout.completion_tokens.logprobs)]
    expect([...inferenceLogprobs].filter((_, i) => lossMask[i])).toEqual(logprobs)
  })

  test('whose user speaks first has no prompt of its own', async () => {
    const rollout = await play(env, inTurn('a', 'b', 'c'), { kind: 'opens' })
    expect(rollout.error).toBe(null)
    expect(rollout.completion.slice(0, 4).map(({ content }) => content)).toEqual(['Be brief.', 'Hello.', 'a', 'You said 1 characters. Go on.']) // prettier-ignore
    expect(rollout.turns).toHaveLength(3)
  })

  test('stops where a task says so, and keeps the answer that it said so of', async () => {
    const rollout = await play(env, inTurn('a', 'enough'), { kind: 'turns' })
    expect(rollout).toMatchObject({ error: null, stopCondition: 'enough', metrics: { right: 0, length: 6 } })
    expect(rollout.completion_tokens.ids.slice(-7)).toEqual([...Buffer.from('enough'), 257])
    expect(rollout.turns).toHaveLength(2)
  })

  test('trains on what was sampled where a task rewrites the answer', async () => {
    const rollout = await play(env, () => 'secret')
    expect(rollout).toMatchObject({ error: null, metrics: { length: 3 }, completion: [{ role: 'assistant', content: '***' }] })
    expect(rollout.completion_tokens.ids).toEqual([...Buffer.from('secret'), 257])
  })

  test('ends where the context is full', async () => {
    const rollout = await play(env, () => 'a', { kind: 'turns', maxSeqTokens: 60 })
    expect(rollout).toMatchObject({ error: null, stopCondition: 'prompt_too_long', isTruncated: true })
  })

  test('fails alone: a reward that raises, is late or no number, a policy that fails, an agent that runs twice, a setup that hangs', async () => {
    const away = () => {
      throw new Error('the sampler is away')
    }
    const says: Say[] = [() => 'raise', () => 'late', () => 'nan', away]
    const failed = await Promise.all([
      ...says.map((say) => play(env, say)),
      play(env, () => '0', { kind: 'twice' }),
      play(env, () => '0', { kind: 'hang', seconds: 3 }),
    ])
    expect(failed.map(({ reward }) => reward)).toEqual(failed.map(() => null))
    const [raised, late, nan, gone, twice, hung] = failed.map(({ error }) => error)
    expect(raised).toMatch(/the environment ended with TaskError: .*KeyError: 'the board is gone'/)
    expect(late).toBe('the environment ended with scoring_timeout: before early, right was scored')
    expect(nan).toMatch(/reward is NaN/)
    expect(gone).toBe('the sampler is away')
    expect(twice).toMatch(/its agent was run 2 times/)
    expect(hung).toMatch(/\b3 s/)
    expect(await play(env, () => '0')).toMatchObject({ reward: 1.5, error: null })
    expect((await env.server()).restarts).toBe(0)
  })

  test('whose process dies is played again in a new one, and fails where that dies each time', async () => {
    const rollout = await play(env, () => '0', { kind: 'die', seconds: 200 })
    expect(rollout.error).toBe('the environment server ended 3 times while this rollout was running')
    expect(readFileSync(mark, 'utf8')).toBe('xxx')
    expect(await play(env, () => '0')).toMatchObject({ reward: 1.5, error: null })
  })
})
