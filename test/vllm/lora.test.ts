/** A run's server with adapters: the suite of generators, pushes, and what a server that was started otherwise is refused for. */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { GenerationResult } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { VllmApi } from '../../src/inference/vllm/api.ts'
import { VllmSampler, type VllmSamplerOptions } from '../../src/inference/vllm/sampler.ts'
import { moveAdapter, sampling } from '../inference/helpers.ts'
import { settled, testGenerator } from '../inference/generator.suite.ts'
import {
  keepAsking, launchOf, maxLength, openTrainer, samplerOptions, scratch, underTest, vllmIsThere, type TestTrainer,
} from './helpers.ts' // prettier-ignore

vllmIsThere()
const gpu = await Gpu.open({ checks: true })
const folder = scratch()
let trainer: TestTrainer
let sampler: VllmSampler

beforeAll(async () => {
  trainer = await openTrainer(gpu, 'lora')
  // A stock server: adapters need no dev mode.
  process.env.VLLM_SERVER_DEV_MODE = '0'
  const options = samplerOptions(trainer, { launch: launchOf(folder.path, 'server') }, join(folder.path, 'weights'))
  sampler = await VllmSampler.open(options, 4)
})
afterAll(async () => {
  await sampler?.close()
  gpu.close()
  folder.remove()
})

testGenerator('vLLM with adapters', async () => ({ ...underTest(trainer, sampler), close: async () => {} }))

describe('adapters', () => {
  const adapters = async () =>
    (await new VllmApi(sampler.stats.url).models()).filter((card) => card.parent).map((card) => card.id)
  const until = async (condition: () => Promise<boolean>) => {
    for (let n = 0; n < 600 && !(await condition()); n++) await sleep(50)
    expect(await condition()).toBe(true)
  }
  const name = (version: number) => `test-v${String(version).padStart(6, '0')}`
  const only = async (version: number) => (await adapters()).join() === name(version)
  const short = sampling({ max_tokens: 2 })

  it('has a name for each version; the old one goes with its last request, and so do its files', async () => {
    const promptIds = trainer.encode('Write a long story')
    // On a busy machine they may all be over before one can look: such a round proves less, and another one follows.
    let inFlight = false
    for (let round = 0; !inFlight && round < 8; round++) {
      const old = sampler.version
      // What came before, the suite's last push among it, may still be on its way out.
      await until(async () => await only(old))
      await moveAdapter(trainer.decoder, old + 1)
      // One begins all the time while the push is made, so that the last ones are in the middle when it is done.
      const stop = keepAsking(() => sampler.generate({ promptIds, sampling: sampling({ max_tokens: 200 }) }))
      const metrics = await sampler.push(old + 1).finally(stop)
      const long = stop()
      const over = settled(Promise.all(long))
      const there = await adapters()
      inFlight = !over()
      if (inFlight) expect(there.toSorted()).toEqual([name(old), name(old + 1)])
      for (const { versions } of await Promise.all(long)) expect(versions).toEqual(Array.from({ length: 200 }, () => old))
      await until(async () => await only(old + 1))
      await until(async () => readdirSync(join(folder.path, 'weights')).join() === `v${name(old + 1).slice(-6)}`)
      expect(metrics['inference/adapter_sha']).toBeGreaterThan(0)
      expect(metrics['inference/probe_error']!).toBeLessThan(1e-4)
      expect(metrics['inference/probe_moved']!).toBeGreaterThan(1e-3)
      expect(metrics['time/broadcast_weights']!).toBeGreaterThan(0)
    }
    expect(inFlight, 'a push that came while a request ran').toBe(true)
  })

  it('notices weights that did not arrive', async () => {
    const { decoder } = trainer
    const next = sampler.version + 1
    const options = samplerOptions(trainer, { url: sampler.stats.url }, join(folder.path, 'stale'), { runName: 'stale' })
    const writes = options.write
    // The trainer moves on after the files were written: what the server gets is the step before.
    const late: VllmSamplerOptions = {
      ...options,
      write: async (dir) => {
        await writes(dir)
        if (!dir.endsWith('v000000')) await moveAdapter(decoder, 1000)
      },
    }
    const other = await VllmSampler.open(late, 0)
    await expect(other.push(1)).rejects.toThrow(
      /weights of version 1 did not arrive.*from the new ones and only .* from the old ones/,
    )
    await other.close()
    expect((await adapters()).filter((id) => id.startsWith('stale'))).toEqual([])
    await sampler.push(next)
  })

  it('leaves an aborted request what had arrived', async () => {
    const promptIds = trainer.encode('Write a long story')
    // As above: one that was over, or of which nothing had arrived, says nothing. From 20 ms on, each wait twice as long: one of them ends in between.
    let result: GenerationResult | undefined
    for (let round = 0; (result?.finishReason !== 'abort' || result.ids.length === 0) && round < 24; round++) {
      const control = new AbortController()
      const long = sampler.generate({ promptIds, sampling: sampling({ max_tokens: 200 }), signal: control.signal })
      await sleep(20 * 2 ** (round % 8))
      control.abort()
      result = await long
    }
    const { ids, versions, finishReason } = result!
    expect(finishReason).toBe('abort')
    expect(ids.length).toBeGreaterThan(0)
    expect(versions).toEqual(ids.map(() => sampler.version))
  })

  const refused: [string, () => Partial<VllmSamplerOptions>, RegExp][] = [
    [
      'fewer adapters than versions in flight',
      () => ({ maxAsyncLevel: 3 }),
      /holds 2 adapters .* max_async_level = 3 has 4 .*--max-loras 4/,
    ],
    [
      'shorter sequences',
      () => ({ maxLength: 4096 }),
      /takes sequences of at most 512 tokens, but max_seq_len is 4096.*--max-model-len 4096/,
    ],
    [
      'log-probabilities after the filters',
      () => ({ logprobsMode: 'raw_logprobs' }),
      /processed_logprobs.*--logprobs-mode raw_logprobs/,
    ],
    ['no dev mode for full weights', () => ({ kind: 'full' }), /no \/resume.*VLLM_SERVER_DEV_MODE=1/],
    [
      'another model',
      () => ({ score: async (ids) => ids.map((_, t) => -3 - t) }),
      /different log-probabilities from .*tiny.*serves another model.*--model/,
    ],
    ['a push without its files', () => ({ write: async () => {} }), /ENOENT|can't read the adapter's folder/],
  ]
  it.each(refused)('refuses a server with %s', async (_, changes, words) => {
    const options = samplerOptions(trainer, { url: `${sampler.stats.url}/v1/` }, join(folder.path, 'refused'), {
      runName: 'refused',
      ...changes(),
    })
    const opened = VllmSampler.open(options, 0)
    await expect(opened).rejects.toThrow(words)
    expect((await adapters()).filter((id) => id.startsWith('refused'))).toEqual([])
  })

  it('refuses an adapter of a higher rank than the server takes', async () => {
    const high = await openTrainer(gpu, 'lora', 32)
    const options = samplerOptions(high, { url: sampler.stats.url }, join(folder.path, 'high'), { runName: 'high' })
    const opened = VllmSampler.open(options, 0)
    await expect(opened).rejects.toThrow(UserError)
    await expect(opened).rejects.toThrow(/rank 32.*--max-lora-rank 32/)
    high.decoder.release()
  })

  it('refuses an address where nobody is, and a Python that is not there', async () => {
    const nobody = samplerOptions(trainer, { url: 'http://127.0.0.1:9' }, join(folder.path, 'nobody'), { startupMs: 500 })
    await expect(VllmSampler.open(nobody, 0)).rejects.toThrow(/No vLLM server answers at http:\/\/127.0.0.1:9\/health.*base_url/)
    const launch = launchOf(folder.path, 'none', { python: join(folder.path, 'bin/python') })
    const none = samplerOptions(trainer, { launch }, join(folder.path, 'none'))
    await expect(VllmSampler.open(none, 0)).rejects.toThrow(/There is no .*bin\/python.*setup-vllm\.sh/)
  })

  it('says why a server does not start', async () => {
    const launch = launchOf(folder.path, 'broken', { args: { no_such_flag: 1 } })
    const options = samplerOptions(trainer, { launch }, join(folder.path, 'broken'))
    await expect(VllmSampler.open(options, 0)).rejects.toThrow(
      /vLLM ended with exit code 2.*broken\.log, ends with: .*no-such-flag/,
    )
  })

  it('comes back from kill -9 with the newest weights, and answers what was asked', async () => {
    const { pid, restarts, retried, url } = sampler.stats
    const promptIds = trainer.encode('Write a long story')
    let requests: Promise<GenerationResult>[] = []
    let inFlight = 0
    for (let round = 0; inFlight < 6 && round < 8; round++) {
      if (round > 0) process.kill(-pid!, 'SIGCONT')
      await Promise.all(requests)
      requests = Array.from({ length: 6 }, (_, seed) =>
        sampler.generate({ promptIds, sampling: sampling({ max_tokens: 150, seed }) }),
      )
      const over = requests.map(settled)
      await sampler.generate({ promptIds, sampling: short })
      // Held still, so that what it has sent is read before it dies: on a busy machine that may be whole answers.
      process.kill(-pid!, 'SIGSTOP')
      await sleep(500)
      inFlight = over.filter((isOver) => !isOver()).length
    }
    expect(inFlight, 'requests in the middle of which the server is killed').toBe(6)
    process.kill(-pid!, 'SIGKILL')
    const results = await Promise.all(requests)
    expect(results.map((r) => r.ids.length)).toEqual(requests.map(() => 150))
    expect(sampler.stats).toMatchObject({ restarts: restarts + 1, retried: retried + 6 })
    expect(sampler.stats.url).not.toBe(url)
    expect(results.every((r) => r.versions.every((v) => v === sampler.version))).toBe(true)
    expect(await adapters()).toEqual([name(sampler.version)])
  })

  it('takes a push while it comes back from kill -9: the weights that a new server gets are those of then', async () => {
    const { pid, restarts } = sampler.stats
    const next = sampler.version + 1
    await moveAdapter(trainer.decoder, next)
    process.kill(-pid!, 'SIGKILL')
    await sampler.push(next)
    const { versions } = await sampler.generate({ promptIds: trainer.encode('Write a long story'), sampling: short })
    expect(versions).toEqual([next, next])
    expect(sampler.stats).toMatchObject({ restarts: restarts + 1 })
    expect(sampler.gone).toBe(false)
    expect(await adapters()).toEqual([name(next)])
  })

  it('leaves no server and no weights behind', async () => {
    const { url } = sampler.stats
    await sampler.close()
    expect(await new VllmApi(url).healthy()).toBe(false)
    expect(existsSync(join(folder.path, 'weights'))).toBe(false)
    await expect(sampler.generate({ promptIds: [1], sampling: sampling({ max_tokens: 1 }) })).rejects.toThrow('closed')
    expect(maxLength).toBeGreaterThan(0)
  })
})
