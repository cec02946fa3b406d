/** Micro-batches as plans: the bits of micro-batches that are run eagerly, and nothing made once they are warm. */
import { describe, expect, test } from 'vitest'
import { Tensor } from '../../src/autograd/tensor.ts'
import { hashSeed, Random } from '../../src/common/random.ts'
import type { TrainingBatch, TrainingSample } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { accumulateGradients, scoreSamples, type GradientOptions } from '../../src/trainer/gradients.ts'
import { loadLoss, type Loss } from '../../src/trainer/losses/index.ts'
import { MicroBatchRunner } from '../../src/trainer/micro-batch.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { seed, seedWords } from '../seed.ts'
import { batchOf, bounds, freshLora, loadCase, openCase, openGpu, readAll, tempFolder, trainerOptions } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()
const cispo = await loadLoss('cispo', bounds)
/** The log-probabilities of a file's loss come to the host, and its gradients go back. */
const onHost: Loss = { ...cispo, kernel: undefined }

/** Groups of a few completions, most of them with a prompt in common; some tokens are not learned, but the last one always is: a step without any is skipped. */
function randomBatch(random: Random, vocabulary: number, groups: number, longest: number, step = 1): TrainingBatch {
  const ids = (length: number) => Array.from({ length }, () => random.int(vocabulary))
  const samples: TrainingSample[] = []
  for (let group = 0; group < groups; group++) {
    const prompt = ids(1 + random.int(longest / 2))
    const shares = random.int(4) > 0
    for (let member = 0; member <= random.int(4); member++) {
      const all = [...prompt, ...ids(1 + random.int(longest / 2))]
      const length = all.length
      samples.push({
        ids: Int32Array.from(all),
        lossMask: Uint8Array.from({ length }, (_, t) => Number(t >= prompt.length && (random.int(6) > 0 || t === length - 1))),
        inferenceLogprobs: Float32Array.from({ length }, () => -3 - random.normal()),
        advantages: new Float32Array(length).fill(random.normal()),
        ...(shares && { promptKey: `${group}`, promptLength: prompt.length }),
      })
    }
  }
  return batchOf(samples, step)
}

async function gradients(decoder: Decoder, batch: TrainingBatch, options: GradientOptions) {
  decoder.store!.zeroGradients()
  const result = await accumulateGradients(decoder, batch, options)
  return { ...result, gradients: await readAll(decoder, 'gradients') }
}

interface Kind {
  words: string
  model: string
  how: 'adapter' | 'full' | 'dropout'
  checkpointing: boolean
  loss?: Loss
}

describe('replayed micro-batches have the bits of eager ones', () => {
  test.each<Kind>([
    { words: 'an adapter', model: 'llama', how: 'adapter', checkpointing: true },
    { words: 'an adapter, all kept', model: 'qwen3', how: 'adapter', checkpointing: false },
    { words: 'an adapter with dropout', model: 'llama', how: 'dropout', checkpointing: true },
    { words: 'all weights, tied embedding', model: 'qwen3', how: 'full', checkpointing: true },
    { words: 'all weights, tied embedding, biases, all kept', model: 'qwen2', how: 'full', checkpointing: false },
    { words: 'a loss on the host, an adapter with dropout', model: 'qwen2', how: 'dropout', checkpointing: false, loss: onHost },
    { words: 'a loss on the host, all weights', model: 'llama', how: 'full', checkpointing: true, loss: onHost },
  ])('$words', async ({ words, model, how, checkpointing, loss = cispo }) => {
    const { files } = await openCase(model)
    const decoder =
      how === 'dropout'
        ? await loadDecoder(await gpu, files, freshLora(['q_proj', 'v_proj', 'down_proj'], 0.3))
        : await loadCase(await gpu, model, how)
    const random = new Random(hashSeed(seed, words))
    const microBatchTokens = 96
    const [eager, plans] = [false, true].map((on) => new MicroBatchRunner(decoder, { rowsAtMost: microBatchTokens, plans: on }))
    // Small, larger than before, one with a sequence longer than a micro-batch, small again.
    for (const [groups, longest] of [
      [1, 8],
      [8, 60],
      [2, 260],
      [3, 12],
    ]) {
      const batch = randomBatch(random, decoder.config.vocabSize, groups, longest)
      const dropoutSeed = how === 'dropout' ? random.int(2 ** 31) * 2 : undefined
      const options = { loss, temperature: 0.8, checkpointing, microBatchTokens, dropoutSeed }
      const a = await gradients(decoder, batch, { ...options, runner: eager })
      const b = await gradients(decoder, batch, { ...options, runner: plans })
      expect(b, `${groups} groups of ${longest} (${seedWords})`).toEqual(a)
      const scored = (runner: MicroBatchRunner) =>
        scoreSamples(decoder, batch.samples, { temperature: 0.8, microBatchTokens, runner })
      expect(await scored(plans)).toEqual(await scored(eager))
    }
    for (const runner of [eager, plans]) runner.release()
    decoder.release()
  })

  test('with more scored tokens than the head takes at once', async () => {
    const decoder = await loadCase(await gpu, 'qwen3', 'full')
    const random = new Random(hashSeed(seed, 'chunks'))
    const { vocabSize } = decoder.config
    const all = { temperature: 1.3, checkpointing: true, microBatchTokens: 2048, loss: cispo }
    const [eager, plans] = [false, true].map((on) => new MicroBatchRunner(decoder, { rowsAtMost: 2048, plans: on }))
    // The head takes 512 tokens of this vocabulary.
    for (const length of [1100, 40, 513, 1026]) {
      const one = Array.from({ length: 5 }, () => randomBatch(random, vocabSize, 1, 8).samples[0])
      const ids = Int32Array.from({ length }, () => random.int(vocabSize))
      const lossMask = new Uint8Array(length).fill(1, 1)
      const long = { ids, lossMask, inferenceLogprobs: new Float32Array(length), advantages: new Float32Array(length).fill(1) }
      const batch = batchOf([...one, long])
      const a = await gradients(decoder, batch, { ...all, runner: eager })
      expect(await gradients(decoder, batch, { ...all, runner: plans }), seedWords).toEqual(a)
    }
    for (const runner of [eager, plans]) runner.release()
    decoder.release()
  })
})

test('on a GPU, where the next micro-batch is sent before this one is through', async () => {
  const device = await Gpu.open({ checks: true })
  Object.assign(device, { facts: { ...device.facts, software: false, subgroupSize: 0 } })
  const decoder = await loadCase(device, 'qwen2', 'full')
  const random = new Random(hashSeed(seed, 'ahead'))
  const options = { loss: cispo, temperature: 0.8, checkpointing: true, microBatchTokens: 40 }
  const [eager, plans] = [false, true].map((on) => new MicroBatchRunner(decoder, { rowsAtMost: 40, plans: on }))
  for (const groups of [6, 3, 9]) {
    const batch = randomBatch(random, decoder.config.vocabSize, groups, 30)
    const a = await gradients(decoder, batch, { ...options, runner: eager })
    // Three groups may be short enough for one.
    if (groups > 3) expect(a.microBatches, seedWords).toBeGreaterThan(1)
    expect(await gradients(decoder, batch, { ...options, runner: plans }), seedWords).toEqual(a)
    const read = device.readBuffersMade
    expect(await gradients(decoder, batch, { ...options, runner: plans }), seedWords).toEqual(a)
    expect(device.readBuffersMade).toBe(read)
  }
  for (const runner of [eager, plans]) runner.release()
  decoder.release()
  device.close()
})

test('a longer rotary table, another temperature: plans are recorded anew', async () => {
  const device = await gpu
  const decoder = await loadCase(device, 'llama', 'adapter')
  const batch = randomBatch(new Random(hashSeed(seed, 'table')), decoder.config.vocabSize, 3, 20)
  const runner = new MicroBatchRunner(decoder, { rowsAtMost: 96 })
  const options = { loss: cispo, temperature: 0.8, checkpointing: true, microBatchTokens: 96 }
  const first = await gradients(decoder, batch, { ...options, runner })
  const table = decoder.rotary.table(64)
  expect(decoder.rotary.table(1000)).not.toBe(table)
  // What takes the old table's place must not be read.
  const poison = device.upload(new Float32Array(table.bytes / 4).fill(Number.NaN), 'poison')
  expect(poison.raw).toBe(table.raw)
  expect(await gradients(decoder, batch, { ...options, runner })).toEqual(first)
  poison.release()
  const warmer = await gradients(decoder, batch, { ...options, temperature: 1.1, runner })
  expect(warmer.samples).not.toEqual(first.samples)
  expect(warmer).toEqual(await gradients(decoder, batch, { ...options, temperature: 1.1 }))
  runner.release()
  decoder.release()
})

const made = (device: Gpu) => ({
  buffers: device.pool.buffersMade,
  read: device.readBuffersMade,
  groups: device.bindGroups,
  kernels: device.kernels.size,
  tensors: Tensor.made,
  inUse: device.pool.bytesInUse,
})

describe('after two steps', () => {
  test.each<Kind>([
    { words: 'an adapter with dropout', model: 'llama', how: 'dropout', checkpointing: true },
    { words: 'all weights', model: 'qwen3', how: 'full', checkpointing: true },
    { words: 'a loss on the host', model: 'llama', how: 'dropout', checkpointing: false, loss: onHost },
  ])(
    'a step makes no buffer, bind group, pipeline or tensor: $words',
    async ({ words, model, how, checkpointing, loss = cispo }) => {
      const device = await gpu
      const { files } = await openCase(model)
      const decoder = await loadDecoder(device, files, how === 'full' ? { full: true } : freshLora(undefined, 0.1))
      const random = new Random(hashSeed(seed, words))
      const trainer = new Trainer(decoder, await trainerOptions(folder, { loss, checkpointing, microBatchTokens: 128 }))
      const batches = [
        [9, 60],
        [8, 60],
        [2, 30],
        [7, 50],
        [1, 10],
        [10, 60],
      ].map(([groups, longest], i) => randomBatch(random, decoder.config.vocabSize, groups, longest, i + 1))
      for (const batch of batches.slice(0, 2)) await trainer.trainStep(batch)
      const before = made(device)
      for (const batch of batches.slice(2)) {
        expect((await trainer.trainStep(batch)).skipped).toBe(false)
        expect(made(device), seedWords).toEqual(before)
      }
      // One submit and its read-back; one more with what was pending, and with a loss on the host one more.
      const submits = device.submits
      const { runner } = trainer.fitting.size
      decoder.store!.zeroGradients()
      const options = {
        loss,
        temperature: 0.8,
        checkpointing,
        microBatchTokens: 128,
        runner,
        dropoutSeed: how === 'dropout' ? 5 : undefined,
      }
      const { microBatches } = await accumulateGradients(decoder, batches[0], options)
      expect(microBatches).toBeGreaterThan(2)
      expect(device.submits - submits).toBeLessThanOrEqual((loss === onHost ? 2 : 1) * microBatches + 1)
      expect(made(device)).toEqual(before)
      trainer.release()
      decoder.release()
      expect(device.pool.bytesInUse).toBe(0)
    },
  )
})
