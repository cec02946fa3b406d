/**
 * GGUF files of Gemma 3, OLMo 2, Olmo 3 and Phi-3, written as llama.cpp's converter writes them, against the folders that they are of, which test/golden/odd.test.ts
 * compares with transformers.
 */
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { floatsOf } from '../../src/model/bf16.ts'
import { parseConfig } from '../../src/model/config/config.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import { quantiseQ8 } from '../../src/model/decoder/quantise.ts'
import { openModel, type ModelFiles } from '../../src/model/files/open.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { fixtures, newFolder, userErrorOf, writeGguf, type GgufTensorToWrite, type MetadataValue } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

/** Names of gguf-py's tensor map by Hugging Face's. */
const NAMES: Record<string, string> = {
  'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k', 'self_attn.v_proj': 'attn_v', 'self_attn.o_proj': 'attn_output', 'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm', 'self_attn.qkv_proj': 'attn_qkv', 'mlp.gate_proj': 'ffn_gate', 'mlp.up_proj': 'ffn_up', 'mlp.gate_up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down', input_layernorm: 'attn_norm', pre_feedforward_layernorm: 'ffn_norm', post_feedforward_layernorm: 'post_ffw_norm',
} // prettier-ignore

const f32 = (values: Float32Array) => ({ type: 0, bytes: new Uint8Array(values.slice().buffer) })

/** @param q8 the layers' matrices in Q8_0, where their rows are whole blocks */
async function writeModel(path: string, model: ModelFiles, metadata: Record<string, MetadataValue>, q8 = false): Promise<void> {
  const { config, tensors } = model
  const out: Record<string, GgufTensorToWrite> = {}
  for (const name of tensors.names()) {
    const read = await tensors.read(name)
    const [, layer, part] = /^model\.layers\.(\d+)\.(.+)\.weight$/.exec(name) ?? []
    const after = config.norms ? 'post_attention_norm' : 'ffn_norm'
    const inLayer = part === 'post_attention_layernorm' ? after : NAMES[part]
    const globals: Record<string, string> = { 'model.embed_tokens.weight': 'token_embd', 'lm_head.weight': 'output' }
    const own = layer === undefined ? (globals[name] ?? 'output_norm') : `blk.${layer}.${inLayer}`
    const values = floatsOf(read)
    const { shape } = read
    if (shape.length === 1) out[`${own}.weight`] = { shape, ...f32(config.normsFromOne ? values.map((w) => w + 1) : values) }
    else if (q8 && layer !== undefined && shape[1] % 32 === 0)
      out[`${own}.weight`] = { shape, type: 8, bytes: quantiseQ8(values) }
    else out[`${own}.weight`] = { shape, type: 30, bytes: new Uint8Array((read.data as Uint16Array).slice().buffer) }
  }
  const { ropeScaling: scaling } = config
  if (scaling.type === 'longrope') {
    for (const [name, factors] of [
      ['long', scaling.longFactors],
      ['short', scaling.shortFactors],
    ] as const)
      // prettier-ignore
      out[`rope_factors_${name}.weight`] = { shape: [factors.length], ...f32(Float32Array.from(factors)) }
  }
  const arch = metadata['general.architecture'] as string
  const common: Record<string, MetadataValue> = {
    [`${arch}.block_count`]: { u32: config.layers },
    [`${arch}.context_length`]: {
      u32: scaling.type === 'longrope' ? scaling.maxPositionEmbeddings : config.maxPositionEmbeddings,
    },
    [`${arch}.embedding_length`]: { u32: config.hiddenSize },
    [`${arch}.feed_forward_length`]: { u32: config.intermediateSize },
    [`${arch}.attention.head_count`]: { u32: config.heads },
    [`${arch}.attention.head_count_kv`]: { u32: config.kvHeads },
    [`${arch}.attention.layer_norm_rms_epsilon`]: { f32: config.rmsNormEps },
    [`${arch}.rope.freq_base`]: { f32: config.ropeTheta },
    'tokenizer.ggml.eos_token_id': { u32: 1 },
  }
  writeGguf(path, { ...common, ...metadata }, out)
}

/** The model of a case, with other values in its config. */
async function folderOf(name: string, more: Record<string, unknown>): Promise<ModelFiles> {
  const [from, dir] = [join(fixtures, 'odd', name, 'model'), newFolder()]
  const config = JSON.parse(readFileSync(join(from, 'config.json'), 'utf8')) as Record<string, unknown>
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, ...more }))
  copyFileSync(join(from, 'model.safetensors'), join(dir, 'model.safetensors'))
  return await openModel(dir)
}

async function logprobs(files: ModelFiles, name: string, options?: LoadOptions): Promise<number[]> {
  const decoder = await loadDecoder(gpu, files, options)
  const results = await scoreSamples(decoder, await readBatch(join(fixtures, 'odd', name, 'batch.json')), { temperature: 1, microBatchTokens: 4096 }) // prettier-ignore
  decoder.release()
  return results.flatMap((result) => [...result.logprobs])
}

/** The config without the digits of rope factors that a float32 does not hold. */
function withRounded({ config }: ModelFiles): object {
  const { ropeScaling: scaling } = config
  if (scaling.type !== 'longrope') return config
  const rounded = (factors: number[]) => factors.map((factor) => Number(factor.toPrecision(6)))
  const [shortFactors, longFactors] = [rounded(scaling.shortFactors), rounded(scaling.longFactors)]
  return { ...config, ropeScaling: { ...scaling, shortFactors, longFactors } }
}

const gemma3 = {
  'general.architecture': 'gemma3',
  'gemma3.attention.key_length': { u32: 16 },
  'gemma3.attention.sliding_window': { u32: 16 },
}
const olmo2 = { 'general.architecture': 'olmo2', 'olmo2.attention.key_length': { u32: 12 } }
const olmo3 = {
  'general.architecture': 'olmo2',
  'olmo2.attention.key_length': { u32: 16 },
  'olmo2.attention.sliding_window': { u32: 16 },
  'olmo2.attention.sliding_window_pattern': { bools: [true, true, true, false] },
  'olmo2.rope.freq_base_swa': { f32: 10_000 },
  'olmo2.rope.scaling.type': 'yarn',
  'olmo2.rope.scaling.factor': { f32: 4 },
  'olmo2.rope.scaling.original_context_length': { u32: 128 },
  'olmo2.rope.scaling.yarn_attn_factor': { f32: 0.1 * Math.log(4) + 1 },
}
const phi3 = {
  'general.architecture': 'phi3',
  'phi3.rope.dimension_count': { u32: 16 },
  'phi3.attention.sliding_window': { u32: 16 },
  'phi3.rope.scaling.original_context_length': { u32: 4096 },
}
const phi4 = {
  'general.architecture': 'phi3',
  'phi3.rope.dimension_count': { u32: 24 },
  'phi3.attention.sliding_window': { u32: 0 },
  'phi3.rope.scaling.original_context_length': { u32: 64 },
  'phi3.rope.scaling.attn_factor': { f32: Math.sqrt(1 + Math.log(16) / Math.log(64)) },
}
const linear = {
  full_attention: { rope_type: 'linear', factor: 8, rope_theta: 1_000_000 },
  sliding_attention: { rope_type: 'default', rope_theta: 20_000 },
}
const yarn = {
  full_attention: { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 128, rope_theta: 1_000_000 },
  sliding_attention: { rope_type: 'default', rope_theta: 10_000 },
}
const types = ['sliding_attention', 'sliding_attention', 'sliding_attention', 'sliding_attention']

test.each<[string, Record<string, MetadataValue>, Record<string, unknown>]>([
  ['gemma3', { ...gemma3, 'gemma3.attention.sliding_window_pattern': { u32: 2 } }, { query_pre_attn_scalar: 16 }],
  // As the 4B and larger ones.
  [
    'gemma3',
    {
      ...gemma3,
      'gemma3.rope.scaling.type': 'linear',
      'gemma3.rope.scaling.factor': { f32: 8 },
      'gemma3.rope.freq_base_swa': { f32: 20_000 },
    },
    { query_pre_attn_scalar: 16, layer_types: types, rope_parameters: linear },
  ],
  ['olmo2', olmo2, {}],
  ['olmo3', olmo3, { rope_parameters: yarn }],
  ['phi3', phi3, {}],
  ['phi4', phi4, {}],
])('%s: the config, the tensors and the log-probabilities of its folder', async (name, metadata, more) => {
  const model = await folderOf(name, more)
  const path = join(newFolder(), 'a.gguf')
  await writeModel(path, model, metadata)
  const gguf = await openModel(path)
  expect(withRounded(gguf)).toEqual(withRounded(model))
  expect(gguf.tensors.names().toSorted()).toEqual(model.tensors.names().toSorted())
  for (const tensor of model.tensors.names()) expect(await gguf.tensors.read(tensor)).toEqual(await model.tensors.read(tensor))
  // What `merge` writes.
  expect(parseConfig(gguf.rawConfig(), '')).toEqual(gguf.config)
  expect(await logprobs(gguf, name)).toEqual(await logprobs(model, name))
  for (const one of [gguf, model]) one.close()
})

test('a Phi-3 in Q8_0, whose matrices of several parts are held in their blocks', async () => {
  const model = await folderOf('phi4', {})
  // Rows of whole blocks of 32: its MLP has 72 channels, so those stay as they are.
  const path = join(newFolder(), 'a.gguf')
  await writeModel(path, model, phi4, true)
  const gguf = await openModel(path)
  const name = 'model.layers.0.self_attn.qkv_proj.weight'
  expect(gguf.tensors.blocks!.format(name)).toBe('Q8_0')
  const [held, widened] = [await logprobs(gguf, 'phi4', { quantization: 'gguf' }), await logprobs(gguf, 'phi4')]
  const folder = await logprobs(model, 'phi4', { quantization: 'q8_0' })
  for (const [i, logprob] of widened.entries()) expect(held[i]).toBeCloseTo(logprob, 1)
  expect(held).toEqual(folder)
  for (const one of [gguf, model]) one.close()
})

test.each<[string, Record<string, MetadataValue>, string]>([
  [
    'gemma3',
    { ...gemma3, 'gemma3.final_logit_softcapping': { f32: 30 } },
    'gemma3.final_logit_softcapping is 30, and soft caps are not supported',
  ],
  [
    'gemma3',
    { ...gemma3, 'gemma3.attention.sliding_window': { u32: 0 } },
    'gemma3.attention.sliding_window is 0; it must be a number above 0',
  ],
  [
    'gemma3',
    { ...gemma3, 'gemma3.attention.sliding_window_pattern': { bools: [true] } },
    'has 1 values; it must have one for each of the 4 layers',
  ],
  ['gemma3', { ...gemma3, 'gemma3.attention.sliding_window_pattern': 'all' }, 'must be a number, or a list of true and false'],
  [
    'olmo3',
    { ...olmo3, 'olmo2.rope.scaling.yarn_attn_factor': { f32: 2 } },
    'olmo2.rope.scaling.yarn_attn_factor is 2, but only 1 is supported',
  ],
  [
    'phi3',
    { ...phi3, 'phi3.rope.dimension_count': { u32: 17 } },
    "phi3.rope.dimension_count is 17; it must be an even number of a head's 16 channels",
  ],
  [
    'phi3',
    { ...phi3, 'phi3.rope.scaling.factor': { f32: 2 } },
    'its rope scaling is linear, and a Phi-3 may only have none and longrope',
  ],
  [
    'phi4',
    { ...phi4, 'phi3.rope.dimension_count': { u32: 32 } },
    'rope_factors_short.weight has 12 factors, but 32 turned channels need 16',
  ],
])('%s: refuses %j', async (name, metadata, message) => {
  const model = await folderOf(name, name === 'olmo3' ? { rope_parameters: yarn } : {})
  const path = join(newFolder(), 'a.gguf')
  await writeModel(path, model, metadata)
  expect(await userErrorOf(() => openModel(path))).toContain(message)
  model.close()
})
