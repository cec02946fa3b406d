/** The entropy bonus: against PyTorch, beside any loss, and in a run of its own. */
import { describe, expect, test, vi } from 'vitest'
import { bars, fixtures, floats, openCase, openDecoder, relativeError } from '../golden/cases.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import { accumulateGradients } from '../../src/trainer/gradients.ts'
import { loadLoss, type Loss } from '../../src/trainer/losses/index.ts'
import {
  batchOf,
  bounds,
  freshLora,
  loadCase,
  openCase as openFiles,
  openGpu,
  readAll,
  tempFolder,
  trainerOptions,
  withTrainer,
} from './helpers.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'

const { gpu } = openGpu()
const dir = `${fixtures}odd/smollm3`

/** CISPO as a file of a user's: it runs on the host. */
const onHost = async (): Promise<Loss> => {
  const { run, args } = await loadLoss('cispo', bounds)
  return { name: 'mine.ts', run, args, checked: true }
}

describe.each(['full', 'lora'] as const)('against PyTorch, %s', (mode) => {
  test.each(['on the GPU', 'on the host'])('loss and gradients, the loss %s', async (where) => {
    const expected = await openSafetensors(`${fixtures}golden-entropy/smollm3.safetensors`)
    const c = await openCase(dir)
    const decoder = await openDecoder(await gpu, `${dir}/model`, mode, { adapterDir: c.adapterDir })
    const loss = where === 'on the host' ? await onHost() : await loadLoss('cispo', bounds)
    for (const checkpointing of [false, true]) {
      decoder.store!.zeroGradients()
      const options = { loss, temperature: c.facts.temperature, checkpointing, microBatchTokens: checkpointing ? 16 : 4096 }
      const result = await accumulateGradients(decoder, batchOf(c.samples), { ...options, entropyCoef: 0.3 })
      expect(relativeError([result.loss], await floats(expected, `${mode}.loss`))).toBeLessThan(bars.gradients)
      for (const parameter of decoder.store!.parameters) {
        const name = mode === 'lora' ? `lora.base_model.model.${parameter.name}` : `full.${parameter.name}`
        expect(relativeError(await decoder.store!.read(parameter, 'gradients'), await floats(expected, name)), name).toBeLessThan(
          bars.gradients,
        )
      }
    }
    decoder.release()
    expected.close()
  })
})

test('a weight of 0 changes no bit, and one that changes has its plans made anew', async () => {
  const { batch } = await openFiles('qwen3')
  const decoder = await loadCase(await gpu, 'qwen3', 'adapter')
  const run = async (entropyCoef?: number) => {
    decoder.store!.zeroGradients()
    const options = { loss: await loadLoss('cispo', bounds), temperature: 0.8, checkpointing: true, microBatchTokens: 64 }
    const { loss } = await accumulateGradients(decoder, batch, { ...options, entropyCoef })
    return { loss, gradients: await readAll(decoder, 'gradients') }
  }
  const plain = await run()
  expect(await run(0)).toEqual(plain)
  expect(await run(0.1)).not.toEqual(plain)
  expect(await run()).toEqual(plain)
  decoder.release()
})

/** Matrix units clamp what exceeds f16 with the factor. Here the adapter may have none, but the plans are told of the factor all the same. */
test.each([1e-12, 0])('where it outweighs the loss, the factor of gradients is chosen by it: advantages of %d', async (size) => {
  const device = await gpu
  const { batch, files } = await openFiles('llama')
  const samples = batch.samples.map((sample) => ({ ...sample, advantages: sample.advantages.map((a) => a * size) }))
  const decoder = await loadDecoder(device, files, freshLora())
  const factors: number[] = []
  for (const loss of [await loadLoss('cispo', bounds), await onHost()]) {
    const replay = vi.spyOn(device, 'replay')
    const options = { loss, temperature: 0.8, checkpointing: false, microBatchTokens: 4096, entropyCoef: 0.3 }
    await accumulateGradients(decoder, batchOf(samples), options)
    factors.push(replay.mock.calls.at(-1)![1]!['gradient scale'])
    replay.mockRestore()
  }
  expect(factors[1]).toBe(factors[0])
  decoder.release()
})

test('with nothing else to learn, it raises the entropy of what is sampled; below 0 it lowers it', async () => {
  const { batch, files } = await openFiles('llama')
  const samples = batch.samples.map((sample) => ({ ...sample, advantages: sample.advantages.map(() => 0) }))
  const after: number[] = []
  for (const entropyCoef of [1, -1]) {
    const decoder = await loadDecoder(await gpu, files, freshLora())
    after.push(
      await withTrainer(decoder, await trainerOptions(tempFolder(), { entropyCoef }), async (trainer) => {
        const entropies: number[] = []
        for (let step = 1; step <= 4; step++) {
          const { metrics } = await trainer.trainStep(batchOf(samples, step))
          entropies.push(metrics['entropy/all/mean']!)
          expect(metrics['loss/mean']).toBeCloseTo(-entropyCoef * metrics['entropy/all/mean']!, 4)
        }
        return entropies.at(-1)! - entropies[0]
      }),
    )
    decoder.release()
  }
  expect(after[0]).toBeGreaterThan(1e-4)
  expect(after[1]).toBeLessThan(-1e-4)
})
