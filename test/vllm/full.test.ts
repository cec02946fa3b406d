/** A run's server with full weights: the suite of generators, and tokens of several versions in one completion. */
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { VllmSampler } from '../../src/inference/vllm/sampler.ts'
import { writeSamplerWeights } from '../../src/trainer/sampler-weights.ts'
import { testGenerator } from '../inference/generator.suite.ts'
import { moveAdapter, sampling, scoreAfter } from '../inference/helpers.ts'
import {
  keepAsking, launchOf, openTrainer, samplerOptions, scratch, underTest, vllmIsThere, type TestTrainer,
} from './helpers.ts' // prettier-ignore

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
    // On a busy machine they may be over, or not have begun, when the weights change: such a round proves nothing, and another one follows.
    let mixed = 0
    for (let round = 0; mixed === 0 && round < 8; round++) {
      const begin = sampler.version
      await moveAdapter(decoder, begin + 1)
      // Requests begin all the time while the push is made, so that some are in the middle.
      const stop = keepAsking((seed) =>
        sampler.generate({ promptIds, sampling: sampling({ max_tokens: 200, seed, temperature: 1 }) }),
      )
      await sampler.push(begin + 1).finally(stop)
      for (const { ids, logprobs, versions } of await Promise.all(stop())) {
        const first = versions.indexOf(begin + 1)
        expect(versions).toEqual(ids.map((_, i) => (first < 0 || i < first ? begin : begin + 1)))
        if (first <= 0) continue
        mixed++
        // By the new weights the tokens before the push have other log-probabilities.
        const scored = await scoreAfter(decoder, promptIds, ids, 1)
        expect(Math.max(...logprobs.slice(0, first).map((l, i) => Math.abs(l - scored[i])))).toBeGreaterThan(1e-2)
      }
    }
    expect(mixed, 'completions that the push came in the middle of').toBeGreaterThan(0)
  })

  it('come back after kill -9', async () => {
    const { pid, restarts } = sampler.stats
    const promptIds = trainer.encode('Reverse the text: again')
    const request = sampler.generate({ promptIds, sampling: sampling({ max_tokens: 100, temperature: 1 }) })
    await sampler.generate({ promptIds, sampling: sampling({ max_tokens: 2 }) })
    process.kill(-pid!, 'SIGKILL')
    // The first may have been over before the server died (a busy machine): the second is asked of the new one in any case.
    const again = sampler.generate({ promptIds, sampling: sampling({ max_tokens: 20, temperature: 1 }) })
    for (const { ids, logprobs, versions } of await Promise.all([request, again])) {
      expect(versions).toEqual(ids.map(() => sampler.version))
      const scored = await scoreAfter(trainer.decoder, promptIds, ids, 1)
      expect(Math.max(...logprobs.map((l, i) => Math.abs(l - scored[i])))).toBeLessThan(2e-4)
    }
    expect(sampler.stats.restarts).toBe(restarts + 1)
  })
})
