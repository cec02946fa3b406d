/** Training and generation on one device at the same time: each has the numbers that it has alone, and steps come between the sections of training. */
import '../gpu/optimised.ts'
import { setImmediate as turn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { DeviceShare, evenShare } from '../../src/gpu/share.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { newModel } from '../../src/trainer/new-model.ts'
import { seed, seedWords } from '../seed.ts'
import { batchOf, bounds, freshLora } from '../trainer/helpers.ts'
import { engineOf, sampling } from './helpers.ts'

/** Wide enough for activations to be staged, which trainer and engine do in the same textures. */
const wide = newModel(
  {
    family: 'qwen3',
    hidden_size: 128,
    intermediate_size: 256,
    num_hidden_layers: 3,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    tie_word_embeddings: true,
    rope_theta: 1e4,
    rms_norm_eps: 1e-6,
    max_position_embeddings: 256,
    initializer_range: 0.1,
  },
  1,
)
const random = new Random(seed)
const tokens = (n: number): Int32Array => Int32Array.from({ length: n }, () => random.int(256))
const samples: TrainingSample[] = [70, 33, 90, 51].map((length) => ({
  ids: tokens(length),
  lossMask: Uint8Array.from({ length }, (_, i) => Number(i > 5)),
  inferenceLogprobs: new Float32Array(length).fill(-5),
  advantages: Float32Array.from({ length }, () => random.next() - 0.5),
}))

const options = { temperature: 0.8, microBatchTokens: 128 }

test.each([
  [undefined, 1 / 16],
  [evenShare, 1],
])('beside an engine that never rests (%j) training gets its share', async (least, share) => {
  const device = new DeviceShare()
  if (least !== undefined) device.least = least
  device.work(0)
  let sections = 0
  let ends = false
  const training = (async () => {
    for (await device.turn(); !ends; await device.turn()) {
      sections++
      device.trained(0, 1)
    }
  })()
  for (let step = 0; step < 320; step++) {
    device.stepped(1)
    await turn()
  }
  expect(Math.abs(sections - 320 * share)).toBeLessThanOrEqual(1)
  ends = true
  device.rest()
  await training
})

test.each([
  { checkpointing: true, how: 'adapter', ahead: false },
  { checkpointing: false, how: 'full', ahead: true },
] as const)('$how, checkpointing $checkpointing, ahead $ahead' + ` (${seedWords})`, async ({ checkpointing, how, ahead }) => {
  const gpu = await Gpu.open({ checks: true })
  const decoder = await loadDecoder(gpu, wide, how === 'full' ? { full: true } : freshLora())
  const store = decoder.store!
  const loss = await loadLoss('cispo', bounds)
  const gradients = async () => {
    store.zeroGradients()
    const result = await accumulateGradients(decoder, batchOf(samples), { ...options, checkpointing, loss })
    const read = []
    for (const parameter of store.parameters) read.push(await store.read(parameter, 'gradients'))
    return { loss: result.loss, samples: result.samples, read }
  }
  const alone = await gradients()
  const submits = async (fn: () => Promise<unknown>): Promise<number> => {
    const before = gpu.submits
    await fn()
    return gpu.submits - before
  }
  const whole = await submits(gradients)

  const engine = engineOf(decoder, { ahead })
  const prompts = samples.map(({ ids }) => [...ids.subarray(0, 20)])
  const generate = async () => {
    const asked = prompts.map((promptIds, i) => engine.generate({ promptIds, sampling: sampling({ seed: i, max_tokens: 40 }) }))
    return (await Promise.all(asked)).map(({ ids, logprobs }) => ({ ids, logprobs }))
  }
  const completions = await generate()

  // An idle engine: section by section, with the same numbers.
  let idle: Awaited<ReturnType<typeof gradients>> | undefined
  expect(await submits(async () => (idle = await gradients()))).toBeGreaterThan(whole)
  expect(idle).toEqual(alone)

  // Steps of the engine that were made while training was under way.
  let done = false
  let steps = 0
  const training = (async () => {
    const before = engine.stats().decodeSteps
    const result = await gradients()
    steps = engine.stats().decodeSteps - before
    done = true
    return result
  })()
  for (let round = 0; round < 2 || !done; round++) expect(await generate()).toEqual(completions)
  expect(await training).toEqual(alone)
  expect(steps).toBeGreaterThan(10)
  await engine.close()
  expect(gpu.share.engines).toBe(0)
  expect(await submits(gradients)).toBe(whole)
  decoder.release()
  gpu.close()
})

test('two models are scored at the same time beside an engine that works', async () => {
  const gpu = await Gpu.open({ checks: true })
  const decoders = [await loadDecoder(gpu, wide), await loadDecoder(gpu, wide, freshLora())]
  const scores = () => Promise.all(decoders.map((decoder) => scoreSamples(decoder, samples, options)))
  const alone = await scores()
  const engine = engineOf(decoders[0])
  const asked = samples.map(({ ids }, i) =>
    engine.generate({ promptIds: [...ids.subarray(0, 20)], sampling: sampling({ seed: i, max_tokens: 30 }) }),
  )
  expect(await scores()).toEqual(alone)
  await Promise.all(asked)
  await engine.close()
  for (const decoder of decoders) decoder.release()
  gpu.close()
})
