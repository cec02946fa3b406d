import { readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test, vi } from 'vitest'
import { RangeFile } from '../../src/model/files/files.ts'
import { BLOCK_FORMATS } from '../../src/model/gguf/dequant.ts'
import { GgufFile } from '../../src/model/gguf/gguf.ts'
import { openModel } from '../../src/model/files/open.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { fixtures, golden, newFolder, smollm2, userErrorOf, withoutSmollm2, writeGguf } from './helpers.ts'
import type { GgufTensorToWrite, MetadataValue } from './helpers.ts'

const dir = newFolder()

describe('block formats', async () => {
  const blocks = await openSafetensors(join(golden, 'misc/gguf_blocks.safetensors'))
  const names = blocks.names().flatMap((name) => (name.endsWith('.bytes') ? [name.slice(0, -6)] : []))
  test('all that are read but F32 have golden values', () => {
    const read = Object.values(BLOCK_FORMATS).map(({ name }) => name)
    expect(['F32', ...names].toSorted()).toEqual(read.toSorted())
  })
  test.each(names)('%s gives the bits of gguf-py', async (name) => {
    const format = Object.values(BLOCK_FORMATS).find((f) => f.name === name) as (typeof BLOCK_FORMATS)[0]
    const bytes = (await blocks.readRaw(`${name}.bytes`)).data as Uint8Array
    const values = (await blocks.readRaw(`${name}.values`)).data as Float32Array
    expect(bytes.length / format.bytes).toBe(values.length / format.values)
    const out = new Float32Array(values.length)
    format.widen(bytes, values.length / format.values, out)
    expect(new Uint32Array(out.buffer)).toEqual(new Uint32Array(values.buffer))
  })
})

const layerNames: Record<string, string> = {
  attn_norm: 'input_layernorm',
  ffn_norm: 'post_attention_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
}

/** The golden model of a family as llama.cpp's converter would write it: norms in F32, Q and K of llama permuted. */
async function asGguf(
  family: string,
  path: string,
  more: { metadata?: Record<string, MetadataValue>; factors?: Float32Array; vectors?: string[] } = {},
) {
  const model = await openModel(join(fixtures, ['smollm3', 'granite'].includes(family) ? 'odd' : 'golden', family, 'model'))
  const { config } = model
  const tensors: Record<string, GgufTensorToWrite> = {}
  const names: [string, string][] = [
    ['token_embd.weight', 'model.embed_tokens.weight'],
    ['output_norm.weight', 'model.norm.weight'],
  ]
  if (!config.tieWordEmbeddings) names.push(['output.weight', 'lm_head.weight'])
  for (let i = 0; i < config.layers; i++) {
    for (const [gguf, hf] of Object.entries(layerNames)) {
      for (const kind of ['weight', 'bias']) names.push([`blk.${i}.${gguf}.${kind}`, `model.layers.${i}.${hf}.${kind}`])
    }
  }
  for (const [gguf, hf] of names) {
    if (!model.tensors.has(hf)) continue
    const { shape, data } = await model.tensors.read(hf)
    const values = new Uint16Array(data)
    if (['llama', 'smollm3', 'granite'].includes(family) && /attn_[qk]\./.test(gguf))
      values.set(permuted(values, shape[0], config.headDim))
    if (shape.length > 1) tensors[gguf] = { shape, type: 30, bytes: new Uint8Array(values.buffer) }
    else tensors[gguf] = { shape, type: 0, bytes: new Uint8Array(Uint32Array.from(values, (b) => b << 16).buffer) }
  }
  if (more.factors)
    tensors['rope_freqs.weight'] = { shape: [more.factors.length], type: 0, bytes: new Uint8Array(more.factors.buffer) }
  for (const name of more.vectors ?? []) tensors[name] = { shape: [8], type: 0, bytes: new Uint8Array(32).fill(1) }
  writeGguf(path, { ...metadataOf(family, config), ...more.metadata }, tensors)
  return model
}

/** w.reshape(heads, 2, half, columns).swapaxes(1, 2), as the converter writes it. */
function permuted(w: Uint16Array, rows: number, headDim: number): Uint16Array {
  const columns = w.length / rows
  const half = headDim / 2
  const out = new Uint16Array(w.length)
  for (let head = 0; head < rows / headDim; head++) {
    for (let j = 0; j < 2; j++) {
      for (let i = 0; i < half; i++) {
        const from = head * headDim + j * half + i
        const to = head * headDim + i * 2 + j
        for (let c = 0; c < columns; c++) out[to * columns + c] = w[from * columns + c]
      }
    }
  }
  return out
}

function metadataOf(family: string, config: ModelConfig): Record<string, MetadataValue> {
  return {
    'general.architecture': family,
    [`${family}.block_count`]: { u32: config.layers },
    [`${family}.context_length`]: { u32: config.maxPositionEmbeddings },
    [`${family}.embedding_length`]: { u32: config.hiddenSize },
    [`${family}.feed_forward_length`]: { u32: config.intermediateSize },
    [`${family}.attention.head_count`]: { u32: config.heads },
    [`${family}.attention.head_count_kv`]: { u32: config.kvHeads },
    [`${family}.attention.key_length`]: { u32: config.headDim },
    [`${family}.attention.layer_norm_rms_epsilon`]: { f32: config.rmsNormEps },
    [`${family}.rope.freq_base`]: { f32: config.ropeTheta },
    'tokenizer.ggml.bos_token_id': { u32: 1 },
    'tokenizer.ggml.eos_token_id': { u32: 2 },
    'tokenizer.ggml.padding_token_id': { u32: 0 },
  }
}

/** The factors that llama.cpp's converter stores for llama3 scaling. */
function llama3Factors(headDim: number, theta: number, factor: number, original: number): Float32Array {
  return Float32Array.from({ length: headDim / 2 }, (_, i) => {
    const wavelength = 2 * Math.PI * theta ** ((2 * i) / headDim)
    if (wavelength < original / 4) return 1
    if (wavelength > original) return factor
    const smooth = (original / wavelength - 1) / 3
    return 1 / ((1 - smooth) / factor + smooth)
  })
}

describe('a GGUF of a golden model', () => {
  test.each(['llama', 'qwen2', 'qwen3'])('%s: the same config and the same tensors', async (family) => {
    const path = join(dir, `${family}.gguf`)
    const model = await asGguf(family, path)
    const gguf = await openModel(path)
    const rope = { ropeScaling: { type: 'default' } }
    expect({ ...gguf.config, ...rope }).toEqual({ ...model.config, ...rope })
    expect(gguf.tensors.names().toSorted()).toEqual(model.tensors.names().toSorted())
    for (const name of model.tensors.names()) expect(await gguf.tensors.read(name)).toEqual(await model.tensors.read(name))
    gguf.close()
    model.close()
  })

  test('smollm3: every fourth layer turns nothing, as llama.cpp has it in its code', async () => {
    const path = join(dir, 'smollm3.gguf')
    const model = await asGguf('smollm3', path)
    const gguf = await openModel(path)
    expect(model.config.layersWithoutRope).toEqual([1])
    expect(gguf.config).toMatchObject({ family: 'smollm3', layersWithoutRope: [], tieWordEmbeddings: true })
    for (const name of model.tensors.names()) expect(await gguf.tensors.read(name)).toEqual(await model.tensors.read(name))
    gguf.close()
    model.close()
  })

  const scales = {
    'granite.embedding_scale': { f32: 7.3 },
    'granite.attention.scale': { f32: 0.31 },
    'granite.residual_scale': { f32: 0.27 },
    'granite.logit_scale': { f32: 1.7 },
  }
  test('granite: its factors, and kv heads for each layer', async () => {
    const path = join(dir, 'granite.gguf')
    const more = { ...scales, 'granite.attention.head_count_kv': { i32s: [1, 1, 1] }, 'granite.rope.scaling.finetuned': true }
    const model = await asGguf('granite', path, { metadata: more })
    const gguf = await openModel(path)
    const others = { eosTokenIds: [2], bosTokenId: 1, padTokenId: 0 }
    expect(gguf.config).toEqual({ ...model.config, ...others })
    for (const name of model.tensors.names()) expect(await gguf.tensors.read(name)).toEqual(await model.tensors.read(name))
    // A factor of 0 is none.
    const zeros = { 'granite.attention.scale': { f32: 0 }, 'granite.residual_scale': { f32: 0 } }
    ;(await asGguf('granite', path, { metadata: { ...scales, ...zeros } })).close()
    const unscaled = await openModel(path)
    expect(unscaled.config.attentionScale).toBeUndefined()
    expect(unscaled.config.residualScale).toBeUndefined()
    ;(await asGguf('granite', path, { metadata: { 'granite.attention.head_count_kv': { i32s: [1, 0, 1] } } })).close()
    expect(await userErrorOf(() => openModel(path))).toContain('granite.attention.head_count_kv is not the same in all layers')
    ;(await asGguf('granite', path, { metadata: { 'granite.rope.scaling.finetuned': false } })).close()
    expect(await userErrorOf(() => openModel(path))).toContain('which means no rotary embedding')
    for (const one of [gguf, model, unscaled]) one.close()
  })

  test('llama3 scaling of a released model is known by its factors; others are kept as factors', async () => {
    const path = join(dir, 'rope.gguf')
    for (const factor of [8, 32]) {
      const metadata = { 'llama.rope.freq_base': { f32: 500000 } }
      ;(await asGguf('llama', path, { metadata, factors: llama3Factors(16, 500000, factor, 8192) })).close()
      const model = await openModel(path)
      expect(model.config.ropeScaling).toEqual({
        type: 'llama3',
        factor,
        lowFreqFactor: 1,
        highFreqFactor: 4,
        originalMaxPositionEmbeddings: 8192,
      })
      expect(model.rawConfig().rope_scaling).toMatchObject({ rope_type: 'llama3', factor })
      model.close()
    }
    const factors = llama3Factors(16, 10000, 8, 64)
    ;(await asGguf('llama', path, { factors })).close()
    const model = await openModel(path)
    expect(model.config.ropeScaling).toEqual({ type: 'factors', factors })
    expect(await userErrorOf(() => model.rawConfig())).toContain('follow no rule')
    model.close()
  })

  test.each([
    [{ 'llama.rope.scaling.factor': { f32: 8 } }, { type: 'linear', factor: 8 }],
    [{ 'llama.rope.scaling.type': 'none', 'llama.rope.scaling.factor': { f32: 8 } }, { type: 'default' }],
    [{ 'llama.rope.scaling.type': 'linear', 'llama.rope.scaling.factor': { f32: 0 } }, { type: 'default' }],
    [
      {
        'llama.rope.scaling.type': 'yarn',
        'llama.rope.scaling.factor': { f32: 4 },
        'llama.rope.scaling.original_context_length': { u32: 128 },
        'llama.rope.scaling.yarn_beta_fast': { f32: 32 },
      },
      {
        type: 'yarn',
        factor: 4,
        attentionFactor: 0.1 * Math.log(4) + 1,
        betaFast: 32,
        betaSlow: 1,
        truncate: true,
        originalMaxPositionEmbeddings: 128,
      },
    ],
  ] as [Record<string, MetadataValue>, object][])(
    'a factor of the rotary angles, as llama.cpp reads it: %j',
    async (metadata, scaling) => {
      const path = join(dir, 'factor.gguf')
      ;(await asGguf('llama', path, { metadata })).close()
      const model = await openModel(path)
      expect(model.config.ropeScaling).toEqual(scaling)
      model.close()
    },
  )

  test.each([
    [
      { 'general.architecture': 'qwen35' },
      'its architecture "qwen35" is not supported in GGUF files; llama, smollm3, qwen2, qwen3, lfm2, granite, gemma3, olmo2 and phi3 are.',
    ],
    [{ 'llama.block_count': { u32: 2 ** 31 } }, 'llama.block_count is 2147483648; it must be a whole number from 1 to 10000'],
    [{ 'llama.attention.head_count': { u32: 0 } }, 'llama.attention.head_count is 0; it must be a number above 0'],
    [{ 'llama.rope.freq_base': { f32: 0 } }, 'llama.rope.freq_base is 0; it must be a number above 0'],
    [{ 'llama.rope.scaling.type': 'longrope' }, 'rope scaling "longrope" is not supported; none, linear, llama3 and yarn are.'],
    [{ 'llama.rope.scaling.type': 'yarn' }, 'the metadata has no llama.rope.scaling.factor'],
    [
      { 'llama.rope.scaling.type': 'yarn', 'llama.rope.scaling.attn_factor': { f32: 1.2 } },
      'llama.rope.scaling.attn_factor is 1.2, but only 1 is supported in a GGUF file',
    ],
    [{ 'llama.expert_count': { u32: 8 } }, 'mixtures of experts are not supported'],
    [{ 'split.count': { u32: 2 } }, 'is one part of a split GGUF'],
    [{ 'llama.rope.dimension_count': { u32: 8 } }, 'rotary embeddings are applied to 8 of the 16'],
    [{ 'llama.feed_forward_length': 'wide' }, 'llama.feed_forward_length must be a number'],
    [{ 'llama.feed_forward_length': { u32: 96 } }, 'Tensor model.layers.0.mlp.gate_proj.weight in'],
  ])('refuses %j', async (metadata, message) => {
    const path = join(dir, 'refused.gguf')
    ;(await asGguf('llama', path, { metadata: metadata as Record<string, MetadataValue> })).close()
    const text = await userErrorOf(() => openModel(path))
    expect(text).toContain(path)
    expect(text).toContain(message)
  })
})

test('a tensor that a model computes with and the decoder does not is refused; others are left', async () => {
  const path = join(dir, 'more.gguf')
  // Of Granite's code models, which are llama with a bias everywhere.
  for (const name of [
    'blk.1.ffn_gate.bias',
    'blk.0.ffn_down.bias',
    'output.bias',
    'token_embd_norm.weight',
    'blk.9.attn_q.weight',
  ]) {
    ;(await asGguf('llama', path, { vectors: [name] })).close()
    expect(await userErrorOf(() => openModel(path))).toContain(`${path}: its tensor ${name} is not supported`)
  }
  ;(await asGguf('llama', path, { vectors: ['blk.0.attn_rot_embd.weight', 'cls.output.weight'] })).close()
  ;(await openModel(path)).close()
})

test('metadata of every type, each read to its own end, and an alignment of the data that is not the usual one', async () => {
  const path = join(dir, 'types.gguf')
  const numbers = [Int8Array, Uint16Array, Int16Array, Uint32Array, Int32Array, Float32Array] as const
  const values: [type: number, bytes: Uint8Array, value: unknown][] = [
    [0, Uint8Array.of(200), 200],
    ...numbers.map((Kind, i): [number, Uint8Array, number] => [i + 1, new Uint8Array(Kind.of(100 + i).buffer), 100 + i]),
    [7, Uint8Array.of(1), true],
    [7, Uint8Array.of(0), false],
    [8, Buffer.from([2, 0, 0, 0, 0, 0, 0, 0, 0x68, 0x69]), 'hi'],
    [9, Buffer.from([3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 7, 0]), [-1, 7]],
    [10, new Uint8Array(BigUint64Array.of(2n ** 40n).buffer), 2 ** 40],
    [11, new Uint8Array(BigInt64Array.of(-(2n ** 40n)).buffer), -(2 ** 40)],
    [12, new Uint8Array(Float64Array.of(0.1).buffer), 0.1],
    [1, Uint8Array.of(0xff), -1],
    [5, Uint8Array.of(0xff, 0xff, 0xff, 0xff), -1],
  ]
  const head = Buffer.alloc(24)
  head.set([...Buffer.from('GGUF'), 2, 0, 0, 0, 1])
  head.writeBigUInt64LE(BigInt(values.length + 1), 16)
  const text = (s: string) => Buffer.concat([Buffer.from(BigUint64Array.of(BigInt(s.length)).buffer), Buffer.from(s)])
  const written = (alignment: number, at = alignment) => {
    const pairs = values.flatMap(([type, bytes], i) => [text(`key ${i}`), Buffer.from([type, 0, 0, 0]), bytes])
    const pair = [text('general.alignment'), Buffer.from([0, 0, 0, 0, alignment])]
    // One value of float32, at the first place of the data.
    const tensor = [text('t'), Buffer.from([1, 0, 0, 0, 1]), Buffer.alloc(7 + 4 + 8)]
    const header = Buffer.concat([head, ...pairs, ...pair, ...tensor])
    writeFileSync(
      path,
      Buffer.concat([header, Buffer.alloc(-header.length & (at - 1)), new Uint8Array(Float32Array.of(5).buffer)]),
    )
  }
  for (const alignment of [64, 128]) {
    written(alignment)
    const file = await GgufFile.open(path)
    expect([...file.metadata.values()].slice(0, -1)).toEqual(values.map(([, , value]) => value))
    expect(await file.readFloat32('t')).toEqual(Float32Array.of(5))
    expect(await userErrorOf(() => file.readFloat32('absent'))).toBe(`Tensor absent is missing in ${path}.`)
    file.close()
  }
  written(0, 64)
  expect(await userErrorOf(() => GgufFile.open(path))).toContain('general.alignment is 0')
  writeGguf(path, { 'general.alignment': { f32: 32.5 } }, { x: { shape: [1], type: 0, bytes: Buffer.alloc(4) } })
  expect(await userErrorOf(() => GgufFile.open(path))).toContain('general.alignment is 32.5')
  values[0][0] = 13
  written(64)
  expect(await userErrorOf(() => GgufFile.open(path))).toContain('its metadata has a value of the unknown type 13')
})

describe('a broken file', () => {
  const path = join(dir, 'broken.gguf')
  test('cut off anywhere in its header or its data', async () => {
    ;(await asGguf('qwen3', path)).close()
    const whole = readFileSync(path)
    for (const size of [0, 3, 10, 30, 200, 900, 4000, whole.length - 2000]) {
      writeFileSync(path, whole.subarray(0, size))
      expect(await userErrorOf(() => GgufFile.open(path))).toContain(path)
    }
  })
  test('a length beyond the end of the file is told without reading the file', async () => {
    const header = Buffer.alloc(32)
    header.write('GGUF')
    header.writeUInt32LE(3, 4)
    for (const [at, value] of [
      [8, 1n],
      [16, 1n],
      [24, 2n ** 40n],
    ] as const)
      header.writeBigUInt64LE(value, at)
    writeFileSync(path, header)
    truncateSync(path, 2 ** 30)
    const read = vi.spyOn(RangeFile.prototype, 'bytes')
    expect(await userErrorOf(() => GgufFile.open(path))).toContain('its header continues beyond byte 1073741824')
    expect(read).toHaveBeenCalledTimes(1)
    read.mockRestore()
  })
  test('a tensor or a key that is there twice, of which llama.cpp takes neither', async () => {
    const tensor = { shape: [1], type: 0, bytes: Buffer.alloc(4) }
    writeGguf(path, { 'first.key': 'x', 'other.key': 'y' }, { aaa: tensor, bbb: tensor })
    const whole = readFileSync(path)
    for (const [from, to, what] of [
      ['bbb', 'aaa', 'it has two tensors with the name aaa'],
      ['other.key', 'first.key', 'its metadata has first.key twice'],
    ]) {
      writeFileSync(path, Buffer.from(whole.toString('latin1').replace(from, to), 'latin1'))
      expect(await userErrorOf(() => GgufFile.open(path))).toContain(`${path} cannot be read as GGUF: ${what}.`)
    }
  })
  test('another format, an old version, a type that is not read', async () => {
    writeFileSync(path, Buffer.alloc(100, 'x'))
    expect(await userErrorOf(() => GgufFile.open(path))).toContain('does not begin with GGUF')
    writeFileSync(path, Buffer.concat([Buffer.from('GGUF'), Buffer.from([1, 0, 0, 0]), Buffer.alloc(100)]))
    expect(await userErrorOf(() => GgufFile.open(path))).toContain('its version is 1, but only versions 2 and 3 can be read')
    const lists = Buffer.alloc(12 * 50_000)
    for (let i = 0; i < lists.length; i += 12) lists.set([9, 0, 0, 0, 1], i)
    const [key, list] = [Buffer.from([1, 0, 0, 0, 0, 0, 0, 0, 0x61]), Buffer.from([9, 0, 0, 0])]
    const head = Buffer.alloc(24)
    head.set([...Buffer.from('GGUF'), 3])
    head[16] = 1
    writeFileSync(path, Buffer.concat([head, key, list, lists]))
    expect(await userErrorOf(() => GgufFile.open(path))).toContain('its metadata has lists nested more than 16 deep')
    writeGguf(path, {}, { x: { shape: [256], type: 10, bytes: Buffer.alloc(84) } })
    expect(await userErrorOf(() => GgufFile.open(path))).toContain('tensor x has the type Q2_K')
  })
})

test('ids of special tokens that the vocabulary does not reach are none, and texts keep U+FEFF', async () => {
  const path = join(newFolder(), 'a.gguf')
  const none = { u32: 4294967295 }
  const vocabulary = { 'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.tokens': ['a', '\ufeff'], 'tokenizer.ggml.merges': [] }
  const ids = {
    'tokenizer.ggml.eos_token_id': { u32: 1 },
    'tokenizer.ggml.eot_token_id': none,
    'tokenizer.ggml.padding_token_id': none,
  }
  await asGguf('llama', path, { metadata: { ...vocabulary, ...ids, 'tokenizer.ggml.bos_token_id': { u32: 2 } } })
  const model = await openModel(path)
  const { eosTokenIds, bosTokenId, padTokenId } = model.config
  expect({ eosTokenIds, bosTokenId, padTokenId }).toEqual({ eosTokenIds: [1], bosTokenId: null, padTokenId: null })
  model.close()
  const file = await GgufFile.open(path)
  expect(file.metadata.get('tokenizer.ggml.tokens')).toEqual(['a', '\ufeff'])
  file.close()
})

describe.skipIf(withoutSmollm2)('SmolLM2-135M-Instruct', () => {
  test('its shape, and the rounding of every tensor to bf16', async () => {
    const model = await openModel(smollm2)
    expect(model.config).toEqual({
      family: 'llama',
      hiddenSize: 576,
      intermediateSize: 1536,
      layers: 30,
      heads: 9,
      kvHeads: 3,
      headDim: 64,
      vocabSize: 49152,
      rmsNormEps: 1e-5,
      ropeTheta: 100000,
      ropeScaling: { type: 'default' },
      tieWordEmbeddings: true,
      qkvBias: false,
      outputBias: false,
      qkNorm: false,
      maxPositionEmbeddings: 8192,
      eosTokenIds: [2],
      bosTokenId: 1,
      padTokenId: 2,
    })
    expect(model.tensors.names()).toHaveLength(272)
    const norm = await model.tensors.read('model.norm.weight')
    expect(norm.dtype).toBe('bf16')
    const head = await model.tensors.read('model.embed_tokens.weight')
    expect(head.shape).toEqual([49152, 576])
    expect(head.data).toHaveLength(49152 * 576)
    model.close()
  })
})
