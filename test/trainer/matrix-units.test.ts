/** What a whole model's numbers lose on matrix units, against PyTorch's float32. Runs where the adapter has some; docs/kernels.md says which software one does. */
import { describe, expect, test } from 'vitest'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { inEightBits } from '../model/blocks.ts'
import { fixtures, gradientErrors, openCase as openOddCase, openDecoder, scoreErrors } from '../golden/cases.ts'
import { distance, freshLora, loadCase, openCase, openGpu, readAll } from './helpers.ts'

const gpu = await openGpu().gpu
const none = gpu.facts.matrixUnits.length === 0

describe.skipIf(none).each(['llama', 'qwen2', 'qwen3'])('%s on matrix units', (name) => {
  test.each(['adapter', 'full'] as const)('%s: log-probabilities to 1e-3, gradients to 1e-2', async (how) => {
    const key = how === 'adapter' ? 'lora' : 'full'
    const { settings, batch, expected, hasExpected } = await openCase(name)
    const decoder = await loadCase(gpu, name, how, { matrixUnits: true })
    const scored = await scoreSamples(decoder, batch.samples, { temperature: settings.temperature, microBatchTokens: 64 })
    const error = distance(Float32Array.from(scored.flatMap((r) => [...r.logprobs])), await expected(`${key}.logprobs`))
    // Not float32's bits: else the units were not used.
    expect(error).toBeGreaterThan(1e-6)
    expect(error).toBeLessThan(1e-3)
    const options = { temperature: settings.temperature, checkpointing: true, microBatchTokens: 64 }
    await accumulateGradients(decoder, batch, { ...options, loss: await loadLoss('cispo', settings) })
    for (const parameter of decoder.store!.parameters) {
      const tensor = `${key}.clipped.grad.${parameter.name}`
      if (!hasExpected(tensor)) continue
      expect(distance(await decoder.store!.read(parameter, 'gradients'), await expected(tensor)), tensor).toBeLessThan(1e-2)
    }
    decoder.release()
  })
})

/** Powers of two change no bit of float32, so they change none here if what is rounded to f16 keeps its place in f16's range. */
describe.skipIf(none)("gradients of a mean over as many tokens as a run's batches have, or more", () => {
  test.each(['built in', 'on the host'] as const)('have the bits of those of few tokens: a loss %s', async (where) => {
    const { settings, batch } = await openCase('llama')
    const decoder = await loadCase(gpu, 'llama', 'adapter', { matrixUnits: true })
    const cispo = await loadLoss('cispo', settings)
    const loss = where === 'built in' ? cispo : { ...cispo, kernel: undefined }
    const all: Float32Array[][] = []
    for (const factor of [1, 2 ** 20]) {
      decoder.store!.zeroGradients()
      const mean = { ...batch, lossTokenCount: batch.lossTokenCount * factor }
      await accumulateGradients(decoder, mean, { temperature: 0.8, checkpointing: false, microBatchTokens: 64, loss })
      const read: Float32Array[] = []
      for (const parameter of decoder.store!.parameters) {
        read.push((await decoder.store!.read(parameter, 'gradients')).map((g) => g * factor))
      }
      all.push(read)
    }
    // Not toEqual, which takes minutes to say where two such arrays differ.
    expect(all[1].every((values, i) => values.every((g, j) => g === all[0][i][j]))).toBe(true)
    decoder.release()
  })
})

/** Those whose kernels of their own, or whose norms, the models above do not have. */
describe.skipIf(none).each(['lfm2', 'granite', 'granite4', 'olmo2', 'olmo3', 'phi3', 'phi4'])('%s on matrix units', (name) => {
  test.each(['lora', 'full'] as const)('%s: log-probabilities to 1e-3, gradients to 1e-2', async (how) => {
    const dir = `${fixtures}odd/${name}`
    const odd = await openOddCase(dir)
    const decoder = await openDecoder(gpu, `${dir}/model`, how, { adapterDir: odd.adapterDir, matrixUnits: true })
    const { logprobs } = await scoreErrors(decoder, odd, how)
    expect(logprobs).toBeGreaterThan(1e-6)
    expect(logprobs).toBeLessThan(1e-3)
    const { worst, worstName } = await gradientErrors(decoder, odd, how, 'cispo', { checkpointing: true, microBatchTokens: 64 })
    expect(worst, worstName).toBeLessThan(1e-2)
    decoder.release()
  })
})

describe.skipIf(none)('layers in 8 bits on matrix units', () => {
  test('have the numbers of their values in bf16', async () => {
    const { settings, batch, files } = await openCase('llama')
    const numbers: unknown[] = []
    for (const how of [{ quantization: 'q8_0' }, {}] as const) {
      const tensors = how.quantization ? files.tensors : inEightBits(files)
      const decoder = await loadDecoder(gpu, { ...files, tensors }, { ...freshLora(), ...how, matrixUnits: true })
      const scored = await scoreSamples(decoder, batch.samples, { temperature: 0.8, microBatchTokens: 64 })
      const options = { temperature: 0.8, checkpointing: true, microBatchTokens: 64 }
      await accumulateGradients(decoder, batch, { ...options, loss: await loadLoss('cispo', settings) })
      numbers.push([scored, await readAll(decoder, 'gradients')])
      decoder.release()
    }
    expect(numbers[0]).toEqual(numbers[1])
  })
})

test.runIf(none)('a model that asks for matrix units where there are none is refused', async () => {
  const { files } = await openCase('llama')
  await expect(loadDecoder(gpu, files, { matrixUnits: true })).rejects.toThrow('matrix_units = false')
})
