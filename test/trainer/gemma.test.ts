/** Gemma 3 trained whole: its norms multiply with 1 + what files, masters and checkpoints hold. */
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { roundToBf16 } from '../../src/model/bf16.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import { normsOf } from '../../src/model/decoder/decoder.ts'
import { writeModelFolder } from '../../src/model/files/export.ts'
import { openModel, type ModelFiles } from '../../src/model/files/open.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { fixtures } from '../golden/cases.ts'
import { batchOf, tempFolder, trainerOptions } from './helpers.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()
const dir = join(fixtures, 'odd/gemma3')

test('a checkpoint before the first step has the files of the model; gains follow their masters, also those of a checkpoint', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  const samples = await readBatch(join(dir, 'batch.json'))
  const options = await trainerOptions(folder, {
    schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 2 },
  })
  const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
  const decoder = await loadDecoder(gpu, files, { full: true })
  const trainer = new Trainer(decoder, options)
  const store = decoder.store!
  const untrained = await openModel(await saveCheckpoint(join(folder, 'start'), trainer, about, { keep: { last: 1 } }))
  for (const name of files.tensors.names()) expect(await untrained.tensors.read(name)).toEqual(await files.tensors.read(name))

  const follow = async () => {
    const norms = [...decoder.layers.flatMap(normsOf), decoder.norm]
    expect(norms).toHaveLength(6 * 4 + 1)
    for (const { gain, trained } of norms) {
      const master = await store.read(trained!.gain)
      expect(new Float32Array(await gpu.read(gain, 'gain'))).toEqual(master.map((w) => 1 + w))
    }
  }
  await follow()
  const before = await store.read(decoder.layers[1].oNorm!.trained!.gain)
  await trainer.trainStep(batchOf(samples))
  expect(await store.read(decoder.layers[1].oNorm!.trained!.gain)).not.toEqual(before)
  await follow()

  const saved = await saveCheckpoint(join(folder, 'step'), trainer, about, { keep: { last: 1 } })
  const whole = await openModel(saved)
  const name = 'model.layers.1.post_feedforward_layernorm.weight'
  const written = await whole.tensors.read(name, { round: true })
  expect(written.data).toEqual(roundToBf16(await store.read(decoder.layers[1].downNorm!.trained!.gain)))
  const scores = await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })
  await trainer.trainStep(batchOf(samples, 2))
  await loadCheckpoint(saved, trainer, about)
  await follow()
  expect(await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })).toEqual(scores)
  trainer.release()
  decoder.release()
  gpu.close()
})

test('matrix units are refused, as its activations do not fit f16', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  await expect(loadDecoder(gpu, files, { matrixUnits: true })).rejects.toThrow(/is a Gemma model.*leave matrix_units out/)
  gpu.close()
})

test('the scale of embeddings has the dtype of the files, as in transformers: float32 values that bf16 would hold are no reason to round it', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  const { tensors } = files
  const wide = tensors.names().map((name) => ({
    name,
    dtype: 'f32' as const,
    shape: tensors.shape(name),
    read: () => tensors.read(name),
  }))
  await writeModelFolder(join(folder, 'f32'), { rawConfig: files.rawConfig(), tensors: wide })
  const inFloat32 = await openModel(join(folder, 'f32'))
  const scaleOf = async (model: ModelFiles, options: LoadOptions) => {
    const decoder = await loadDecoder(gpu, model, options)
    const { scale, weight } = decoder.embedding
    decoder.release()
    return [scale, weight.bf16]
  }
  const exact = Math.fround(Math.sqrt(48))
  expect(await scaleOf(files, {})).toEqual([6.9375, true])
  expect(await scaleOf(inFloat32, {})).toEqual([exact, false])
  // What a checkpoint is written in, too.
  expect(await scaleOf(inFloat32, { full: true })).toEqual([exact, false])
  expect(await scaleOf(inFloat32, { round: true })).toEqual([6.9375, true])
  gpu.close()
})
