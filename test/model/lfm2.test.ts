/** LFM2's config.json, the names of its modules, and its GGUF files. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { configToJson, parseConfig } from '../../src/model/config/config.ts'
import { adapterModules, attentionLayers, LINEAR_MODULES, tensorShapes, weightCount } from '../../src/model/decoder/shapes.ts'
import { openModel } from '../../src/model/files/open.ts'
import { fixtures, newFolder, userErrorOf, writeGguf, type GgufTensorToWrite } from './helpers.ts'

/** LiquidAI/LFM2-350M's, without the keys that nothing reads. */
const small = {
  model_type: 'lfm2',
  block_auto_adjust_ff_dim: true,
  block_ff_dim: 6656,
  block_ffn_dim_multiplier: 1.0,
  block_multiple_of: 256,
  bos_token_id: 1,
  conv_L_cache: 3,
  conv_bias: false,
  eos_token_id: 7,
  full_attn_idxs: [2, 5, 8, 10, 12, 14],
  hidden_size: 1024,
  max_position_embeddings: 128000,
  norm_eps: 1e-5,
  num_attention_heads: 16,
  num_hidden_layers: 16,
  num_key_value_heads: 8,
  pad_token_id: 0,
  rope_theta: 1000000.0,
  vocab_size: 65536,
}
const parse = (more: Record<string, unknown> = {}) => parseConfig({ ...small, ...more }, 'm/config.json')

test('LFM2-350M as its first config.json has it, and as newer ones say the same', () => {
  const config = parse()
  expect(config).toMatchObject({
    intermediateSize: 4608,
    headDim: 64,
    rmsNormEps: 1e-5,
    ropeTheta: 1e6,
    tieWordEmbeddings: true,
    qkNorm: true,
    qkvBias: false,
    shortConv: { layers: [0, 1, 3, 4, 6, 7, 9, 11, 13, 15], taps: 3 },
  })
  expect(weightCount(config)).toBe(354_483_968)
  const types = Array.from({ length: 16 }, (_, i) => (small.full_attn_idxs.includes(i) ? 'full_attention' : 'conv'))
  const { rope_theta, full_attn_idxs: _, block_ff_dim: width, ...rest } = small
  const newer = { ...rest, layer_types: types, intermediate_size: width, rope_parameters: { rope_type: 'default', rope_theta } }
  expect(parseConfig(newer, '')).toEqual(config)
  expect(parseConfig(configToJson(config), '')).toEqual(config)
  const odd = JSON.parse(readFileSync(join(fixtures, 'odd/lfm2/model/config.json'), 'utf8')) as Record<string, unknown>
  const other = parseConfig(odd, '')
  expect(other).toMatchObject({ intermediateSize: 72, rmsNormEps: 3e-5, shortConv: { layers: [0, 2] } })
  expect(parseConfig(configToJson(other), '')).toEqual(other)
})

test("defaults of transformers' Lfm2Config, and the width of the MLP", () => {
  expect(parse({ full_attn_idxs: null, rope_theta: undefined, norm_eps: undefined, conv_L_cache: undefined })).toMatchObject({
    shortConv: { layers: [], taps: 3 },
    rmsNormEps: 1e-5,
    ropeTheta: 1e6,
  })
  expect(parse({ block_ff_dim: undefined }).intermediateSize).toBe(8192)
  expect(parse({ block_auto_adjust_ff_dim: false }).intermediateSize).toBe(6656)
  // 4437 * 1.3 is 5768.1.
  expect(parse({ block_ffn_dim_multiplier: 1.3, block_multiple_of: 8 }).intermediateSize).toBe(5768)
  expect(parse({ tie_embedding: false, tie_word_embeddings: true }).tieWordEmbeddings).toBe(false)
})

test.each([
  [{ conv_bias: true }, 'conv_bias is true, and biases in the convolutions are not supported.'],
  [{ conv_L_cache: 1 }, 'conv_L_cache is 1; it must be at least 2.'],
  [{ hidden_size: 66, num_attention_heads: 1, num_key_value_heads: 1 }, 'hidden_size is 66; in lfm2 it must be a multiple of 4.'],
  [{ full_attn_idxs: 'all' }, 'full_attn_idxs must be a list of the layers with attention, counted from 0.'],
  [{ layer_types: Array<string>(16).fill('mamba') }, 'layer_types must be a list of 16 words, each conv or full_attention.'],
])('%j is refused', (more, message) => {
  expect(() => parse(more)).toThrow(`m/config.json: ${message}`)
})

test('tensors have the names of its files, and the usual seven modules stand for all of its own', () => {
  const config = parse({ num_hidden_layers: 3 })
  const names = [...tensorShapes(config)].map(([name, shape]) => `${name.replace('model.', '')} ${shape.join('x')}`)
  expect(names.filter((name) => /layers\.[12]|norm/.test(name) && !name.startsWith('layers.0'))).toEqual([
    'layers.1.operator_norm.weight 1024',
    'layers.1.conv.in_proj.weight 3072x1024',
    'layers.1.conv.out_proj.weight 1024x1024',
    'layers.1.feed_forward.w1.weight 4608x1024',
    'layers.1.feed_forward.w3.weight 4608x1024',
    'layers.1.feed_forward.w2.weight 1024x4608',
    'layers.1.conv.conv.weight 1024x1x3',
    'layers.1.ffn_norm.weight 1024',
    'layers.2.operator_norm.weight 1024',
    'layers.2.self_attn.q_proj.weight 1024x1024',
    'layers.2.self_attn.k_proj.weight 512x1024',
    'layers.2.self_attn.v_proj.weight 512x1024',
    'layers.2.self_attn.out_proj.weight 1024x1024',
    'layers.2.feed_forward.w1.weight 4608x1024',
    'layers.2.feed_forward.w3.weight 4608x1024',
    'layers.2.feed_forward.w2.weight 1024x4608',
    'layers.2.self_attn.q_layernorm.weight 64',
    'layers.2.self_attn.k_layernorm.weight 64',
    'layers.2.ffn_norm.weight 1024',
    'embedding_norm.weight 1024',
  ])
  expect(attentionLayers(config)).toBe(1)
  expect(adapterModules(config, LINEAR_MODULES)).toEqual(['q_proj', 'k_proj', 'v_proj', 'out_proj', 'w1', 'w3', 'w2', 'in_proj'])
  expect(adapterModules(config, ['q_proj', 'down_proj', 'w1'])).toEqual(['q_proj', 'w2', 'w1'])
  const llama = { ...config, family: 'llama' as const, shortConv: undefined }
  expect(adapterModules(llama, LINEAR_MODULES)).toEqual([...LINEAR_MODULES])
  expect(() => adapterModules(llama, ['in_proj', 'w1'])).toThrow(
    'lora_target_modules names in_proj, w1, but no layer of this model has such a module. Choose from q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.',
  )
})

test.each(['token_embd_norm', 'output_norm'])(
  "a GGUF as llama.cpp's converter writes it, or Ollama's, whose last norm is %s",
  async (lastNorm) => {
    const model = await openModel(join(fixtures, 'odd/lfm2/model'))
    const { config } = model
    const parts = Object.entries({
    operator_norm: 'attn_norm', ffn_norm: 'ffn_norm', 'feed_forward.w1': 'ffn_gate', 'feed_forward.w3': 'ffn_up', 'feed_forward.w2': 'ffn_down',
    'conv.conv': 'shortconv.conv', 'conv.in_proj': 'shortconv.in_proj', 'conv.out_proj': 'shortconv.out_proj', 'self_attn.q_proj': 'attn_q',
    'self_attn.k_proj': 'attn_k', 'self_attn.v_proj': 'attn_v', 'self_attn.out_proj': 'attn_output', 'self_attn.q_layernorm': 'attn_q_norm',
    'self_attn.k_layernorm': 'attn_k_norm',
  }) // prettier-ignore
    const tensors: Record<string, GgufTensorToWrite> = {}
    for (const name of model.tensors.names()) {
      const { shape, data } = await model.tensors.read(name)
      const values = data as Uint16Array
      const [, layer, part] = /^model\.layers\.(\d+)\.(.+)\.weight$/.exec(name) ?? []
      const [, own] = parts.find(([hf]) => hf === part) ?? []
      const gguf = own ? `blk.${layer}.${own}` : name.includes('embed_tokens') ? 'token_embd' : lastNorm
      const wide = shape.length !== 2
      const bytes = new Uint8Array(wide ? Uint32Array.from(values, (b) => b << 16).buffer : values.slice().buffer)
      tensors[`${gguf}.weight`] = { shape: shape.length === 3 ? [shape[0], shape[2]] : shape, type: wide ? 0 : 30, bytes }
    }
    const metadata = {
      'general.architecture': 'lfm2',
      'lfm2.block_count': { u32: 3 },
      'lfm2.context_length': { u32: 1024 },
      'lfm2.embedding_length': { u32: 48 },
      'lfm2.feed_forward_length': { u32: 72 },
      'lfm2.attention.head_count': { u32: 3 },
      'lfm2.attention.head_count_kv': { i32s: [0, 1, 0] },
      'lfm2.attention.layer_norm_rms_epsilon': { f32: 3e-5 },
      'lfm2.rope.freq_base': { f32: 10000 },
      'lfm2.shortconv.l_cache': { u32: 3 },
      'tokenizer.ggml.eos_token_id': { u32: 1 },
    }
    const path = join(newFolder(), 'lfm2.gguf')
    writeGguf(path, metadata, tensors)
    const gguf = await openModel(path)
    expect(gguf.config).toEqual(config)
    expect(gguf.tensors.names().toSorted()).toEqual(model.tensors.names().toSorted())
    for (const name of model.tensors.names()) expect(await gguf.tensors.read(name)).toEqual(await model.tensors.read(name))
    expect(parseConfig(gguf.rawConfig(), '')).toEqual(config)
    gguf.close()
    model.close()

    writeGguf(path, { ...metadata, 'lfm2.attention.head_count_kv': { i32s: [0, 1, 3] } }, tensors)
    expect(await userErrorOf(() => openModel(path))).toContain(
      'lfm2.attention.head_count_kv is [0, 1, 3]; it must be 3 numbers, each 0 or the same one.',
    )
  },
)
