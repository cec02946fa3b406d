/** Granite 4, whose files have gate and up in one matrix: trained, saved and adapted as that matrix; and Granite's factors with the kernels of GPUs. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { ParameterStore } from '../../src/autograd/parameters.ts'
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
import { writeSamplerWeights } from '../../src/trainer/sampler-weights.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { withFacts } from '../facts.ts'
import { bars, fixtures, gradientErrors, openCase, openDecoder, scoreErrors } from '../golden/cases.ts'
import { batchOf, tempFolder, trainerOptions } from './helpers.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()
const dir = join(fixtures, 'odd/granite4')
const fused = 'model.layers.1.shared_mlp.input_linear'
const how = { temperature: 1, microBatchTokens: 4096 }
const schedule = { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 2 } as const

test.each(['float32', '8bit'] as const)(
  'trained whole, checkpoints hold the matrix of the files, and are read again: moments in %s',
  async (moments) => {
    const gpu = await freshGpu()
    const files = await openModel(join(dir, 'model'))
    const samples = await readBatch(join(dir, 'batch.json'))
    const plain = await trainerOptions(folder, { schedule })
    const options = { ...plain, optimizer: { ...plain.optimizer, moments } }
    const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
    const decoder = await loadDecoder(gpu, files, { full: true })
    const trainer = new Trainer(decoder, options)
    const save = (name: string) => saveCheckpoint(join(folder, `${name} ${moments}`), trainer, about, { keep: { last: 1 } })
    const untrained = await openModel(await save('start'))
    expect(untrained.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
    for (const name of files.tensors.names()) expect(await untrained.tensors.read(name)).toEqual(await files.tensors.read(name))

    await trainer.trainStep(batchOf(samples))
    const saved = await save('step')
    const [before, after] = [
      await files.tensors.read(`${fused}.weight`),
      await (await openModel(saved)).tensors.read(`${fused}.weight`),
    ]
    // The gate's rows and those of up have moved.
    for (const row of [0, 71, 72, 143]) {
      const rowOf = ({ data }: typeof before) => [...data.subarray(row * 48, (row + 1) * 48)]
      expect(rowOf(after)).not.toEqual(rowOf(before))
    }
    const scores = await scoreSamples(decoder, samples, how)
    await trainer.trainStep(batchOf(samples, 2))
    const further = await scoreSamples(decoder, samples, how)
    await loadCheckpoint(saved, trainer, about)
    expect(await scoreSamples(decoder, samples, how)).toEqual(scores)
    await trainer.trainStep(batchOf(samples, 2))
    expect(await scoreSamples(decoder, samples, how)).toEqual(further)
    // For another process to sample from: what the trainer computes with.
    const exact = join(folder, `exact ${moments}`)
    await writeSamplerWeights(exact, decoder, about)
    const alone = await loadDecoder(gpu, await openModel(exact))
    expect(await scoreSamples(alone, samples, how)).toEqual(further)
    trainer.release()
    alone.release()
    decoder.release()
    gpu.close()
  },
)

test('an adapter of that matrix is one for gate and up: saved, read, continued, merged', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  const samples = await readBatch(join(dir, 'batch.json'))
  const targetModules = adapterModules(files.config, LINEAR_MODULES)
  const decoder = await loadDecoder(gpu, files, { lora: { rank: 4, alpha: 8, dropout: 0.1, targetModules, seed: 3 } })
  expect(decoder.store!.parameters.map(({ name }) => name.split('.').slice(2).join('.')).slice(-4)).toEqual([
    '2.shared_mlp.input_linear.lora_A.weight',
    '2.shared_mlp.input_linear.lora_B.weight',
    '2.shared_mlp.output_linear.lora_A.weight',
    '2.shared_mlp.output_linear.lora_B.weight',
  ])
  const trainer = new Trainer(decoder, await trainerOptions(folder, { schedule }))
  const lora = { r: 4, loraAlpha: 8, loraDropout: 0.1, targetModules, useRslora: false, baseModel: null }
  const about = { lora, rawConfig: files.rawConfig() }
  for (const step of [1, 2]) await trainer.trainStep(batchOf(samples, step))
  const saved = await saveCheckpoint(join(folder, 'lora'), trainer, about, { keep: { last: 1 } })
  const scores = await scoreSamples(decoder, samples, how)
  const adapter = await readAdapter(saved)
  expect(adapter.tensors.size).toBe(3 * 6)
  expect(adapter.tensors.get(fused)).toMatchObject({ r: 4, inputs: 48, outputs: 144, scale: 2 })
  expect(adapter.tensors.get(fused)!.B.every((value) => value !== 0)).toBe(true)
  await trainer.trainStep(batchOf(samples, 3))
  await loadCheckpoint(saved, trainer, about)
  expect(await scoreSamples(decoder, samples, how)).toEqual(scores)
  trainer.release()
  decoder.release()

  const again = await loadDecoder(gpu, files, { adapter })
  expect(await scoreSamples(again, samples, how)).toEqual(scores)
  again.release()
  await writeMerged(join(folder, 'merged'), files, adapter)
  // Keys of Mamba layers and of experts whose 0.0 would be written as 0, which transformers refuses.
  const keys = async (of: string) => JSON.parse(await readFile(join(of, 'config.json'), 'utf8')) as Record<string, unknown>
  const { time_step_limit: _limit, router_aux_loss_coef: _coefficient, ...others } = await keys(join(dir, 'model'))
  for (const key of [_limit, _coefficient]) expect(key).toBeDefined()
  expect(await keys(join(folder, 'merged'))).toEqual({ ...others, torch_dtype: 'bfloat16' })
  const merged = await openModel(join(folder, 'merged'))
  expect(merged.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
  const inOne = await loadDecoder(gpu, merged)
  const close = await scoreSamples(inOne, samples, how)
  // Rounded to bf16.
  close.forEach(({ logprobs }, i) => logprobs.forEach((value, t) => expect(value).toBeCloseTo(scores[i].logprobs[t], 1)))
  inOne.release()
  gpu.close()
})

test('the seven modules of most models stand for all; two of them are one matrix here', async () => {
  const { config } = await openModel(join(dir, 'model'))
  const attention = ['q_proj', 'k_proj', 'v_proj', 'o_proj']
  expect(adapterModules(config, LINEAR_MODULES)).toEqual([...attention, 'input_linear', 'output_linear'])
  expect(adapterModules(config, ['q_proj', 'input_linear'])).toEqual(['q_proj', 'input_linear'])
  expect(adapterModules(config, ['gate_up_proj', 'down_proj'])).toEqual(['input_linear', 'output_linear'])
  expect(() => adapterModules(config, ['q_proj', 'gate_proj', 'down_proj'])).toThrow(
    "lora_target_modules names gate_proj, and this model's files have gate_proj, up_proj as one matrix, input_linear. Name that.",
  )
  const others = await openModel(join(fixtures, 'odd/granite/model'))
  expect(adapterModules(others.config, LINEAR_MODULES)).toEqual([...LINEAR_MODULES])
})

test.each(['granite', 'granite-bias', 'granite4'])("%s has PyTorch's numbers with the kernels of GPUs", async (name) => {
  const gpu = await freshGpu()
  const c = await openCase(join(fixtures, 'odd', name))
  await withFacts(gpu, { software: false, subgroupSize: 0 }, async () => {
    for (const mode of ['full', 'lora'] as const) {
      const decoder = await openDecoder(gpu, join(fixtures, 'odd', name, 'model'), mode, { adapterDir: c.adapterDir })
      expect((await scoreErrors(decoder, c, mode, 64)).logprobs).toBeLessThanOrEqual(bars.logprobs)
      const errors = await gradientErrors(decoder, c, mode, 'cispo', { checkpointing: true, microBatchTokens: 4096 })
      expect(errors.missing).toEqual([])
      expect(errors.worst, `${mode} ${errors.worstName}`).toBeLessThanOrEqual(bars.gradients)
      decoder.release()
    }
  })
  gpu.close()
})

/** A Granite 4 and the same model as a Granite 3, whose gate and up are matrices of their own. */
function bothWays(): { fused: ModelTensors; apart: ModelTensors } {
  const shape = {
    ...modelShapes['granite-4.0-350m'],
    hiddenSize: 64,
    intermediateSize: 96,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    headDim: 16,
    vocabSize: 131,
  }
  const config = { ...shape, family: 'granite', fused: undefined } as const
  const fused = randomModel('granite 4', shape)
  const tensors = madeTensors(config, () => {
    throw new Error('not made')
  })
  const read = async (name: string, options?: { round?: boolean }) => {
    const [, layer, module] = /^(model\.layers\.\d+)\.mlp\.(gate|up|down)_proj\.weight$/.exec(name) ?? []
    if (module === undefined) return await fused.tensors.read(name, options)
    if (module === 'down') return await fused.tensors.read(`${layer}.shared_mlp.output_linear.weight`, options)
    return rowsOf(await fused.tensors.read(`${layer}.shared_mlp.input_linear.weight`, options), module === 'gate' ? 0 : 96, 96)
  }
  return { fused, apart: { name: 'granite 3', config, tensors: { ...tensors, read } } }
}

test.each([{}, { quantization: 'q8_0' as const }, { full: true }])(
  'has the bits of the same model with gate and up apart: %j',
  async (options) => {
    const gpu = await freshGpu()
    const samples = await readBatch(join(dir, 'batch.json'))
    const { fused, apart } = bothWays()
    const [scores, others] = [fused, apart].map(async (files) => {
      const decoder = await loadDecoder(gpu, files, options)
      const found = await scoreSamples(decoder, samples, how)
      decoder.release()
      return found
    })
    expect(await scores).toEqual(await others)
    gpu.close()
  },
)

test('parts of a parameter that lies in several banks: rows of each, and gradients of the whole', async () => {
  const gpu = await freshGpu()
  const limits = { ...gpu.facts.limits, maxBinding: 256 * 16 * 4 }
  await withFacts(gpu, { limits }, async () => {
    const store = new ParameterStore(gpu)
    const whole = store.declare('whole', 700, 16)
    const [upper, lower] = [store.part(whole, 0, 300), store.part(whole, 300, 400)]
    expect(() => store.part(whole, 1, 3)).toThrow('no part that begins at row 1')
    store.allocate()
    expect(whole.pieces.length).toBeGreaterThan(2)
    const values = Float32Array.from({ length: 700 * 16 }, (_, i) => i)
    store.write(whole, values)
    expect(await store.read(upper)).toEqual(values.slice(0, 300 * 16))
    expect(await store.read(lower)).toEqual(values.slice(300 * 16))
    store.write(lower, values.slice(0, 400 * 16))
    expect((await store.read(whole)).slice(300 * 16)).toEqual(values.slice(0, 400 * 16))
    expect(store.parameters).toEqual([whole])
    expect(store.size).toBe(700 * 16)
    store.release()
  })
  gpu.close()
})
