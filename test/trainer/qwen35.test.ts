/** Qwen3.5 trained whole: what its layers have beside matrices and norms, in masters and checkpoints; files that hold a model of pictures beside it. */
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { parseConfig } from '../../src/model/config/config.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { valuesOf } from '../../src/model/decoder/decoder.ts'
import { writeMerged } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter, writeAdapter } from '../../src/model/files/peft.ts'
import { openSafetensors, writeSafetensors, type TensorToWrite } from '../../src/model/files/safetensors.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { negativeLogLikelihood } from '../../src/trainer/losses/index.ts'
import { newModel } from '../../src/trainer/new-model.ts'
import { Trainer } from '../../src/trainer/trainer.ts'
import { fixtures } from '../golden/cases.ts'
import { batchOf, tempFolder, trainerOptions } from './helpers.ts'
import { freshGpu } from '../gpu/fresh.ts'

const folder = tempFolder()
const dir = join(fixtures, 'odd/qwen35')

test('convolution, decay and the norm behind the delta rule are trained, saved and read again', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  const samples = await readBatch(join(dir, 'batch.json'))
  const options = await trainerOptions(folder, {
    schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 2 },
  })
  const about = { lora: undefined, rawConfig: files.rawConfig(), rawGenerationConfig: files.rawGenerationConfig }
  const decoder = await loadDecoder(gpu, files, { full: true })
  const trainer = new Trainer(decoder, options)
  const untrained = await openModel(await saveCheckpoint(join(folder, 'start'), trainer, about, { keep: { last: 1 } }))
  for (const name of files.tensors.names()) expect(await untrained.tensors.read(name)).toEqual(await files.tensors.read(name))

  const store = decoder.store!
  const values = decoder.layers.flatMap(valuesOf)
  expect(values.map(({ name }) => name.split('.').slice(2).join('.'))).toEqual(
    [0, 2].flatMap((layer) => ['conv1d.weight', 'A_log', 'dt_bias'].map((name) => `${layer}.linear_attn.${name}`)),
  )
  const read = () => Promise.all(values.map(({ trained }) => store.read(trained!.parameter)))
  const before = await read()
  await trainer.trainStep(batchOf(samples))
  const after = await read()
  after.forEach((now, i) => expect(now, values[i].name).not.toEqual(before[i]))

  const saved = await saveCheckpoint(join(folder, 'step'), trainer, about, { keep: { last: 1 } })
  const scores = await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })
  await trainer.trainStep(batchOf(samples, 2))
  await loadCheckpoint(saved, trainer, about)
  expect(await read()).toEqual(after)
  expect(await scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })).toEqual(scores)
  trainer.release()
  decoder.release()
  gpu.close()
})

test('a prompt that several completions have stands before each of them, with the gradient of separate sequences', async () => {
  const gpu = await freshGpu()
  const files = await openModel(join(dir, 'model'))
  const decoder = await loadDecoder(gpu, files, { adapter: await readAdapter(join(dir, 'adapter')) })
  const [sample] = await readBatch(join(dir, 'batch.json'))
  const group = [0, 1, 2].map((i) => ({ ...sample, ids: sample.ids.with(40, i), promptKey: 'one', promptLength: 30 }))
  const alone = group.map((one) => ({ ...one, promptKey: undefined }))
  const score = (samples: typeof group | typeof alone) =>
    scoreSamples(decoder, samples, { temperature: 1, microBatchTokens: 4096 })
  expect(await score(group)).toEqual(await score(alone))
  decoder.release()
  gpu.close()
})

test('of files with a model of pictures the one of text is read, and written by itself', async () => {
  const whole = join(folder, 'whole')
  await mkdir(whole, { recursive: true })
  const files = await openModel(join(dir, 'model'))
  const { model_type: _type, ...text } = files.rawConfig()
  const config = {
    model_type: 'qwen3_5',
    text_config: text,
    vision_config: { depth: 2 },
    architectures: ['Qwen3_5ForConditionalGeneration'],
  }
  await writeFile(join(whole, 'config.json'), JSON.stringify(config))
  const tensors: Record<string, TensorToWrite> = {}
  for (const name of files.tensors.names()) {
    const { shape, data } = await files.tensors.read(name)
    tensors[name.replace(/^model\./, 'model.language_model.')] = { dtype: 'BF16', shape, data: data as Uint16Array }
  }
  for (const name of ['model.visual.blocks.0.norm1.weight', 'mtp.fc.weight'])
    tensors[name] = { dtype: 'F32', shape: [2], data: new Float32Array(2) }
  await writeSafetensors(join(whole, 'model.safetensors'), tensors, { format: 'pt' })

  const opened = await openModel(whole)
  expect(opened.config).toEqual(files.config)
  expect(opened.tensors.names().toSorted()).toEqual(files.tensors.names().toSorted())
  const merged = join(folder, 'merged')
  await writeMerged(merged, opened, null)
  const again = await openModel(merged)
  expect(again.config).toEqual(files.config)
  expect(JSON.parse(await readFile(join(merged, 'config.json'), 'utf8'))).toMatchObject({
    model_type: 'qwen3_5_text',
    architectures: ['Qwen3_5ForCausalLM'],
  })
  for (const name of files.tensors.names()) expect(await again.tensors.read(name)).toEqual(await files.tensors.read(name))
  // Its adapter is one of the text model by itself.
  await cp(join(dir, 'adapter'), join(folder, 'adapter'), { recursive: true })
  await writeMerged(join(folder, 'with adapter'), opened, await readAdapter(join(folder, 'adapter')))
})

test('an adapter that was trained on the model with pictures is one of its text', async () => {
  const [own, whole] = [join(dir, 'adapter'), join(folder, 'of the whole')]
  await cp(own, whole, { recursive: true })
  const config = JSON.parse(await readFile(join(own, 'adapter_config.json'), 'utf8')) as object
  // Two ways to name one module of one layer.
  const patterns = {
    'model.language_model.layers.1.self_attn.q_proj': 3,
    [String.raw`^model\.language_model\.layers\.1\.self_attn\.o_proj`]: 5,
  }
  await writeFile(join(whole, 'adapter_config.json'), JSON.stringify({ ...config, alpha_pattern: patterns }))
  const source = await openSafetensors(join(own, 'adapter_model.safetensors'))
  const tensors: Record<string, TensorToWrite> = {}
  for (const name of source.names()) {
    const { shape, data } = await source.readFloat32(name)
    tensors[name.replace('.model.layers.', '.model.language_model.layers.')] = { dtype: 'F32', shape, data }
  }
  source.close()
  // What "all-linear" adds to it, and text alone never moves from its start.
  const ofPictures = 'base_model.model.model.visual.blocks.0.attn.proj.lora_'
  tensors[`${ofPictures}A.weight`] = { dtype: 'F32', shape: [4, 8], data: new Float32Array(32).fill(0.1) }
  tensors[`${ofPictures}B.weight`] = { dtype: 'F32', shape: [8, 4], data: new Float32Array(32) }
  await writeSafetensors(join(whole, 'adapter_model.safetensors'), tensors, { format: 'pt' })

  const [text, read] = [await readAdapter(own), await readAdapter(whole)]
  expect([...read.tensors.keys()]).toEqual([...text.tensors.keys()])
  for (const [path, pair] of text.tensors) {
    const alpha = /1\.self_attn\.([qo])_proj/.exec(path)?.[1]
    const scale = alpha === undefined ? pair.scale : { q: 3, o: 5 }[alpha]! / pair.r
    expect(read.tensors.get(path)).toEqual({ ...pair, scale })
  }
  // Training that goes on from it writes these, by which PEFT and a resumed run find the same.
  await writeAdapter(join(folder, 'again'), read)
  expect((await readAdapter(join(folder, 'again'))).tensors).toEqual(read.tensors)
})

test('a new one begins with norms that change nothing, and with decays of all kinds', async () => {
  const sizes = {
    family: 'qwen3_5_text', hidden_size: 32, intermediate_size: 48, num_hidden_layers: 5, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16,
    tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 64, initializer_range: 0.1,
  } as const // prettier-ignore
  const made = newModel(sizes, 1)
  expect(made.config).toMatchObject({ qwen35: { deltaLayers: [0, 1, 2, 4] }, rotaryDim: 4 })
  expect(parseConfig(made.rawConfig, '')).toEqual(made.config)
  const values = async (name: string) => [...new Set((await made.tensors.read(name)).data)]
  for (const name of ['norm', 'layers.0.input_layernorm', 'layers.3.self_attn.q_norm'])
    expect(await values(`model.${name}.weight`)).toEqual([0])
  for (const name of ['norm.weight', 'dt_bias']) expect(await values(`model.layers.0.linear_attn.${name}`)).toEqual([1])
  const rates = (await made.tensors.read('model.layers.1.linear_attn.A_log')).data.map(Math.exp)
  for (const rate of rates) expect(rate).toSatisfy((r: number) => r > 0 && r <= 16)
  const gpu = await freshGpu()
  const decoder = await loadDecoder(gpu, made, { full: true })
  const ids = Int32Array.from([1, 2, 3, 4, 5, 6])
  const sample = {
    ids,
    lossMask: new Uint8Array(6).fill(1, 1),
    inferenceLogprobs: new Float32Array(6),
    advantages: new Float32Array(6).fill(1),
  }
  const trainer = new Trainer(decoder, {
    ...(await trainerOptions(folder)),
    loss: negativeLogLikelihood,
    schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 8 },
  })
  const losses: number[] = []
  for (let step = 1; step <= 8; step++) losses.push((await trainer.trainStep(batchOf([sample], step))).metrics['loss/mean']!)
  expect(losses.at(-1)).toBeLessThan(losses[0] / 2)
  trainer.release()
  decoder.release()
  gpu.close()
})
