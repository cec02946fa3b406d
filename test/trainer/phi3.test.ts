/** Phi-3, whose files have q, k and v in one matrix, and gate and up: trained, saved and adapted as these; and the kernels of GPUs with a part of a head rotated. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { referenceLogprobs } from '../../src/bench/reference.ts'
import { modelShapes, randomModel } from '../../src/bench/shapes.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder, type ModelTensors } from '../../src/model/decoder/load.ts'
import { writeMerged } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { rowsOf } from '../../src/model/decoder/quantise.ts'
import { adapterModules, LINEAR_MODULES, madeTensors } from '../../src/model/decoder/shapes.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { withFacts } from '../facts.ts'
import { bars, fixtures, gradientErrors, openCase, openDecoder, scoreErrors } from '../golden/cases.ts'
import { engineOf, expectTrainersBits, sampling } from '../inference/helpers.ts'
import { batchOf, tempFolder, trainerOptions } from './helpers.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()
const odd = (name: string) => join(fixtures, 'odd', name)
const how = { temperature: 1, microBatchTokens: 4096 }
const schedule = { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 2 } as const
const keysOf = async (dir: string) => JSON.parse(await readFile(join(dir, 'config.json'), 'utf8')) as Record<string, unknown>
const OWN = ['qkv_proj', 'o_proj', 'gate_up_proj', 'down_proj']

test.each(['phi3', 'phi4'])('%s trained whole: checkpoints hold what the files do, and are read again', async (name) => {
  const gpu = await freshGpu()
  const files = await openModel(join(odd(name), 'model'))
  const samples = await readBatch(join(odd(name), 'batch.json'))
  const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
  const decoder = await loadDecoder(gpu, files, { full: true })
  const trainer = new Trainer(decoder, await trainerOptions(folder, { schedule }))
  const save = (step: string) => saveCheckpoint(join(folder, name, step), trainer, about, { keep: { last: 1 } })
  const untrained = await openModel(await save('start'))
  expect(untrained.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
  for (const tensor of files.tensors.names())
    expect(await untrained.tensors.read(tensor)).toEqual(await files.tensors.read(tensor))

  await trainer.trainStep(batchOf(samples))
  const saved = await save('step')
  const after = await openModel(saved)
  // The number of the files, though longrope allows fewer here.
  expect(await keysOf(saved)).toEqual({ ...(await keysOf(join(odd(name), 'model'))), torch_dtype: 'bfloat16' })
  expect(after.config).toEqual(files.config)
  // Rows of every part have moved.
  const { heads, kvHeads, headDim, intermediateSize, hiddenSize } = files.config
  const [q, k] = [heads * headDim, kvHeads * headDim]
  for (const [tensor, rows] of [
    ['self_attn.qkv_proj', [0, q - 1, q, q + k - 1, q + k, q + 2 * k - 1]],
    ['mlp.gate_up_proj', [0, intermediateSize - 1, intermediateSize, 2 * intermediateSize - 1]],
  ] as const)
    for (const row of rows) {
      const [was, is] = [files, after].map(async ({ tensors }) => {
        const { data } = await tensors.read(`model.layers.1.${tensor}.weight`)
        return [...data.subarray(row * hiddenSize, (row + 1) * hiddenSize)]
      })
      expect(await is).not.toEqual(await was)
    }
  const scores = await scoreSamples(decoder, samples, how)
  await trainer.trainStep(batchOf(samples, 2))
  const further = await scoreSamples(decoder, samples, how)
  expect(further).not.toEqual(scores)
  await loadCheckpoint(saved, trainer, about)
  expect(await scoreSamples(decoder, samples, how)).toEqual(scores)
  await trainer.trainStep(batchOf(samples, 2))
  expect(await scoreSamples(decoder, samples, how)).toEqual(further)
  trainer.release()
  decoder.release()
  gpu.close()
})

test('an adapter of a matrix is one for its parts: saved, read, continued, merged', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(odd('phi4'), 'model'))
  const samples = await readBatch(join(odd('phi4'), 'batch.json'))
  const targetModules = adapterModules(files.config, LINEAR_MODULES)
  const decoder = await loadDecoder(gpu, files, { lora: { rank: 4, alpha: 8, dropout: 0.1, targetModules, seed: 3 } })
  const trainer = new Trainer(decoder, await trainerOptions(folder, { schedule }))
  const lora = { r: 4, loraAlpha: 8, loraDropout: 0.1, targetModules, useRslora: false, baseModel: null }
  const about = { lora, rawConfig: files.rawConfig() }
  for (const step of [1, 2]) await trainer.trainStep(batchOf(samples, step))
  const saved = await saveCheckpoint(join(folder, 'lora'), trainer, about, { keep: { last: 1 } })
  const scores = await scoreSamples(decoder, samples, how)
  const adapter = await readAdapter(saved)
  expect([...adapter.tensors.keys()].slice(0, 4)).toEqual(
    ['mlp.down_proj', 'mlp.gate_up_proj', 'self_attn.o_proj', 'self_attn.qkv_proj'].map((path) => `model.layers.0.${path}`),
  )
  const pair = adapter.tensors.get('model.layers.1.self_attn.qkv_proj')!
  expect(pair).toMatchObject({ r: 4, inputs: 64, outputs: 128, scale: 2 })
  expect(pair.B.every((value) => value !== 0)).toBe(true)
  await trainer.trainStep(batchOf(samples, 3))
  await loadCheckpoint(saved, trainer, about)
  expect(await scoreSamples(decoder, samples, how)).toEqual(scores)
  trainer.release()
  decoder.release()

  const again = await loadDecoder(gpu, files, { adapter })
  expect(await scoreSamples(again, samples, how)).toEqual(scores)
  again.release()
  await writeMerged(join(folder, 'merged'), files, adapter)
  expect(await keysOf(join(folder, 'merged'))).toEqual({
    ...(await keysOf(join(odd('phi4'), 'model'))),
    torch_dtype: 'bfloat16',
  })
  const merged = await openModel(join(folder, 'merged'))
  expect(merged.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
  const inOne = await loadDecoder(gpu, merged)
  const close = await scoreSamples(inOne, samples, how)
  // Rounded to bf16.
  close.forEach(({ logprobs }, i) => logprobs.forEach((value, t) => expect(value).toBeCloseTo(scores[i].logprobs[t], 1)))
  inOne.release()
  gpu.close()
})

test('the seven modules of most models stand for all; a part of a matrix is not adapted alone', async () => {
  const { config } = await openModel(join(odd('phi3'), 'model'))
  expect(adapterModules(config, LINEAR_MODULES)).toEqual(OWN)
  expect(adapterModules(config, ['qkv_proj', 'down_proj'])).toEqual(['qkv_proj', 'down_proj'])
  expect(() => adapterModules(config, ['o_proj', 'q_proj', 'v_proj'])).toThrow(
    "lora_target_modules names q_proj, and this model's files have q_proj, k_proj, v_proj as one matrix, qkv_proj. Name that.",
  )
  expect(() => adapterModules(config, ['up_proj'])).toThrow('as one matrix, gate_up_proj. Name that.')
})

test.each(['phi3', 'phi4'])(
  "%s has PyTorch's numbers, and the engine the trainer's bits, with the kernels of GPUs",
  async (name) => {
    const gpu = await freshGpu()
    const c = await openCase(odd(name))
    await withFacts(gpu, { software: false, subgroupSize: 0 }, async () => {
      for (const mode of ['full', 'lora'] as const) {
        const decoder = await openDecoder(gpu, join(odd(name), 'model'), mode, { adapterDir: c.adapterDir })
        expect((await scoreErrors(decoder, c, mode, 64)).logprobs).toBeLessThanOrEqual(bars.logprobs)
        const errors = await gradientErrors(decoder, c, mode, 'cispo', { checkpointing: true, microBatchTokens: 4096 })
        expect(errors.missing).toEqual([])
        expect(errors.worst, `${mode} ${errors.worstName}`).toBeLessThanOrEqual(bars.gradients)
        await expectOwnBits(decoder)
        decoder.release()
      }
    })
    gpu.close()
  },
)

async function expectOwnBits(decoder: Awaited<ReturnType<typeof loadDecoder>>): Promise<void> {
  const engine = engineOf(decoder, { maxPrefillRows: 5 })
  const requests = [9, 30].map((length, seed) => ({
    promptIds: Array.from({ length }, (_, i) => (i * 37 + seed) % decoder.config.vocabSize),
    sampling: sampling({ seed, max_tokens: 11 }),
  }))
  const results = await Promise.all(requests.map((request) => engine.generate(request)))
  const pairs = requests.map((request, i) => ({ request, result: results[i] }))
  await expectTrainersBits(decoder, pairs)
  await engine.close()
}

/** A Phi-3 of sizes that a driver's kernels for narrow layers take, and the same model as a Llama. */
function bothWays(): { fused: ModelTensors; apart: ModelTensors } {
  const shape = {
    ...modelShapes['smollm2-135m'],
    family: 'phi3' as const,
    fused: ['qkv_proj', 'gate_up_proj'] as const,
    hiddenSize: 128,
    intermediateSize: 96,
    layers: 2,
    heads: 2,
    kvHeads: 1,
    headDim: 64,
    vocabSize: 131,
  }
  const config = { ...shape, family: 'llama', fused: undefined } as const
  const fused = randomModel('phi', shape)
  const tensors = madeTensors(config, () => {
    throw new Error('not made')
  })
  const places: Record<string, [string, number, number]> = {
    q_proj: ['qkv_proj', 0, 128],
    k_proj: ['qkv_proj', 128, 64],
    v_proj: ['qkv_proj', 192, 64],
    gate_proj: ['gate_up_proj', 0, 96],
    up_proj: ['gate_up_proj', 96, 96],
  }
  const read = async (name: string, options?: { round?: boolean }) => {
    const module = name.split('.').at(-2)!
    if (!(module in places)) return await fused.tensors.read(name, options)
    const [whole, row, rows] = places[module]
    return rowsOf(await fused.tensors.read(name.replace(module, whole), options), row, rows)
  }
  return { fused, apart: { name: 'llama', config, tensors: { ...tensors, read } } }
}

test.each([
  {},
  { round: true },
  { quantization: 'q8_0' as const },
  { full: true },
  { round: true, lora: { rank: 8, alpha: 8, dropout: 0, targetModules: OWN, seed: 5 } },
])('has the bits of the same model with all apart, also where it samples: %j', async (options) => {
  const gpu = await freshGpu()
  const samples = await readBatch(join(odd('phi3'), 'batch.json'))
  const { fused, apart } = bothWays()
  const scores = []
  for (const files of [fused, apart]) {
    const decoder = await loadDecoder(gpu, files, options)
    scores.push(await scoreSamples(decoder, samples, how))
    await expectOwnBits(decoder)
    decoder.release()
  }
  expect(scores[0]).toEqual(scores[1])
  gpu.close()
})

test.each(['phi3', 'phi4'])('%s is the model that the float64 pass of bench computes', async (name) => {
  const gpu = await freshGpu()
  const files = await openModel(join(odd(name), 'model'))
  const [sample] = await readBatch(join(odd(name), 'batch.json'))
  const decoder = await loadDecoder(gpu, files, { round: true })
  const [{ logprobs }] = await scoreSamples(decoder, [sample], how)
  const exact = await referenceLogprobs(files, [...sample.ids])
  exact.forEach((value, t) => expect(logprobs[t + 1]).toBeCloseTo(value, 4))
  decoder.release()
  gpu.close()
})
