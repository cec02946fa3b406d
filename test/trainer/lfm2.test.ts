/** LFM2 trained: what the engine sampled, an adapter's folder under the names of its modules, all weights and their checkpoints. */
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import type { TrainingSample } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { valuesOf } from '../../src/model/decoder/decoder.ts'
import { writeMerged } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { adapterModules, LINEAR_MODULES, linearShapes } from '../../src/model/decoder/shapes.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { fixtures } from '../golden/cases.ts'
import { engineOf, sampleOf, sampling } from '../inference/helpers.ts'
import { batchOf, distance, tempFolder, trainerOptions } from './helpers.ts'

const folder = tempFolder()
const dir = join(fixtures, 'odd/lfm2')
const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const schedule = { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 8 } as const

test.each(['adapter', 'full'] as const)('trained on what it samples, without a mismatch: %s', async (how) => {
  const files = await openModel(join(dir, 'model'))
  const targetModules = adapterModules(files.config, LINEAR_MODULES)
  const lora = { rank: 4, alpha: 8, dropout: 0, targetModules, seed: 1 }
  const decoder = await loadDecoder(gpu, files, { round: true, ...(how === 'full' ? { full: true } : { lora }) })
  const run = join(folder, how)
  const trainer = new Trainer(
    decoder,
    await trainerOptions(run, { schedule: { ...schedule, learningRate: how === 'full' ? 3e-2 : 0.2 } }),
  )
  const engine = engineOf(decoder, { maxPrefillRows: 7 })
  const promptIds = Array.from({ length: 11 }, (_, i) => (i * 37) % 128)
  // The first half of the vocabulary is what is wanted.
  const wanted: number[] = []
  for (let step = 1; step <= 8; step++) {
    const asked = Array.from({ length: 16 }, (_, i) => ({
      promptIds,
      sampling: sampling({ seed: 16 * step + i, max_tokens: 12 }),
    }))
    const results = await Promise.all(asked.map((request) => engine.generate(request)))
    const rewards = results.map(({ ids }) => ids.filter((id) => id < 64).length / ids.length)
    const mean = rewards.reduce((a, b) => a + b, 0) / rewards.length
    wanted.push(mean)
    const samples = results.map((result, i): TrainingSample => {
      const sample = sampleOf(promptIds, result, 'prompt')
      return { ...sample, advantages: new Float32Array(sample.ids.length).fill(rewards[i] - mean) }
    })
    const { metrics } = await trainer.trainStep(batchOf(samples, step))
    expect(metrics['mismatch_kl/all/max']).toBe(0)
    expect(metrics['optim/grad_norm']).toBeGreaterThan(0)
  }
  expect(wanted[6] + wanted[7]).toBeGreaterThan(wanted[0] + wanted[1] + 0.2)

  const config = { r: 4, loraAlpha: 8, loraDropout: 0, targetModules, useRslora: false, baseModel: null }
  const about = { lora: how === 'full' ? undefined : config, rawConfig: files.rawConfig() }
  const written = await saveCheckpoint(run, trainer, about, { keep: { last: 1 } })
  const samples = await readBatch(join(dir, 'batch.json'))
  const score = (other: typeof decoder) => scoreSamples(other, samples, { temperature: 1, microBatchTokens: 4096 })
  const scores = await score(decoder)
  if (how === 'adapter') {
    const adapter = await readAdapter(written)
    expect([...adapter.tensors.keys()].toSorted()).toEqual([...linearShapes(files.config).keys()].toSorted())
    const again = await loadDecoder(gpu, files, { round: true, adapter })
    expect(await score(again)).toEqual(scores)
    again.release()
    const merged = join(folder, 'merged')
    await writeMerged(merged, files, adapter)
    const whole = await openModel(merged)
    expect(whole.config).toEqual(files.config)
    expect(whole.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
  } else {
    const whole = await openModel(written)
    expect(whole.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
    const again = await loadDecoder(gpu, whole, { round: true })
    // Norms and convolutions run in float32, and are rounded to the bf16 of the files.
    const saved = await score(again)
    saved.forEach(({ logprobs }, i) => {
      if (logprobs.length > 1) expect(distance(logprobs, scores[i].logprobs)).toBeLessThan(5e-3)
    })
    again.release()
  }
  await engine.close()
  trainer.release()
  decoder.release()
})

test('all weights: convolutions are trained, saved and read again', async () => {
  const files = await openModel(join(dir, 'model'))
  const samples = await readBatch(join(dir, 'batch.json'))
  const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
  const decoder = await loadDecoder(gpu, files, { full: true })
  const trainer = new Trainer(decoder, await trainerOptions(folder, { schedule }))
  const untrained = await openModel(await saveCheckpoint(join(folder, 'start'), trainer, about, { keep: { last: 1 } }))
  for (const name of files.tensors.names()) expect(await untrained.tensors.read(name)).toEqual(await files.tensors.read(name))
  const values = decoder.layers.flatMap(valuesOf)
  expect(values.map(({ name }) => name)).toEqual([0, 2].map((layer) => `model.layers.${layer}.conv.conv.weight`))
  const read = () => Promise.all(values.map(({ trained }) => decoder.store!.read(trained!.parameter)))
  const before = await read()
  await trainer.trainStep(batchOf(samples))
  const after = await read()
  after.forEach((now, i) => expect(now).not.toEqual(before[i]))
  const saved = await saveCheckpoint(join(folder, 'step'), trainer, about, { keep: { last: 1 } })
  await trainer.trainStep(batchOf(samples, 2))
  await loadCheckpoint(saved, trainer, about)
  expect(await read()).toEqual(after)
  trainer.release()
  decoder.release()
})

test('a prompt that several completions have stands before each of them, with the numbers of separate sequences', async () => {
  const files = await openModel(join(dir, 'model'))
  const decoder = await loadDecoder(gpu, files, { adapter: await readAdapter(join(dir, 'adapter')) })
  const [sample] = await readBatch(join(dir, 'batch.json'))
  const group = [0, 1, 2].map((i) => ({ ...sample, ids: sample.ids.with(40, i), promptKey: 'one', promptLength: 30 }))
  const score = (samples: TrainingSample[]) => scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })
  expect(await score(group)).toEqual(await score(group.map((one) => ({ ...one, promptKey: undefined }))))
  decoder.release()
})
