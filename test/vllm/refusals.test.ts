/** What a server is refused for that was started without what a run needs. */
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { VllmHost } from '../../src/inference/vllm/host.ts'
import { VllmSampler, type VllmSamplerOptions } from '../../src/inference/vllm/sampler.ts'
import { launchOf, openTrainer, samplerOptions, scratch, vllmIsThere, type TestTrainer } from './helpers.ts'

vllmIsThere()
const gpu = await Gpu.open({ checks: true })
const folder = scratch()
let host: VllmHost
let trainers: Record<'lora' | 'full', TestTrainer>

beforeAll(async () => {
  process.env.VLLM_ALLOW_RUNTIME_LORA_UPDATING = '0'
  delete process.env.VLLM_SERVER_DEV_MODE
  trainers = { lora: await openTrainer(gpu, 'lora'), full: await openTrainer(gpu, 'full') }
  const launch = launchOf(folder.path, 'server', { logprobsMode: 'raw_logprobs' })
  host = new VllmHost({ where: { launch }, startupMs: 400_000, maxRestarts: 0, log: () => {} })
  await host.start()
})
afterAll(async () => {
  await host?.close()
  gpu.close()
  folder.remove()
})

const refused: [string, 'lora' | 'full', Partial<VllmSamplerOptions>, RegExp][] = [
  ['log-probabilities before the temperature', 'lora', {}, /raw_logprobs.*importance ratio.*--logprobs-mode processed_logprobs/],
  [
    'no adapters at run time',
    'lora',
    { logprobsMode: 'raw_logprobs' },
    /does not load adapters at run time.*--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1/,
  ],
  ['no versions of tokens', 'full', { logprobsMode: 'raw_logprobs' }, /inference\/v1\/generate.*--enable-scale-out/],
]
it.each(refused)('%s', async (_, kind, changes, words) => {
  const options = samplerOptions(trainers[kind], { url: host.api.url }, join(folder.path, 'weights'), changes)
  await expect(VllmSampler.open(options, 0)).rejects.toThrow(words)
})

it('gives up on a server that keeps dying', async () => {
  process.kill(-host.pid!, 'SIGKILL')
  await expect(host.revive()).rejects.toThrow(/vLLM died 1 times .*max_restarts = 0.*server\.log/)
})
