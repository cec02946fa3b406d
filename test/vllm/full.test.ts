/** A run's server with full weights: the suite of generators, and tokens of several versions in one completion. */
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { VllmSampler } from '../../src/inference/vllm/sampler.ts'
import { writeSamplerWeights } from '../../src/trainer/sampler-weights.ts'
import { testGenerator } from '../inference/generator.suite.ts'
import { moveAdapter, sampling, scoreAfter } from '../inference/helpers.ts'
import { launchOf, openTrainer, samplerOptions, scratch, underTest, vllmIsThere, type TestTrainer } from './helpers.ts'

vllmIsThere()
const gpu = await Gpu.open({ checks: true })
const folder = scratch()
let trainer: TestTrainer
let sampler: VllmSampler

beforeAll(async () => {
  delete process.env.VLLM_SERVER_DEV_MODE
  trainer = await openTrainer(gpu, 'full')
  const base = join(folder.path, 'base')
  await writeSamplerWeights(base, trainer.decoder, trainer.weights, await trainer.files.tokenizer())
  const launch = launchOf(folder.path, 'server', { loraRank: undefined, model: base })
  sampler = await VllmSampler.open(samplerOptions(trainer, { launch }, join(folder.path, 'weights')), 0)
})
afterAll(async () => {
  await sampler?.close()
  gpu.close()
  folder.remove()
})

testGenerator('vLLM with full weights', async () => ({ ...underTest(trainer, sampler), close: async () => {} }))

describe('full weights', () => {
  it('go in between two tokens; each token has the version that made it', async () => {
    const { decoder } = trainer
    const promptIds = trainer.encode('Write a long story')
    const begin = sampler.version
    // The trainer's new weights are ready, so that only the push itself takes time.
    await moveAdapter(decoder, begin + 1)
    const seeds = [1, 2, 3, 4]
    const long = seeds.map((seed) =>
      sampler.generate({ promptIds, sampling: sampling({ max_tokens: 450, seed, temperature: 1 }) }),
    )
    await sampler.generate({ promptIds, sampling: sampling({ max_tokens: 4 }) })
    await sampler.push(begin + 1)
    for (const { ids, logprobs, versions } of await Promise.all(long)) {
      const first = versions.indexOf(begin + 1)
      expect(first, 'the push came while it ran').toBeGreaterThan(0)
      expect(versions).toEqual(ids.map((_, i) => (i < first ? begin : begin + 1)))
      // By the new weights the tokens before the push have other log-probabilities.
      const scored = await scoreAfter(decoder, promptIds, ids, 1)
      expect(Math.max(...logprobs.slice(0, first).map((l, i) => Math.abs(l - scored[i])))).toBeGreaterThan(1e-2)
    }
  })

  it('come back after kill -9', async () => {
    const { pid } = sampler.stats
    const promptIds = trainer.encode('Reverse the text: again')
    const request = sampler.generate({ promptIds, sampling: sampling({ max_tokens: 100, temperature: 1 }) })
    await sampler.generate({ promptIds, sampling: sampling({ max_tokens: 2 }) })
    process.kill(-pid!, 'SIGKILL')
    const { ids, logprobs, versions } = await request
    expect(versions).toEqual(ids.map(() => sampler.version))
    const scored = await scoreAfter(trainer.decoder, promptIds, ids, 1)
    expect(Math.max(...logprobs.map((l, i) => Math.abs(l - scored[i])))).toBeLessThan(2e-4)
  })
})
