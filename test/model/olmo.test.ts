/** config.json of OLMo 2 and Olmo 3, as transformers reads it. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { configToJson, parseConfig } from '../../src/model/config/config.ts'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'
import { fixtures } from './helpers.ts'

/** allenai/OLMo-2-0425-1B-Instruct's, but for the number of layers. */
const olmo2 = {
  model_type: 'olmo2',
  architectures: ['Olmo2ForCausalLM'],
  attention_bias: false,
  attention_dropout: 0,
  eos_token_id: 100257,
  hidden_act: 'silu',
  hidden_size: 2048,
  intermediate_size: 8192,
  max_position_embeddings: 4096,
  num_attention_heads: 16,
  num_hidden_layers: 2,
  num_key_value_heads: 16,
  pad_token_id: 100277,
  rms_norm_eps: 1e-6,
  rope_scaling: null,
  rope_theta: 500000,
  tie_word_embeddings: false,
  vocab_size: 100352,
}
/** allenai/Olmo-3-7B-Instruct's, likewise, in the old spelling. */
const olmo3 = {
  ...olmo2,
  model_type: 'olmo3',
  architectures: ['Olmo3ForCausalLM'],
  hidden_size: 4096,
  intermediate_size: 11008,
  max_position_embeddings: 65536,
  num_attention_heads: 32,
  num_hidden_layers: 9,
  num_key_value_heads: 32,
  rope_scaling: {
    attention_factor: 1.2079441541679836,
    beta_fast: 32,
    beta_slow: 1,
    factor: 8,
    original_max_position_embeddings: 8192,
    rope_type: 'yarn',
  },
  sliding_window: 4096,
  vocab_size: 100278,
}
const parse = (raw: Record<string, unknown>) => parseConfig(raw, 'm/config.json')
const odd = (name: string) =>
  JSON.parse(readFileSync(join(fixtures, 'odd', name, 'model/config.json'), 'utf8')) as Record<string, unknown>
const yarn = {
  type: 'yarn',
  factor: 8,
  attentionFactor: 1.2079441541679836,
  betaFast: 32,
  betaSlow: 1,
  truncate: true,
  originalMaxPositionEmbeddings: 8192,
}

test('OLMo 2: norms after attention and MLP, and over the whole of q and of k', () => {
  const config = parse({ ...olmo2, num_key_value_heads: 8 })
  expect(config).toMatchObject({
    norms: 'after',
    qkNorm: true,
    qkNormWhole: true,
    rmsNormEps: 1e-6,
    ropeTheta: 5e5,
    headDim: 128,
  })
  const shapes = tensorShapes(config)
  expect([...shapes.keys()].filter((name) => name.startsWith('model.layers.1.') && name.endsWith('norm.weight'))).toEqual(
    ['self_attn.q_norm', 'self_attn.k_norm', 'post_attention_layernorm', 'post_feedforward_layernorm'].map(
      (name) => `model.layers.1.${name}.weight`,
    ),
  )
  expect(shapes.get('model.layers.0.self_attn.q_norm.weight')).toEqual([2048])
  expect(shapes.get('model.layers.0.self_attn.k_norm.weight')).toEqual([1024])
})

test("defaults are Olmo2Config's; biases are on all four projections", () => {
  const { rms_norm_eps: _eps, rope_theta: _theta, ...rest } = olmo2
  expect(parse(rest)).toMatchObject({ rmsNormEps: 1e-5, ropeTheta: 1e4, qkvBias: false, outputBias: false })
  expect(parse({ ...rest, attention_bias: true })).toMatchObject({ qkvBias: true, outputBias: true })
  expect(parse({ ...olmo2, rope_scaling: olmo3.rope_scaling }).ropeScaling).toEqual(yarn)
})

describe('Olmo 3', () => {
  const sliding = [0, 1, 2, 4, 5, 6, 8]
  test('windows in three of four layers, which yarn does not reach, in old and new spelling', () => {
    const wanted = { slidingLayers: sliding, slidingWindow: 4096, ropeTheta: 5e5, ropeScaling: yarn, localRopeTheta: 5e5 }
    expect(parse(olmo3)).toMatchObject({ norms: 'after', qkNormWhole: true, ...wanted })
    const { rope_theta: _theta, rope_scaling, ...rest } = olmo3
    const parameters = {
      full_attention: { ...rope_scaling, rope_theta: 5e5 },
      sliding_attention: { rope_type: 'default', rope_theta: 2e4 },
    }
    expect(parse({ ...rest, rope_parameters: parameters })).toMatchObject({ ...wanted, localRopeTheta: 2e4 })
    expect(parse({ ...rest, rope_scaling, sliding_window: undefined })).toEqual(parse(olmo3))
    const types = Array.from({ length: 9 }, (_, i) => (i === 4 ? 'sliding_attention' : 'full_attention'))
    expect(parse({ ...olmo3, layer_types: types }).slidingLayers).toEqual([4])
  })
  test('one rotary embedding where there is but one', () => {
    expect(parse({ ...olmo3, rope_scaling: null }).localRopeTheta).toBeUndefined()
    const full = parse({ ...olmo3, rope_theta: 1e6, sliding_window: null, layer_types: Array(9).fill('full_attention') })
    expect(full).toMatchObject({ ropeTheta: 1e6, ropeScaling: yarn })
    for (const key of ['slidingWindow', 'slidingLayers', 'localRopeTheta'] as const) expect(full[key]).toBeUndefined()
  })
  test.each([
    [{ sliding_window: null }, 'sliding_window is null, and layers of sliding_attention need a number.'],
    [{ hidden_act: 'gelu' }, 'hidden_act is "gelu", and only silu is supported.'],
    [{ rope_theta: 1e4 }, 'rope_theta is 10000, which transformers 5 takes for layers of full_attention alone'],
    [
      { rope_scaling: undefined, rope_parameters: olmo3.rope_scaling },
      'rope_parameters must have an object for each kind of layer, sliding_attention and full_attention.',
    ],
    [
      { rope_scaling: undefined, rope_parameters: { sliding_attention: { rope_type: 'linear', factor: 2 } } },
      'rope_parameters.sliding_attention is scaled, and only full_attention may be.',
    ],
    [
      { rope_scaling: { ...olmo3.rope_scaling, truncate: false } },
      'truncate is false for layers of full_attention, and only true is supported where each kind of layer has a rotary embedding of its own.',
    ],
  ])('%j is refused', (more, message) => {
    expect(() => parse({ ...olmo3, ...more })).toThrow(`m/config.json: ${message}`)
  })
})

test('the config.json that says the same', () => {
  const whole = { ...olmo3, layer_types: Array(9).fill('full_attention') }
  for (const raw of [odd('olmo2'), odd('olmo3'), olmo2, olmo3, { ...olmo3, rope_scaling: null }, whole]) {
    const written = JSON.parse(JSON.stringify(configToJson(parse(raw)))) as Record<string, unknown>
    expect(parse(written)).toEqual(parse(raw))
  }
})
