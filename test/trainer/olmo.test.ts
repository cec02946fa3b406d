/** OLMo 2 and Olmo 3 trained on what their engine sampled, and saved: norms after attention and MLP, norms over the whole of q and of k, windows with yarn beside them. */
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { roundToBf16 } from '../../src/model/bf16.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { normsOf } from '../../src/model/decoder/decoder.ts'
import { writeMerged } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { fixtures } from '../golden/cases.ts'
import { engineOf, sampleOf, sampling } from '../inference/helpers.ts'
import { batchOf, tempFolder, trainerOptions } from './helpers.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()

test.each(['olmo2', 'olmo3'])(
  '%s: fresh samples have no mismatch; norms are trained, saved under their names and read again',
  async (family) => {
    const gpu = await freshGpu()
    const dir = join(fixtures, 'odd', family)
    const files = await openModel(join(dir, 'model'))
    const options = await trainerOptions(folder, {
      schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 2 },
    })
    const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
    const decoder = await loadDecoder(gpu, files, { full: true })
    const engine = engineOf(decoder, { maxPrefillRows: 7 })
    const drawn = await Promise.all(
      [3, 20, 28].map(async (length, seed) => {
        const promptIds = Array.from({ length }, (_, i) => (i * 37 + seed) % files.config.vocabSize)
        const sample = sampleOf(promptIds, await engine.generate({ promptIds, sampling: sampling({ seed, max_tokens: 9 }) }))
        return { ...sample, advantages: sample.advantages.map((_, i) => (i % 2 === 0 ? 1 : -0.5)) }
      }),
    )
    await engine.close()
    const trainer = new Trainer(decoder, options)
    const store = decoder.store!
    const norms = [...decoder.layers.flatMap(normsOf), decoder.norm]
    expect(norms).toHaveLength(4 * files.config.layers + 1)
    const untrained = await openModel(
      await saveCheckpoint(join(folder, `${family} start`), trainer, about, { keep: { last: 1 } }),
    )
    for (const name of files.tensors.names()) expect(await untrained.tensors.read(name)).toEqual(await files.tensors.read(name))

    const before = await Promise.all(norms.map(({ trained }) => store.read(trained!.gain)))
    const { metrics } = await trainer.trainStep(batchOf(drawn))
    expect(metrics['mismatch_kl/all/max']).toBe(0)
    const saved = await saveCheckpoint(join(folder, `${family} step`), trainer, about, { keep: { last: 1 } })
    const written = await openModel(saved)
    expect(written.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
    for (const [i, { name, trained }] of norms.entries()) {
      const now = await store.read(trained!.gain)
      expect(now, name).not.toEqual(before[i])
      expect((await written.tensors.read(`${name}.weight`, { round: true })).data).toEqual(roundToBf16(now))
    }
    const samples = await readBatch(join(dir, 'batch.json'))
    const scores = await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })
    await trainer.trainStep(batchOf(samples, 2))
    await loadCheckpoint(saved, trainer, about)
    expect(await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })).toEqual(scores)
    trainer.release()
    decoder.release()
    // With an adapter merged, it is still a model of its family.
    const merged = join(folder, `${family} merged`)
    await writeMerged(merged, files, await readAdapter(join(dir, 'adapter')))
    expect((await openModel(merged)).config).toEqual(files.config)
    gpu.close()
  },
)
