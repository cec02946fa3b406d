import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { configToJson, parseConfig } from '../../src/model/config/config.ts'
import { golden, userErrorOf } from './helpers.ts'

const json = (path: string) => JSON.parse(readFileSync(join(golden, path), 'utf8')) as Record<string, unknown>
const llama = {
  model_type: 'llama',
  hidden_size: 64,
  intermediate_size: 160,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  vocab_size: 512,
  max_position_embeddings: 512,
}
const parse = (more: Record<string, unknown> = {}) => parseConfig({ ...llama, ...more }, 'm/config.json')

describe('the golden models', () => {
  test('llama: rope_parameters with llama3 scaling', () => {
    expect(parseConfig(json('llama/model/config.json'), 'config.json')).toEqual({
      family: 'llama',
      hiddenSize: 64,
      intermediateSize: 160,
      layers: 2,
      heads: 4,
      kvHeads: 2,
      headDim: 16,
      vocabSize: 512,
      rmsNormEps: 1e-5,
      ropeTheta: 10000,
      ropeScaling: { type: 'llama3', factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalMaxPositionEmbeddings: 64 },
      tieWordEmbeddings: false,
      qkvBias: false,
      outputBias: false,
      qkNorm: false,
      maxPositionEmbeddings: 512,
      eosTokenIds: [2],
      bosTokenId: 1,
      padTokenId: 0,
    })
  })
  test('qwen2 has biases on q, k, v alone; qwen3 has norms and its own head size', () => {
    expect(parseConfig(json('qwen2/model/config.json'), '')).toMatchObject({
      qkvBias: true,
      outputBias: false,
      qkNorm: false,
      headDim: 16,
      tieWordEmbeddings: true,
    })
    expect(parseConfig(json('qwen3/model/config.json'), '')).toMatchObject({
      qkvBias: false,
      qkNorm: true,
      headDim: 32,
      ropeTheta: 1e6,
    })
  })
  test.each(['llama', 'qwen2', 'qwen3'])('%s written out says the same', (family) => {
    const config = parseConfig(json(`${family}/model/config.json`), '')
    expect(parseConfig(configToJson(config), '')).toEqual(config)
  })
})

describe('smollm3 and mistral', () => {
  const smollm3 = (more: Record<string, unknown> = {}) => parse({ model_type: 'smollm3', num_hidden_layers: 9, ...more })
  test('layers that turn nothing: every fourth, or as it is said; tied, and a base of its own', () => {
    expect(smollm3()).toMatchObject({ layersWithoutRope: [3, 7], tieWordEmbeddings: true, ropeTheta: 2e6, qkvBias: false })
    expect(smollm3({ no_rope_layer_interval: 3 }).layersWithoutRope).toEqual([2, 5, 8])
    expect(smollm3({ no_rope_layers: [1, 0, 0, 1, 1, 1, 1, 1, 1, 0] }).layersWithoutRope).toEqual([1, 2])
    expect(parse().layersWithoutRope).toBeUndefined()
  })
  test('a Mistral looks back over a window, or over all', () => {
    const mistral = (more: Record<string, unknown>) => parse({ model_type: 'mistral', ...more }).slidingWindow
    expect([mistral({}), mistral({ sliding_window: null }), mistral({ sliding_window: 512 })]).toEqual([4096, undefined, 512])
    expect(mistral({ sliding_window: 512, layer_types: ['full_attention', 'full_attention'] })).toBeUndefined()
    expect(parse({ model_type: 'mistral', sliding_window: 7 }).maxPositionEmbeddings).toBe(512)
  })
  test('layers of a Ministral with a window: all, or as layer_types says, by which a Mistral is one, too', () => {
    const [sliding, full] = ['sliding_attention', 'full_attention']
    const ministral = (more: Record<string, unknown>, model_type = 'ministral') =>
      parse({ model_type, sliding_window: 7, ...more })
    for (const type of ['ministral', 'mistral']) {
      const config = ministral({ layer_types: [full, sliding] }, type)
      expect(config).toMatchObject({ slidingWindow: 7, slidingLayers: [1], qkvBias: false })
      expect(parseConfig(configToJson(config), '')).toEqual(config)
    }
    expect(ministral({})).toMatchObject({ slidingWindow: 7, slidingLayers: [0, 1] })
    expect(ministral({ sliding_window: undefined })).toMatchObject({ slidingWindow: 4096, slidingLayers: [0, 1] })
    for (const config of [ministral({ sliding_window: null }), ministral({ layer_types: [full, full] })]) {
      expect([config.slidingWindow, config.slidingLayers]).toEqual([undefined, undefined])
      expect(parseConfig(configToJson(config), '')).toEqual(config)
    }
  })
  test('layers of a Qwen with a window: from max_window_layers on, or as layer_types says', () => {
    const sliding = (more: Record<string, unknown>) =>
      ['qwen2', 'qwen3'].map((model_type) => {
        const config = parse({ model_type, num_hidden_layers: 4, ...more })
        return [config.slidingWindow, config.slidingLayers]
      })
    const both = (window?: number, layers?: number[]) => Array(2).fill([window, layers])
    const on = { use_sliding_window: true, max_window_layers: 2 }
    expect(sliding(on)).toEqual(both(4096, [2, 3]))
    expect(sliding({ ...on, sliding_window: 7, max_window_layers: 0 })).toEqual(both(7, [0, 1, 2, 3]))
    const types = ['full_attention', 'sliding_attention', 'full_attention', 'full_attention']
    expect(sliding({ ...on, sliding_window: 7, layer_types: types })).toEqual(both(7, [1]))
    for (const off of [
      { use_sliding_window: false },
      { max_window_layers: undefined },
      { max_window_layers: 4 },
      { sliding_window: null },
    ])
      expect(sliding({ ...on, ...off })).toEqual(both())
  })
  test('layers of a SmolLM3 with a window: those that turn nothing', () => {
    const window = { use_sliding_window: true, sliding_window: 7 }
    expect(smollm3(window)).toMatchObject({ slidingWindow: 7, slidingLayers: [3, 7] })
    for (const off of [{ use_sliding_window: false }, { sliding_window: undefined }])
      expect(smollm3({ ...window, ...off }).slidingLayers).toBeUndefined()
  })
  test.each(['smollm3', 'smollm3-window', 'mistral', 'qwen2-window'])('the config.json of %s that says the same', (family) => {
    const config = parseConfig(json(`../odd/${family}/model/config.json`), '')
    expect(parseConfig(configToJson(config), '')).toEqual(config)
  })
})

describe('gemma3_text', () => {
  /** google/gemma-3-270m's, but for what all models have. */
  const old = {
    model_type: 'gemma3_text',
    hidden_activation: 'gelu_pytorch_tanh',
    num_hidden_layers: 7,
    rope_theta: 1e6,
    rope_local_base_freq: 10000,
    rope_scaling: null,
    query_pre_attn_scalar: 256,
    sliding_window: 512,
    max_position_embeddings: 32768,
    eos_token_id: 1,
  }
  const gemma = { attentionScale: 0.0625, slidingLayers: [0, 1, 2, 3, 4, 6], slidingWindow: 512, localRopeTheta: 1e4 }
  test('two kinds of layers, each with its rotary base, in old and new spelling', () => {
    const wanted = { ...gemma, headDim: 256, maxPositionEmbeddings: 32768, ropeTheta: 1e6, tieWordEmbeddings: true, qkNorm: true }
    expect(parse(old)).toMatchObject({ ...wanted, ropeScaling: { type: 'default' } })
    const { rope_theta: _theta, rope_local_base_freq: _local, rope_scaling: _scaling, ...rest } = old
    expect(parse(rest)).toMatchObject(wanted)
    const scaled = { rope_type: 'linear', factor: 8, rope_theta: 5e5 }
    const both = { full_attention: scaled, sliding_attention: { rope_type: 'default', rope_theta: 2e4 } }
    expect(parse({ ...rest, rope_parameters: both })).toMatchObject({
      ...gemma,
      localRopeTheta: 2e4,
      ropeTheta: 5e5,
      ropeScaling: { type: 'linear', factor: 8 },
    })
    expect(parse({ ...old, rope_scaling: { rope_type: 'linear', factor: 8 } })).toMatchObject({
      ...gemma,
      ropeTheta: 1e6,
      ropeScaling: { type: 'linear', factor: 8 },
    })
    // transformers 5 turns that without scaling.
    const byType = { ...old, rope_scaling: { type: 'linear', factor: 8 } }
    expect(() => parse(byType)).toThrow('m/config.json: rope_scaling has type "linear" and no rope_type, by which transformers 4')
    // Written beside layer_types, and read by none.
    expect(parse({ ...old, _sliding_window_pattern: 3 })).toEqual(parse(old))
    expect(parse({ ...old, sliding_window_pattern: 3 }).slidingLayers).toEqual([0, 1, 3, 4, 6])
    const types = Array.from({ length: 7 }, (_, i) => (i === 2 ? 'sliding_attention' : 'full_attention'))
    expect(parse({ ...old, layer_types: types }).slidingLayers).toEqual([2])
  })
  test('the config.json that says the same', () => {
    const config = parseConfig(json('../odd/gemma3/model/config.json'), '')
    expect(config).toMatchObject({ attentionScale: 24 ** -0.5, slidingLayers: [0, 2], slidingWindow: 16, localRopeTheta: 1e4 })
    expect(parseConfig(configToJson(config), '')).toEqual(config)
    const scaled = parse({ ...old, rope_scaling: { rope_type: 'linear', factor: 8 } })
    expect(parseConfig(configToJson(scaled), '')).toEqual(scaled)
  })
})

describe('granite', () => {
  /** ibm-granite/granite-3.1-2b-instruct's, but for what all models have. */
  const ours = {
    model_type: 'granite',
    attention_bias: false,
    attention_multiplier: 0.015625,
    embedding_multiplier: 12,
    logits_scaling: 8,
    residual_multiplier: 0.22,
    rope_theta: 5e6,
    rope_scaling: null,
    tie_word_embeddings: true,
  }
  test('its factors, and those that are 1', () => {
    const scales = { embeddingScale: 12, attentionScale: 0.015625, residualScale: 0.22, logitsScaling: 8 }
    expect(parse(ours)).toMatchObject({ ...scales, ropeTheta: 5e6, tieWordEmbeddings: true, qkNorm: false, qkvBias: false })
    const plain = parse({ model_type: 'granite' })
    expect(plain.attentionScale).toBe(1)
    for (const key of Object.keys(scales)) if (key !== 'attentionScale') expect(plain[key as 'residualScale']).toBeUndefined()
  })
  test('the config.json that says the same', () => {
    for (const config of [
      parse(ours),
      parse({ model_type: 'granite' }),
      parse({ ...ours, attention_bias: true }),
      parseConfig(json('../odd/granite/model/config.json'), ''),
    ])
      expect(parseConfig(configToJson(config), '')).toEqual(config)
  })
  test.each([
    [{ mlp_bias: true }, 'mlp_bias is true, and biases in the MLP are not supported'],
    [{ logits_scaling: 0 }, 'logits_scaling is 0; it must be a number above 0'],
  ])('%j is refused', (more, message) => {
    expect(() => parse({ ...ours, ...more })).toThrow(`m/config.json: ${message}`)
  })
})

describe('granitemoehybrid', () => {
  /** ibm-granite/granite-4.0-350m's, but for what all models have. */
  const ours = {
    model_type: 'granitemoehybrid',
    num_hidden_layers: 3,
    layer_types: ['attention', 'attention', 'full_attention'],
    num_local_experts: 0,
    num_experts_per_tok: 0,
    intermediate_size: 2048,
    shared_intermediate_size: 72,
    position_embedding_type: 'rope',
    attention_multiplier: 0.015625,
    embedding_multiplier: 12,
    logits_scaling: 4,
    residual_multiplier: 0.25,
    rope_theta: 1e7,
  }
  test('a dense model, with rotary embedding or none', () => {
    const wanted = {
      fused: ['gate_up_proj'],
      intermediateSize: 72,
      attentionScale: 0.015625,
      residualScale: 0.25,
      logitsScaling: 4,
    }
    expect(parse(ours)).toMatchObject({ ...wanted, ropeTheta: 1e7 })
    expect(parse(ours).layersWithoutRope).toBeUndefined()
    for (const position_embedding_type of [null, undefined, 'nope'])
      expect(parse({ ...ours, position_embedding_type })).toMatchObject({ ...wanted, layersWithoutRope: [0, 1, 2] })
    const { layer_types: layers_block_type, ...rest } = ours
    expect(parse({ ...rest, layers_block_type })).toEqual(parse(ours))
    expect(parse({ ...ours, shared_intermediate_size: undefined }).intermediateSize).toBe(1024)
  })
  test('the config.json that says the same', () => {
    const odd = parseConfig(json('../odd/granite4/model/config.json'), '')
    for (const config of [parse(ours), parse({ ...ours, position_embedding_type: null }), odd])
      expect(parseConfig(configToJson(config), '')).toEqual(config)
  })
  const dense =
    'only the dense models of Granite 4, with attention in every layer and no experts (350M, 1B, Micro), are supported'
  test.each([
    [{ layer_types: ['attention', 'mamba', 'attention'] }, `layer 1 is of the type "mamba", and ${dense}.`],
    [{ layer_types: ['linear_attention', 'mamba', 'attention'] }, `layer 0 is of the type "linear_attention", and ${dense}.`],
    [{ layer_types: undefined }, `layer 0 is of the type "mamba", and ${dense}.`],
    [{ layer_types: ['attention'] }, 'layer_types must be a list of 3 words, each attention.'],
    [{ num_local_experts: 62 }, `num_local_experts is 62, and ${dense}.`],
    [{ num_local_experts: undefined }, `num_local_experts is 8, and ${dense}.`],
    [{ position_embedding_type: 'alibi' }, 'position_embedding_type is "alibi", and only rope, nope and null are supported.'],
    [{ shared_intermediate_size: 100 }, 'shared_intermediate_size is 100; it must be a multiple of 8.'],
  ])('%j is refused', (more, message) => {
    expect(() => parse({ ...ours, ...more })).toThrow(`m/config.json: ${message}`)
  })
})

describe('phi3', () => {
  /** microsoft/Phi-3-mini-4k-instruct's. */
  const ours = {
    model_type: 'phi3',
    hidden_size: 3072,
    intermediate_size: 8192,
    num_attention_heads: 32,
    num_key_value_heads: 32,
    num_hidden_layers: 32,
    max_position_embeddings: 4096,
    original_max_position_embeddings: 4096,
    rms_norm_eps: 1e-5,
    rope_theta: 10000,
    rope_scaling: null,
    sliding_window: 2047,
    tie_word_embeddings: false,
    attention_dropout: 0,
    embd_pdrop: 0,
    resid_pdrop: 0,
  }
  const [short, long] = [1, 2].map((n) => Array.from({ length: 48 }, (_, i) => n + i / 10))
  const longer = { type: 'longrope', short_factor: short, long_factor: long }
  /** microsoft/Phi-4-mini-instruct's, but for the numbers of its factors. */
  const mini4 = {
    ...ours,
    num_attention_heads: 24,
    num_key_value_heads: 8,
    max_position_embeddings: 131072,
    partial_rotary_factor: 0.75,
    rope_scaling: longer,
    sliding_window: 262144,
    tie_word_embeddings: true,
  }
  const fused = ['qkv_proj', 'gate_up_proj']
  test('matrices in one, a window in all layers', () => {
    const found = parse(ours)
    expect(found).toMatchObject({ fused, headDim: 96, slidingWindow: 2047, ropeScaling: { type: 'default' }, qkvBias: false })
    for (const key of ['slidingLayers', 'rotaryDim'] as const) expect(found[key]).toBeUndefined()
    expect(parse({ ...ours, sliding_window: null }).slidingWindow).toBeUndefined()
    expect(parse({ ...ours, rms_norm_eps: undefined }).rmsNormEps).toBe(1e-5)
  })
  test('longrope, up to the original context, and a part of the head', () => {
    const ropeScaling = {
      type: 'longrope',
      shortFactors: short,
      longFactors: long,
      attentionFactor: Math.sqrt(1 + Math.log(32) / Math.log(4096)),
      originalMaxPositionEmbeddings: 4096,
      maxPositionEmbeddings: 131072,
    }
    const found = parse(mini4)
    expect(found).toMatchObject({
      headDim: 128,
      rotaryDim: 96,
      maxPositionEmbeddings: 4096,
      ropeScaling,
      tieWordEmbeddings: true,
    })
    expect(parse({ ...mini4, original_max_position_embeddings: undefined })).toEqual(found)
    // As transformers 5 writes it, and Phi-3's first name.
    const { rope_scaling: _scaling, partial_rotary_factor: _share, ...rest } = mini4
    const rope = { ...longer, type: undefined, rope_theta: 10000, partial_rotary_factor: 0.75 }
    for (const rope_type of ['longrope', 'su']) expect(parse({ ...rest, rope_parameters: { ...rope, rope_type } })).toEqual(found)
    const said = (more: object) => parse({ ...mini4, rope_scaling: { ...longer, ...more } }).ropeScaling
    expect(said({ factor: 8 })).toEqual({ ...ropeScaling, attentionFactor: Math.sqrt(1 + Math.log(8) / Math.log(4096)) })
    expect(said({ attention_factor: 1.5 })).toEqual({ ...ropeScaling, attentionFactor: 1.5 })
    expect(parse({ ...mini4, max_position_embeddings: 2048 })).toMatchObject({
      maxPositionEmbeddings: 2048,
      ropeScaling: { attentionFactor: 1 },
    })
  })
  test('the config.json that says the same', () => {
    const scaled = { ...mini4, rope_scaling: { ...longer, attention_factor: 1.5 } }
    const odd = ['phi3', 'phi4'].map((name) => parseConfig(json(`../odd/${name}/model/config.json`), ''))
    for (const config of [parse(ours), parse(mini4), parse(scaled), ...odd])
      expect(parseConfig(configToJson(config), '')).toEqual(config)
    expect(configToJson(parse(mini4))).toMatchObject({
      max_position_embeddings: 131072,
      original_max_position_embeddings: 4096,
    })
  })
  const scaling = (more: object) => ({ ...mini4, rope_scaling: { ...longer, ...more } })
  const list = 'must be a list of 48 numbers above 0, one for each two of the 96 channels of a head that are rotated.'
  test.each([
    [scaling({ short_factor: short.slice(1) }), `rope_scaling.short_factor ${list}`],
    [scaling({ long_factor: [...long.slice(1), 0] }), `rope_scaling.long_factor ${list}`],
    [scaling({ long_factor: undefined }), `rope_scaling.long_factor ${list}`],
    [scaling({ attention_factor: -1 }), 'rope_scaling: attention_factor is -1; it must be a number above 0.'],
    [
      scaling({ type: 'dynamic' }),
      'rope_scaling.rope_type is "dynamic", and only default, linear, llama3 and yarn are supported.',
    ],
    [
      { ...ours, rope_scaling: { type: 'linear', factor: 2 } },
      'rope_scaling.rope_type is "linear", and a Phi-3 may only have default and longrope.',
    ],
    [
      { ...ours, partial_rotary_factor: 0.35 },
      "partial_rotary_factor is 0.35, which turns 33 of a head's 96 channels; it must be an even number of them.",
    ],
    [{ ...ours, intermediate_size: 8190 }, 'intermediate_size is 8190; it must be a multiple of 8.'],
    [
      { ...ours, hidden_size: 80, num_attention_heads: 8, num_key_value_heads: 2 },
      'num_key_value_heads x head_dim is 20; it must be a multiple of 8.',
    ],
    [{ ...ours, attention_bias: true }, 'attention_bias is true, and biases in a Phi-3 are not supported.'],
    [{ ...ours, lm_head_bias: true }, 'lm_head_bias is true, and biases in a Phi-3 are not supported.'],
    [{ ...ours, mlp_bias: true }, 'mlp_bias is true, and biases in the MLP are not supported.'],
  ])('%j is refused', (raw, message) => {
    expect(() => parse(raw)).toThrow(`m/config.json: ${message}`)
  })
})

describe('old and new spelling', () => {
  test('rope_theta and rope_scaling as before transformers 5', () => {
    const scaling = { type: 'linear', factor: 4 }
    expect(parse({ rope_theta: 5e5, rope_scaling: scaling })).toMatchObject({ ropeTheta: 5e5, ropeScaling: scaling })
    const llama3 = {
      rope_type: 'llama3',
      factor: 32,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 8192,
    }
    expect(parse({ rope_theta: 5e5, rope_scaling: llama3 }).ropeScaling).toEqual({
      type: 'llama3',
      factor: 32,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalMaxPositionEmbeddings: 8192,
    })
    expect(parse({ rope_parameters: {}, rope_scaling: scaling })).toMatchObject({ ropeTheta: 10000, ropeScaling: scaling })
    const [both, type] = [{ factor: 4, rope_theta: 5e5 }, 'linear']
    expect(
      parse({ rope_theta: 5e5, rope_parameters: { ...both, rope_type: type }, rope_scaling: { type, factor: 4 } }),
    ).toMatchObject({ ropeTheta: 5e5, ropeScaling: { type, factor: 4 } })
    expect(parse({ rope_scaling: null })).toMatchObject({ ropeTheta: 10000, ropeScaling: { type: 'default' } })
  })
  test('defaults: heads for key-value heads, size / heads for the head (128 for qwen3), an untied head', () => {
    const { num_key_value_heads: _, ...without } = llama
    expect(parseConfig(without, '')).toMatchObject({
      kvHeads: 4,
      headDim: 16,
      tieWordEmbeddings: false,
      eosTokenIds: [],
      bosTokenId: null,
    })
    expect(parse({ model_type: 'qwen3' }).headDim).toBe(128)
    expect(parse({ head_dim: null }).headDim).toBe(16)
  })
  test.each([
    ['mistral', 8],
    ['qwen2', 32],
    ['qwen3', 32],
    ['smollm3', 4],
    ['gemma3_text', 4],
    ['lfm2', 8],
    ['qwen3_5_text', 4],
    ['olmo2', 64],
    ['phi3', 64],
  ])("without num_key_value_heads a %s has its config class's number, %i", (model_type, kvHeads) => {
    const { num_key_value_heads: _, ...without } = { ...llama, model_type, num_attention_heads: 64, head_dim: 8 }
    expect(parseConfig(without, '').kvHeads).toBe(kvHeads)
    expect(parseConfig({ ...without, num_key_value_heads: null }, '').kvHeads).toBe(64)
  })
  test('attention_bias of llama is on all four projections', () => {
    expect(parse({ attention_bias: true })).toMatchObject({ qkvBias: true, outputBias: true })
  })
  test('end-of-sequence ids of both files, numbers or lists', () => {
    const config = parseConfig({ ...llama, eos_token_id: 5 }, '', { eos_token_id: [5, 7] })
    expect(config.eosTokenIds).toEqual([5, 7])
    expect(parse({ eos_token_id: [1, 2] }).eosTokenIds).toEqual([1, 2])
  })
})

describe('qwen3_5_text', () => {
  /** Qwen/Qwen3.5-0.8B's shape of heads, with few layers. */
  const text = {
    ...llama,
    model_type: 'qwen3_5_text',
    num_hidden_layers: 6,
    head_dim: 256,
    linear_num_value_heads: 16,
    rope_parameters: { rope_type: 'default', rope_theta: 1e7, partial_rotary_factor: 0.25, mrope_section: [11, 11, 10] },
    eos_token_id: 7,
  }
  const qwen35 = {
    deltaLayers: [0, 1, 2, 4, 5],
    keyHeads: 16,
    valueHeads: 16,
    keyDim: 128,
    valueDim: 128,
    taps: 4,
  }
  test('the part about text of a model that sees pictures too, or that part alone', () => {
    const wanted = { family: 'qwen3_5_text', qwen35, headDim: 256, rotaryDim: 64, ropeTheta: 1e7, qkNorm: true, eosTokenIds: [7] }
    expect(parse(text)).toMatchObject(wanted)
    const whole = { model_type: 'qwen3_5', tie_word_embeddings: true, text_config: text, vision_config: { depth: 12 } }
    expect(parseConfig(whole, '')).toMatchObject({ ...wanted, tieWordEmbeddings: true })
    const fewBits = { ...whole, quantization_config: { quant_method: 'awq', bits: 4 } }
    expect(() => parseConfig(fewBits, 'm/config.json')).toThrow('m/config.json: quantization_config is set')
    const mlx = { ...whole, quantization: { group_size: 64, bits: 4 } }
    expect(() => parseConfig(mlx, 'm/config.json')).toThrow('m/config.json: quantization is set')
    // As transformers 5 saves it again.
    const saved = { ...whole, text_config: { ...text, tie_word_embeddings: false } }
    expect(parseConfig(saved, '')).toMatchObject({ ...wanted, tieWordEmbeddings: true })
    const types = Array.from({ length: 6 }, (_, i) => (i === 1 ? 'full_attention' : 'linear_attention'))
    expect(parse({ ...text, layer_types: types }).qwen35!.deltaLayers).toEqual([0, 2, 3, 4, 5])
    const { rope_parameters, ...older } = text
    expect(parse({ ...older, rope_scaling: { ...rope_parameters, partial_rotary_factor: 0.5 } }).rotaryDim).toBe(128)
    expect(parse({ ...text, full_attention_interval: 2 }).qwen35!.deltaLayers).toEqual([0, 2, 4])
  })
  test('the config.json that says the same', () => {
    const config = parseConfig(json('../odd/qwen35/model/config.json'), '')
    expect(config.qwen35).toEqual({
      deltaLayers: [0, 2],
      keyHeads: 2,
      valueHeads: 4,
      keyDim: 16,
      valueDim: 8,
      taps: 4,
    })
    expect(config.rotaryDim).toBe(4)
    for (const one of [config, parse(text)]) expect(parseConfig(configToJson(one), '')).toEqual(one)
  })
  test.each([
    [{ linear_num_value_heads: 24 }, 'linear_num_value_heads 24 is not a multiple of linear_num_key_heads 16.'],
    [{ linear_key_head_dim: 10 }, 'linear_key_head_dim is 10; it must be a multiple of 4.'],
    [{ layer_types: ['linear_attention'] }, 'layer_types must be a list of 6 words, each linear_attention or full_attention.'],
    [
      { rope_parameters: { partial_rotary_factor: 0.001 } },
      "partial_rotary_factor is 0.001, which turns 0 of a head's 256 channels",
    ],
    [
      { rope_parameters: { partial_rotary_factor: 1.5 } },
      "partial_rotary_factor is 1.5, which turns 384 of a head's 256 channels",
    ],
  ])('%j is refused', (more, message) => {
    expect(() => parse({ ...text, ...more })).toThrow(`m/config.json: ${message}`)
  })
})

describe('what is refused names file and key', () => {
  const llama3 = { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4 }
  test.each([
    [{ num_hidden_layers: 1e9 }, 'm/config.json: num_hidden_layers is 1000000000; it must be at most 10000.'],
    [{ is_causal: false }, 'm/config.json: is_causal is false, and a token that sees those after it is not supported.'],
    [
      { model_type: 'gemma3' },
      'm/config.json: model_type "gemma3" is not supported; dawn-rl runs llama, mistral, ministral, smollm3, qwen2, qwen3, gemma3_text, qwen3_5_text, olmo2, olmo3, lfm2, granite, granitemoehybrid and phi3 models.',
    ],
    [
      { model_type: 'gemma3_text', hidden_activation: 'silu' },
      'm/config.json: hidden_activation is "silu", and only gelu_pytorch_tanh is supported.',
    ],
    [
      { model_type: 'gemma3_text', final_logit_softcapping: 30 },
      'm/config.json: final_logit_softcapping is 30, and soft caps are not supported.',
    ],
    [
      { model_type: 'gemma3_text', use_bidirectional_attention: true },
      'm/config.json: use_bidirectional_attention is true, and a token that sees those after it is not supported.',
    ],
    [
      { model_type: 'gemma3_text', layer_types: ['full_attention', 'chunked_attention'] },
      'm/config.json: layer_types must be a list of 2 words, each sliding_attention or full_attention.',
    ],
    [
      { model_type: 'qwen3_moe' },
      'm/config.json: model_type "qwen3_moe" is not supported; dawn-rl runs llama, mistral, ministral, smollm3, qwen2, qwen3, gemma3_text, qwen3_5_text, olmo2, olmo3, lfm2, granite, granitemoehybrid and phi3 models.',
    ],
    [
      { model_type: 'smollm3', no_rope_layers: [1, 2] },
      'm/config.json: no_rope_layers must be a list of 2 numbers, 0 for a layer without rotary embeddings and 1 for others.',
    ],
    [{ model_type: undefined }, "m/config.json: model_type is missing. Is this a model's config.json?"],
    [{ hidden_act: 'gelu' }, 'm/config.json: hidden_act is "gelu", and only silu is supported.'],
    [{ mlp_bias: true }, 'm/config.json: mlp_bias is true, and biases in the MLP are not supported.'],
    [{ hidden_size: 'big' }, 'm/config.json: hidden_size is "big"; it must be a whole number above 0.'],
    [{ vocab_size: undefined }, 'm/config.json: vocab_size is missing.'],
    [{ hidden_size: 65 }, 'm/config.json: hidden_size 65 is not a multiple of num_attention_heads 4.'],
    [{ head_dim: 15 }, 'm/config.json: head_dim 15 is odd; rotary position embeddings need an even number.'],
    [{ num_key_value_heads: 3 }, 'm/config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3.'],
    [{ eos_token_id: 'x' }, 'm/config.json: eos_token_id is "x"; it must be a token id or a list of them.'],
    [
      { rope_parameters: { rope_type: 'dynamic' } },
      'm/config.json: rope_parameters.rope_type is "dynamic", and only default, linear, llama3 and yarn are supported.',
    ],
    [
      { rope_scaling: { type: 'longrope', long_factor: [1, 2], short_factor: [1, 1] } },
      'm/config.json: rope_scaling.rope_type is "longrope", and only default, linear, llama3 and yarn are supported.',
    ],
    [{ rope_scaling: { rope_type: 'llama3' } }, 'm/config.json: rope_scaling: factor is missing.'],
    // As model cards tell to add it, in a file that transformers 5 has written.
    [
      { rope_parameters: { rope_type: 'default', rope_theta: 1e6 }, rope_scaling: { rope_type: 'yarn', factor: 4 } },
      'm/config.json: rope_parameters and rope_scaling are both there and differ in rope_type; keep one of the two.',
    ],
    [
      { rope_parameters: { rope_type: 'linear', factor: 2, rope_theta: 1e6 }, rope_scaling: { type: 'linear', factor: 2 } },
      'm/config.json: rope_parameters and rope_scaling are both there and differ in rope_theta; keep one of the two.',
    ],
    [
      { rope_scaling: { ...llama3, original_max_position_embeddings: 64 }, original_max_position_embeddings: 32 },
      'm/config.json: original_max_position_embeddings is 32, and of rope_scaling 64; keep one of the two.',
    ],
    [
      { model_type: 'gemma3_text', rope_parameters: { rope_type: 'linear', factor: 8 } },
      'm/config.json: rope_parameters must have an object for each kind of layer, sliding_attention and full_attention.',
    ],
    [
      { model_type: 'gemma3_text', sliding_window: null },
      'm/config.json: sliding_window is null, and layers of sliding_attention need a number.',
    ],
    [
      { rope_parameters: { full_attention: { rope_type: 'default' } } },
      'm/config.json: rope_parameters.full_attention is an object; rope parameters for each layer type are not supported.',
    ],
    [
      { layer_types: ['full_attention', 'sliding_attention'] },
      'm/config.json: layer_types has "sliding_attention", and only full_attention is supported.',
    ],
    [
      { model_type: 'ministral', sliding_window: null, layer_types: ['full_attention', 'sliding_attention'] },
      'm/config.json: sliding_window is null, and layers of sliding_attention need a number.',
    ],
    ...[{}, { use_sliding_window: true, sliding_window: null }].map((more): [Record<string, unknown>, string] => [
      { model_type: 'qwen2', layer_types: ['full_attention', 'sliding_attention'], ...more },
      'm/config.json: layer_types has "sliding_attention", and these layers need use_sliding_window true and a sliding_window.',
    ]),
    [
      { model_type: 'smollm3', layer_types: ['full_attention', 'chunked_attention'] },
      'm/config.json: layer_types must be a list of 2 words, each sliding_attention or full_attention.',
    ],
    [
      { quantization_config: { bits: 4 } },
      'm/config.json: quantization_config is set, and quantised weights are not supported. Use the F32, F16 or BF16 model, or a GGUF file.',
    ],
  ])('%j', async (more, message) => {
    expect(await userErrorOf(() => parse(more))).toBe(message)
  })
})

test("swish is transformers' other name of silu", () => {
  expect(parse({ hidden_act: 'swish' })).toEqual(parse({ hidden_act: 'silu' }))
})
