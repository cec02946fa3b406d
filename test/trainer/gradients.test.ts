/** What must not change the gradient: the size of micro-batches, a prompt computed once, layers computed again. And dropout. */
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { pad, unpad } from '../../src/autograd/parameters.ts'
import { Random } from '../../src/common/random.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { accumulateGradients, scoreSamples, type GradientOptions } from '../../src/trainer/gradients.ts'
import type { MicroBatchRunner } from '../../src/trainer/micro-batch.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import type { LossFunction } from '../../src/trainer/losses/types.ts'
import { withFacts } from '../facts.ts'
import { batchOf, bounds, freshLora, loadCase, openCase, openGpu, readAll, worst } from './helpers.ts'

const { gpu } = openGpu()

async function gradients(decoder: Decoder, samples: TrainingSample[], options: Partial<GradientOptions> = {}) {
  decoder.store!.zeroGradients()
  const defaults = { loss: await loadLoss('cispo', bounds), temperature: 0.8, checkpointing: false, microBatchTokens: 4096 }
  const result = await accumulateGradients(decoder, batchOf(samples), { ...defaults, ...options })
  return { ...result, gradients: await readAll(decoder, 'gradients') }
}

describe.each(['adapter', 'full'] as const)('%s', (how) => {
  test('micro-batches of any size give one gradient', async () => {
    const { batch } = await openCase('qwen3')
    const decoder = await loadCase(await gpu, 'qwen3', how)
    const whole = await gradients(decoder, batch.samples)
    expect(whole.microBatches).toBe(1)
    for (const microBatchTokens of [1, 40, 90]) {
      const parts = await gradients(decoder, batch.samples, { microBatchTokens })
      expect(parts.microBatches).toBeGreaterThan(1)
      expect(Math.abs(parts.loss - whole.loss)).toBeLessThan(1e-6)
      // float32 sums in another order
      expect(worst(parts.gradients, whole.gradients).distance).toBeLessThan(2e-6)
      // a token's numbers do not depend on its batch
      parts.samples.forEach((s, i) => expect(s.logprobs).toEqual(whole.samples[i].logprobs))
    }
    decoder.release()
  })

  test('gradient checkpointing gives the same gradient', async () => {
    const { batch } = await openCase('llama')
    const decoder = await loadCase(await gpu, 'llama', how)
    const kept = await gradients(decoder, batch.samples)
    const again = await gradients(decoder, batch.samples, { checkpointing: true })
    expect(again.loss).toBe(kept.loss)
    // Gradients that meet at a layer's input are added in another order.
    expect(worst(again.gradients, kept.gradients).distance).toBeLessThan(1e-6)
    decoder.release()
  })

  test('a prompt that is computed once gives what separate sequences give', async () => {
    const random = new Random(5)
    const decoder = await loadCase(await gpu, 'qwen2', how)
    const prompt = Array.from({ length: 11 }, () => random.int(decoder.config.vocabSize))
    const alone = Array.from({ length: 6 }, (_, i) => randomSample(random, prompt, 2 + 3 * i, decoder.config.vocabSize))
    const shared = alone.map((s) => ({ ...s, promptKey: 'p', promptLength: prompt.length }))
    const [a, b] = [await gradients(decoder, alone), await gradients(decoder, shared)]
    expect(b.rows).toBe(a.rows - 5 * prompt.length)
    b.samples.forEach((s, i) => expect(s.logprobs).toEqual(a.samples[i].logprobs))
    expect(b.loss).toBe(a.loss)
    expect(worst(b.gradients, a.gradients).distance).toBeLessThan(2e-6)
    // and split over micro-batches, each with its own copy of the prompt
    const split = await gradients(decoder, shared, { microBatchTokens: 30 })
    expect(split.microBatches).toBeGreaterThan(1)
    expect(worst(split.gradients, a.gradients).distance).toBeLessThan(2e-6)
    decoder.release()
  })
})

test('a device that is lost while the next micro-batch is under way ends the call with its error alone', async () => {
  const { batch } = await openCase('qwen3')
  const decoder = await loadCase(await gpu, 'qwen3', 'adapter')
  let [begun, ended] = [0, 0]
  const runner = {
    makeRoom: async () => {},
    // The second one fails first, while the first is still waited for: nobody hears it then.
    run: async () => {
      await sleep(++begun === 1 ? 40 : 10)
      ended++
      throw new Error('the GPU device was lost')
    },
  } as unknown as MicroBatchRunner
  await withFacts(await gpu, { software: false }, async () => {
    const work = gradients(decoder, batch.samples, { microBatchTokens: 40, runner })
    await expect(work).rejects.toThrow('the GPU device was lost')
  })
  expect([begun, ended]).toEqual([2, 2])
  await (await gpu).sync()
  decoder.release()
})

test('a loss in TypeScript gives the gradient of its kernel', async () => {
  const { batch } = await openCase('llama')
  const decoder = await loadCase(await gpu, 'llama', 'adapter')
  for (const name of ['cispo', 'cispo_mask']) {
    const kernel = await loadLoss(name, bounds)
    const onGpu = await gradients(decoder, batch.samples, { loss: kernel, microBatchTokens: 60 })
    const onHost = await gradients(decoder, batch.samples, { loss: { ...kernel, kernel: undefined }, microBatchTokens: 60 })
    expect(worst(onHost.gradients, onGpu.gradients).distance).toBeLessThan(1e-5)
    expect(Math.abs(onHost.loss - onGpu.loss)).toBeLessThan(1e-5)
  }
  decoder.release()
})

test('a loss may work in its inputs, and fill one array for all sequences', async () => {
  const { batch } = await openCase('llama')
  const decoder = await loadCase(await gpu, 'llama', 'adapter')
  const given = structuredClone(batch.samples)
  const run =
    (gradientOf: (length: number) => Float32Array): LossFunction =>
    (x) => {
      const gradient = gradientOf(x.logprobs.length)
      x.lossMask.forEach((counts, t) => {
        x.advantages[t] *= 2
        x.logprobs[t] = 0
        gradient[t] = counts ? -x.advantages[t] / x.lossTokenCount : 0
      })
      return { gradient, loss: 0 }
    }
  const one = new Float32Array(256)
  const by = (gradientOf: (length: number) => Float32Array) =>
    gradients(decoder, batch.samples, { loss: { name: 'mine', run: run(gradientOf), args: {}, checked: false } })
  const fresh = await by((n) => new Float32Array(n))
  const reused = await by((n) => one.subarray(0, n))
  expect(worst(reused.gradients, fresh.gradients).distance).toBe(0)
  expect(fresh.samples.some(({ logprobs }) => logprobs.some((x) => x !== 0))).toBe(true)
  expect(batch.samples).toEqual(given)
  decoder.release()
})

test('a loss sees its rollout, and its metrics are averaged over sequences', async () => {
  const { batch } = await openCase('llama')
  const decoder = await loadCase(await gpu, 'llama', 'adapter')
  const rewards = batch.samples.map((_, i) => i)
  const samples = batch.samples.map((s, i) => ({ ...s, rollout: { reward: rewards[i] } as never }))
  const run: LossFunction = (x) => ({
    gradient: new Float32Array(x.logprobs.length),
    loss: 0,
    metrics: { seen: x.rollout!.reward! },
  })
  const loss = { name: 'mine', run, args: {}, checked: true }
  const { lossMetrics } = await gradients(decoder, samples, { loss, microBatchTokens: 50 })
  expect(lossMetrics).toEqual({ seen: rewards.reduce((a, b) => a + b) / rewards.length })
  decoder.release()
})

describe('dropout of the adapter', () => {
  const loss = { name: 'sum', args: {}, checked: false, run: sumOfLogprobs as LossFunction }

  test('is decided by the seed, keeps the mean, and is off when scoring', async () => {
    const { files, batch } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora(['q_proj', 'down_proj'], 0.4))
    await randomiseB(decoder, 0.5)
    const [one, same, other] = [
      await gradients(decoder, batch.samples, { dropoutSeed: 7 }),
      await gradients(decoder, batch.samples, { dropoutSeed: 7 }),
      await gradients(decoder, batch.samples, { dropoutSeed: 8 }),
    ]
    expect(same.samples).toEqual(one.samples)
    expect(same.gradients).toEqual(one.gradients)
    expect(other.samples[0].logprobs).not.toEqual(one.samples[0].logprobs)
    // Other values in each micro-batch, up to the largest seed.
    const twins = [0, 1].map(() => ({ ...batch.samples[0], promptKey: undefined }))
    const apart = await gradients(decoder, twins, { dropoutSeed: 2 ** 32 - 1, microBatchTokens: 1 })
    expect(apart.microBatches).toBe(2)
    expect(apart.samples[1].logprobs).not.toEqual(apart.samples[0].logprobs)
    const scored = await scoreSamples(decoder, batch.samples, { temperature: 0.8, microBatchTokens: 4096 })
    const without = await gradients(decoder, batch.samples)
    batch.samples.forEach(({ lossMask }, i) => {
      const counted = (x: Float32Array) => x.filter((_, t) => lossMask[t])
      expect(counted(scored[i].logprobs)).toEqual(counted(without.samples[i].logprobs))
    })
    decoder.release()
  })

  test('drops other values in each projection, wherever the adapters lie', async () => {
    const { files } = await openCase('llama')
    const device = await gpu
    let decoder: Decoder
    // On an adapter that binds no more than one of these matrices, each begins a buffer of its own.
    const facts = { limits: { ...device.facts.limits, maxBinding: 2048 } }
    await withFacts(device, facts, async () => {
      decoder = await loadDecoder(device, files, freshLora(['v_proj', 'o_proj'], 0.5))
    })
    await randomiseB(decoder!, 0.5)
    // One row, so that a column of A without a gradient is a value that was dropped.
    const sample = randomSample(new Random(4), [5], 1, files.config.vocabSize)
    const result = await gradients(decoder!, [sample], { loss, dropoutSeed: 7 })
    const masks = [...result.gradients]
      .filter(([name]) => name.includes('lora_A'))
      .map(([, a]) => a.subarray(0, 64).map(Math.sign).map(Math.abs).join(''))
    expect(masks).toHaveLength(4)
    expect(new Set(masks).size).toBe(4)
    decoder!.release()
  })

  test.each([false, true])('its gradient agrees with finite differences (checkpointing: %s)', async (checkpointing) => {
    const { files, batch } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora(['v_proj', 'down_proj'], 0.4))
    await randomiseB(decoder, 0.2)
    const store = decoder.store!
    const options = { loss, dropoutSeed: 11, checkpointing }
    const base = await gradients(decoder, batch.samples, options)
    const random = new Random(2)
    for (const parameter of store.parameters) {
      const padded = pad(await store.read(parameter), parameter)
      const direction = padded.map((v) => (v === 0 ? 0 : random.normal()))
      const unpadded = base.gradients.get(parameter.name)!
      const along = dot(unpadded, unpad(direction, parameter))
      const h = 2e-2 / Math.sqrt(dot(direction, direction))
      const at = async (step: number) => {
        store.write(
          parameter,
          padded.map((v, i) => v + step * direction[i]),
        )
        return (await gradients(decoder, batch.samples, options)).loss
      }
      const slope = ((await at(h)) - (await at(-h))) / (2 * h)
      store.write(parameter, padded)
      expect(Math.abs(slope - along), parameter.name).toBeLessThan(2e-2 * Math.abs(along) + 1e-3)
    }
    decoder.release()
  })
})

/** -sum of the log-probabilities: smooth, and every token counts. */
function sumOfLogprobs(x: { logprobs: Float32Array; lossMask: Uint8Array }) {
  return {
    gradient: Float32Array.from(x.lossMask, (m) => -m),
    loss: -x.logprobs.reduce((sum, l, t) => sum + (x.lossMask[t] ? l : 0), 0),
  }
}

const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => Array.from(a).reduce((sum, v, i) => sum + v * b[i], 0)

/** B starts at zero, where A has no gradient. */
async function randomiseB(decoder: Decoder, scale: number): Promise<void> {
  const random = new Random(9)
  for (const parameter of decoder.store!.parameters) {
    if (!parameter.name.includes('lora_B')) continue
    const values = (await decoder.store!.read(parameter)).map(() => scale * random.normal())
    decoder.store!.write(parameter, pad(values, parameter))
  }
}

function randomSample(random: Random, prompt: number[], answer: number, vocabulary: number): TrainingSample {
  const ids = [...prompt, ...Array.from({ length: answer }, () => random.int(vocabulary))]
  const lossMask = Uint8Array.from(ids, (_, i) => Number(i >= prompt.length))
  return {
    ids: Int32Array.from(ids),
    lossMask,
    inferenceLogprobs: Float32Array.from(lossMask, (m) => (m ? -4 - random.next() : 0)),
    advantages: Float32Array.from(lossMask, (m) => (m ? random.normal() : 0)),
  }
}
